"""`buddy.compiler.record()`: records the graphs of the code in its `with` block, to compile, run, save or open them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buddy.compiler.driver.compilation import Compilation, Compiler
from buddy.compiler.frontend.capture import is_recording, notify_listener
from buddy.compiler.graph.serialization import ExtractionError
from buddy.compiler.importers.sources import with_unique_names
from buddy.compiler.importers.sources.tape import Tape
from buddy.compiler.protocol.errors import Diagnostic
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe, to_toml
from buddy.compiler.protocol.run_report import NodeCounts, RunReport
from buddy.compiler.protocol.source_locations import SourceError
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.tools.extract import Subgraph, make_script

# The names of the files that `Recording.save` writes.
SCRIPT_NAME, RECIPE_NAME = "session.py", "recipe.toml"

_SESSION_SCRIPT = '''\
"""Graphs recorded by `buddy.compiler.record()`, each a separate script with its tensors next to it.

This is plain Python, and a source for `buddy-tui`.
"""

from importlib import import_module

import torch

GRAPHS = {{
{graphs}
}}

for name, module in GRAPHS.items():
    graph = import_module(module)
    type(graph.model).__name__ = name
    with torch.no_grad():
        torch.compile(graph.model, backend="buddy")(*graph.example_inputs)
'''


class Recording:
    """The recorded `graphs`, and `notes` on code that could not be recorded.

    First come the graphs that the program itself compiles, then those of module calls, both in program order. `recipe`
    is the recipe with which graphs are compiled and opened by default.
    """

    def __init__(self) -> None:
        self.graphs: list[CapturedGraph] = []
        self.notes: list[str] = []
        self.recipe: Recipe = default_recipe()
        self._compilers: dict[int, Compiler] = {}

    def __repr__(self) -> str:
        names = ", ".join(graph.info.name for graph in self.graphs)
        return f"<{type(self).__name__} of {len(self.graphs)} graphs: {names}>"

    def compile(self, graph: int = 0, recipe: Recipe | None = None) -> Compilation:
        """Compiles graph number `graph` with all stages. Stages in common with an earlier recipe are cached.

        Raises `CompilationError` if the compilation fails, and `IndexError` if the graph does not exist.
        """
        captured = self.graphs[graph]
        if graph not in self._compilers:
            overrides = captured.user_lowerings()
            overrides_copy = dict(overrides) if overrides else None
            self._compilers[graph] = Compiler(captured.graph, overrides_copy)  # type: ignore[arg-type]
        return self._compilers[graph].compile(recipe or self.recipe)

    def run(
        self, graph: int = 0, recipe: Recipe | None = None, repeats: int = 10, *, equal_nan: bool = False
    ) -> RunReport:
        """Compiles graph number `graph`, runs it in this process on its recorded inputs, and compares it with eager.

        NaN counts as equal to NaN only with `equal_nan`.
        """
        compilation = self.compile(graph, recipe)
        return run_and_compare(
            self.graphs[graph], compilation.artifact, repeats=repeats, threads=compilation.artifact.threads,
            nodes=NodeCounts.of(compilation.assignments), compile_seconds=compilation.seconds, equal_nan=equal_nan,
        )  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """Writes the graphs as scripts with their tensors into `folder`; returns the script that `buddy-tui` opens.

        A graph that cannot be written is left out, with a note. Raises `SourceError` if none can be, and `OSError`.
        """
        folder = Path(folder)
        # The names of graphs, with those of their scripts as modules.
        modules = {}
        for number, captured in enumerate(self.graphs):
            try:
                modules[captured.info.name] = _write_script(folder, number, captured)
            except ExtractionError as error:
                self.notes.append(f"{captured.info.name} was not saved: {error}")
        if not modules:
            raise SourceError(self._empty_error())
        lines = "\n".join(f"    {name!r}: {module!r}," for name, module in modules.items())
        (folder / SCRIPT_NAME).write_text(_SESSION_SCRIPT.format(graphs=lines), "utf-8")
        (folder / RECIPE_NAME).write_text(to_toml(self.recipe), "utf-8")
        return folder / SCRIPT_NAME

    def open(self, *words: str) -> int:
        """Opens the workbench on the recorded graphs in this terminal, and returns its exit code.

        `words` are further command-line arguments: `session.open("--web")` serves the workbench to a browser. In a
        script that is itself open in the workbench, this does nothing. Raises `SourceError` if there is nothing to
        open, or no terminal.
        """
        if is_recording():
            return 0
        if "--web" not in words and not (sys.stdin.isatty() and sys.stdout.isatty()):
            todo = f"run session.save(folder) and open folder/{SCRIPT_NAME} in a terminal, or run session.open('--web')"
            raise SourceError(Diagnostic("the workbench needs a terminal", "session.open()", todo))
        with tempfile.TemporaryDirectory(prefix="buddy-session-") as folder:
            script = self.save(folder)
            command = [sys.executable, "-m", "buddy_tui", str(script), "--recipe", str(script.with_name(RECIPE_NAME))]
            return subprocess.run([*command, *words], check=False).returncode

    def _empty_error(self) -> Diagnostic:
        what = "no graph was recorded" if not self.graphs else "no recorded graph can be saved"
        todo = "call a torch.nn.Module, or a function given to torch.compile, inside `with record()`"
        return Diagnostic(what, "session", todo, detail="\n".join(self.notes))

    def _store_graphs(self, tape: Tape) -> None:
        self.graphs[:] = with_unique_names([*tape.requested, *tape.called])
        self.notes[:] = dict.fromkeys(tape.notes)


@contextmanager
def record() -> Iterator[Recording]:
    """Records the graphs of the code in the `with` block; they are available after the block.

    Records the calls of functions that are passed to `torch.compile` in the block, of functions that were compiled with
    `backend="buddy"` before, and of modules, if no other recorded call contains them; if the code calls backward, as
    training graphs. All of these run in eager in the block. TorchDynamo is reset at the start and at the end, and
    PyTorch's own entry points are replaced in between, for the whole process.
    """
    session, tape = Recording(), Tape()
    try:
        with tape.running():
            yield session
    finally:
        session._store_graphs(tape)
        for graph in session.graphs:
            notify_listener(graph)


def _write_script(folder: Path, number: int, captured: CapturedGraph) -> str:
    """Writes a graph as a script in a subfolder of `folder`; returns its module name for a script in `folder`."""
    script = make_script(Subgraph(captured.graph, captured.tensors, captured.numbers))
    script_folder = folder / f"graph{number}"
    script_folder.mkdir(parents=True, exist_ok=True)
    (script_folder / f"{script.name}.py").write_text(script.text, "utf-8")
    (script_folder / f"{script.name}.npz").write_bytes(script.values)
    return f"{script_folder.name}.{script.name}"
