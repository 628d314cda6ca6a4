"""Measures the time of each matrix product under a recipe, and the error if one product uses another precision."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from buddy.compiler.driver import program_cache
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.graph import serialization
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations.effects import RandomOp
from buddy.compiler.ops.lowering import LoweredModule
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.runtime.graph_interpreter import SEED, compute_node, compute_results, symbol_values
from buddy.compiler.runtime.measure import error_of_results, torch_threads
from buddy.compiler.runtime.torch_values import fingerprints
from buddy.compiler.support.disk_cache import PRECISION_ERRORS
from buddy.compiler.tools.profile.attribution import with_counting
from buddy.compiler.tools.profile.measure import time_nodes
from buddy.compiler.tools.tune.processes import (
    ErrorsMeasured,
    MeasuredError,
    MeasureErrors,
    NodesTimed,
    TimedProduct,
    TimeNodes,
)

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# If the values of all nodes take more bytes, the whole program is computed for each node.
_MAX_STORED_BYTES = 1 << 30


def time_products(captured: CapturedGraph, request: TimeNodes) -> NodesTimed:
    """Times the products of a recipe, in this process. Raises `CompilationError` and `RuntimeError`."""
    lowered: list[LoweredModule] = []
    overrides: Any = captured.user_lowerings()
    artifact = compile_graph(captured.graph, with_counting(request.recipe), overrides, lowered.append)
    with torch_threads(request.recipe.threads), torch.no_grad():
        timed = time_nodes(captured, artifact, request.seconds)
    seconds = {node.node: node.seconds for node in timed if not node.into}  # without nodes fused into others
    ops = {op.stable: op for op in captured.graph.operations}
    precisions = {
        assignment.node: assignment.precision
        for module in lowered
        for assignment in module.assignments
        if assignment.multiplies and assignment.node in seconds
    }
    return NodesTimed(
        tuple(
            TimedProduct(node, _op_and_shapes(ops[node]), precision, seconds[node])
            for node, precision in precisions.items()
        )
    )


def _op_and_shapes(op: Op) -> str:
    """Returns the op and the shapes of a node: nodes of the same kind take the same time."""
    operands = [argument for argument in op.args if isinstance(argument, Op)]
    shapes = [str(meta.shape) for node in (op, *operands) for meta in node.metas if meta is not None]
    return " ".join([str(op.target), *shapes])


class ErrorMeter:
    """Measures the errors of `captured` with single nodes in other precisions, in eager arithmetic.

    The values of all nodes are stored, so that only the nodes that depend on the changed node are computed again. If
    the values exceed `_MAX_STORED_BYTES`, each measurement runs the whole program instead. Measured errors are stored
    on disk, under a hash of the program and its expected results, so that a cancelled search can be resumed.
    """

    def __init__(self, captured: CapturedGraph) -> None:
        self._captured, self._graph = captured, captured.graph
        # The first measurement computes these (`_compute_all`); `_values` stays empty if the values are too large.
        self._values: dict[str, Any] = {}
        self._expected: list[Any] = []
        self._generator_states: dict[str, torch.Tensor] = {}
        self._symbols: dict[str, int] = {}
        self._key = ""
        # The measured errors by node and precision, and the keys of those that were read from the disk.
        self._errors: dict[tuple[str, str], float] = {}
        self._stored: frozenset[tuple[str, str]] = frozenset()

    def measure(self, request: MeasureErrors) -> ErrorsMeasured:
        """Answers `request`. Raises what an op raises."""
        deadline = time.monotonic() + request.seconds
        with torch.no_grad(), torch_threads(1):
            if not self._key:
                self._compute_all()
            measured = 0
            for pair in request.pairs:
                if (pair.node, pair.precision) in self._errors:
                    continue
                if measured and time.monotonic() > deadline:
                    break
                self._errors[pair.node, pair.precision] = self._measure_error(pair)
                measured += 1
        if measured:
            data = [MeasuredError(*key, error) for key, error in sorted(self._errors.items())]
            PRECISION_ERRORS.write(self._key, msgspec.msgpack.encode(data))
        keys = [(pair.node, pair.precision) for pair in request.pairs]
        errors = tuple(MeasuredError(*key, self._errors[key]) for key in keys if self._errors.get(key, -1.0) >= 0)
        return ErrorsMeasured(errors, sum(key in self._stored for key in keys))

    def _compute_all(self) -> None:
        """Computes the program in eager, keeps the values of its nodes, and reads the errors that are on the disk."""
        captured = self._captured
        self._symbols = symbol_values(self._graph, captured.tensors, captured.numbers)
        torch.manual_seed(SEED)
        value_bytes = 0
        values: dict[str, Any] = dict(zip((op.name for op in self._graph.placeholders), captured.tensors, strict=True))
        for op in self._graph.operations:
            if isinstance(op, RandomOp):
                self._generator_states[op.name] = torch.get_rng_state()
            values[op.name] = compute_node(op, values, self._symbols)
            value_bytes += _bytes_of(values[op.name])
        self._expected = self._results(values)
        self._values = values if value_bytes <= _MAX_STORED_BYTES else {}
        result_fingerprints = [fingerprints([value]) for value in self._expected if isinstance(value, torch.Tensor)]
        self._key = digest(
            serialization.graph_hash(self._graph), program_cache.installation(), str(result_fingerprints)
        )
        try:
            data = PRECISION_ERRORS.read(self._key)
            stored = [] if not data else msgspec.msgpack.decode(data, type=list[MeasuredError])
        except msgspec.MsgspecError:
            stored = []
        self._errors = {(entry.node, entry.precision): entry.error for entry in stored}
        self._stored = frozenset(self._errors)

    def _results(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[op.name] if isinstance(op, Op) else op for op in self._graph.results]

    def _measure_error(self, pair: MeasuredError) -> float:
        precisions = {pair.node: pair.precision}
        if self._values:
            results = self._results({**self._values, **self._compute_changed(precisions)})
        else:
            torch.manual_seed(SEED)
            results = compute_results(self._graph, self._captured.tensors, self._captured.numbers, precisions)
        return error_of_results(results, self._expected)

    def _compute_changed(self, precisions: Mapping[str, str]) -> dict[str, Any]:
        """Returns the values of the nodes in `precisions`, and of all nodes that depend on them."""
        changed: dict[str, Any] = {}
        for op in self._graph.operations:
            if op.stable in precisions or any(parent.name in changed for parent in op.parents):
                operands = {p.name: changed.get(p.name, self._values[p.name]) for p in op.parents}
                self._restore_generator(op)
                changed[op.name] = compute_node(op, operands, self._symbols, precisions)
        return changed

    def _restore_generator(self, op: Op) -> None:
        """Sets the generator to its state before `op` in the full run, if `op` draws random numbers."""
        if op.name in self._generator_states:
            torch.set_rng_state(self._generator_states[op.name])


def _bytes_of(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes_of, value))
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
