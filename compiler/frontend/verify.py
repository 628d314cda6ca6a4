"""`options={"verify": True}`: compares calls of each compiled graph with eager, until one matches."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.frontend.aten import AtenGraph, Runner
from buddy.compiler.frontend.convert import to_buddy
from buddy.compiler.frontend.eager_program import eager_program
from buddy.compiler.frontend.errors import VerificationError
from buddy.compiler.graph.node import Op
from buddy.compiler.protocol import Diagnostic, GraphInfo
from buddy.compiler.protocol.numerics import Deviation
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.compare import ErrorMetrics
from buddy.compiler.runtime.graph_interpreter import NO_PRECISIONS, compute_results
from buddy.compiler.runtime.positions import allowed_margin, chosen_positions_of
from buddy.compiler.runtime.sensitivity import (
    MULTIPLE,
    are_few_roundings,
    describe_limit,
    judge_result,
    measure_spreads,
)

if TYPE_CHECKING:
    from buddy.compiler.ops.utils import Lowering


Verify = Literal["off", "error", "warn"]
_log = logging.getLogger("buddy.frontend")


class VerifiedGraph:
    """A compiled graph whose calls are compared with eager until one matches.

    Eager runs the Dynamo graph, PyTorch's own calls, if each result of the ATen graph is an output or a mutated input
    of the Dynamo graph; otherwise, as in training, the ATen graph. Both sides draw random numbers from the same state
    of the generator. With `mode` "error", a mismatch raises `VerificationError`; with "warn", the graph then runs in
    eager, with one warning.

    `compiled` was compiled with `recipe` and with `lowerings`, which have priority over the registries. To find the
    first node that differs, the graph is compiled again with these. If nodes multiply in reduced `precisions`, eager is
    the ATen graph with the same arithmetic in these nodes.
    """

    def __init__(
        self,
        compiled: Runner,
        aten: AtenGraph,
        recipe: Recipe,
        mode: Verify,
        lowerings: Mapping[str, Lowering] | None = None,
        precisions: Mapping[str, str] = NO_PRECISIONS,
    ) -> None:
        self._compiled, self._aten, self._recipe, self._mode = compiled, aten, recipe, mode
        self._lowerings, self._precisions = lowerings, precisions
        # What later calls run, once a call has been judged.
        self._run: Runner | None = None

    def __call__(self, *arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        return self._verify_call(arguments) if self._run is None else self._run(*arguments)

    def _verify_call(self, arguments: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Runs the compiled graph and eager; returns the results of the compiled graph if they match. See the class."""
        state_before = torch.get_rng_state()
        results = self._compiled(*arguments)
        state_after = torch.get_rng_state()
        torch.set_rng_state(state_before)
        try:
            expected = self._run_eager(arguments)
            difference = _difference(results, expected)
            if difference is not None:
                # Not explained by a few roundings: compare with the program's own sensitivity to rounding.
                captured = self._as_captured(arguments)
                measure_spreads(captured, expected, state_before)
                difference = _difference(results, expected, captured)
        finally:
            torch.set_rng_state(state_after)
        if difference is None:
            self._run = self._compiled
            return results
        index, description = difference
        error = VerificationError(self._diagnostic(index, description, arguments))
        if self._mode == "error":
            raise error
        warnings.warn(f"a graph of {len(self._aten.module.graph.nodes)} nodes runs in eager: {error}", stacklevel=2)
        self._run = self._aten.module
        torch.set_rng_state(state_before)
        return self._run(*arguments)

    def _run_eager(self, arguments: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Returns the results to compare with, computed in the reduced precisions of nodes if there are any."""
        if self._precisions:
            captured = self._as_captured(arguments)
            return compute_results(captured.graph, captured.tensors, captured.numbers, self._precisions)
        with torch.no_grad():
            return eager_program(self._aten, arguments)(_tensors(arguments))

    def _as_captured(self, arguments: Sequence[torch.Tensor]) -> CapturedGraph:
        """Returns a captured graph of the same ATen graph, with the inputs of a call."""
        conversion = to_buddy(self._aten)
        graph, info = conversion.graph, GraphInfo(conversion.graph.name, ())
        numbers = tuple(value for value in arguments if not isinstance(value, torch.Tensor))
        tensors = [*_tensors(arguments), *conversion.constants]
        return CapturedGraph(graph, info, tensors, None, numbers=numbers, precisions=self._precisions)

    # ---- diagnostics ---------------------------------------------------------------------------------------------

    def _diagnostic(self, index: int, description: str, arguments: Sequence[torch.Tensor]) -> Diagnostic:
        """Returns the diagnostic of a difference of result `index`, with the first node that differs."""
        op, detail = self._first_wrong_node(arguments)
        what = f"result {index} of a compiled graph differs from eager's: {description}"
        if op is None:
            todo = "run the graph in eager with options={'verify': 'warn'}, and report it"
            return Diagnostic(f"{what}; {detail}", "the graph", todo)
        todo = (
            f"run the node in eager with options={{'choices': {{'{op.stable}': 'eager'}}}}, "
            "or the graph with options={'verify': 'warn'}; and report it"
        )
        where = f"node {op.stable}" + (f", {op.location}" if op.location else "")
        return Diagnostic(f"{what}; {detail}", where, todo, node=op.stable)

    def _first_wrong_node(self, arguments: Sequence[torch.Tensor]) -> tuple[Op | None, str]:
        """Returns the first node whose value differs from eager's, with details; or the reason why it is unknown."""
        from buddy.compiler.driver.observation import compile_observed
        from buddy.compiler.ops.utils import Registry
        from buddy.compiler.runtime.node_comparison import compare_nodes

        try:
            captured = self._as_captured(arguments)
            graph = captured.graph
            registry = Registry(dict(self._lowerings)) if self._lowerings else None
            with _disable_current_modes():
                program = compile_observed(graph, self._recipe, registry)
                report = compare_nodes(captured, program, threads=self._recipe.threads)
        except Exception as error:
            _log.debug("the first node that differs is unknown", exc_info=error)
            return None, f"the node is unknown ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        op = next((op for op in graph.operations if op.stable == report.first), None)
        if op is None:
            return None, "every node alone matches its ATen op, so a decomposition or a fusion is wrong"
        if report.first_by == "own":
            return op, f"{op.target} is the first node that computes a wrong result from correct inputs"
        within = f", in which {', '.join(report.suspects)} are fused" if report.suspects else ""
        return op, f"{op.target} is the first node with a wrong value{within}"


def _tensors(arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value for value in arguments if isinstance(value, torch.Tensor)]


def _difference(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], captured: CapturedGraph | None = None
) -> tuple[int, str] | None:
    """Returns the index of the first result that differs from `expected`, and a description; `None` if all match.

    With `captured`, the tolerance takes the program's sensitivity to rounding into account; otherwise it is fixed.
    """
    deviations = ErrorMetrics()
    for index, (result, reference) in enumerate(zip(results, expected, strict=True)):
        if not isinstance(reference, torch.Tensor):
            continue
        form, expected_form = _dtype_and_shape(result), _dtype_and_shape(reference)
        if form != expected_form:
            return index, f"it is {form}, and eager's is {expected_form}"
        deviation = deviations.of(result.detach(), reference.detach())
        spread = None
        if captured is None:
            matches = deviation.ok and are_few_roundings(result, reference)
        else:
            matches, spread = judge_result(captured, expected, index, result.detach(), deviation.ok)
        if matches:
            continue
        choice = chosen_positions_of(captured.graph.results[index]) if captured else None
        if captured is None or choice is None or not allowed_margin(captured, choice, result, reference, MULTIPLE):
            return index, _describe_deviation(deviation, describe_limit(reference.dtype, spread, deviation.ok))
    return None


def _dtype_and_shape(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def _describe_deviation(deviation: Deviation, tolerance: str) -> str:
    position = f" (first at {deviation.where})" if deviation.where else ""
    if deviation.of_tolerance < 0:
        return f"an element is infinite or NaN on one side only{position}"
    return f"they differ by up to {deviation.largest:.3g}, tolerance {tolerance}{position}"
