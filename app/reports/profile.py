"""The profile of a run as table cells, a tree of modules, folded stacks, text and JSON. Does not import Textual."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from buddy.app.reports import formatting
from buddy.compiler.protocol import GraphInfo, NodeRow, NodeTime, Peak, ProfileReport, Sampling

# The entries for time that belongs to no node: calls between compiled functions, and time outside of compiled code.
CALLS, AROUND = "(calls)", "(around compiled code)"


@dataclass(frozen=True)
class TimedNode:
    """A node with its time and its rates, compared with the machine's `peak`."""

    row: NodeRow
    time: NodeTime
    peak: Peak

    @property
    def rate(self) -> float:
        """Operations per second; 0 if unknown."""
        return _ratio(self.time.operations, self.time.seconds)

    @property
    def traffic(self) -> float:
        """Bytes per second, of the minimum number of bytes that the node must read and write; 0 if unknown."""
        return _ratio(self.time.bytes, self.time.seconds)

    @property
    def intensity(self) -> float:
        """Operations per byte; 0 if unknown."""
        return _ratio(self.time.operations, self.time.bytes)

    @property
    def bound(self) -> float:
        """The roofline bound: the maximum operations per second of code with the same number of operations per byte.

        See Williams, Waterman and Patterson, Roofline, 2009.
        """
        return min(self.peak.arithmetic(self.row.dtype) * 1e9, self.intensity * self.peak.gbytes * 1e9)

    @property
    def is_from_caches(self) -> bool:
        """Whether the node reads and writes faster than memory allows, so its data was in caches."""
        return _from_caches(self.time, self.peak)

    @property
    def share(self) -> float:
        """The rate as a share of `bound`. For a node without operations, the traffic as a share of memory bandwidth.

        The share may exceed 1, because caches are faster than memory. It is 0 if unknown.
        """
        if self.bound:
            return self.rate / self.bound
        return _ratio(self.traffic, self.peak.gbytes * 1e9) if self.time.operations == 0 else 0.0


def _ratio(numerator: float, denominator: float) -> float:
    """Returns the quotient of two positive numbers; 0 for others, which stand for unknown values."""
    return numerator / denominator if numerator > 0 and denominator > 0 else 0.0


def _from_caches(time: NodeTime, peak: Peak) -> bool:
    """Whether a node reads and writes faster than memory allows."""
    return bool(peak.gbytes) and _ratio(time.bytes, time.seconds) > peak.gbytes * 1e9


def timed_nodes(report: ProfileReport, info: GraphInfo) -> list[TimedNode]:
    """Returns the nodes that were timed separately, the slowest first."""
    rows = {row.stable: row for row in info.rows}
    nodes = [
        TimedNode(rows[time.node], time, report.peak) for time in report.nodes if not time.into and time.node in rows
    ]
    return sorted(nodes, key=lambda node: (-node.time.seconds, node.row.index))


def node_time_text(node: NodeTime | None, names: Mapping[str, str]) -> str:
    """Returns the time of a node in milliseconds for a table, or `in NODE` if it is fused into a timed node.

    `names` are the names of nodes to show, by stable name.
    """
    if node is None:
        return ""
    return f"in {names.get(node.into, node.into)}" if node.into else in_milliseconds(node.seconds)


def node_time_summary(node: TimedNode, names: Mapping[str, str], is_stale: bool) -> str:
    """Returns the time of a node with the nodes fused into it, its rate and its share of the roofline, as one line."""
    time = node.time
    if time.into:
        return f"fused into {names.get(time.into, time.into)}"
    fused = ", ".join(names.get(name, name) for name in time.fused)
    parts = [
        f"{node_time_text(time, names)} ms",
        f"including fused {fused}" if fused else "",
        f"{rate_text(node.rate)} GFLOP/s" if node.rate else "",
        f"{node.share:.0%} of the roofline" if node.share else "",
        "data from caches" if node.is_from_caches else "",
        "measured with an earlier recipe" if is_stale else "",
    ]
    return ", ".join(part for part in parts if part)


def in_milliseconds(seconds: float) -> str:
    """Formats a time in seconds as a number of milliseconds, without the unit."""
    milliseconds = seconds * 1e3
    digits = 4 if milliseconds < 0.1 else 3 if milliseconds < 10 else 1
    return f"{milliseconds:.{digits}f}"


