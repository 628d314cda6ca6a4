"""The comparison of every node with eager as text, JSON and a plot, and the passes that change numerics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from buddy.app.reports.plots import Plot, PlotAxis, Series, SeriesKind
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.protocol.numerics import Deviation, NanOrigin, NodeNumbers, NumericsReport
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.searches import NodePrecision

# The names of the references with which nodes are compared.
REFERENCES = {"eager": "eager", "float64": "double precision"}
# The names of the kinds of `NanOrigin`.
_KIND_NAMES = {"nan": "NaN", "inf": "infinity"}


def error_text(deviation: Deviation | None) -> str:
    """Returns the maximum difference of a tensor in at most seven characters; empty if it was not measured."""
    if deviation is None:
        return ""
    if not deviation.matches_nonfinite:
        return "nan/inf"
    return f"{deviation.largest:.0e}" if deviation.largest else "0"


def error_size(deviation: Deviation) -> float:
    """Returns the maximum difference, infinite if an element is infinite or NaN in only one of the tensors."""
    return deviation.largest if deviation.matches_nonfinite else math.inf


def tolerance_multiple(deviation: Deviation) -> float:
    """Returns the maximum difference as a multiple of the tolerance.

    It is infinite if an element is infinite or NaN in only one of the tensors.
    """
    return deviation.of_tolerance if deviation.matches_nonfinite else math.inf


def tolerance_multiple_text(deviation: Deviation | None) -> str:
    """Returns `tolerance_multiple` as a short text such as `2.5 x`; empty if it was not measured."""
    if deviation is None:
        return ""
    if not deviation.matches_nonfinite:
        return "nan/inf"
    return f"{deviation.of_tolerance:.2g} x" if deviation.of_tolerance else "0"


def rows_by_stable_name(info: GraphInfo) -> dict[str, NodeRow]:
    """Returns the rows of a graph by stable name."""
    return {row.stable: row for row in info.rows}


def summary_lines(report: NumericsReport, info: GraphInfo) -> list[str]:
    """Returns the summary of a report: the first mismatch, origins of NaNs and infinities, node counts, and notes."""
    names = {row.stable: row.display_name for row in info.rows}
    return [
        *_first_mismatch_lines(report, info, names),
        *(_origin_text(origin, report, names) for origin in report.origins),
        *_node_count_lines(report),
        *(f"note: {note}" for note in report.notes),
    ]


def _first_mismatch_lines(report: NumericsReport, info: GraphInfo, names: dict[str, str]) -> list[str]:
    """Returns the first node out of tolerance with its error and its suspects, or a line that all values match.

    `names` are the display names of nodes by stable name.
    """
    if not report.compared:
        return ["not compared: no node has a value in both compiled code and the reference"]
    if not report.first:
        return [f"all values match {REFERENCES[report.reference]} within their tolerances"]
    node, row = report.by_node()[report.first], rows_by_stable_name(info).get(report.first)
    is_own_error = report.first_by == "own"
    error = node.own_error if is_own_error else node.error
    op_and_line = ", ".join(part for part in (row.target, row.location) if part) if row is not None else ""
    name = names.get(report.first, report.first) + (f" ({op_and_line})" if op_and_line else "")
    context = "compiled alone, with correct inputs" if is_own_error else f"in the program; {_alone_text(node)}"
    tolerance = f" ({node.tolerance})" if node.tolerance else ""
    lines = [f"{name} is the first node out of tolerance, {context}: {_error_and_multiple(error)}{tolerance}"]
    if report.suspects:
        suspects = ", ".join(names.get(name, name) for name in report.suspects)
        lines.append(f"nodes that are fused into this node and not compared: {suspects}")
    return lines


def _error_and_multiple(deviation: Deviation | None) -> str:
    """Returns the maximum difference, and its multiple of the tolerance if that is finite and not 0; "" if unknown."""
    if deviation is None:
        return ""
    if not deviation.matches_nonfinite:
        return "a NaN or an infinity differs"
    multiple = f", {tolerance_multiple_text(deviation)} the tolerance" if 0 < deviation.of_tolerance < math.inf else ""
    return error_text(deviation) + multiple


def _alone_text(node: NodeNumbers) -> str:
    """Returns the text that a node is within tolerance if it is compiled alone, or why it was not compiled alone."""
    if node.own_error is not None:
        return "compiled alone, it is within tolerance"
    return f"it was not compiled alone: {node.why}" if node.why else "it was not compiled alone"


def _origin_text(origin: NanOrigin, report: NumericsReport, names: dict[str, str]) -> str:
    """Returns the node where a NaN or an infinity appears first, and whether an input of the node has one."""
    name, kind = names.get(origin.node, origin.node), _KIND_NAMES[origin.kind]
    sides = {other.side for other in report.origins if other.kind == origin.kind and other.node == origin.node}
    reference = REFERENCES[report.reference]
    side = "compiled code" if origin.side == "compiled" else reference
    also = f" (also in {reference})" if origin.side == "compiled" and "eager" in sides else ""
    inputs = (
        f"an input of this node has {kind}, too" if origin.from_graph_input else f"no input of this node has {kind}"
    )
    return f"the first {kind} in {side} is in {name}{also}: {inputs}"


def _node_count_lines(report: NumericsReport) -> list[str]:
    """Returns the numbers of nodes by the state of their value, and the times of the comparison."""
    counts = Counter(node.value_state for node in report.nodes)
    n_compiled_alone = sum(node.own_error is not None for node in report.nodes)
    parts = [f"{counts[state]} {state}" for state in ("observed", "fused", "materialised", "folded") if counts[state]]
    return [
        f"{len(report.nodes)} nodes: {', '.join(parts)}; {n_compiled_alone} also compiled alone; "
        f"compiled in {report.compile_seconds:.1f} s, compared in {report.seconds:.2f} s"
    ]


def node_details(node: NodeNumbers | None) -> dict[str, str]:
    """Returns the numerics of a node for its details, by title; empty if it was not compared."""
    if node is None:
        return {}
    error, own = node.error, node.own_error
    return {
        "value": node.value_state,
        "err": _error_and_multiple(error),
        "own": _error_and_multiple(own) or node.why,
        "tolerance": node.tolerance,
    }


class PrecisionGain(NamedTuple):
    """The cost of the precision of a matrix product, a relative error, and its benefit, the saved seconds of a run.

    Both are `None` if not measured. If `is_node_error`, the error is that of the node's own result; otherwise it is the
    error of the outputs when only this node uses the precision.
    """

    error: float | None
    is_node_error: bool
    saved_seconds: float | None

    @property
    def error_text(self) -> str:
        """The error as a short text; empty if not measured."""
        return f"{self.error:.0e}" if self.error is not None else ""

    @property
    def saved_text(self) -> str:
        """The saved milliseconds; empty if not measured."""
        return f"{1e3 * self.saved_seconds:.3f}" if self.saved_seconds is not None else ""


def precision_gain(
    precision: str,
    numbers: NodeNumbers | None,
    f32_seconds: float | None,
    reduced_seconds: float | None,
    tuned: NodePrecision | None,
) -> PrecisionGain:
    """Returns the cost and the benefit of `precision` for a node.

    The error is from the comparison of every node (`numbers`). The saved time is the difference of the node's times in
    profiles, in f32 and in `precision`. A missing error or time is from the last search for precisions (`tuned`).
    """
    effects = tuned.effects if tuned is not None else ()
    effect = next((effect for effect in effects if effect.precision == precision), None)
    own_error = numbers.own_error if numbers is not None and numbers.precision == precision else None
    saved_seconds = effect.saved if effect is not None else None
    if f32_seconds is not None and reduced_seconds is not None:
        saved_seconds = f32_seconds - reduced_seconds
    if own_error is not None and own_error.matches_nonfinite:
        return PrecisionGain(own_error.relative, True, saved_seconds)
    outputs_error = effect.error if effect is not None and 0 <= effect.error < math.inf else None
    return PrecisionGain(outputs_error, False, saved_seconds)


def _error_series(report: NumericsReport) -> Iterator[tuple[str, SeriesKind, list[tuple[str, Deviation | None]]]]:
    """Yields the label, the kind and the errors of two series: nodes in the program, and nodes compiled alone."""
    yield "in the program", "line", [(node.node, node.error) for node in report.nodes]
    yield "alone", "points", [(node.node, node.own_error) for node in report.nodes]


def error_growth(report: NumericsReport, info: GraphInfo) -> Plot:
    """Returns the error of each node along the graph, relative to the root mean square of its value."""
    rows = rows_by_stable_name(info)
    series = []
    for label, kind, errors in _error_series(report):
        finite = [
            (rows[node], deviation)
            for node, deviation in errors
            if deviation is not None and deviation.matches_nonfinite and node in rows
        ]
        xs, ys = [float(row.index) for row, _ in finite], [deviation.relative for _, deviation in finite]
        series.append(Series(label, xs, ys, kind, names=[row.display_name for row, _ in finite]))
    note = f"root mean square of the difference from {REFERENCES[report.reference]}, relative to that of the value"
    return Plot("Error along the graph", tuple(series), PlotAxis("node"), PlotAxis("relative error", log=True), note)


def results_error(report: NumericsReport) -> float:
    """Returns the maximum difference of the graph's results; infinite if a NaN or an infinity differs."""
    nodes = report.by_node()
    errors = [nodes[name].error for name in report.results if name in nodes]
    return max((error_size(error) for error in errors if error is not None), default=0.0)


