"""Compares every node of a compiled program with eager or double precision, in one run; stores only the errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.graph.node import Op, ReshapeFamilyOp
from buddy.compiler.graph.operations import AddMMOp, BatchMatmulOp, MatmulOp, ViewDtypeOp
from buddy.compiler.protocol.artifact import from_bytes
from buddy.compiler.protocol.numerics import (
    Deviation,
    NanOrigin,
    NodeNumbers,
    NodeProgram,
    NodeUse,
    NumericsReport,
    ObservedProgram,
    Reference,
)
from buddy.compiler.runtime.compare import ErrorMetrics, can_detect_moved_elements, tolerance_of
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.graph_interpreter import SEED, LockstepInterpreter, narrow, symbol_values
from buddy.compiler.runtime.measure import torch_threads
from buddy.compiler.runtime.packed_weights import SharedWeights
from buddy.compiler.runtime.torch_ops import observe_nodes
from buddy.compiler.runtime.torch_values import to_torch_dtype

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

OnProgress = Callable[[str, float], None]
_PRODUCT_OPS = (MatmulOp, AddMMOp, BatchMatmulOp)
# The number of progress reports in one comparison.
_PROGRESS_STEPS = 20


def compare_nodes(
    captured: CapturedGraph, program: ObservedProgram, *, reference: Reference = "eager", threads: int = 1,
    graph: int = 0, on_progress: OnProgress = lambda _what, _done: None,
) -> NumericsReport:  # fmt: skip
    """Runs `program` on the captured inputs, the reference in lockstep, and each node's own program.

    `graph` is the number of the graph in the report. The program and the reference draw random numbers from the same
    seed. Raises what an op in eager raises.
    """
    # AOTAutograd may run compiled code under modes that must not affect the reference.
    with torch_threads(threads), torch.no_grad(), _disable_current_modes():
        on_progress("loading the compiled code", 0.0)
        comparison = _Comparison(captured, program, reference, on_progress)
        start = time.perf_counter()
        comparison.run()
        seconds = time.perf_counter() - start
    return comparison.report(graph, seconds)


class _NodeProgram:
    """The compiled program of one node, which several equal nodes may share; it is released after its last use.

    If the node only moves data (`moves`), `is_settled` is set once it has moved distinguishable elements correctly; the
    program is then not run again. Weights that the whole program has packed in the same way are taken from `packed`.
    """

    def __init__(self, description: NodeProgram, packed: SharedWeights) -> None:
        self._remaining_uses, self.moves, self.is_settled = len(description.uses), description.moves, False
        artifact = from_bytes(description.artifact)
        self._program: LoadedProgram | None = LoadedProgram(
            artifact, frozen=True, sequential_calls=True, shared_weights=packed
        )

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._program is not None
        results = self._program(tensors)
        self._remaining_uses -= 1
        if not self._remaining_uses:
            self._program = None
        return results


class _Comparison:
    """One comparison of a program with the reference.

    If nodes multiply in reduced precisions, the same arithmetic in PyTorch also runs in lockstep, and errors are judged
    by its results. The error of a node alone must be within the tolerance of its element type. The error of a value in
    the program may be as large as the effect of the reduced precisions on this value, because a value that is rounded
    in the other direction changes later values by a fraction of that effect.

    `errors` are the deviations of observed values, and `own_errors` those of nodes that run alone on the reference's
    operands. `nonfinite_counts` has the numbers of NaNs and infinities in the reference's values. All are by stable
    name.
    """

    def __init__(
        self, captured: CapturedGraph, program: ObservedProgram, reference: Reference, on_progress: OnProgress
    ) -> None:
        self._captured, self._program = captured, program
        self._reference, self._report_progress = reference, on_progress
        self._nodes = {op.stable: op for op in captured.graph.operations}
        self._tensors = {op.name: t for op, t in zip(captured.graph.placeholders, captured.tensors, strict=True)}
        artifact = from_bytes(program.artifact)
        self._compiled, self._deviations = LoadedProgram(artifact, frozen=True), ErrorMetrics()
        self._compiled.pack(captured.tensors)
        self._remaining_names = iter(artifact.observed)
        self._node_programs = dict(self._make_node_programs(program.node_programs))
        self._names_that_compute = {
            name for name, (node_program, _use) in self._node_programs.items() if not node_program.moves
        }
        self.errors: dict[str, Deviation] = {}
        self.own_errors: dict[str, Deviation] = {}
        self.nonfinite_counts: dict[str, tuple[int, int]] = {}
        self._finite_names: set[str] = set()
        # By name, moved inputs that may have NaNs or infinities, each with its stable name.
        self._unchecked_moves: dict[str, tuple[str, torch.Tensor]] = {}
        self._n_computed = 0
        symbols = symbol_values(captured.graph, captured.tensors, captured.numbers)
        reads = {name: use.inputs for name, (_program, use) in self._node_programs.items()}
        torch.manual_seed(SEED)
        self._reference_run = LockstepInterpreter(
            captured.graph, captured.tensors, symbols, artifact.observed, reference, self._compare_node, reads
        )
        self._reduced_run = LockstepInterpreter(
            captured.graph, captured.tensors, symbols, artifact.observed, precisions=program.precisions
        )
        self._affected_by_precisions = _users_of(program.precisions, captured.graph.operations)

    def _make_node_programs(
        self, descriptions: Sequence[NodeProgram]
    ) -> Iterator[tuple[str, tuple[_NodeProgram, NodeUse]]]:
        """Yields the stable name of each node with an own program, with the program and the node's use of it.

        A node with several results is yielded once, under its own name.
        """
        packed = self._compiled.packed_copies()
        for description in descriptions:
            node_program = _NodeProgram(description, packed)
            for use in description.uses:
                name, result_index = use.results[0]
                is_selection = result_index >= 0  # the name is that of a node that selects one of several results
                yield (self._nodes[name].args[0].stable if is_selection else name), (node_program, use)

    def run(self) -> None:
        """Runs the program and compares its observed values, while the reference computes the nodes up to each."""
        captured = self._captured
        torch.manual_seed(SEED)
        with observe_nodes(self._compare_value):
            self._compiled(captured.tensors, captured.numbers)
        self._reference_run.finish()
        counts = {stable: count_nonfinite(value) for stable, value in self._unchecked_moves.values()}
        self.nonfinite_counts |= {stable: numbers for stable, numbers in counts.items() if numbers != (0, 0)}

    # ---- observed values ---------------------------------------------------------------------------------------------

    def _compare_value(self, value: torch.Tensor) -> None:
        """Compares the next observed value of the compiled program with the reference's."""
        name = next(self._remaining_names)
        reference = _result(self._reference_run.reach(name), -1)
        error = self._deviations.of(value, reference)
        if name in self._affected_by_precisions:
            arithmetic = _result(self._reduced_run.reach(name), -1)
            error = self._judge_by_arithmetic(
                error, self._deviations.of(value, arithmetic), self._deviations.of(arithmetic, reference)
            )
            self._reduced_run.release(name)
        self.errors[name] = error
        self._reference_run.release(name)

    @staticmethod
    def _judge_by_arithmetic(error: Deviation, remaining: Deviation, effect: Deviation) -> Deviation:
        """Returns `error` with its ratio to the tolerance that reduced precisions allow.

        `remaining` is the difference from the same arithmetic in PyTorch, `effect` the difference of that arithmetic
        from the reference.
        """
        of_tolerance = remaining.of_tolerance
        if of_tolerance > 1.0 and effect.largest and effect.relative:
            of_tolerance = max(remaining.largest / effect.largest, remaining.relative / effect.relative)
        return replace(error, of_tolerance=of_tolerance, where=error.where if of_tolerance > 1.0 else "")

    def _compare_node(self, op: Op, value: torch.Tensor) -> None:
        """Runs the program of a node that the reference has computed, and counts the NaNs and infinities of `value`."""
        self._n_computed += 1
        if self._n_computed % max(1, len(self._nodes) // _PROGRESS_STEPS) == 0:
            done = self._n_computed / len(self._nodes)
            self._report_progress(f"comparing nodes {self._n_computed}/{len(self._nodes)}", done)
        if op.stable in self._node_programs:
            self._run_alone(op, value)
        if isinstance(value, torch.Tensor):
            self._count_nonfinite_elements(op, value)

    def _count_nonfinite_elements(self, op: Op, value: torch.Tensor) -> None:
        """Counts the NaNs and infinities of a reference value, unless it is known to have none.

        Counting reads the whole value, so it is left out where possible. A value is finite if the compiled one is
        finite and within tolerance, or if it moves the elements of a finite value. Moved inputs of the graph, such as
        transposed weights, are counted at the end, unless they are operands of a matrix product with a finite result:
        each of their elements contributes to that result.
        """
        deviation, parents = self.own_errors.get(op.stable), [parent.name for parent in op.parents]
        moves = isinstance(op, ReshapeFamilyOp) and not isinstance(op, ViewDtypeOp)  # a view as another dtype does not
        if moves and all(name in self._tensors for name in parents):
            self._unchecked_moves[op.name] = op.stable, value
            return
        is_finite = (
            deviation is not None
            and deviation.ok
            and not (deviation.nans or deviation.infs)
            and op.stable in self._names_that_compute
        )
        if not is_finite and not (moves and self._finite_names.issuperset(parents)):
            counts = count_nonfinite(value)
            if counts != (0, 0):
                self.nonfinite_counts[op.stable] = counts
                return
        self._finite_names.add(op.name)
        if isinstance(op, _PRODUCT_OPS) and value.numel() and not op.kwargs:
            for name in parents:
                self._unchecked_moves.pop(name, None)

    def _run_alone(self, op: Op, value: torch.Tensor) -> None:
        """Runs the program of one node on the reference's operands, and compares its results with `value`."""
        node_program, (inputs, results) = self._node_programs[op.stable]
        if node_program.is_settled:
            self.own_errors |= dict.fromkeys((name for name, _ in results), Deviation())
            return
        tensors = [self._narrow(name) for name in inputs]
        if self._reference == "float64" and {parent.name for parent in op.parents} <= {*inputs}:
            # The reference had wider operands than the program: compute the node again on the narrow ones.
            value = self._reference_run.compute_alone(op, dict(zip(inputs, tensors, strict=True)))
        compiled_results = node_program(tensors)
        for (name, result_index), compiled in zip(results, compiled_results, strict=True):
            self.own_errors[name] = self._deviations.of(compiled, _result(value, result_index))
        if op.stable in self._program.precisions:
            values = dict(zip(inputs, tensors, strict=True)) | {p.name: self._narrow(p.name) for p in op.parents}
            remaining = self._deviations.of(compiled_results[0], self._reduced_run.compute_alone(op, values))
            self.own_errors[op.stable] = replace(
                self.own_errors[op.stable], of_tolerance=remaining.of_tolerance, where=remaining.where
            )
        is_equal = node_program.moves and all(self.own_errors[name] == Deviation() for name, _ in results)
        node_program.is_settled = is_equal and all(
            can_detect_moved_elements(_result(value, result_index)) for _, result_index in results
        )

    def _narrow(self, name: str) -> torch.Tensor:
        """Returns the reference's value of a node in the program's type."""
        value = _result(self._reference_run.value(name), -1)
        if self._reference == "eager" or name in self._tensors:
            return value
        return narrow(value, self._captured.graph.node_table[name])

    # ---- report ------------------------------------------------------------------------------------------------------

    def report(self, graph: int, seconds: float) -> NumericsReport:
        """Returns the report; `graph` is the number of the graph, `seconds` are those of the run."""
        nodes = tuple(map(self._node_numbers, self._captured.graph.operations))
        first_node, cause = first_beyond_tolerance(nodes)
        notes = list(self._program.notes)
        if self._reference_run.narrow_nodes:
            notes.append(
                f"torch computes {len(self._reference_run.narrow_nodes)} nodes only in the program's precision"
            )
        if self._program.precisions:
            notes.append(
                f"{len(self._program.precisions)} nodes multiply in a reduced precision: errors are differences from "
                f"{self._reference}, and their tolerances are by the same arithmetic in PyTorch"
            )
        return NumericsReport(
            graph,
            self._reference,
            nodes,
            first_node,
            cause,
            suspects=tuple(self._unobserved_before(first_node)) if cause == "error" else (),
            origins=tuple(self._find_origins(nodes)),
            results=tuple(op.stable for op in self._captured.graph.results if isinstance(op, Op)),
            seconds=seconds,
            compile_seconds=self._program.seconds,
            notes=tuple(notes),
        )

    def _node_numbers(self, op: Op) -> NodeNumbers:
        """Returns the entry of a node in the report."""
        name = op.stable
        nans, infs = self.nonfinite_counts.get(name, (0, 0))
        meta = next((meta for meta in op.metas if meta is not None), None)
        tolerance = str(tolerance_of(to_torch_dtype(meta.dtype))) if meta is not None else ""
        precision = self._program.precisions.get(name, "")
        if name in self._affected_by_precisions and tolerance:
            tolerance += ", of the same arithmetic in PyTorch; in the program, the difference that it makes from eager"
        why = self._program.why.get(name, "")
        value_state = self._program.value_states[name]
        return NodeNumbers(
            name, value_state, self.errors.get(name), self.own_errors.get(name), tolerance, nans, infs, why, precision
        )

    def _unobserved_before(self, name: str) -> list[str]:
        """Returns the unobserved nodes between node `name` and the observed nodes before it."""
        unobserved: dict[str, None] = {}
        pending = list(self._nodes[name].parents)
        while pending:
            op = pending.pop()
            if op.stable in self._nodes and op.stable not in self.errors and op.stable not in unobserved:
                unobserved[op.stable] = None
                pending += op.parents
        return [stable for stable in self._nodes if stable in unobserved]

    def _find_origins(self, nodes: Sequence[NodeNumbers]) -> Iterator[NanOrigin]:
        """Yields the origins of NaNs and infinities in eager and in compiled code."""
        by_name = {numbers.node: numbers for numbers in nodes}
        for kind_index, kind in enumerate(("nan", "inf")):
            inputs = _InputsWithNonfinite(self._tensors, kind_index)
            for side, has_nonfinite in (
                ("eager", _make_eager_test(by_name, kind_index)),
                ("compiled", _make_compiled_test(by_name, kind_index)),
            ):
                origin = self._find_origin(has_nonfinite, inputs)
                if origin is not None:
                    yield NanOrigin(kind, side, *origin)  # type: ignore[arg-type]

    def _find_origin(self, has_nonfinite: HasNonfinite, inputs: _InputsWithNonfinite) -> tuple[str, bool] | None:
        """Returns the stable name of the first node with a NaN (or infinity) whose operands have none, and False.

        If NaNs come only from inputs of the graph, returns the first node that reads one, and True. Returns `None` if
        no node has a NaN.
        """
        has_by_name: dict[str, bool] = {}
        first_from_input = ""
        for op in self._nodes.values():
            has_by_name[op.name] = has_nonfinite(op, has_by_name)
            if not has_by_name[op.name] or any(has_by_name.get(parent.name, False) for parent in op.parents):
                continue
            if not any(parent.name in inputs for parent in op.parents):
                return op.stable, False
            first_from_input = first_from_input or op.stable
        return (first_from_input, True) if first_from_input else None


def _users_of(names: Collection[str], operations: Iterable[Op]) -> set[str]:
    """Returns the stable names of the nodes in `names`, and of all nodes that depend on them."""
    users: set[str] = set()
    for op in operations:
        if op.stable in names or any(parent.stable in users for parent in op.parents):
            users.add(op.stable)
    return users


class _InputsWithNonfinite:
    """Contains the names of the graph inputs that have a NaN (`kind_index` 0) or an infinity (`kind_index` 1)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], kind_index: int) -> None:
        self._tensors, self._kind_index = tensors, kind_index
        self._has_kind: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        tensor = self._tensors.get(str(name))
        if tensor is None:
            return False
        if name not in self._has_kind:
            self._has_kind[str(name)] = count_nonfinite(tensor)[self._kind_index] > 0
        return self._has_kind[str(name)]


# Returns whether the value of a node has a NaN (or an infinity), given by name whether earlier nodes have one.
HasNonfinite = Callable[[Op, Mapping[str, bool]], bool]


def _make_eager_test(nodes: Mapping[str, NodeNumbers], kind_index: int) -> HasNonfinite:
    """Returns a test of the reference's value."""
    return lambda op, _has_by_name: (nodes[op.stable].nans, nodes[op.stable].infs)[kind_index] > 0


def _make_compiled_test(nodes: Mapping[str, NodeNumbers], kind_index: int) -> HasNonfinite:
    """Returns a test of the compiled value.

    If this value is unobserved, tests the result of the node's own program; without one, the operands and the
    reference.
    """

    def compiled_value_has(op: Op, has_by_name: Mapping[str, bool]) -> bool:
        numbers = nodes[op.stable]
        deviation = numbers.error or numbers.own_error
        if deviation is not None:
            return (deviation.nans, deviation.infs)[kind_index] > 0
        return (
            any(has_by_name.get(parent.name, False) for parent in op.parents)
            and (numbers.nans, numbers.infs)[kind_index] > 0
        )

    return compiled_value_has


def _result(value: torch.Tensor, index: int) -> torch.Tensor:
    """Returns result `index` of a node; -1 means the only result, because a graph pass may drop the others."""
    result: torch.Tensor = value[max(index, 0)] if isinstance(value, (list, tuple)) else value
    return result


def count_nonfinite(value: torch.Tensor) -> tuple[int, int]:
    """Returns the numbers of NaNs and infinities of a tensor."""
    # The sum of the elements is finite only if all of them are.
    if not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value.sum())):
        return 0, 0
    return int(value.isnan().sum()), int(value.isinf().sum())


def first_beyond_tolerance(nodes: Sequence[NodeNumbers]) -> tuple[str, Literal["", "own", "error"]]:
    """Returns the first node with an error beyond its tolerance, and the field of the error: "own" or "error".

    Both are "" if all errors are within their tolerances.
    """
    for node in nodes:
        if node.own_error is not None and not node.own_error.ok:
            return node.node, "own"
        if node.error is not None and not node.error.ok:
            return node.node, "error"
    return "", ""
