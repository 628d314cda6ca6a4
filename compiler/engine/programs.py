"""The engine's records of opened programs and their compilations: all that it needs to restart any worker.

Also resolves the plug-in files that a program or a recipe names.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from buddy.compiler.mlir import mlir_tool
from buddy.compiler.protocol import Assignment, Diagnostic, GraphInfo, NodeRow, Stage
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, Frontend, PluginFile, Recipe, digest
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.protocol.worker_messages import CapturedGraphData, LoadProgram, ProgramLoaded, PythonText
from buddy.compiler.support.processes.jobs import JobFailed

# ---- plug-in files ---------------------------------------------------------------------------------------------------


def hash_plugin_file(path: str, directory: str = "") -> PluginFile:
    """Returns the plug-in file at `path`, relative to `directory`, with its absolute path and the hash of its content.

    Raises `OSError` if the file cannot be read.
    """
    try:
        absolute = Path(directory, path).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL character, or a cycle of links
        raise OSError(errno.EINVAL, "is not a file path") from error
    if absolute.exists() and not absolute.is_file():  # such as /dev/zero, which never ends
        raise OSError(errno.EINVAL, "is not a regular file")
    return PluginFile(str(absolute), digest(absolute.read_bytes()))


def resolve_plugins(plugins: Sequence[PluginFile], directory: str) -> tuple[tuple[PluginFile, ...], tuple[str, ...]]:
    """Returns plug-in files with absolute paths and current hashes, and a note for each whose hash has changed.

    Raises `JobFailed` for a file that cannot be read.
    """
    resolved, notes = [], []
    for plugin in plugins:
        try:
            current = hash_plugin_file(plugin.path, directory)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise JobFailed(Diagnostic(f"plug-in {plugin.path}: {reason}", plugin.path, "check the path")) from error
        if plugin.hash not in ("", current.hash):
            notes.append(f"plug-in {plugin.path} has changed since the recipe was written")
        resolved.append(msgspec.structs.replace(current, passes=plugin.passes))
    return tuple(dict.fromkeys(resolved)), tuple(notes)


# ---- programs --------------------------------------------------------------------------------------------------------


_MAX_CACHED_RESULTS = 16


@dataclass(frozen=True)
class ProgramKey:
    """The fields of `Open` that identify a program."""

    source: str
    arguments: tuple[str, ...]
    directory: str
    plugins: tuple[PluginFile, ...] = ()
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False

    def load_request(self) -> LoadProgram:
        """Returns the request that loads the program in a worker."""
        return LoadProgram(
            self.source, self.arguments, self.directory, self.plugins, self.shapes, self.frontend, self.trusts
        )


@dataclass(frozen=True)
class GraphRecord:
    """A captured graph: `data` is the graph as plain bytes, and `fx` its first stage.

    `registrations` is a hash of the code by which the script has added to the registries, "" if it has added nothing.
    If it is not "", the graph has to be compiled in the host. `key` is a hash of `data` and `registrations`.
    """

    key: str
    data: bytes
    info: GraphInfo
    fx: Stage
    registrations: str = ""


@dataclass(frozen=True)
class OpenedProgram:
    """An opened program: first the captured graphs, then the extracted subgraphs.

    `extracts` has an entry for each subgraph: the number of the graph that it was extracted from, and its nodes.
    `seconds` is the time that loading the program took. `texts` are the Python code that nodes come from. `reopens`
    says whether compilations are saved on disk and those of earlier sessions are used. `is_restored` says that the
    graphs come from an earlier session, because the script has not run yet.
    """

    key: ProgramKey
    graphs: tuple[GraphRecord, ...]
    notes: tuple[str, ...]
    seconds: float
    files: tuple[str, ...] = ()
    extracts: tuple[tuple[int, tuple[str, ...]], ...] = ()
    texts: tuple[PythonText, ...] = ()
    reopens: bool = False
    is_restored: bool = False

    def graph_of(self, recipe: Recipe) -> GraphRecord:
        """Returns the graph that `recipe` compiles. Raises `JobFailed` if its number is unknown."""
        if 0 <= recipe.graph < len(self.graphs):
            return self.graphs[recipe.graph]
        what = f"there is no graph number {recipe.graph}: {self.key.source} has {len(self.graphs)}"
        raise JobFailed(Diagnostic(what, "the recipe's graph", "choose one of them, counted from 0"))

    def extract_of(self, graph: int, nodes: tuple[str, ...]) -> int | None:
        """Returns the number of the subgraph that consists of `nodes` of graph number `graph`, or `None`."""
        first_number = len(self.graphs) - len(self.extracts)
        numbers = {extract: number for number, extract in enumerate(self.extracts, first_number)}
        return numbers.get((graph, nodes))

    def with_import(self, graph: int, record: GraphRecord) -> OpenedProgram:
        """Returns this program with `record` in place of graph number `graph`."""
        return replace(self, graphs=(*self.graphs[:graph], record, *self.graphs[graph + 1 :]))

    def with_extract(self, graph: int, nodes: tuple[str, ...], data: CapturedGraphData) -> OpenedProgram:
        """Returns this program with `data`, which was extracted from `nodes` of graph number `graph`, as last graph."""
        record = record_of(data, self.graphs[graph].registrations)
        return replace(self, graphs=(*self.graphs, record), extracts=(*self.extracts, (graph, nodes)))


@dataclass(frozen=True)
class CompileResult:
    """A complete compilation: its stages (`fx` first), the artifact as bytes, and its duration.

    Without `has_stages`, `fx` is the only stage. `remarks` and `reused` are those of `Compiled`.
    """

    stages: tuple[Stage, ...]
    artifact: bytes
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int
    has_stages: bool = True

    @property
    def nodes(self) -> NodeCounts:
        """The numbers of compiled nodes, of nodes that eager runs, and of compiled nodes that may call eager."""
        return NodeCounts.of(self.assignments)


def program_of(key: ProgramKey, loaded: ProgramLoaded) -> OpenedProgram:
    """Returns the record of a program from the host's reply."""
    graphs = tuple(record_of(data, loaded.registrations) for data in loaded.graphs)
    return OpenedProgram(key, graphs, loaded.notes, loaded.seconds, loaded.files, texts=loaded.texts)


