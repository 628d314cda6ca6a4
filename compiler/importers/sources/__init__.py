"""Loads programs from sources: runs and captures scripts and names in them, opens other files by their kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from buddy.compiler.importers.sources.inputs import (
    INPUTS,
    MODEL,
    Call,
    apply_shapes,
    defines_both,
    make_call,
    shape_error,
)
from buddy.compiler.importers.sources.lazy_trace import TracedFunction, trace_lazily
from buddy.compiler.importers.sources.mlir_file import find_module, program_of_module
from buddy.compiler.importers.sources.opening import Opening, open_file
from buddy.compiler.importers.sources.pretrained import offline_models
from buddy.compiler.importers.sources.program import CapturedProgram, program_files
from buddy.compiler.importers.sources.reuse import describe_graph, restore_graph, structure_hash
from buddy.compiler.importers.sources.script import (
    import_module,
    register_script,
    reporting_user_errors,
    run_script,
    script_environment,
)
from buddy.compiler.importers.sources.tape import Tape
from buddy.compiler.protocol.recipe import Frontend
from buddy.compiler.protocol.source_files import kind_of
from buddy.compiler.protocol.source_locations import SourceError, SourceLocation, locate_source, source_error
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.dynamo_internals import TorchDynamoException

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


__all__ = ["CapturedGraph", "CapturedProgram", "SourceError", "load_program"]

# Called with a text on the current step.
OnProgress = Callable[[str], None]


def load_program(
    source: str,
    arguments: tuple[str, ...] = (),
    directory: str = "",
    on_progress: OnProgress | None = None,
    shapes: tuple[str, ...] = (),
    frontend: Frontend = "dynamo",
    trusts: bool = False,
    known_graph: bytes = b"",
) -> CapturedProgram:
    """Runs `source` and captures its graphs, or opens it if it is a model file.

    `source` is `script.py`, `script.py:name` or `package.module:name`, relative to `directory` (the current folder if
    empty); `arguments` are the script's command-line arguments. With a name, the graphs are those of this model.
    Otherwise they are the first of these that exist: the graphs that the script itself compiles (`torch.compile`,
    `DynamoCompiler`); those of its `model` on its `example_inputs`; those of its outermost module calls. `shapes`
    (`x=4x128`) replace the shapes of the tensors that a defined or named model is called with. With the frontend
    `export`, called, defined and named models are captured by `torch.export`. `known_graph` is that of the program
    from an earlier load of the same source: a model that still computes the same is not captured again.

    The kind of a file that is not a script is determined by its content (`opening.py`); nothing in it is executed
    unless the user `trusts` it. Raises `SourceError`.
    """
    with _in_folder(directory):
        report = on_progress or (lambda _text: None)
        location = locate_source(source)
        if location.path is not None and (file_kind := kind_of(location.path)).kind != "script":
            title = source.removesuffix(f":{location.name}") if location.name else source
            opening = Opening(location.path, location.name, title, shapes, frontend, trusts, report)
            return open_file(opening, file_kind)
        return _Loading(location, source, arguments, report, shapes, frontend, known_graph).run()


@contextmanager
def _in_folder(directory: str) -> Iterator[None]:
    """Changes to `directory`, unless it is "", in the `with` block. Raises `SourceError` if it does not exist."""
    previous = os.getcwd()
    try:
        os.chdir(directory or previous)
    except OSError as error:
        raise source_error(f"there is no folder {directory}", todo="check the path") from error
    try:
        yield
    finally:
        os.chdir(previous)


class _Loading:
    """Loads one source: runs its code while a tape records it, and captures its model."""

    def __init__(
        self, location: SourceLocation, source: str, arguments: tuple[str, ...], report: OnProgress,
        shapes: tuple[str, ...], frontend: Frontend, known_graph: bytes,
    ) -> None:  # fmt: skip
        self._shapes, self._has_applied_shapes = shapes, False
        self._location = location
        # The absolute path and the folder that paths are relative to: the script may change to another folder.
        self._file = location.path.resolve() if location.path is not None else None
        self._start_folder = os.getcwd()
        self._source = source
        self._arguments = arguments
        self._report = report
        self._names: Mapping[str, Any] = {}
        self._known_graph, self._is_reused = known_graph if frontend == "dynamo" else b"", False
        # The call that was captured at the end of the script, and the structure of its module before it.
        self._call: tuple[Call, str] | None = None
        self._tape = Tape(skip_calls=lambda: defines_both(self._names), frontend=frontend)

    def run(self) -> CapturedProgram:
        """Runs the source and returns its program. Raises `SourceError`."""
        notes: list[str] = []
        with script_environment(self._location.path, self._arguments), offline_models(notes), self._tape.running():
            self._run_code()
            self._report("capturing")
            module = None if self._tape.requested else find_module(self._names, self._location.name)
            if module is not None:
                return self._open_module(module, notes)
            if not self._tape.requested and (traced := trace_lazily(self._names, self._location.name)) is not None:
                self._capture_traced(traced)
            elif self._location.name:
                self._capture_named()
            elif not self._tape.requested and (defines_both(self._names) or not self._tape.called):
                self._capture_defined()
        notes += self._tape.notes
        if self._shapes and not self._has_applied_shapes:
            raise source_error(
                f"{self._source} calls its model itself, so --shape has no effect",
                self._where(),
                "define `model` and `example_inputs`, or name the model (script.py:name)",
            )
        graphs = self._captured_graphs()
        if self._is_reused:
            notes.append(
                f"{graphs[0].info.name} was not captured again: it gives the results of its known graph exactly"
            )
        known_graph = self._known_graph if self._is_reused else self._describe_graph(graphs)
        files = self._files()
        return CapturedProgram(graphs, list(dict.fromkeys(notes)), files, known_graph, self._is_reused)

    def _open_module(self, module: ir.Module, notes: list[str]) -> CapturedProgram:
        """Opens an MLIR module that the script has made."""
        program = program_of_module(module, self._names, self._source, self._shapes)
        program.notes = [*notes, *program.notes]
        program.files = self._files()
        return program

    def _files(self) -> tuple[str, ...]:
        os.chdir(self._start_folder)  # modules may have relative paths
        return program_files(self._file)

    def _run_code(self) -> None:
        """Runs the script or imports the module, and keeps its globals."""
        self._report(f"running {self._source}")
        path, name = self._location.path, self._location.name
        if path is None:
            self._names = vars(import_module(self._location.module))
            return
        module = register_script(path, path.stem if name else "__main__")
        self._names = module.__dict__
        run_script(path, module)

    def _capture_named(self) -> None:
        """Captures the global that the source names.

        Does nothing for a module without `example_inputs` if calls of modules in the script were captured.
        """
        name = self._location.name
        if name not in self._names:
            names = ", ".join(key for key, value in self._names.items() if callable(value) and not key.startswith("_"))
            raise source_error(
                f"{self._where()} does not define {name}", self._where(), f"name one of {names}" if names else ""
            )
        target, inputs = self._names[name], self._names.get(INPUTS)
        if inputs is None and isinstance(target, torch.nn.Module) and self._tape.called:
            return
        self._tape.requested.clear()
        self._capture(target, inputs, f"{self._where()}:{name}")

    def _capture_traced(self, traced: TracedFunction) -> None:
        """Captures the script's trace on PyTorch's lazy device."""
        n_before = len(self._tape.requested)
        self._tape.capture(traced.function, traced.tensors, {})
        name = ", ".join(traced.names)
        for graph in self._tape.requested[n_before:]:
            graph.info = msgspec.structs.replace(graph.info, name=name)
        self._tape.notes.append(f"{name}: the trace on the lazy device, through Lazy Tensor's TorchScript graph")

    def _capture_defined(self) -> None:
        """Captures the script's `model` on its `example_inputs`, if there is one."""
        if self._names.get(MODEL) is None:
            return
        self._capture(self._names[MODEL], self._names.get(INPUTS), f"{self._where()}:{MODEL}")

    def _capture(
        self,
        target: torch.nn.Module | Callable[..., object],
        inputs: torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        where: str,
    ) -> None:
        """Captures a model on inputs, or restores its known graph; `where` names the model in messages."""
        todo = f"call {where} on its inputs in the script, and run it by Python, to see the error"
        with reporting_user_errors(self._location.path, self._location.module, todo):
            function, args, kwargs = make_call(target, inputs, where)
            if self._shapes:
                args, kwargs = self._change_shapes(function, args, kwargs)
            if self._known_graph and not self._tape.requested:
                with self._tape.pause_recording():
                    graph = restore_graph(self._known_graph, function, args, kwargs)
                if graph is not None:
                    self._tape.requested.append(graph)
                    self._is_reused = True
                    return
            self._call = (function, args, kwargs), structure_hash(function)
            try:
                self._tape.capture(function, args, kwargs)
            except TorchDynamoException as error:
                with torch.no_grad():
                    function(*args, **kwargs)  # an error in eager is reported as an error of the program
                raise source_error(
                    f"TorchDynamo cannot capture {where}: {error}", where, "simplify its forward"
                ) from error

    def _describe_graph(self, graphs: Sequence[CapturedGraph]) -> bytes:
        """Returns the `known_graph` of the call at the end of the script; b"" unless it has one graph, in `graphs`."""
        if self._call is None or len(graphs) != 1 or graphs[0].info.break_reason or self._tape.exports:
            return b""
        (function, args, kwargs), structure = self._call
        return describe_graph(graphs[0], function, args, kwargs, structure)

    def _change_shapes(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Returns the call with the shapes that the user set, after a test run in eager."""
        args, kwargs = apply_shapes(function, args, kwargs, self._shapes)
        try:
            with torch.no_grad():
                function(*args, **kwargs)
        except Exception as error:
            raise shape_error(self._shapes, error) from error
        self._has_applied_shapes = True
        return args, kwargs

    def _captured_graphs(self) -> list[CapturedGraph]:
        """Returns the graphs under unique names. Raises `SourceError` if there are none."""
        graphs = self._tape.requested or self._tape.called
        if not graphs:
            raise source_error(
                f"{self._source} ran, but no model was captured",
                self._tape.notes[-1] if self._tape.notes else self._where(),
                "call a torch.nn.Module in it, use torch.compile, or define `model` and `example_inputs`",
            )
        return with_unique_names(graphs)

    def _where(self) -> str:
        """Returns the path or the module for messages."""
        return str(self._location.path or self._location.module)


def with_unique_names(graphs: list[CapturedGraph]) -> list[CapturedGraph]:
    """Appends a number to the name of each graph whose name an earlier graph has."""
    counts: Counter[str] = Counter()
    for graph in graphs:
        counts[graph.info.name] += 1
        if counts[graph.info.name] > 1:
            graph.info = msgspec.structs.replace(graph.info, name=f"{graph.info.name} #{counts[graph.info.name]}")
    return graphs
