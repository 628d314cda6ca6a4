"""The results of a graph as tables of a shared report: outputs, times and sizes, slow and wrong nodes, the recipe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from buddy.app.reports import formatting, numerics, profile
from buddy.app.reports.run_report import eager_assignments, memory_parts_text
from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.compiler.protocol import Diagnostic, OutputReport, RunReport, Timing, Welcome
from buddy.compiler.protocol.recipe import to_toml

if TYPE_CHECKING:
    from buddy.app.reports.share.contents import SharedGraph

# The maximum number of nodes in the tables of the slowest nodes and of those with the largest errors.
_MAX_NODES = 20
Table = dict[str, Any]


def shown_path(location: str) -> str:
    """Returns `location` as it is shared: relative to the current folder if it is inside, `~` for the home folder."""
    home = os.path.expanduser("~")
    short = relative_to_working_directory(location)
    return f"~{short[len(home) :]}" if len(home) > 1 and short.startswith(f"{home}{os.sep}") else short


def result_tables(graph: SharedGraph, welcome: Welcome | None) -> list[Table]:
    """Returns the tables of a graph, in the order in which the report shows them.

    A table has either `rows` or a `text`.
    """
    return [
        *_failure_tables(graph.problem),
        *_run_tables(graph),
        *_node_tables(graph),
        *_condition_tables(graph, welcome),
    ]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """Returns a table whose columns with names in `right` are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    return {"title": title, "columns": list(columns), "right": list(right), "rows": cells}


def _failure_tables(problem: Diagnostic | None) -> Iterator[Table]:
    """Yields a table of the problem, if any."""
    if problem is None:
        return
    rows = [("what", problem.what), ("where", problem.where), ("to do", problem.todo), ("details", problem.detail)]
    yield {**_table("Failure", ("", ""), [row for row in rows if row[1]]), "bad": True}


def _run_tables(graph: SharedGraph) -> Iterator[Table]:
    """Yields the tables of a run: outputs, measurements and notes."""
    report = graph.report
    if report is None:
        return
    heading = ("output", "shape", "dtype", "verdict", "max abs", "max rel", "conditions")
    rows = [_output_row(output) for output in report.outputs]
    bad = [number for number, output in enumerate(report.outputs) if output.verdict not in ("ok", "unchecked")]
    yield {**_table("Outputs", heading, rows, ("max abs", "max rel")), "badRows": bad}
    yield _table("Measurements", ("", ""), list(_measurements(report)))
    if report.notes:
        yield _table("Notes", ("",), [(note,) for note in report.notes])


def _output_row(output: OutputReport) -> tuple[object, ...]:
    """Returns the row of an output in the table of outputs."""
    shape = "x".join(map(str, output.shape)) or "scalar"
    texts = [*formatting.verdict_texts(output), formatting.nan_counts_text(output)]
    if output.verdict == "mismatch" and output.where:
        texts.insert(0, f"first differs at {output.where}")
    errors = ("", "") if output.verdict == "unchecked" else (f"{output.max_abs:.2e}", f"{output.max_rel:.2e}")
    return output.name, shape, output.dtype, output.verdict, *errors, "; ".join(text for text in texts if text)


def _measurements(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yields the rows of the table of measurements."""
    yield "result", f"not compared: {report.not_compared}" if report.not_compared else report.word
    counts = [f"{report.nodes_compiled} compiled", f"{report.nodes_eager} in eager"]
    yield "nodes", ", ".join([*counts, *formatting.eager_path_texts(report)])
    yield "compiled code", _timing_text(report.compiled)
    if not report.not_compared:
        yield "eager", _timing_text(report.eager)
        yield "ratio", f"{report.ratio:.2f} x the time of eager"
    for side in report.sides:
        yield side.name, side.problem or f"{_timing_text(side.timing)}, {side.verdict}"
    yield "compiled in", formatting.seconds(report.compile_seconds)
    yield "loaded in", formatting.seconds(report.load_seconds)
    if report.memory is not None:
        yield "peak memory", f"{formatting.size(report.memory.compiled)}, eager {formatting.size(report.memory.eager)}"
        yield "memory", memory_parts_text(report.memory)
    if report.load is not None:
        yield "load", formatting.load_text(report.load).removeprefix("machine: ")


def _timing_text(timing: Timing) -> str:
    spread = f"{formatting.seconds(timing.low)} to {formatting.seconds(timing.high)}"
    runs = f"{timing.runs} run{'s' * (timing.runs != 1)}, {formatting.thread_count(timing.threads)}"
    return f"{formatting.seconds(timing.median)} (quartiles {spread}, {runs})"


def _node_tables(graph: SharedGraph) -> Iterator[Table]:
    """Yields tables of nodes: those in eager, the slowest, and those with the largest errors."""
    rows = {row.stable: row for row in graph.info.rows}
    fallbacks = [a for a in eager_assignments(graph.assignments) if a.node in rows]
    if fallbacks:
        cells = [(rows[a.node].display_name, rows[a.node].target, a.reason) for a in fallbacks]
        yield _table("Nodes in eager", ("node", "op", "reason"), cells)
    if graph.profile is not None:
        timed = profile.timed_nodes(graph.profile, graph.info)[:_MAX_NODES]
        whole = graph.profile.whole or 1.0
        times = [
            (node.row.display_name, node.row.target, profile.in_milliseconds(node.time.seconds),
             f"{node.time.seconds / whole:.1%}", profile.share_text(node))
            for node in timed
        ]  # fmt: skip
        heading = ("node", "op", "ms", "of the run", "of the bound")
        yield {**_table("Slowest nodes", heading, times, heading[2:]), "note": profile.summary_lines(graph.profile)[0]}
    if graph.numerics is not None:
        worst = [
            (rows[n.node].display_name if n.node in rows else n.node, n.value_state, numerics.error_text(n.error),
             numerics.tolerance_multiple_text(n.error), numerics.tolerance_multiple_text(n.own_error), n.tolerance)
            for n in numerics.worst_nodes(graph.numerics, _MAX_NODES)
        ]  # fmt: skip
        columns = ("node", "value", "error", "of tolerance", "alone", "tolerance")
        note = numerics.summary_lines(graph.numerics, graph.info)[0]
        yield {**_table("Nodes with the largest errors", columns, worst, columns[2:5]), "note": note}


def _condition_tables(graph: SharedGraph, welcome: Welcome | None) -> Iterator[Table]:
    """Yields the program, the machine, the versions, and the recipe."""
    recipe = graph.recipe
    program = shlex.join((shown_path(recipe.source), *recipe.arguments))
    rows = [("program", program), ("graph", f"{recipe.graph}, {graph.info.name}"), ("preset", recipe.preset)]
    rows.append(("written", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")))
    if welcome is not None:
        rows += [("machine", f"{welcome.target}, {welcome.cores} cores"), ("buddy-tui", welcome.engine)]
        rows += sorted(welcome.packages.items())
    yield _table("Program, machine and versions", ("", ""), rows)
    yield {"title": "Recipe", "text": to_toml(recipe), "file": "recipe.toml"}
