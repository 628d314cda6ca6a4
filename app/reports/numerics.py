"""The comparison of every node with eager, and the passes that change numerics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from buddy.app.reports.plots import Kind, Plot, PlotAxis, Series
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.protocol.numerics import Deviation, NanOrigin, NodeNumbers, NumericsReport
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import Recipe

REFERENCES = {"eager": "eager", "float64": "double precision"}
_KINDS = {"nan": "NaN", "inf": "infinity"}


def error_text(found: Deviation | None) -> str:
    """The maximum difference of a tensor in at most seven characters; empty if it was not measured."""
    if found is None:
        return ""
    if found.share < 0:
        return "nan/inf"
    return f"{found.largest:.0e}" if found.largest else "0"


def share_text(found: Deviation | None) -> str:
    """The maximum difference as a multiple of the tolerance."""
    if found is None:
        return ""
    if found.share < 0:
        return "nan/inf"
    return f"{found.share:.2g} x" if found.share else "0"


def rows_of(info: GraphInfo) -> dict[str, NodeRow]:
    return {row.stable: row for row in info.rows}


def summary_lines(report: NumericsReport, info: GraphInfo) -> list[str]:
    """The summary: the first mismatch, the origin of NaNs, and how many nodes were compared."""
    names = {row.stable: row.name for row in info.rows}
    return [
        *_first_sentences(report, info, names),
        *(_origin_sentence(origin, report, names) for origin in report.origins),
        *_observation_sentences(report),
        *(f"note: {note}" for note in report.notes),
    ]


def _first_sentences(report: NumericsReport, info: GraphInfo, names: dict[str, str]) -> list[str]:
    if not report.compared:
        return ["not compared: no node has a value that the reference has, too"]
    if not report.first:
        return [f"all values match {REFERENCES[report.reference]} within their tolerances"]
    found, row = report.by_node()[report.first], rows_of(info).get(report.first)
    error = found.own if report.first_by == "own" else found.error
    place = ", ".join(part for part in (row.target, row.location) if part) if row is not None else ""
    how = "compiled alone, with correct inputs" if report.first_by == "own" else f"in the program; {_alone_text(found)}"
    lines = [
        f"{names.get(report.first, report.first)} ({place}) is the first node out of tolerance, {how}: "
        f"{error_text(error)}, {share_text(error)} the tolerance ({found.tolerance})"
    ]
    if report.suspects:
        lines.append(f"fused into it and not compared: {', '.join(names.get(n, n) for n in report.suspects)}")
    return lines


def _alone_text(found: NodeNumbers) -> str:
    """The result of compiling alone a node that is out of tolerance in the program."""
    if found.own is not None:
        return "compiled alone, it is within tolerance"
    return f"it was not compiled alone{found.why and f': {found.why}'}"


def _origin_sentence(origin: NanOrigin, report: NumericsReport, names: dict[str, str]) -> str:
    name, what = names.get(origin.node, origin.node), _KINDS[origin.kind]
    both = {other.side for other in report.origins if other.kind == origin.kind and other.node == origin.node}
    reference = REFERENCES[report.reference]
    side = "compiled code" if origin.side == "compiled" else reference
    too = f" (also in {reference})" if origin.side == "compiled" and "eager" in both else ""
    source = "an input has one already" if origin.inputs_have else "none of its inputs has one"
    return f"the first {what} in {side} is in {name}{too}: {source}"


def _observation_sentences(report: NumericsReport) -> list[str]:
    count = Counter(found.seen for found in report.nodes)
    alone = sum(found.own is not None for found in report.nodes)
    parts = [f"{count[seen]} {seen}" for seen in ("observed", "fused", "materialised", "folded") if count[seen]]
    return [
        f"{len(report.nodes)} nodes: {', '.join(parts)}; {alone} also compiled alone; "
        f"compiled in {report.compile_seconds:.1f} s, compared in {report.seconds:.2f} s"
    ]


def node_details(found: NodeNumbers | None) -> dict[str, str]:
    """The numerics of a node for its details, by title."""
    if found is None:
        return {}
    error, own = found.error, found.own
    return {
        "value": found.seen,
        "err": f"{error_text(error)}, {share_text(error)} the tolerance" if error is not None else "",
        "own": f"{error_text(own)}, {share_text(own)} the tolerance" if own is not None else found.why,
        "tolerance": found.tolerance,
    }


def error_growth(report: NumericsReport, info: GraphInfo) -> Plot:
    """The errors along the graph, relative to the root mean square of each value."""
    places = {row.stable: row.index for row in info.rows}
    names = {row.stable: row.name for row in info.rows}
    series = []
    for label, errors in (
        ("in the program", [(found.node, found.error) for found in report.nodes]),
        ("alone", [(found.node, found.own) for found in report.nodes]),
    ):
        known = [(node, d) for node, d in errors if d is not None and d.share >= 0 and node in places]
        xs, ys = [float(places[node]) for node, _ in known], [d.relative for _, d in known]
        kind: Kind = "line" if label == "in the program" else "points"
        series.append(Series(label, xs, ys, kind, names=[names[node] for node, _ in known]))
    note = f"root mean square of the difference from {REFERENCES[report.reference]}, relative to that of the value"
    return Plot("Error along the graph", tuple(series), PlotAxis("node"), PlotAxis("relative error", log=True), note)


def results_error(report: NumericsReport) -> float:
    """The maximum difference of the graph's results; infinite if a NaN or an infinity differs."""
    nodes = report.by_node()
    errors = [nodes[name].error for name in report.results if name in nodes]
    return max((d.largest if d.share >= 0 else math.inf for d in errors if d is not None), default=0.0)