def rate_text(operations_per_second: float) -> str:
    """Returns a rate in 1e9 operations per second, without the unit; empty if it is not positive."""
    rate = operations_per_second / 1e9
    digits = 2 if rate < 10 else 1 if rate < 100 else 0
    return f"{rate:.{digits}f}" if rate > 0 else ""


def share_text(node: TimedNode) -> str:
    """Returns the share of the roofline bound, with a `c` if the data came from caches; empty if unknown."""
    return f"{node.share:.0%}{' c' if node.is_from_caches else ''}" if node.share > 0 else ""


# ---- modules ---------------------------------------------------------------------------------------------------------


@dataclass
class FlameNode:
    """An entry of a flame graph: a module or a node, with its time in seconds including that of its children.

    `children` are by name. `node` is the stable name of a node, "" for other entries.
    """

    name: str
    seconds: float = 0.0
    node: str = ""
    children: dict[str, FlameNode] = field(default_factory=dict)

    def child(self, name: str) -> FlameNode:
        """Returns the child `name`, which is added if necessary."""
        return self.children.setdefault(name, FlameNode(name))

    def children_by_time(self) -> list[FlameNode]:
        """Returns the children, the slowest first."""
        return sorted(self.children.values(), key=lambda flame: -flame.seconds)


def flame_tree(report: ProfileReport, info: GraphInfo) -> FlameNode:
    """Returns the run as a tree of modules with nodes as leaves; `CALLS` and `AROUND` are next to the modules."""
    root = FlameNode(info.name)
    for node in timed_nodes(report, info):
        path = [part for part in node.row.module.split(".") if part]
        add_to_flame(root, [*path, node.row.short_name], node.time.seconds, node.time.node)
    add_to_flame(root, [CALLS], report.outside)
    add_to_flame(root, [AROUND], max(0.0, report.whole - report.inside - report.outside))
    return root


def add_to_flame(root: FlameNode, path: Sequence[str], seconds: float, node: str = "") -> None:
    """Adds `seconds` to `root` and to each of the nested entries `path`. `node` is the stable name of the last entry.

    Does nothing if `seconds` is not positive.
    """
    if seconds <= 0:
        return
    entry = root
    entry.seconds += seconds
    for name in path:
        entry = entry.child(name)
        entry.seconds += seconds
    entry.node = node


def folded_stacks(root: FlameNode) -> str:
    """Returns a line per stack, `module;module;node nanoseconds`, as flamegraph.pl, inferno and speedscope read it."""
    return "".join(
        f"{';'.join(path)} {nanoseconds}\n"
        for path, seconds in _self_times(root, ())
        if (nanoseconds := round(seconds * 1e9))
    )


