"""Programs in this process: open or capture, compile, read stages, run, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from buddy.compiler.driver.compilation import Compilation, Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.plugins import installed_plugins, load_plugin_file, plugin_problems
from buddy.compiler.importers.sources import CapturedGraph, load_program
from buddy.compiler.protocol import Assignment, Diagnostic, RunReport, Stage
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime.executable import Loaded, load_artifact
from buddy.compiler.runtime.measure import run_and_compare
from buddy.compiler.tools.export import CompiledProgram, ExportOrder, export
from buddy.compiler.tools.export.interface import c_name


@dataclass
class CompiledGraph:
    """A graph that `recipe` has compiled, with a stage for each step. A call runs it in this process.

    `assignments` has the lowering of each node, `remarks` what passes report: (pass, node, text).
    """

    recipe: Recipe
    _captured: CapturedGraph = field(repr=False)
    _compilation: Compilation = field(repr=False)
    _loaded: Loaded | None = field(default=None, repr=False)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._compilation.stages

    @property
    def artifact(self) -> Artifact:
        return self._compilation.artifact

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        return self._compilation.assignments

    @property
    def remarks(self) -> tuple[tuple[str, str, str], ...]:
        return self._compilation.remarks

    def text(self, stage: str | int) -> str:
        """Returns the text of a stage, given by its number or by its name (the last stage of that name).

        Raises `BuddyError` that lists the stages if it is unknown.
        """
        numbers = [i for i, entry in enumerate(self.stages) if stage in (i, entry.name)]
        if not numbers:
            names = ", ".join(dict.fromkeys(entry.name for entry in self.stages))
            raise BuddyError(f"unknown stage {stage!r}", "the compilation", f"name one of {names}")
        return self._compilation.texts[numbers[-1]].content

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Runs the compiled code on tensors in the order of the graph's inputs; without any, on the captured ones.

        Raises `ValueError` for tensors of other shapes or element types. The code runs in this process, and a fault of
        the code ends it.
        """
        if self._loaded is None:
            self._loaded = load_artifact(self.artifact)
        with torch.no_grad():
            return self._loaded(tensors or self._captured.tensors, self._captured.numbers)

    def compare(self, repeats: int = 5, *, equal_nan: bool = False) -> RunReport:
        """Runs compiled code and eager on the captured inputs; compares the results, and times both `repeats` times."""
        return run_and_compare(
            self._captured,
            self.artifact,
            repeats=repeats,
            threads=self.recipe.threads,
            nodes=NodeCounts.of(self.assignments),
            compile_seconds=self._compilation.seconds,
            graph=self.recipe.graph,
            equal_nan=equal_nan,
        )

    def export(
        self, folder: str | Path, kinds: Sequence[str] = ("object",), *, name: str = "", force: bool = False
    ) -> list[str]:
        """Writes the program as files of `kinds`, as `buddy-tui export` does, and returns their names.

        Raises `ExportError`, and `OSError` if the folder is not writable.
        """
        texts = {stage.language: self.text(stage.index) for stage in reversed(self.stages)}
        origin, command = self.recipe.source or "a captured program", f"# by buddy.api: export(kinds={list(kinds)})"
        program = CompiledProgram(
            self._captured,
            self.recipe,
            self.artifact,
            self.assignments,
            texts.get("llvm", ""),
            texts.get("mlir", ""),
            origin,
            command,
        )
        order = ExportOrder(Path(folder), name or c_name(self._captured.info.name), tuple(kinds), force)
        return [file.name for file in export(program, order)]


class ProgramGraph:
    """One graph of a program, with its captured inputs. Compilations share what equal prefixes of recipes produce."""

    def __init__(self, number: int, captured: CapturedGraph, source: str = "") -> None:
        self.number, self._captured, self._source = number, captured, source
        self._compiler: Compiler | None = None

    @property
    def name(self) -> str:
        return self._captured.info.name

    @property
    def graph(self) -> Graph:
        """The Buddy graph, which must not be changed."""
        return self._captured.graph

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._captured.tensors)

    def recipe(self, preset: str = "default") -> Recipe:
        """Returns the recipe of a preset for this graph. Raises `ValueError` that lists the presets."""
        return msgspec.structs.replace(default_recipe(self._source, preset=preset), graph=self.number)

    def compile(
        self, recipe: Recipe | None = None, on_stage: Callable[[Stage, str], None] | None = None
    ) -> CompiledGraph:
        """Compiles the graph by a recipe, by default that of the preset `default`.

        Calls `on_stage` with each stage and its text as soon as it is finished. Raises `CompilationError`.
        """
        recipe = recipe or self.recipe()
        if self._compiler is None:
            self._compiler = Compiler(self._captured.graph, cast(Any, self._captured.user_lowerings()))
        report = on_stage or (lambda _stage, _text: None)
        made = self._compiler.compile(recipe, lambda stage, text: report(stage, text.content))
        return CompiledGraph(recipe, self._captured, made)


@dataclass(frozen=True)
class Program:
    """The graphs of a program in the order in which they ran, and notes for the user."""

    graphs: tuple[ProgramGraph, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[Diagnostic, ...] = ()


def open_program(
    source: str,
    arguments: Sequence[str] = (),
    *,
    directory: str = "",
    shapes: Sequence[str] = (),
    frontend: Frontend = "dynamo",
    plugins: Sequence[str] = (),
    trusts: bool = False,
) -> Program:
    """Runs a script and captures its graphs, or opens a model file; `source` is as on the command line.

    Loads the plug-ins of installed packages and the files `plugins`; `problems` of the result are their errors. Raises
    `BuddyError` if no program can be loaded.
    """
    loaded = [*installed_plugins(), *(load_plugin_file(PluginFile(path)) for path in plugins)]
    program = load_program(source, tuple(arguments), directory, None, tuple(shapes), frontend, trusts)
    return _program(program.graphs, source, program.notes, plugin_problems(loaded))


def capture_program(function: Callable[..., object], *inputs: object) -> Program:
    """Captures the graphs of a call of a function or module, without gradients. Raises what `function` raises."""
    with torch.no_grad():
        return _program(capture(function, inputs))


def _program(
    graphs: Sequence[CapturedGraph],
    source: str = "",
    notes: Sequence[str] = (),
    problems: tuple[Diagnostic, ...] = (),
) -> Program:
    return Program(tuple(ProgramGraph(i, graph, source) for i, graph in enumerate(graphs)), tuple(notes), problems)
