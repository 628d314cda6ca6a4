"""The report of a run as JSON and as text, and the tables of its nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from buddy.app.reports import formatting
from buddy.app.reports.formatting import table
from buddy.app.reports.nodes import bytes_text, training_memory, training_summary
from buddy.app.session.progress import PART_DESCRIPTIONS, PartTimes
from buddy.compiler.protocol import (
    COMPILER_NAMES,
    FOLDED,
    Assignment,
    Diagnostic,
    Divergence,
    GraphInfo,
    MemoryUse,
    NodeRow,
    OutputReport,
    Part,
    RunReport,
    SideReport,
    Timing,
)
from buddy.compiler.protocol.recipe import EAGER, NATIVE
from buddy.compiler.protocol.run_report import ONNX_RUNTIME, OPENVINO, RUNTIMES

# The names of the backends' code in a report: as the label of a line, and in a sentence.
RUNTIME_LABELS = {ONNX_RUNTIME: "ORT", OPENVINO: "OpenVINO"}
SIDE_LABELS = {NATIVE: "compiled", **COMPILER_NAMES, **RUNTIME_LABELS}
SIDE_SUBJECTS = {NATIVE: "compiled code", **RUNTIMES}
SIDE_SUBJECTS |= {name: f"{title}'s code" for name, title in COMPILER_NAMES.items()}

NAN_HINT = "use --equal-nan to treat NaN as equal to NaN"
# At most this many nodes are listed for a reason.
_MAX_NODES = 5
# The left-aligned columns of the table of outputs.
_LEFT_ALIGNED = frozenset({"output", "shape", "dtype", "verdict", "first differs at", "values"})


def run_report_json(info: GraphInfo, report: RunReport, assignments: Sequence[Assignment] = ()) -> dict[str, object]:
    """Returns the report on a graph as plain values; times in seconds, non-finite numbers as null."""
    memory = training_memory(info)
    graph_break = {"broke": {"why": info.break_reason, "line": info.break_line}} if info.break_reason else {}
    return {
        "graph": report.graph,
        "name": info.name,
        **graph_break,
        **({"training": memory.as_json()} if memory is not None else {}),
        "ok": report.ok if not report.not_compared or report.wrong else None,
        "compared": not report.not_compared,
        **({"not_compared": report.not_compared} if report.not_compared else {}),
        "equal_nan": report.equal_nan,
        "nodes": {
            "compiled": report.nodes_compiled,
            "eager": report.nodes_eager,
            "with_slow_path": report.slow_paths,
            "with_error_path": report.error_paths,
        },
        "lowered_by": dict(Counter(a.lowering for a in assignments)),
        "eager_nodes": [{"node": a.node, "reason": a.reason} for a in eager_assignments(assignments)],
        "slow_paths": [{"node": a.node, "condition": a.slow_path} for a in assignments if a.slow_path],
        "error_paths": [{"node": a.node, "condition": a.error_path} for a in assignments if a.error_path],
        "other_registry": [
            {"node": a.node, "by": a.lowering, "reason": a.reason} for a in _not_by_first_registry(assignments)
        ],
        "outputs": [_output_json(output) for output in report.outputs],
        "backend": report.backend,
        "compile_seconds": report.compile_seconds,
        "load_seconds": report.load_seconds,
        "run": _timing_json(report.compiled),
        "eager": _timing_json(report.eager),
        "ratio": _finite_or_none(report.ratio),
        "beside": [_side_json(side, report.eager) for side in report.sides],
        "memory": _memory_json(report.memory),
        "load": formatting.load_json(report.load),
        "inputs_unchanged": report.inputs_unchanged,
        "notes": list(report.notes),
    }


def part_seconds(times: PartTimes) -> dict[Part, float]:
    """Returns the seconds of each part that has run, in order."""
    return {part: seconds for part in PART_DESCRIPTIONS if (seconds := round(times.seconds(part), 3)) > 0}


def part_times_text(seconds: Mapping[Part, float]) -> str:
    """Returns the time of a command and of its parts: `time 9.1 s: importing torch 5.0 s, running the script 4.1 s`."""
    parts = ", ".join(f"{PART_DESCRIPTIONS[part]} {value:.1f} s" for part, value in seconds.items())
    return f"time {sum(seconds.values()):.1f} s: {parts}"


def run_report_text(info: GraphInfo, report: RunReport, assignments: Sequence[Assignment] = ()) -> str:
    """Returns the report on a graph as text."""
    memory = training_memory(info)
    graph_break = [f"ends in a graph break at {info.break_line}: {info.break_reason}"] if info.break_reason else []
    counts = [f"{report.nodes_compiled} nodes compiled", f"{report.nodes_eager} in eager"]
    counts += formatting.eager_path_texts(report)
    lines = [
        f"graph {report.graph}, {info.name}: {', '.join(counts)}, compiled in {report.compile_seconds:.2f} s",
        *graph_break,
        *([training_summary(memory)] if memory is not None else []),
        table(
            ["output", "shape", "dtype", "verdict", "max abs", "max rel", _last_heading(report)],
            [_output_row(output) for output in report.outputs],
            _LEFT_ALIGNED,
        ),
        *(f"{output.name}: {text}" for output in report.outputs for text in formatting.verdict_texts(output)),
        f"{SIDE_LABELS[report.backend]:<8} {_timing_text(report.compiled)}",
        *(_side_text(side) for side in report.sides),
        *_eager_lines(report),
        *(_side_ratio(side, report.eager) for side in report.sides if not side.problem),
        *(text for side in report.sides for text in divergence_texts(side, info)),
        *(text for side in report.sides for text in _marked_texts(side, info)),
        *([formatting.load_text(report.load)] if report.load else []),
        *_memory_lines(report.memory, report.compared),
    ]
    if any(output.verdict == "nan" for output in report.outputs):
        lines.append(f"NOT OK: outputs have NaN where eager has NaN; {NAN_HINT}")
    if not report.inputs_unchanged:
        lines.append("MISMATCH: the run changed its inputs or weights")
    fallbacks = [
        *_reason_lines("in eager", {a.node: a.reason for a in eager_assignments(assignments)}),
        *_reason_lines(
            "not lowered by the first registry", {a.node: a.reason for a in _not_by_first_registry(assignments)}
        ),
        *_reason_lines("slow path in eager", {a.node: f"if {a.slow_path}" for a in assignments if a.slow_path}),
        *_reason_lines("error path in eager", {a.node: f"if {a.error_path}" for a in assignments if a.error_path}),
    ]
    return "\n".join([*lines, *fallbacks, *(f"note: {note}" for note in report.notes)])


def _last_heading(report: RunReport) -> str:
    """Returns the heading of the last column of the table of outputs."""
    return "first differs at" if report.compared else "values"


def _eager_lines(report: RunReport) -> list[str]:
    """Returns the time of eager and the ratio, or why the run was not compared with eager."""
    if report.not_compared:
        return [f"not compared with eager: {report.not_compared}"]
    ratio = f"{SIDE_SUBJECTS[report.backend]} takes {report.ratio:.2f} x the time of eager"
    return [f"eager    {_timing_text(report.eager)}", ratio]


def _side_json(side: SideReport, eager: Timing) -> dict[str, object]:
    """Returns the results of another backend, which ran interleaved with the recipe's backend, as plain values."""
    if side.problem:
        return {"name": side.name, "problem": side.problem}
    return {
        "name": side.name,
        "outputs": [_output_json(output) for output in side.outputs],
        "compile_seconds": side.compile_seconds,
        "load_seconds": side.load_seconds,
        "run": _timing_json(side.timing),
        "ratio": _finite_or_none(side.timing.median / eager.median if eager.median else 0.0),
        **({"note": side.note} if side.note else {}),
        **({"divergence": _divergence_json(side.divergence)} if side.divergence else {}),
    }


