"""The result of a long job as conclusions and ranked sections: profile, numerics, tuning, bisection.

All have one shape, which one screen shows. Does not import Textual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from buddy.app.actions import BY_ID
from buddy.app.reports import formatting, numerics, profile
from buddy.app.reports.formatting import short_location
from buddy.app.reports.searches import bisection_lines, ranked_nodes, saving_text, tuning_lines
from buddy.compiler.protocol import Attempted, BisectionResult, GraphInfo, NodeRow, ProfileReport, Tuned
from buddy.compiler.protocol.numerics import Deviation, NumericsReport

# The number of entries of a section.
TOP = 10
# Changes below this share of the value before are not shown.
_MIN_CHANGE = 0.02


@dataclass(frozen=True)
class GoToNode:
    """An answer of the result screen: go to the node with this stable name."""

    name: str


@dataclass(frozen=True)
class PerformAction:
    """An answer of the result screen: perform the action with this id."""

    action: str


# What the user chooses on the result screen: a node, an action, or a word that the job that made the result defines.
ResultAnswer = GoToNode | PerformAction | str


@dataclass(frozen=True)
class Entry:
    """A line of a section. `share` is the length of its bar, 0 to 1, without a bar if negative.

    `change` compares the value with the last result. Enter, or `key`, chooses `answer`.
    """

    name: str
    value: str = ""
    share: float = -1.0
    change: str = ""
    answer: ResultAnswer | None = None
    key: str = ""
    role: str = "text"


@dataclass(frozen=True)
class Section:
    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Result:
    """The result of a job: conclusions, what to do next, sections with the largest entries first, and long texts."""

    title: str
    conclusions: tuple[str, ...]
    next: tuple[Entry, ...] = ()
    sections: tuple[Section, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


def action_entries(*ids: str) -> tuple[Entry, ...]:
    """Entries that perform actions, each with the last key of the action's sequence."""
    actions = [BY_ID[action_id] for action_id in ids]
    return tuple(
        Entry(action.title, action.tooltip, answer=PerformAction(action.id), key=action.key.split()[-1])
        for action in actions
        if action.key
    )


# ---- profile ---------------------------------------------------------------------------------------------------------


def profile_result(report: ProfileReport, previous: ProfileReport | None, info: GraphInfo) -> Result:
    """The time of a run by op kind, module and source line, compared with the `previous` profile."""
    now = profile.timed_nodes(report, info)
    before = profile.timed_nodes(previous, info) if previous is not None else []
    first, *measurement = profile.summary_lines(report)
    conclusions = [first]
    if previous is not None and previous.plain.median:
        ratio = report.plain.median / previous.plain.median - 1
        was = formatting.seconds(previous.plain.median)
        conclusions.append(f"{ratio:+.1%} compared with the last profile ({was})")
    sections = tuple(
        Section(title, _time_entries(now, before, report.whole, group_of)) for title, group_of in _GROUPS.items()
    )
    following = action_entries("profile.modules", "profile.roofline", "profile.hot")
    # Last, because on a small screen the largest entries are what the user needs to see.
    texts = (("measurement", "\n".join(measurement)),) if measurement else ()
    return Result("Profile", tuple(conclusions), following, sections, texts)


_GROUPS: Mapping[str, Callable[[NodeRow], str]] = {
    "by op kind": lambda row: row.target.removesuffix(".default"),
    "by module": lambda row: row.module,
    "by source line": lambda row: short_location(row.location),
}


def _time_entries(
    now: Sequence[profile.TimedNode],
    before: Sequence[profile.TimedNode],
    whole: float,
    group_of: Callable[[NodeRow], str],
) -> tuple[Entry, ...]:
    """The slowest groups of nodes. Fused nodes count for the node into which they are fused."""
    old_sums = _sums(before, group_of)
    # Nodes are sorted, the slowest first, so the first node of a group is its slowest.
    slowest = {group_of(node.row): node.row.stable for node in reversed(now)}
    ranked = sorted(_sums(now, group_of).items(), key=lambda group: -group[1])
    return tuple(
        Entry(
            name or "(none)",
            f"{profile.milliseconds(seconds)} ms",
            seconds / whole if whole else 0.0,
            _change_text(seconds, old_sums.get(name)) if before else "",
            GoToNode(slowest[name]),
        )
        for name, seconds in ranked[:TOP]
    )


