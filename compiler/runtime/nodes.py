"""Compares every node of a compiled program with eager or double precision, in one pass; stores only errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.graph.node import Op, ReshapeFamilyOp
from buddy.compiler.graph.operations import AddMMOp, BatchMatmulOp, MatmulOp, ViewDtypeOp
from buddy.compiler.protocol.artifact import from_bytes
from buddy.compiler.protocol.numerics import (
    Deviation,
    NanOrigin,
    NodeNumbers,
    NumericsReport,
    ObservedProgram,
    OwnProgram,
    Reference,
)
from buddy.compiler.runtime.compare import ErrorMetrics, needs_positions, tolerance_of
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.graph_interpreter import SEED, LockstepInterpreter, narrow, symbols_at
from buddy.compiler.runtime.measure import with_threads
from buddy.compiler.runtime.shared_weights import SharedWeights
from buddy.compiler.runtime.torch_ops import observe_nodes
from buddy.compiler.runtime.torch_values import to_torch

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

OnProgress = Callable[[str, float], None]
_PRODUCTS = (MatmulOp, AddMMOp, BatchMatmulOp)
_PROGRESS_STEPS = 20


def compare_nodes(
    captured: CapturedGraph, program: ObservedProgram, *, reference: Reference = "eager", threads: int = 1,
    graph: int = 0, on_progress: OnProgress = lambda _what, _done: None,
) -> NumericsReport:  # fmt: skip
    """Runs `program` on the captured inputs, the reference in lockstep, and each node's own program.

    Both sides draw random numbers from the same seed. Raises what an op in eager raises.
    """
    # AOTAutograd may run compiled code under modes that must not affect the reference.
    with with_threads(threads), torch.no_grad(), _disable_current_modes():
        on_progress("loading the compiled code", 0.0)
        compared = _Comparison(captured, program, reference, on_progress)
        start = time.perf_counter()
        compared.run()
        seconds = time.perf_counter() - start
    return compared.report(graph, seconds)


class _NodeProgram:
    """A node's own program, released after its last use.

    A data movement op is `settled` once it has moved distinguishable elements correctly, and is not run again. Weights
    that the whole program has packed in the same way, in `packed`, are not packed again.
    """

    def __init__(self, found: OwnProgram, packed: SharedWeights) -> None:
        self._left, self.moves, self.settled = len(found.uses), found.moves, False
        artifact = from_bytes(found.artifact)
        self._program: LoadedProgram | None = LoadedProgram(artifact, frozen=True, in_turn=True, elsewhere=packed)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._program is not None
        results = self._program(tensors)
        self._left -= 1
        if not self._left:
            self._program = None
        return results


class _Comparison:
    """One pass over a graph."""

    def __init__(
        self, captured: CapturedGraph, program: ObservedProgram, reference: Reference, on_progress: OnProgress
    ) -> None:
        self._captured, self._program, self._reference, self._tell = captured, program, reference, on_progress
        self._nodes = {op.stable: op for op in captured.graph.operations}
        self._tensors = {op.name: t for op, t in zip(captured.graph.placeholders, captured.tensors, strict=True)}
        artifact = from_bytes(program.artifact)
        self._loaded, self._deviations = LoadedProgram(artifact, frozen=True), ErrorMetrics()
        self._loaded.pack(captured.tensors)
        self._names = iter(artifact.observed)
        self._node_programs = dict(self._uses(program.own))
        self._computing = {name for name, (alone, _, _) in self._node_programs.items() if not alone.moves}
        self.errors: dict[str, Deviation] = {}
        self.own: dict[str, Deviation] = {}
        self.not_finite: dict[str, tuple[int, int]] = {}
        self._finite: set[str] = set()
        # Moved inputs, by name, that are not yet known to be finite.
        self._unread: dict[str, tuple[str, torch.Tensor]] = {}
        self._count = 0
        symbols = symbols_at(captured.graph, captured.tensors, captured.numbers)
        reads = {name: inputs for name, (_program, inputs, _results) in self._node_programs.items()}
        torch.manual_seed(SEED)
        self._steps = LockstepInterpreter(
            captured.graph, captured.tensors, symbols, artifact.observed, reference, self._compare_node, reads
        )

    def _uses(self, own: Sequence[OwnProgram]) -> Iterator[tuple[str, tuple[_NodeProgram, Any, Any]]]:
        """Yields, by the stable name of the computing node, its program, its inputs and its results."""
        packed = self._loaded.packed_copies()
        for found in own:
            alone = _NodeProgram(found, packed)
            for inputs, results in found.uses:
                name, number = results[0]
                yield (name if number < 0 else self._nodes[name].args[0].stable), (alone, inputs, results)

    def run(self) -> None:
        captured = self._captured
        torch.manual_seed(SEED)
        with observe_nodes(self._compare_value):
            self._loaded(captured.tensors, captured.numbers)
        self._steps.finish()
        counts = {stable: _not_finite(value) for stable, value in self._unread.values()}
        self.not_finite |= {stable: found for stable, found in counts.items() if found != (0, 0)}

    # ---- observed values ---------------------------------------------------------------------------------------------

    def _compare_value(self, value: torch.Tensor) -> None:
        """Receives the next observed value of the compiled program."""
        name = next(self._names)
        self.errors[name] = self._deviations.of(value, _result(self._steps.reach(name), -1))
        self._steps.release(name)

    def _compare_node(self, op: Op, value: Any) -> None:
        self._count += 1
        if self._count % max(1, len(self._nodes) // _PROGRESS_STEPS) == 0:
            done = self._count / len(self._nodes)
            self._tell(f"comparing nodes {self._count}/{len(self._nodes)}", done)
        if op.stable in self._node_programs:
            self._run_alone(op, value)
        if isinstance(value, torch.Tensor):
            self._find_not_finite(op, value)

    def _find_not_finite(self, op: Op, value: torch.Tensor) -> None:
        """Counts the NaNs and infinities of a reference value, unless it is known to have none.

        A value within tolerance of finite numbers is finite, and so are moved finite values. Each element of a
        product's operands contributes to some element of the result, so if the result is finite, they are: moved
        weights need not be read.
        """
        own, parents = self.own.get(op.stable), [parent.name for parent in op.parents]
        moves = isinstance(op, ReshapeFamilyOp) and not isinstance(op, ViewDtypeOp)  # its bits may mean anything
        if moves and all(name in self._tensors for name in parents):
            self._unread[op.name] = op.stable, value
            return
        finite = own is not None and own.ok and not (own.nans or own.infs) and op.stable in self._computing
        if not (finite or (moves and self._finite.issuperset(parents))) and (found := _not_finite(value)) != (0, 0):
            self.not_finite[op.stable] = found
            return
        self._finite.add(op.name)
        if isinstance(op, _PRODUCTS) and value.numel() and not op.kwargs:
            for name in parents:
                self._unread.pop(name, None)

    def _run_alone(self, op: Op, value: Any) -> None:
        alone, inputs, results = self._node_programs[op.stable]
        if alone.settled:
            self.own |= dict.fromkeys((name for name, _ in results), Deviation())
            return
        tensors = [self._narrow(name) for name in inputs]
        if self._reference == "float64" and {parent.name for parent in op.parents} <= {*inputs}:
            # The reference had wider operands than the program: compute the node again on the narrow ones.
            value = self._steps.compute_alone(op, dict(zip(inputs, tensors, strict=True)))
        found = alone(tensors)
        for (name, number), ours in zip(results, found, strict=True):
            self.own[name] = self._deviations.of(ours, _result(value, number))
        same = alone.moves and all(self.own[name] == Deviation() for name, _ in results)
        alone.settled = same and all(needs_positions(_result(value, number)) for _, number in results)

    def _narrow(self, name: str) -> torch.Tensor:
        """Returns the reference's value of a node in the program's type."""
        value = _result(self._steps.value(name), -1)
        if self._reference == "eager" or name in self._tensors:
            return value
        return narrow(value, self._captured.graph.node_table[name])

    # ---- report ------------------------------------------------------------------------------------------------------

    def report(self, graph: int, seconds: float) -> NumericsReport:
        nodes = tuple(map(self._numbers, self._captured.graph.operations))
        first, by = _first(nodes)
        notes = list(self._program.notes)
        if self._steps.in_narrow:
            notes.append(f"torch computes {len(self._steps.in_narrow)} nodes only in the program's precision")
        return NumericsReport(
            graph,
            self._reference,
            nodes,
            first,
            by,
            tuple(self._unseen_before(first)) if by == "error" else (),
            tuple(self._origins(nodes)),
            tuple(op.stable for op in self._captured.graph.results if isinstance(op, Op)),
            seconds,
            self._program.seconds,
            tuple(notes),
        )

    def _numbers(self, op: Op) -> NodeNumbers:
        name = op.stable
        nans, infs = self.not_finite.get(name, (0, 0))
        meta = next((meta for meta in op.metas if meta is not None), None)
        tolerance = str(tolerance_of(to_torch(meta.dtype))) if meta is not None else ""
        why = self._program.why.get(name, "")
        seen = self._program.seen[name]
        return NodeNumbers(name, seen, self.errors.get(name), self.own.get(name), tolerance, nans, infs, why)

    def _unseen_before(self, name: str) -> list[str]:
        """Returns the unobserved nodes between the named one and the observed ones before it."""
        found: dict[str, None] = {}
        pending = list(self._nodes[name].parents)
        while pending:
            op = pending.pop()
            if op.stable in self._nodes and op.stable not in self.errors and op.stable not in found:
                found[op.stable] = None
                pending += op.parents
        return [op for op in self._nodes if op in found]

    def _origins(self, nodes: Sequence[NodeNumbers]) -> Iterator[NanOrigin]:
        by_name = {found.node: found for found in nodes}
        for place, kind in enumerate(("nan", "inf")):
            inputs = _Inputs(self._tensors, place)
            for side, has in (("eager", _in_eager(by_name, place)), ("compiled", _in_compiled(by_name, place))):
                found = self._origin(has, inputs)
                if found is not None:
                    yield NanOrigin(kind, side, *found)  # type: ignore[arg-type]

    def _origin(self, has: Callable[[Op, Mapping[str, bool]], bool], inputs: _Inputs) -> tuple[str, bool] | None:
        """Returns the first node with `has` whose operands lack it; else the first that gets it from an input."""
        known: dict[str, bool] = {}
        from_outside = ""
        for op in self._nodes.values():
            known[op.name] = has(op, known)
            if not known[op.name] or any(known.get(parent.name, False) for parent in op.parents):
                continue
            if not any(parent.name in inputs for parent in op.parents):
                return op.stable, False
            from_outside = from_outside or op.stable
        return (from_outside, True) if from_outside else None


class _Inputs:
    """Tests which of a graph's inputs have a NaN (place 0) or an infinity (place 1)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], place: int) -> None:
        self._tensors, self._place = tensors, place
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        tensor = self._tensors.get(str(name))
        if tensor is None:
            return False
        if name not in self._known:
            self._known[str(name)] = _not_finite(tensor)[self._place] > 0
        return self._known[str(name)]