def explained_share(error: float, error_without: float) -> float:
    """Returns the share of `error` that a pass explains if the error without the pass is `error_without`.

    The share is negative if the error is larger without the pass. It is 0 if `error` is 0 or an error is not finite.
    """
    is_known = error and math.isfinite(error) and math.isfinite(error_without)
    return (error - error_without) / error if is_known else 0.0


def worst_nodes(report: NumericsReport, count: int) -> list[NodeNumbers]:
    """Returns at most `count` nodes: the first one out of tolerance, then the others by multiple of the tolerance."""

    def rank(node: NodeNumbers) -> tuple[bool, float]:
        errors = [error for error in (node.error, node.own_error) if error is not None]
        multiples = [tolerance_multiple(error) for error in errors]
        return node.node != report.first, -max(multiples, default=-1.0)

    return sorted((node for node in report.nodes if node.error or node.own_error), key=rank)[:count]


def as_json(report: NumericsReport, info: GraphInfo) -> dict[str, object]:
    """Returns the report on a graph as plain values.

    The key "eager", and "eager" as the side of an origin, stand for the reference, which may be double precision.
    """
    rows = rows_by_stable_name(info)
    return {
        "graph": report.graph,
        "name": info.name,
        "ok": report.ok if report.compared else None,
        "compared": report.compared,
        "reference": report.reference,
        "first": _first_json(report, rows),
        "origins": [
            {
                "kind": origin.kind,
                "side": origin.side,
                "node": origin.node,
                "inputs_have_it": origin.from_graph_input,
            }
            for origin in report.origins
        ],
        "results": list(report.results),
        "seconds": report.seconds,
        "compile_seconds": report.compile_seconds,
        "notes": list(report.notes),
        "nodes": [_node_json(node, rows.get(node.node)) for node in report.nodes],
    }