def record_of(data: CapturedGraphData, registrations: str) -> GraphRecord:
    """Returns the record of a graph from the host; `registrations` is the hash of its script's registrations."""
    return GraphRecord(digest(data.graph, registrations), data.graph, data.info, data.fx.stage, registrations)


class Programs:
    """The opened programs, the latest last.

    `imports` maps the keys of captured graphs to records of the same graphs with their import by another frontend.
    """

    def __init__(self) -> None:
        self._programs: OrderedDict[ProgramKey, OpenedProgram] = OrderedDict()
        self.imports: dict[str, GraphRecord] = {}

    def add(self, program: OpenedProgram) -> OpenedProgram | None:
        """Adds `program`; returns the program with the same key that it replaces, or `None`."""
        replaced = self._programs.get(program.key)
        self._programs[program.key] = program
        self._programs.move_to_end(program.key)
        return replaced

    def latest(self, key: ProgramKey) -> OpenedProgram | None:
        """Returns the program that was opened last under `key`, or `None`."""
        return self._programs.get(key)

    def find(self, recipe: Recipe) -> OpenedProgram | None:
        """Returns the program of `recipe`: the latest one that was opened with its source and arguments, or `None`.

        If the recipe's source is "", any source matches. A program that was also opened with the recipe's plug-ins and
        frontend is preferred.
        """
        matching = [program for program in reversed(self._programs.values()) if _matches(program.key, recipe)]
        for program in matching:
            if (program.key.plugins, program.key.frontend) == (recipe.plugins, recipe.frontend):
                return program
        return matching[0] if matching else None

    def opened(self, recipe: Recipe) -> OpenedProgram:
        """Returns the program of `recipe`.

        Raises `JobFailed` if it has not been opened, or was opened by a frontend whose graph is different.
        """
        program = self.find(recipe)
        if program is None:
            what = f"{recipe.source or 'no program'} has not been opened"
            raise JobFailed(Diagnostic(what, "the recipe's source and arguments", "open it first"))
        opened, required = program.key.frontend, recipe.frontend
        if opened != required and {opened, required} <= set(OWN_FRONTENDS):
            what = f"{program.key.source} was opened by {opened}, whose graph differs from {required}'s"
            raise JobFailed(Diagnostic(what, "the recipe's frontend", f"open it with --frontend {required}"))
        return program

    def rows_of(self, source: str, arguments: tuple[str, ...], graph: int) -> tuple[NodeRow, ...]:
        """Returns the nodes of a graph of the latest program opened with this source and these arguments, or ()."""
        program = self.find(Recipe(source=source, arguments=arguments))
        graphs = program.graphs[graph : graph + 1] if program is not None else ()
        return graphs[0].info.rows if graphs else ()

    def python_text(self, source: str, arguments: tuple[str, ...], path: str) -> PythonText | None:
        """Returns the code named `path` that nodes of the latest program come from, or `None`."""
        program = self.find(Recipe(source=source, arguments=arguments))
        return next((text for text in program.texts if text.path == path), None) if program is not None else None


def _matches(key: ProgramKey, recipe: Recipe) -> bool:
    """Returns whether a recipe names the program of `key`; one without a source names every program."""
    return not recipe.source or (key.source, key.arguments) == (recipe.source, recipe.arguments)


class CompileResults:
    """A cache of the latest compilations, by graph and recipe, with and without stages."""

    def __init__(self) -> None:
        self._results: OrderedDict[tuple[str, bytes, bool], CompileResult] = OrderedDict()

    def get(self, graph: str, recipe: Recipe, has_stages: bool) -> CompileResult | None:
        key = graph, identity_of(recipe), has_stages
        result = self._results.get(key)
        if result is not None:
            self._results.move_to_end(key)
        return result

    def put(self, graph: str, recipe: Recipe, result: CompileResult) -> None:
        self._results[graph, identity_of(recipe), result.has_stages] = result
        while len(self._results) > _MAX_CACHED_RESULTS:
            self._results.popitem(last=False)


def identity_of(recipe: Recipe) -> bytes:
    """Encodes everything that determines the stages of a graph, apart from the graph.

    These are the user's `mlir-opt`, and the recipe without the fields that name the program and the preset.
    """
    relevant = msgspec.structs.replace(recipe, source="", arguments=(), graph=0, preset="")
    return msgspec.msgpack.encode((relevant, mlir_tool.tool_identity()))