Has = Callable[[Op, Mapping[str, bool]], bool]


def _in_eager(nodes: Mapping[str, NodeNumbers], place: int) -> Has:
    return lambda op, _known: (nodes[op.stable].nans, nodes[op.stable].infs)[place] > 0


def _in_compiled(nodes: Mapping[str, NodeNumbers], place: int) -> Has:
    """Tests the compiled value, or if it is unobserved, that of the node's own program or those of its operands."""

    def has(op: Op, known: Mapping[str, bool]) -> bool:
        found = nodes[op.stable]
        deviation = found.error or found.own
        if deviation is not None:
            return (deviation.nans, deviation.infs)[place] > 0
        return any(known.get(parent.name, False) for parent in op.parents) and (found.nans, found.infs)[place] > 0

    return has


def _result(value: Any, number: int) -> torch.Tensor:
    """Returns a result of a node by its number; -1 means the only one, since a graph pass may drop the others."""
    found: torch.Tensor = value[max(number, 0)] if isinstance(value, (list, tuple)) else value
    return found


def _not_finite(value: torch.Tensor) -> tuple[int, int]:
    """Returns the numbers of NaNs and infinities. A finite sum means that there are none."""
    if not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value.sum())):
        return 0, 0
    return int(value.isnan().sum()), int(value.isinf().sum())


def _first(nodes: Sequence[NodeNumbers]) -> tuple[str, Literal["", "own", "error"]]:
    """Returns the first node beyond its tolerance: by its own error, or by that of a value before it."""
    for found in nodes:
        if found.own is not None and not found.own.ok:
            return found.node, "own"
        if found.error is not None and not found.error.ok:
            return found.node, "error"
    return "", ""
