"""Loads programs in MLIR: files of text or bytecode, and modules that a script builds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from buddy.compiler.frontend.table import ir_graph_info, rows_table
from buddy.compiler.graph.serialize import from_bytes
from buddy.compiler.importers.mlir_files.read_request import EntryPoint, ReadAnswer, ReadRequest
from buddy.compiler.importers.sources.inputs import INPUTS, SEED, as_call, new_generator, random_tensor
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.program import CapturedProgram, SourceError, source_error
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.torch_values import to_torch
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process

# MLIR reads files in a separate process, because it may crash on its input.
_READER = "buddy.compiler.importers.mlir_files.entry_points:answer_in_time"
_TIMEOUT = 120.0
LONGEST = 512 << 20
ReferenceFunction = Callable[..., Any]


def load(opening: Opening) -> CapturedProgram:
    """The functions of a file as programs, one graph each, on random inputs. Raises `SourceError`."""
    size = opening.path.stat().st_size
    if size > LONGEST:
        what = f"{opening.title} has {size >> 20} MiB; at most {LONGEST >> 20} MiB are supported"
        raise source_error(what, opening.title, "pass its weights to the function as arguments, not as constants")
    return program_of(ReadRequest(opening.path.read_bytes(), opening.title, opening.name, opening.shapes))


def program_of(
    question: ReadRequest, inputs: Sequence[torch.Tensor] | None = None, reference: ReferenceFunction | None = None
) -> CapturedProgram:
    """The program in the answer to a question.

    `inputs` replace random ones in a graph with matching arguments; `reference` computes the expected results in
    Python. Raises `SourceError`.
    """
    answer = _read_in_process(question)
    if answer.problem is not None:
        raise SourceError(answer.problem)
    notes, graphs = list(answer.notes), []
    for entry in answer.entries:
        graphs.append(_to_captured(entry, inputs, reference))
        notes += entry.notes
    if inputs is None and any(graph.tensors for graph in graphs):
        notes.append(f"the inputs are random numbers (seed {SEED}); --seed chooses others, --inputs a file of them")
    return CapturedProgram(graphs, notes)


def _read_in_process(question: ReadRequest) -> ReadAnswer:
    try:
        return asyncio.run(call_in_process(_READER, question, ReadAnswer, _TIMEOUT))
    except TookTooLong as error:
        what = f"reading {question.title} was stopped: {error}"
        raise source_error(what, question.title, "give a smaller file") from error
    except CallFailed as error:
        what = f"MLIR crashed while it read {question.title}, or did not finish"
        todo = "check that the file is complete, and that it was written by this version of MLIR"
        raise source_error(what, question.title, todo) from error


def _to_captured(
    entry: EntryPoint, inputs: Sequence[torch.Tensor] | None, reference: ReferenceFunction | None
) -> CapturedGraph:
    graph = from_bytes(entry.graph)
    metas = [op.tensor_meta for op in graph.placeholders]
    fits = inputs is not None and [(tuple(m.shape), to_torch(m.dtype)) for m in metas] == [
        (tuple(tensor.shape), tensor.dtype) for tensor in inputs
    ]
    generator = new_generator()
    tensors = list(inputs or ()) if fits else [random_tensor(tuple(m.shape), m.dtype, generator) for m in metas]
    info = ir_graph_info(graph, entry.name, entry.enters, entry.dialects)
    eager = _to_eager(reference) if reference is not None and fits else None
    info = msgspec.structs.replace(info, compared=eager is not None)
    return CapturedGraph(graph, info, tensors, eager, rows_table(info.rows), code=entry.text)


def _to_eager(reference: ReferenceFunction) -> Callable[[Sequence[torch.Tensor]], list[Any]]:
    def eager(tensors: Sequence[torch.Tensor]) -> list[Any]:
        found = reference(*tensors)
        return [torch.as_tensor(value) for value in (found if isinstance(found, (list, tuple)) else [found])]

    return eager


MODULE, REFERENCE = "module", "reference"


def find_module(names: Mapping[str, Any], name: str) -> Any:
    """The script's value `name` (by default `module`), if that is an MLIR module, else `None`."""
    found = names.get(name or MODULE)
    operation = getattr(found, "operation", None)
    return found if getattr(operation, "name", "") == "builtin.module" and hasattr(found, "context") else None


def program_of_module(
    module: Any, names: Mapping[str, Any], title: str, shapes: tuple[str, ...] = ()
) -> CapturedProgram:
    """The functions of a module as programs.

    A script's `example_inputs` are their inputs if they fit, and `reference`, a function of the same values, computes
    the expected results. Raises `SourceError`.
    """

    text = module.operation.get_asm(enable_debug_info=False)
    return program_of(ReadRequest(text.encode(), title, "", shapes), _inputs(names), _reference(names))


def _inputs(names: Mapping[str, Any]) -> list[torch.Tensor] | None:
    given = names.get(INPUTS)
    values = as_call(given)[0] if given is not None else ()
    return [torch.as_tensor(value) for value in values] if values and all(map(_is_tensor, values)) else None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _reference(names: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The script's function, called with arrays if its example inputs are arrays."""
    found = names.get(REFERENCE)
    if not callable(found):
        return None
    given = names.get(INPUTS)
    if not any(isinstance(value, np.ndarray) for value in (as_call(given)[0] if given is not None else ())):
        return found

    def on_arrays(*tensors: torch.Tensor) -> Any:
        return found(*(tensor.numpy() for tensor in tensors))

    return on_arrays