def _sums(nodes: Iterable[profile.TimedNode], group_of: Callable[[NodeRow], str]) -> dict[str, float]:
    """The seconds of each group."""
    sums: dict[str, float] = {}
    for node in nodes:
        group = group_of(node.row)
        sums[group] = sums.get(group, 0.0) + node.time.seconds
    return sums


def _change_text(now: float, before: float | None) -> str:
    """The change of a value compared with the last result."""
    if not before:
        return "new"
    change = now / before - 1
    return f"{change:+.0%}" if abs(change) >= _MIN_CHANGE else "same"


# ---- numerics --------------------------------------------------------------------------------------------------------


def numerics_result(report: NumericsReport, previous: NumericsReport | None, info: GraphInfo) -> Result:
    """The largest errors by op kind, module and source line, as multiples of the tolerance."""
    rows, now = numerics.rows_of(info), _worst_shares(report)
    # Errors that were measured against another reference are not comparable.
    old = _worst_shares(previous) if previous is not None and previous.reference == report.reference else {}
    bad = {node.node for node in report.nodes if not node.ok}
    sections = []
    for title, group_of in _GROUPS.items():
        groups: dict[str, list[str]] = {}
        for name in now:
            if name in rows:
                groups.setdefault(group_of(rows[name]), []).append(name)
        worst = {group: max(names, key=lambda name: now[name]) for group, names in groups.items()}
        ranked = sorted(worst, key=lambda group: -now[worst[group]])
        entries = [
            Entry(
                group or "(none)",
                _share_text(now[worst[group]]),
                min(now[worst[group]], 1.0),
                _was_text(now[worst[group]], max((old[name] for name in groups[group] if name in old), default=None)),
                GoToNode(worst[group]),
                role="bad" if bad & set(groups[group]) else "text",
            )
            for group in ranked[:TOP]
        ]
        sections.append(Section(f"{title}, as a share of the tolerance", tuple(entries)))
    return Result("Every node compared with eager", tuple(numerics.summary_lines(report, info)), (), tuple(sections))


def _worst_shares(report: NumericsReport) -> dict[str, float]:
    """The larger error of each compared node as a multiple of the tolerance."""
    return {
        node.node: max(map(_share, deviations))
        for node in report.nodes
        if (deviations := [deviation for deviation in (node.error, node.own_error) if deviation is not None])
    }


def _share(deviation: Deviation) -> float:
    # A negative share stands for a NaN or an infinity that differs.
    return deviation.of_tolerance if deviation.of_tolerance >= 0 else math.inf


def _share_text(share: float) -> str:
    return "nan/inf" if math.isinf(share) else f"{share:.2g} x" if share else "0"


def _was_text(now: float, before: float | None) -> str:
    """The value of the last result, if it differs."""
    return "" if before is None or _share_text(before) == _share_text(now) else f"was {_share_text(before)}"


# ---- searches --------------------------------------------------------------------------------------------------------

# The answers of the results of searches.
USE, SAVE, AGAIN, PLOT = "use", "save", "again", "plot"


def tuning_result(tuned: Tuned, attempts: Sequence[Attempted], is_better: bool) -> Result:
    """The fastest recipes, and the best time of each choice. `is_better` is whether another recipe was found."""
    measured = sorted((attempt for attempt in attempts if not attempt.problem), key=lambda attempt: attempt.ratio)
    following = [Entry("Use this recipe", " ".join(tuned.choices), answer=USE, key="u")] if is_better else []
    following += [Entry("Plot", "the time of each recipe over the search", answer=PLOT, key="p")] if measured else []
    initial = attempts[0] if attempts and not attempts[0].problem else None
    sections = (
        Section("fastest recipes, time compared with eager", _ratio_entries(measured, initial, _recipe_text)),
        Section("best time of each choice", _choice_entries(measured, initial)),
    )
    lines = tuning_lines(tuned, attempts[0].choices if attempts else ())
    return Result("Tuning", tuple(line.strip() for line in lines), tuple(following), sections)