def _self_times(flame: FlameNode, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yields each stack with its self time in seconds. `path` is the stack above `flame`."""
    path = (*path, flame.name.replace(";", ":"))
    yield path, flame.seconds - sum(inner.seconds for inner in flame.children.values())
    for inner in flame.children_by_time():
        yield from _self_times(inner, path)


def tree_lines(root: FlameNode, glyphs: formatting.Glyphs, min_share: float = 0.01, bar_width: int = 20) -> list[str]:
    """Returns the tree as lines of text. Entries with less than `min_share` of the total time are omitted."""
    lines = []

    def add_lines(flame: FlameNode, depth: int) -> None:
        share = _ratio(flame.seconds, root.seconds)
        bar = formatting.progress_bar(share, bar_width, glyphs)
        lines.append(
            f"{in_milliseconds(flame.seconds):>9} {share:>6.1%}  {bar:<{bar_width}}  {'  ' * depth}{flame.name}"
        )
        for inner in flame.children_by_time():
            if inner.seconds >= min_share * root.seconds:
                add_lines(inner, depth + 1)

    add_lines(root, 0)
    return lines


# ---- text and JSON ---------------------------------------------------------------------------------------------------


def summary_lines(report: ProfileReport) -> list[str]:
    """Returns the summary of a profile: the time of a run, the counters' overhead, the nodes' share, and notes."""
    whole = report.whole
    shares = (
        f"nodes {_ratio(report.inside, whole):.1%} of an instrumented run, calls {_ratio(report.outside, whole):.1%}"
    )
    runs = f"{report.plain.runs} runs, {formatting.thread_count(report.plain.threads)}"
    spread = f"{formatting.seconds(report.plain.low)} to {formatting.seconds(report.plain.high)}"
    lines = [
        f"a run takes {formatting.seconds(report.plain.median)} (quartiles {spread}, {runs}); "
        f"counters cost {report.overhead:+.1%}",
        f"{shares}; clock {report.counter} at {report.ticks_per_second / 1e9:.3f} GHz",
    ]
    if report.load is not None:
        lines.append(formatting.load_text(report.load))
    if report.peak.gflops:
        lines.append(f"this machine: {_peak_text(report.peak)}")
    if any(_from_caches(node, report.peak) for node in report.nodes):
        lines.append("c: the data of the node was in caches, which are faster than memory")
    return [*lines, *(f"note: {note}" for note in report.notes)]


def _peak_text(peak: Peak) -> str:
    others = [f"{rate:.0f} in {kind}" for kind, rate in (("f64", peak.gflops_f64), ("i32", peak.giops_i32)) if rate]
    return f"{', '.join([f'{peak.gflops:.0f} GFLOP/s in f32', *others])}; {peak.gbytes:.1f} GB/s memory reads"


def sampling_text(sampling: Sampling) -> str:
    """Returns the summary of the samples, or the reason why there are none."""
    if sampling.problem or not sampling.samples:
        return f"no hot instructions: {sampling.problem or 'no samples were taken'}"
    elsewhere = [f"{name or 'generated code'} {count / sampling.samples:.1%}" for name, count in sampling.elsewhere]
    others = f"; {', '.join(elsewhere[:3])}" if elsewhere else ""
    inside = f"{sampling.inside / sampling.samples:.1%} of {formatting.count(sampling.samples)} samples"
    return f"{inside} ({formatting.count(sampling.hertz)} per second of CPU time) in compiled code{others}"


def _sampling_json(sampling: Sampling) -> dict[str, object]:
    """Returns the samples as plain values. Lines are counted from 1."""
    return {
        "problem": sampling.problem or None,
        "samples": sampling.samples,
        "in_compiled_code": sampling.inside,
        "lost": sampling.lost,
        "hertz": sampling.hertz,
        "elsewhere": [{"file": name or None, "samples": count} for name, count in sampling.elsewhere],
        "instructions": [
            {"function": spot.function, "offset": spot.offset, "samples": spot.samples, "text": spot.text,
             "line": spot.line + 1 or None, "nodes": list(spot.nodes)}
            for spot in sampling.spots
        ],
    }  # fmt: skip


def as_json(report: ProfileReport, info: GraphInfo) -> dict[str, object]:
    """Returns the report on a graph as plain values: seconds, operations, bytes; unknown values are null."""
    names = {row.stable: row.name for row in info.rows}
    timed = {node.time.node: node for node in timed_nodes(report, info)}
    return {
        "graph": report.graph,
        "name": info.name,
        "run": {"median": report.plain.median, "spread": [report.plain.low, report.plain.high]},
        "runs": report.plain.runs,
        "threads": report.plain.threads,
        "counted": report.counted.median,
        "load": formatting.load_json(report.load),
        "overhead": report.overhead,
        "whole": report.whole,
        "in_nodes": report.inside,
        "in_calls": report.outside,
        "same_results": report.same,
        "counter": {"name": report.counter, "per_second": report.ticks_per_second},
        "peak": {name: value or None for name, value in msgspec.structs.asdict(report.peak).items()},
        "sampling": _sampling_json(report.sampling),
        "nodes": [_node_json(time, names, timed.get(time.node)) for time in report.nodes],
        "regions": [
            {"nodes": list(region.nodes), "function": region.function, "what": region.label, "seconds": region.seconds,
             "parent": region.parent if region.parent >= 0 else None}
            for region in report.regions
        ],
        "notes": list(report.notes),
    }  # fmt: skip


def _node_json(time: NodeTime, names: Mapping[str, str], timed: TimedNode | None) -> dict[str, object]:
    """Returns the time of a node as plain values. `timed` is `None` for a node that was not timed separately."""
    name = names.get(time.node, time.node)
    if timed is None:
        return {"node": time.node, "name": name, "seconds": None, "fused_into": time.into}
    return {
        "node": time.node,
        "name": name,
        "seconds": time.seconds,
        "fused": list(time.fused),
        "operations": _none_if_negative(time.operations),
        "bytes": _none_if_negative(time.bytes),
        "operations_per_second": timed.rate or None,
        "bytes_per_second": timed.traffic or None,
        "share_of_peak": timed.share or None,
        "from_caches": timed.is_from_caches,
    }


def _none_if_negative(value: float) -> float | None:
    """Returns a value of a `NodeTime`, `None` for a negative one, which is unknown."""
    return None if value < 0 else value
