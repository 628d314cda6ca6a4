"""A run's report as JSON and as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from buddy.app import figures
from buddy.app.cli.console import table
from buddy.compiler.protocol import FOLDED, Assignment, Diagnostic, GraphInfo, Memory, OutputReport, RunReport, Timing
from buddy.compiler.recipe import EAGER

_SHOWN = 5
_LEFT = frozenset({"output", "shape", "dtype", "verdict", "first differs at"})


def as_json(info: GraphInfo, report: RunReport, assignments: Sequence[Assignment] = ()) -> dict[str, Any]:
    """The report on a graph as plain values; seconds throughout, what is no finite number as null."""
    broke = {"broke": {"why": info.broke, "line": info.broke_at}} if info.broke else {}
    return {
        "graph": report.graph,
        "name": info.name,
        **broke,
        "ok": report.ok,
        "nodes": {"compiled": report.nodes_compiled, "eager": report.nodes_eager},
        "lowered_by": dict(Counter(a.lowering for a in assignments)),
        "eager_nodes": [{"node": a.node, "reason": a.reason} for a in in_eager(assignments)],
        "other_registry": [{"node": a.node, "by": a.lowering, "reason": a.reason} for a in _elsewhere(assignments)],
        "outputs": [_output_json(output) for output in report.outputs],
        "compile_seconds": report.compile_seconds,
        "load_seconds": report.load_seconds,
        "run": _timing_json(report.compiled),
        "eager": _timing_json(report.eager),
        "ratio": _number(report.ratio),
        "memory": _memory_json(report.memory),
        "inputs_unchanged": report.inputs_unchanged,
        "notes": list(report.notes),
    }


def as_text(info: GraphInfo, report: RunReport, assignments: Sequence[Assignment] = ()) -> str:
    """The report on a graph for a person."""
    broke = [f"the graph breaks off at {info.broke_at}: {info.broke}"] if info.broke else []
    lines = [
        f"graph {report.graph}, {info.name}: {report.nodes_compiled} nodes compiled, {report.nodes_eager} in eager, "
        f"compiled in {report.compile_seconds:.2f} s",
        *broke,
        table(
            ["output", "shape", "dtype", "verdict", "max abs", "max rel", "first differs at"],
            [_output_row(output) for output in report.outputs],
            _LEFT,
        ),
        f"compiled {_timing_text(report.compiled)}",
        f"eager    {_timing_text(report.eager)}",
        f"compiled code takes {report.ratio:.2f} x the time of eager",
        *_memory_lines(report.memory),
    ]
    if not report.inputs_unchanged:
        lines.append("MISMATCH: the run changed its inputs or weights")
    fallen = [*_lines("in eager", in_eager(assignments)), *_lines("not by the first registry", _elsewhere(assignments))]
    return "\n".join([*lines, *fallen, *(f"note: {note}" for note in report.notes)])


def _memory_lines(memory: Memory | None) -> list[str]:
    if memory is None:
        return []
    packed = f"; packed weights, kept from run to run, take {figures.size(memory.packed)}" if memory.packed else ""
    return [f"memory at the peak: compiled {figures.size(memory.compiled)}, eager {figures.size(memory.eager)}{packed}"]


def nodes_text(info: GraphInfo, assignments: Sequence[Assignment]) -> str:
    """How each node of a graph is lowered, and why not by the flavour's own registry, as a table."""
    targets = {row.stable: row.target for row in info.rows}
    rows = [[a.node, targets.get(a.node, ""), a.lowering, a.function, a.reason] for a in assignments]
    heading = ["node", "target", "as", "function", "why"]
    return "\n".join(line.rstrip() for line in table(heading, rows, frozenset(heading)).splitlines()) + "\n"


def in_eager(assignments: Sequence[Assignment]) -> list[Assignment]:
    return [assignment for assignment in assignments if assignment.lowering == EAGER]


def _elsewhere(assignments: Sequence[Assignment]) -> list[Assignment]:
    """The nodes that are compiled, but not by the registry that comes first."""
    return [a for a in assignments if a.lowering not in (EAGER, FOLDED) and a.reason]


def _lines(title: str, found: Sequence[Assignment]) -> list[str]:
    """A line for each node, up to a handful."""
    lines = [f"{title}: {a.node}: {a.reason}" for a in found[:_SHOWN]]
    return lines + ([f"{title}: and {len(found) - _SHOWN} more (--json lists them)"] if len(found) > _SHOWN else [])


def failure_json(found: Diagnostic) -> dict[str, Any]:
    keys = ("what", "where", "todo", "detail", "step", "node")
    values = {key: getattr(found, key) for key in keys}
    return {key: value for key, value in values.items() if value not in ("", -1)}


def _output_json(output: OutputReport) -> dict[str, Any]:
    return {
        "name": output.name,
        "shape": list(output.shape),
        "dtype": output.dtype,
        "verdict": output.verdict,
        "max_abs": _number(output.max_abs),
        "max_rel": _number(output.max_rel),
        "max_ulp": _number(output.max_ulp),
        "tolerance": output.tolerance,
        "first_difference": output.where,
        "nans": output.nans,
        "infs": output.infs,
    }


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "median": _number(timing.median),
        "spread": [_number(timing.low), _number(timing.high)],
        "runs": timing.runs,
        "threads": timing.threads,
    }


def _memory_json(memory: Memory | None) -> dict[str, int] | None:
    """Bytes at the peak of a run, and of packed weights."""
    if memory is None:
        return None
    return {"compiled": memory.compiled, "eager": memory.eager, "packed": memory.packed}


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _output_row(output: OutputReport) -> list[object]:
    shape = "x".join(map(str, output.shape)) or "scalar"
    verdict = output.verdict if output.verdict == "ok" else output.verdict.upper()
    return [output.name, shape, output.dtype, verdict, f"{output.max_abs:.2e}", f"{output.max_rel:.2e}", output.where]


def _timing_text(timing: Timing) -> str:
    spread = f"{_milliseconds(timing.low)} to {_milliseconds(timing.high)}"
    threads = figures.thread_count(timing.threads)
    return f"{_milliseconds(timing.median)} (quartiles {spread}, {timing.runs} runs, {threads})"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