def precisions_result(tuned: Tuned, attempts: Sequence[Attempted], is_better: bool, names: Mapping[str, str]) -> Result:
    """The recipes by error, and the products by the time that their precisions save; `names` are by stable name."""
    plain = tuning_result(tuned, attempts, is_better)
    timed = sorted((attempt for attempt in attempts if not attempt.problem), key=lambda attempt: attempt.error)
    initial = attempts[0] if attempts and not attempts[0].problem else None

    def name_of(attempt: Attempted) -> str:
        error = f"{attempt.error:.1e}" if attempt.error > 0 else "no error"
        return f"{error}: {', '.join(attempt.choices)}"

    plots = tuple(
        replace(entry, value="the time of each recipe over its error, and over the search")
        if entry.key == "p"
        else entry
        for entry in plain.next
    )
    nodes = [node for node in ranked_nodes(tuned) if node.effect is not None]
    most = max((node.effect.saved for node in nodes if node.effect is not None), default=0.0)
    entries = tuple(
        Entry(
            f"{names.get(node.node, node.node)}: {node.precision}",
            f"saves {saving_text(node.effect.saved)}",
            max(0.0, node.effect.saved / most) if most > 0 else 0.0,
            f"{node.effect.error:.1e}" if node.effect.error >= 0 else "",
            GoToNode(node.node),
        )
        for node in nodes[:TOP]
        if node.effect is not None
    )
    sections = (
        Section("recipes by error, time compared with eager", _ratio_entries(timed, initial, name_of)),
        Section("products that save the most time, with the error of each alone", entries),
    )
    return replace(plain, next=plots, sections=tuple(section for section in sections if section.entries))


def _recipe_text(attempt: Attempted) -> str:
    choices = [choice for choice in attempt.choices if not choice.endswith("=default")]
    return " ".join(choices) or "all choices at their defaults"


def _ratio_entries(
    measured: Sequence[Attempted], initial: Attempted | None, name_of: Callable[[Attempted], str]
) -> tuple[Entry, ...]:
    """The attempts with their times compared with eager and with the first recipe, which is the current one."""
    slowest = max((attempt.ratio for attempt in measured[:TOP]), default=0.0)
    return tuple(
        Entry(
            name_of(attempt),
            f"{attempt.ratio:.3f} x",
            attempt.ratio / slowest if slowest else 0.0,
            _ratio_change(attempt, initial),
        )
        for attempt in measured[:TOP]
    )


def _ratio_change(attempt: Attempted, initial: Attempted | None) -> str:
    if initial is None:
        return ""
    return "current" if attempt is initial else _change_text(attempt.ratio, initial.ratio)


def _choice_entries(measured: Sequence[Attempted], initial: Attempted | None) -> tuple[Entry, ...]:
    best: dict[str, Attempted] = {}
    for attempt in measured:
        for choice in attempt.choices:
            best.setdefault(choice, attempt)
    # Of a choice with one value there is nothing to compare.
    varied: dict[str, list[str]] = {}
    for choice in best:
        varied.setdefault(choice.partition("=")[0], []).append(choice)
    choices = [choice for values in varied.values() if len(values) > 1 for choice in values]
    ranked = sorted(choices, key=lambda choice: best[choice].ratio)[:TOP]
    slowest = max((best[choice].ratio for choice in ranked), default=0.0)
    return tuple(
        Entry(
            choice,
            f"{best[choice].ratio:.3f} x",
            best[choice].ratio / slowest,
            _ratio_change(best[choice], initial),
        )
        for choice in ranked
    )


def bisection_result(result: BisectionResult) -> Result:
    """What is wrong, the evidence, and the IR before and after the pass that is responsible."""
    conclusions = bisection_lines(result)
    has_recipe = bool(result.steps or result.lowerings or result.in_eager)
    following = [Entry("Use the correct recipe", answer=USE, key="u")] if has_recipe else []
    following += [
        Entry("Save", "write the recipe and the reduced module to a folder", answer=SAVE, key="s"),
        Entry("Bisect again", "with another criterion", answer=AGAIN, key="b"),
    ]
    nodes = Section(
        "smallest reproducing set of nodes", tuple(Entry(name, answer=GoToNode(name)) for name in result.nodes[:TOP])
    )
    after = result.after if result.after != result.before else ""
    texts = tuple((title, text) for title, text in (("before", result.before), ("after", after)) if text)
    titled = tuple((f"{title} the pass", text) for title, text in texts)
    return Result("Bisection", tuple(conclusions), tuple(following), (nodes,) if result.nodes else (), titled)