def _divergence_json(divergence: Divergence) -> dict[str, object]:
    """Returns the first node that differs in another runtime as plain values."""
    return {
        "node": divergence.node or None,
        "kind": divergence.kind,
        "output": None if divergence.output is None else _output_json(divergence.output),
        "operands": list(divergence.operands),
        "runs": divergence.runs,
        "seconds": divergence.seconds,
        "marked": [_output_json(output) for output in divergence.marked],
    }


def divergence_texts(side: SideReport, info: GraphInfo | None) -> list[str]:
    """Returns sentences about the first node that differs in another runtime and its search; [] without a search."""
    texts = [f"{SIDE_SUBJECTS[side.name]}: {side.note}"] if side.note else []
    divergence = side.divergence
    if divergence is None:
        return texts
    calls = f"{formatting.counted(divergence.runs, 'call')}, {formatting.seconds(divergence.seconds)}"
    if not divergence.node:
        return [*texts, f"{SIDE_SUBJECTS[side.name]}: all {len(divergence.marked)} marked nodes match ({calls})"]
    names_and_locations = _names_and_locations(info)
    name, location = names_and_locations.get(divergence.node, (divergence.node, ""))
    where = f"{name}, {formatting.short_location(location)}" if location else name
    if divergence.kind == "fusion":
        text = f"its results match if it returns the value of {where}, so its fusion across this node differs"
        return [*texts, f"{SIDE_SUBJECTS[side.name]}: {text} ({calls})"]
    output = divergence.output
    error = f": max abs {output.max_abs:.2e}" if output is not None else ": a result of the program"
    first = f" first at {output.where}" if output is not None and output.where else ""
    matching = [names_and_locations.get(node, (node, ""))[0] for node in divergence.operands[:_MAX_NODES]]
    operands = f"; {', '.join(matching)} before it match" if matching else ""
    return [*texts, f"{SIDE_SUBJECTS[side.name]}: first differs in {where}{error}{first}{operands} ({calls})"]