def explained_share(whole: float, without: float) -> float:
    """The fraction of the error `whole` that disappears with the error `without`; negative if the error grows."""
    return (whole - without) / whole if whole and math.isfinite(whole) and math.isfinite(without) else 0.0


def worst_nodes(report: NumericsReport, count: int) -> list[NodeNumbers]:
    """The first node out of tolerance, then the nodes with the largest errors relative to their tolerances."""

    def key(found: NodeNumbers) -> tuple[bool, float]:
        shares = [d.share if d.share >= 0 else float("inf") for d in (found.error, found.own) if d is not None]
        return found.node != report.first, -max(shares, default=-1.0)

    return sorted((found for found in report.nodes if found.error or found.own), key=key)[:count]


def as_json(report: NumericsReport, info: GraphInfo) -> dict[str, Any]:
    """The report on a graph as plain values."""
    rows = rows_of(info)
    return {
        "graph": report.graph,
        "name": info.name,
        "ok": report.ok if report.compared else None,
        "compared": report.compared,
        "reference": report.reference,
        "first": _first_json(report, rows),
        "origins": [
            {"kind": o.kind, "side": o.side, "node": o.node, "inputs_have_it": o.inputs_have} for o in report.origins
        ],
        "results": list(report.results),
        "seconds": report.seconds,
        "compile_seconds": report.compile_seconds,
        "notes": list(report.notes),
        "nodes": [_node_json(found, rows.get(found.node)) for found in report.nodes],
    }


def _first_json(report: NumericsReport, rows: dict[str, NodeRow]) -> dict[str, Any] | None:
    if not report.first:
        return None
    row = rows.get(report.first)
    place = {"name": row.name, "target": row.target, "module": row.module, "line": row.location} if row else {}
    return {"node": report.first, "by": report.first_by, **place, "suspects": list(report.suspects)}


def _node_json(found: NodeNumbers, row: NodeRow | None) -> dict[str, Any]:
    return {
        "node": found.node,
        "name": row.name if row is not None else "",
        "seen": found.seen,
        "ok": found.ok,
        "error": _deviation_json(found.error),
        "own": _deviation_json(found.own),
        "tolerance": found.tolerance,
        **({"eager": {"nans": found.nans, "infs": found.infs}} if found.nans or found.infs else {}),
        **({"why_no_own": found.why} if found.why else {}),
    }


def _deviation_json(found: Deviation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    finite = found.share >= 0
    return {
        "max_abs": found.largest if finite else None,
        "relative": found.relative if finite else None,
        "share_of_tolerance": found.share if finite else None,
        "nans": found.nans,
        "infs": found.infs,
        **({"first_differs_at": found.where} if found.where else {}),
    }


class NumericsVariant(NamedTuple):
    """A recipe without one change of numerics: `what` describes the change, `step` is the pass that makes it."""

    what: str
    step: str
    recipe: Recipe


def without_each(recipe: Recipe) -> Iterator[NumericsVariant]:
    """The recipe without each enabled pass that changes numerics, in recipe order."""
    for index, step in enumerate(recipe.steps):
        numbers = facts(step.name).numbers
        if not step.enabled or numbers is None:
            continue
        what, option = numbers.how, numbers.without
        if option is None:
            yield NumericsVariant(what, step.name, recipe.with_step(index, enabled=False))
        elif option not in step.options:
            others = tuple(pair for pair in step.options if pair[0] != option[0])
            changed = replace(recipe.steps[index], options=(*others, option))
            steps = (*recipe.steps[:index], changed, *recipe.steps[index + 1 :])
            yield NumericsVariant(what, step.name, replace(recipe, steps=steps))
