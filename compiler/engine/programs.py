"""The engine's records of opened programs: enough to restart any worker without losing anything."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import msgspec

from buddy.compiler.mlir import mlir_tool
from buddy.compiler.protocol import Assignment, GraphInfo, Stage
from buddy.compiler.protocol.recipe import Frontend, PluginFile, Recipe, digest
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.protocol.worker_messages import CapturedGraphData, ProgramLoaded

_MAX_RESULTS = 16


@dataclass(frozen=True)
class ProgramKey:
    """What identifies an opened program."""

    source: str
    arguments: tuple[str, ...]
    directory: str
    plugins: tuple[PluginFile, ...] = ()
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False


@dataclass(frozen=True)
class GraphRecord:
    """A captured graph; `key` is a hash of `data`, the graph as plain bytes, and of the script's `own` code.

    `own` is "" unless the script has added to the registries: such a graph is compiled in the process that ran the
    script. `fx` is its first stage.
    """

    key: str
    data: bytes
    info: GraphInfo
    fx: Stage
    own: str = ""


@dataclass(frozen=True)
class OpenedProgram:
    """`extracts` describe the last graphs: for each, the number of the graph that it was extracted from, and its
    nodes.
    """

    key: ProgramKey
    graphs: tuple[GraphRecord, ...]
    notes: tuple[str, ...]
    seconds: float
    files: tuple[str, ...] = ()
    extracts: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def extract_of(self, graph: int, nodes: tuple[str, ...]) -> int | None:
        """Returns the number of the graph that was extracted from these nodes, if any."""
        captured = len(self.graphs) - len(self.extracts)
        found = {extract: captured + place for place, extract in enumerate(self.extracts)}
        return found.get((graph, nodes))

    def with_import(self, graph: int, record: GraphRecord) -> OpenedProgram:
        """Returns this program with `record` in place of a graph."""
        return replace(self, graphs=(*self.graphs[:graph], record, *self.graphs[graph + 1 :]))

    def with_extract(self, graph: int, nodes: tuple[str, ...], data: CapturedGraphData) -> OpenedProgram:
        """Returns this program with another graph."""
        record = record_of(data, self.graphs[graph].own)
        return replace(self, graphs=(*self.graphs, record), extracts=(*self.extracts, (graph, nodes)))


@dataclass(frozen=True)
class CompileResult:
    """A complete compilation: its stages (`fx` first), and the artifact as bytes."""

    stages: tuple[Stage, ...]
    artifact: bytes
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int

    @property
    def nodes(self) -> NodeCounts:
        """How many nodes are compiled, and how many call eager."""
        return NodeCounts.of(self.assignments)


def program_of(key: ProgramKey, loaded: ProgramLoaded) -> OpenedProgram:
    graphs = tuple(record_of(data, loaded.own) for data in loaded.graphs)
    return OpenedProgram(key, graphs, loaded.notes, loaded.seconds, loaded.files)


def record_of(data: CapturedGraphData, own: str) -> GraphRecord:
    """Returns the record of a graph from the host; `own` is the hash of its script's registrations."""
    return GraphRecord(digest(data.graph, own), data.graph, data.info, data.fx.stage, own)


class Programs:
    """Opened programs, the latest last; `imports` maps keys of graphs to the graphs imported by another frontend."""

    def __init__(self) -> None:
        self._find_program: OrderedDict[ProgramKey, OpenedProgram] = OrderedDict()
        self.imports: dict[str, GraphRecord] = {}

    def add(self, program: OpenedProgram) -> OpenedProgram | None:
        """Adds `program`; returns the one that it replaces."""
        replaced = self._find_program.get(program.key)
        self._find_program[program.key] = program
        self._find_program.move_to_end(program.key)
        return replaced

    def find(self, recipe: Recipe) -> OpenedProgram | None:
        """The program of `recipe`: the latest one opened with its source and arguments; "" is the latest of all.

        One that was opened with the recipe's plug-ins and frontend is preferred.
        """
        latest = [program for program in reversed(self._find_program.values()) if _matches(program.key, recipe)]
        wanted = recipe.plugins, recipe.frontend
        same = (program for program in latest if (program.key.plugins, program.key.frontend) == wanted)
        return next(same, latest[0] if latest else None)


def _matches(key: ProgramKey, recipe: Recipe) -> bool:
    return not recipe.source or (key.source, key.arguments) == (recipe.source, recipe.arguments)


class CompileResults:
    """A cache of the latest compilations, by graph and recipe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], CompileResult] = OrderedDict()

    def get(self, graph: str, recipe: Recipe) -> CompileResult | None:
        found = self._kept.get((graph, _identity(recipe)))
        if found is not None:
            self._kept.move_to_end((graph, _identity(recipe)))
        return found

    def put(self, graph: str, recipe: Recipe, result: CompileResult) -> None:
        self._kept[graph, _identity(recipe)] = result
        while len(self._kept) > _MAX_RESULTS:
            self._kept.popitem(last=False)


def _identity(recipe: Recipe) -> bytes:
    """What determines the stages of a graph: the recipe except for the fields that identify the program, and the
    user's `mlir-opt`.
    """
    bare = msgspec.structs.replace(recipe, source="", arguments=(), graph=0, preset="")
    return msgspec.msgpack.encode((bare, mlir_tool.identity()))