def _names_and_locations(info: GraphInfo | None) -> dict[str, tuple[str, str]]:
    """Returns the display name and the Python line of each node, by its stable name."""
    return {row.stable: (row.display_name, row.location) for row in info.rows} if info is not None else {}


def _marked_texts(side: SideReport, info: GraphInfo) -> list[str]:
    """Returns the table of all nodes, after its title; empty unless the run compared the values of all nodes."""
    marked = side.divergence.marked if side.divergence is not None else ()
    return [f"nodes in {SIDE_SUBJECTS[side.name]}:", marked_table(marked, info)] if marked else []


def marked_table(marked: Sequence[OutputReport], info: GraphInfo | None) -> str:
    """Returns a table of nodes with their errors and their Python lines."""
    names_and_locations = _names_and_locations(info)
    rows = []
    for output in marked:
        name, location = names_and_locations.get(output.name, (output.name, ""))
        _, shape, dtype, verdict, max_abs, *_ = _output_row(output)
        rows.append([name, shape, dtype, verdict, max_abs, formatting.short_location(location)])
    left = frozenset({"node", "shape", "dtype", "verdict", "line"})
    return table(["node", "shape", "dtype", "verdict", "max abs", "line"], rows, left)


def _side_text(side: SideReport) -> str:
    """Returns the line of another backend: its time, or why it did not run."""
    if side.problem:
        return f"{SIDE_LABELS[side.name]:<8} not run: {side.problem}"
    return f"{SIDE_LABELS[side.name]:<8} {_timing_text(side.timing)}"


