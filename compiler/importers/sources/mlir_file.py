"""Loads programs in MLIR: files of text or bytecode, and modules that a script builds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from buddy.compiler.frontend.graph_info import ir_graph_info, table_of_rows
from buddy.compiler.graph.serialization import from_bytes
from buddy.compiler.importers.mlir_files.read_request import EntryPoint, ReadAnswer, ReadRequest
from buddy.compiler.importers.sources.inputs import INPUTS, SEED, new_generator, random_tensor, split_arguments
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.program import CapturedProgram
from buddy.compiler.protocol.source_locations import SourceError, source_error
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.torch_values import to_torch_dtype
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


# MLIR reads files in a separate process, because it may crash on its input.
_READER = "buddy.compiler.importers.mlir_files.entry_points:read_entry_points_in_time"
_TIMEOUT_SECONDS = 120.0
MAX_FILE_BYTES = 512 << 20
# Computes the expected results of a function of MLIR, in Python.
ReferenceFunction = Callable[..., Any]


def load(opening: Opening) -> CapturedProgram:
    """Returns the functions of a file as programs, one graph each, on random inputs. Raises `SourceError`."""
    size = opening.path.stat().st_size
    if size > MAX_FILE_BYTES:
        what = f"{opening.title} has {size >> 20} MiB; at most {MAX_FILE_BYTES >> 20} MiB are supported"
        raise source_error(what, opening.title, "pass its weights to the function as arguments, not as constants")
    return read_program(ReadRequest(opening.path.read_bytes(), opening.title, opening.name, opening.shapes))


def read_program(
    request: ReadRequest, inputs: Sequence[torch.Tensor] | None = None, reference: ReferenceFunction | None = None
) -> CapturedProgram:
    """Returns the program that another process reads for `request`.

    `inputs` replace the random inputs of each graph whose arguments have their shapes and dtypes; for such a graph,
    `reference` computes the expected results in Python. Raises `SourceError`.
    """
    answer = _read_in_process(request)
    if answer.problem is not None:
        raise SourceError(answer.problem)
    notes, graphs = list(answer.notes), []
    for entry in answer.entries:
        graphs.append(_to_captured(entry, inputs, reference))
        notes += entry.notes
    if inputs is None and any(graph.tensors for graph in graphs):
        notes.append(
            f"the inputs are random numbers (seed {SEED}); set others with --seed, or with --inputs from a file"
        )
    return CapturedProgram(graphs, notes)


def _read_in_process(request: ReadRequest) -> ReadAnswer:
    try:
        return asyncio.run(call_in_process(_READER, request, ReadAnswer, _TIMEOUT_SECONDS))
    except TookTooLong as error:
        what = f"reading {request.title} was stopped: {error}"
        raise source_error(what, request.title, "give a smaller file") from error
    except CallFailed as error:
        what = f"MLIR crashed while it read {request.title}, or did not finish"
        todo = "check that the file is complete, and that it was written by this version of MLIR"
        raise source_error(what, request.title, todo) from error


def _to_captured(
    entry: EntryPoint, inputs: Sequence[torch.Tensor] | None, reference: ReferenceFunction | None
) -> CapturedGraph:
    """Returns an entry point as a graph, with `inputs` and `reference` if they fit (see `read_program`)."""
    graph = from_bytes(entry.graph)
    metas = [op.tensor_meta for op in graph.placeholders]
    expected_forms = [(tuple(meta.shape), to_torch_dtype(meta.dtype)) for meta in metas]
    fits = inputs is not None and expected_forms == [(tuple(tensor.shape), tensor.dtype) for tensor in inputs]
    if fits:
        tensors = list(inputs or ())
    else:
        generator = new_generator()
        tensors = [random_tensor(tuple(meta.shape), meta.dtype, generator) for meta in metas]
    info = ir_graph_info(graph, entry.name, entry.entry_phase, entry.dialects)
    eager = _to_eager(reference) if reference is not None and fits else None
    info = msgspec.structs.replace(info, compared=eager is not None)
    return CapturedGraph(graph, info, tensors, eager, table_of_rows(info.rows), code=entry.text)


def _to_eager(reference: ReferenceFunction) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Returns `reference` in the form of `CapturedGraph.eager`."""

    def eager(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = reference(*tensors)
        return [torch.as_tensor(value) for value in (results if isinstance(results, (list, tuple)) else [results])]

    return eager


# ---- modules that a script builds ------------------------------------------------------------------------------------

# The globals of a script: an MLIR module, and the function that computes its expected results.
MODULE, REFERENCE = "module", "reference"


def find_module(names: Mapping[str, object], name: str) -> ir.Module | None:
    """Returns the script's global `name` (default: `module`) if it is an MLIR module, else `None`."""
    value: Any = names.get(name or MODULE)
    operation = getattr(value, "operation", None)
    return value if getattr(operation, "name", "") == "builtin.module" and hasattr(value, "context") else None


def program_of_module(
    module: ir.Module, names: Mapping[str, object], title: str, shapes: tuple[str, ...] = ()
) -> CapturedProgram:
    """Returns the functions of a module as programs.

    A script's `example_inputs` are the inputs of the functions that they fit, and its function `reference` computes the
    expected results from them. Raises `SourceError`.
    """
    text = module.operation.get_asm(enable_debug_info=False)
    return read_program(ReadRequest(text.encode(), title, "", shapes), _example_tensors(names), _find_reference(names))


def _example_tensors(names: Mapping[str, object]) -> list[torch.Tensor] | None:
    """Returns the script's `example_inputs` as tensors; `None` without inputs, or if one is no tensor or array."""
    example_inputs = names.get(INPUTS)
    values = split_arguments(example_inputs)[0] if example_inputs is not None else ()
    return [torch.as_tensor(value) for value in values] if values and all(map(_is_tensor, values)) else None


def _is_tensor(value: object) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _find_reference(names: Mapping[str, object]) -> Callable[..., object] | None:
    """Returns the script's function `reference` as a function of tensors, also if its inputs are NumPy arrays."""
    reference = names.get(REFERENCE)
    if not callable(reference):
        return None
    example_inputs = names.get(INPUTS)
    values = split_arguments(example_inputs)[0] if example_inputs is not None else ()
    if not any(isinstance(value, np.ndarray) for value in values):
        return reference

    def on_arrays(*tensors: torch.Tensor) -> Any:
        return reference(*(tensor.numpy() for tensor in tensors))

    return on_arrays