def _first_json(report: NumericsReport, rows: dict[str, NodeRow]) -> dict[str, object] | None:
    """Returns the first node out of tolerance as plain values, `None` without one."""
    if not report.first:
        return None
    row = rows.get(report.first)
    row_fields = {"name": row.name, "target": row.target, "module": row.module, "line": row.location} if row else {}
    return {"node": report.first, "by": report.first_by, **row_fields, "suspects": list(report.suspects)}


def _node_json(node: NodeNumbers, row: NodeRow | None) -> dict[str, object]:
    """Returns the errors of a node as plain values."""
    return {
        "node": node.node,
        "name": row.name if row is not None else "",
        "seen": node.value_state,
        "ok": node.ok,
        "error": _deviation_json(node.error),
        "own": _deviation_json(node.own_error),
        "tolerance": node.tolerance,
        **({"precision": node.precision} if node.precision else {}),
        **({"eager": {"nans": node.nans, "infs": node.infs}} if node.nans or node.infs else {}),
        **({"why_no_own": node.why} if node.why else {}),
    }


def _deviation_json(deviation: Deviation | None) -> dict[str, object] | None:
    """Returns the error of a tensor as plain values. Its numbers are null if a NaN or an infinity differs."""
    if deviation is None:
        return None
    has_numbers = deviation.matches_nonfinite
    return {
        "max_abs": deviation.largest if has_numbers else None,
        "relative": deviation.relative if has_numbers else None,
        "share_of_tolerance": deviation.of_tolerance if has_numbers else None,
        "nans": deviation.nans,
        "infs": deviation.infs,
        **({"first_differs_at": deviation.where} if deviation.where else {}),
    }


class NumericsVariant(NamedTuple):
    """A recipe in which one pass, `step`, does not change numerics. `effect` describes how the pass changes them."""

    effect: str
    step: str
    recipe: Recipe


def variants_without(recipe: Recipe) -> Iterator[NumericsVariant]:
    """Yields, for each enabled pass that changes numerics, the recipe without this change.

    The pass gets the option with which it does not change numerics; without such an option, the pass is disabled. A
    pass that has this option already is left out.
    """
    for index, step in enumerate(recipe.steps):
        numerics = facts(step.name).numerics
        if not step.enabled or numerics is None:
            continue
        effect, option = numerics.how, numerics.exact_option
        if option is None:
            yield NumericsVariant(effect, step.name, recipe.with_step(index, enabled=False))
        elif option not in step.options:
            other_options = tuple(pair for pair in step.options if pair[0] != option[0])
            new_step = replace(recipe.steps[index], options=(*other_options, option))
            steps = (*recipe.steps[:index], new_step, *recipe.steps[index + 1 :])
            yield NumericsVariant(effect, step.name, replace(recipe, steps=steps))