def _side_ratio(side: SideReport, eager: Timing) -> str:
    """Returns the time of another backend relative to eager, and its verdict."""
    mismatches = [output.name for output in side.outputs if output.verdict in ("mismatch", "missing")]
    ratio = side.timing.median / eager.median if eager.median else 0.0
    verdicts = {"ok": "ok", "nan": "NaN where eager has NaN", "unchecked": "not compared"}
    verdict = verdicts.get(side.verdict) or f"MISMATCH in {', '.join(mismatches)}"
    return (
        f"{SIDE_SUBJECTS[side.name]} takes {ratio:.2f} x the time of eager; {verdict}, max abs {side.max_abs:.2e}, "
        f"{_preparation_text(side)}"
    )


def _preparation_text(side: SideReport) -> str:
    """Returns how long the preparation of a side took: `compiled in 2.50 s`, or for a runtime, export and load."""
    if side.name in RUNTIMES:
        return f"exported in {side.compile_seconds:.2f} s, loaded in {side.load_seconds:.2f} s"
    return f"compiled in {side.compile_seconds:.2f} s"


def _memory_lines(memory: MemoryUse | None, compared: bool) -> list[str]:
    """Returns the peak memory; for a program with many weights, also the memory of its parts."""
    if memory is None:
        return []
    packed = f", packed weights {formatting.size(memory.packed)}" if memory.packed else ""
    eager = f", eager {formatting.size(memory.eager)}" if compared else ""
    lines = [f"peak memory: compiled {formatting.size(memory.compiled)}{eager}{packed}"]
    return [*lines, f"memory: {memory_parts_text(memory)}"] if memory.weights >= _MIN_WEIGHTS else lines


# In bytes. With fewer weights, the parts of the memory are too small to matter.
_MIN_WEIGHTS = 1 << 20


def memory_parts_text(memory: MemoryUse) -> str:
    """Returns the memory of a program: `weights 4 GB (shared), packed weights 0 B, arena 80 MB, code 1.20 MB`."""
    parts = (("packed weights", memory.packed), ("arena", memory.arena), ("code", memory.code))
    sizes = ", ".join(f"{name} {formatting.size(size)}" for name, size in parts)
    return f"weights {formatting.size(memory.weights)} (shared), {sizes}"


def lowering_table(info: GraphInfo, assignments: Sequence[Assignment]) -> str:
    """Returns a table with the lowering of each node, and the reason if it is not by the first registry.

    The table of a training graph has columns for training, and rows for the inputs that have a role.
    """
    targets = {row.stable: row.target for row in info.rows}
    cells = [[a.node, targets.get(a.node, ""), a.lowering, a.function, a.reason] for a in assignments]
    heading = ["node", "target", "lowering", "function", "reason"]
    memory, summary = training_memory(info), ""
    if memory is not None:
        node_rows = {row.stable: row for row in info.rows}
        cells = [
            [node, target, lowering, *_training_cells(node_rows.get(node)), function, reason]
            for node, target, lowering, function, reason in cells
        ]
        inputs = [row for row in info.rows if row.training and row.opcode == "placeholder"]
        cells = [[row.stable, row.target, "", *_training_cells(row), "", ""] for row in inputs] + cells
        heading[3:3] = ["training", "memory"]
        summary = f"# {training_summary(memory)}\n"
    lines = table(heading, cells, frozenset(heading)).splitlines()
    return summary + "\n".join(line.rstrip() for line in lines) + "\n"


def _training_cells(row: NodeRow | None) -> list[str]:
    """Returns the role of a node in training and its bytes; a view takes no memory."""
    if row is None or not row.training:
        return ["", ""]
    return [row.training, "" if row.training == "viewed" else bytes_text(row)]


def eager_assignments(assignments: Sequence[Assignment]) -> list[Assignment]:
    """Returns the assignments of the nodes that run in eager."""
    return [assignment for assignment in assignments if assignment.lowering == EAGER]


def _not_by_first_registry(assignments: Sequence[Assignment]) -> list[Assignment]:
    """Returns the assignments of the compiled nodes that the first registry does not lower."""
    return [a for a in assignments if a.lowering not in (EAGER, FOLDED) and a.reason]


def _reason_lines(title: str, reasons: Mapping[str, str]) -> list[str]:
    """Returns a line for each of the first nodes of `reasons`, by node, and a line with the number of the others."""
    lines = [f"{title}: {node}: {reason}" for node, reason in islice(reasons.items(), _MAX_NODES)]
    more = len(reasons) - _MAX_NODES
    return lines + ([f"{title}: and {more} more (--json lists them)"] if more > 0 else [])


def failure_json(diagnostic: Diagnostic) -> dict[str, object]:
    """Returns a diagnostic as plain values, without empty fields."""
    keys = ("what", "where", "todo", "detail", "step", "node")
    values = {key: getattr(diagnostic, key) for key in keys}
    return {key: value for key, value in values.items() if value not in ("", -1)}


def _output_json(output: OutputReport) -> dict[str, object]:
    """Returns the comparison of an output as plain values."""
    return {
        "name": output.name,
        "shape": list(output.shape),
        "dtype": output.dtype,
        "verdict": output.verdict,
        "max_abs": _finite_or_none(output.max_abs),
        "max_rel": _finite_or_none(output.max_rel),
        "max_ulp": _finite_or_none(output.max_ulp),
        "tolerance": output.tolerance,
        "rms": output.rms if output.rms >= 0 else None,
        "spread": output.spread if output.spread >= 0 else None,
        "spread_rms": output.spread_rms if output.spread_rms >= 0 else None,
        "checks": [
            {
                "what": check.metric,
                "error": _finite_or_none(check.error),
                "allowed": _finite_or_none(check.allowed),
                "rule": check.rule,
                "ok": check.ok,
            }
            for check in output.checks
        ],
        "max_rel_at": output.rel_where,
        "first_difference": output.where,
        "nans": output.nans,
        "eager_nans": output.eager_nans,
        "zeros_of_other_sign": output.zero_signs,
        "infs": output.infs,
        "mean": output.mean,
        "deviation": output.deviation,
        "low": output.low,
        "high": output.high,
    }


def _timing_json(timing: Timing) -> dict[str, object]:
    """Returns a timing as plain values, in seconds."""
    return {
        "median": _finite_or_none(timing.median),
        "spread": [_finite_or_none(timing.low), _finite_or_none(timing.high)],
        "runs": timing.runs,
        "threads": timing.threads,
    }


def _memory_json(memory: MemoryUse | None) -> dict[str, int] | None:
    """Returns the peak memory of a run, and the sizes of weights, packed weights, arena and code, in bytes."""
    if memory is None:
        return None
    return msgspec.structs.asdict(memory)


def _finite_or_none(value: float) -> float | None:
    """Returns the value, or `None` for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else None


def _output_row(output: OutputReport) -> list[object]:
    """Returns the row of an output in the table of outputs."""
    shape = "x".join(map(str, output.shape)) or "scalar"
    if output.verdict == "unchecked":
        text = f"{output.low:.3g} to {output.high:.3g}, mean {output.mean:.3g}, std {output.deviation:.3g}"
        non_finite = ((output.nans, "NaN"), (output.infs, "Inf"))
        text += "".join(f", {count} {name}" for count, name in non_finite if count)
        return [output.name, shape, output.dtype, output.verdict, "", "", text]
    verdict = {"ok": "ok", "nan": "NaN"}.get(output.verdict, output.verdict.upper())
    facts = [output.where, formatting.nan_counts_text(output)]
    text = "; ".join(fact for fact in facts if fact)
    return [output.name, shape, output.dtype, verdict, f"{output.max_abs:.2e}", f"{output.max_rel:.2e}", text]


def _timing_text(timing: Timing) -> str:
    spread = f"{_time_text(timing.low)} to {_time_text(timing.high)}"
    threads = formatting.thread_count(timing.threads)
    return f"{_time_text(timing.median)} (quartiles {spread}, {timing.runs} runs, {threads})"


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
