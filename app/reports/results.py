"""The results of long jobs (profile, numerics, tuning, bisection) as conclusions and ranked sections.

All results have the same structure, so one screen shows them. Does not import Textual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from buddy.app.actions import BY_ID
from buddy.app.reports import formatting, numerics, profile
from buddy.app.reports.formatting import short_location
from buddy.app.reports.searches import bisection_lines, ranked_nodes, saving_text, timed_by_error, tuning_lines
from buddy.compiler.protocol import Attempted, BisectionResult, GraphInfo, NodeRow, ProfileReport, Tuned
from buddy.compiler.protocol.numerics import NumericsReport

# The maximum number of entries of a section.
MAX_ENTRIES = 10
# Relative changes below this one are shown as "same": they are within the noise of a measurement.
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
    """A line of a section. `share` is the length of its bar, 0 to 1; a negative share means no bar.

    `change` compares the value with the last result of the same kind. Enter, or `key`, closes the result screen with
    `answer`; an entry whose `answer` is `None` cannot be chosen. `role` is the theme's role for the entry.
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
    """A list of entries, the largest first."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Result:
    """The result of a job.

    `conclusions` are sentences, `next_steps` are entries that the user may choose, and `texts` are long texts, each
    with a title.
    """

    title: str
    conclusions: tuple[str, ...]
    next_steps: tuple[Entry, ...] = ()
    sections: tuple[Section, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


def _action_entries(*ids: str) -> tuple[Entry, ...]:
    """Returns entries that perform the actions with these ids.

    Their keys are the last keys of the actions' sequences.
    """
    actions = [BY_ID[action_id] for action_id in ids]
    return tuple(
        Entry(action.title, action.tooltip, answer=PerformAction(action.id), key=action.key.split()[-1])
        for action in actions
        if action.key
    )


# ---- profile ---------------------------------------------------------------------------------------------------------


def profile_result(report: ProfileReport, previous: ProfileReport | None, info: GraphInfo) -> Result:
    """Returns the time of a run by op kind, module and source line, compared with the `previous` profile."""
    nodes = profile.timed_nodes(report, info)
    old_nodes = profile.timed_nodes(previous, info) if previous is not None else []
    first, *measurement = profile.summary_lines(report)
    conclusions = [first]
    if previous is not None and previous.plain.median:
        ratio = report.plain.median / previous.plain.median - 1
        previous_time = formatting.seconds(previous.plain.median)
        conclusions.append(f"{ratio:+.1%} compared with the last profile ({previous_time})")
    sections = tuple(
        Section(title, _time_entries(nodes, old_nodes, report.whole, group_of)) for title, group_of in _GROUPS.items()
    )
    next_steps = _action_entries("profile.modules", "profile.roofline", "profile.hot")
    # The texts come last: on a small screen, the largest entries are more important.
    texts = (("measurement", "\n".join(measurement)),) if measurement else ()
    return Result("Profile", tuple(conclusions), next_steps, sections, texts)


# The titles of the sections, and how they group nodes.
_GROUPS: Mapping[str, Callable[[NodeRow], str]] = {
    "by op kind": lambda row: row.target.removesuffix(".default"),
    "by module": lambda row: row.module,
    "by source line": lambda row: short_location(row.location),
}


def _time_entries(
    nodes: Sequence[profile.TimedNode],
    old_nodes: Sequence[profile.TimedNode],
    run_seconds: float,
    group_of: Callable[[NodeRow], str],
) -> tuple[Entry, ...]:
    """Returns the slowest groups of nodes. Fused nodes count for the node into which they are fused.

    `old_nodes` are those of the last profile, and `run_seconds` is the time of a run.
    """
    old_seconds = _seconds_by_group(old_nodes, group_of)
    # The nodes are sorted, the slowest first. In reverse order, the slowest node of a group replaces the others.
    slowest = {group_of(node.row): node.row.stable for node in reversed(nodes)}
    ranked = sorted(_seconds_by_group(nodes, group_of).items(), key=lambda group: -group[1])
    return tuple(
        Entry(
            name or "(none)",
            f"{profile.in_milliseconds(seconds)} ms",
            seconds / run_seconds if run_seconds else 0.0,
            _change_text(seconds, old_seconds.get(name)) if old_nodes else "",
            GoToNode(slowest[name]),
        )
        for name, seconds in ranked[:MAX_ENTRIES]
    )


def _seconds_by_group(nodes: Iterable[profile.TimedNode], group_of: Callable[[NodeRow], str]) -> dict[str, float]:
    """Returns the seconds of each group of nodes."""
    seconds: dict[str, float] = {}
    for node in nodes:
        group = group_of(node.row)
        seconds[group] = seconds.get(group, 0.0) + node.time.seconds
    return seconds


def _change_text(value: float, old_value: float | None) -> str:
    """Returns the relative change of a value since the last result; "new" without an earlier value."""
    if not old_value:
        return "new"
    change = value / old_value - 1
    return f"{change:+.0%}" if abs(change) >= _MIN_CHANGE else "same"


# ---- numerics --------------------------------------------------------------------------------------------------------


def numerics_result(report: NumericsReport, previous: NumericsReport | None, info: GraphInfo) -> Result:
    """Returns the largest errors by op kind, module and source line, as multiples of the tolerance."""
    rows, multiples = numerics.rows_by_stable_name(info), _worst_multiples(report)
    # Errors that were measured against another reference are not comparable.
    is_comparable = previous is not None and previous.reference == report.reference
    old_multiples = _worst_multiples(previous) if previous is not None and is_comparable else {}
    mismatches = {node.node for node in report.nodes if not node.ok}
    sections = []
    for title, group_of in _GROUPS.items():
        groups: dict[str, list[str]] = {}
        for node in multiples:
            if node in rows:
                groups.setdefault(group_of(rows[node]), []).append(node)
        entries = _error_entries(groups, multiples, old_multiples, mismatches)
        sections.append(Section(f"{title}, as a share of the tolerance", entries))
    return Result("Every node compared with eager", tuple(numerics.summary_lines(report, info)), (), tuple(sections))


def _error_entries(
    groups: Mapping[str, Sequence[str]],
    multiples: Mapping[str, float],
    old_multiples: Mapping[str, float],
    mismatches: Set[str],
) -> tuple[Entry, ...]:
    """Returns the groups of nodes with the largest errors. An entry shows the worst node of its group, and goes to it.

    `groups` has the nodes of each group, by stable name. `multiples` and `old_multiples` are the errors of nodes in
    this comparison and in the last one; `mismatches` are the nodes out of tolerance.
    """
    worst_nodes = {group: max(nodes, key=lambda node: multiples[node]) for group, nodes in groups.items()}
    entries = []
    for group in sorted(groups, key=lambda group: -multiples[worst_nodes[group]])[:MAX_ENTRIES]:
        multiple = multiples[worst_nodes[group]]
        old_multiple = max((old_multiples[node] for node in groups[group] if node in old_multiples), default=None)
        entries.append(
            Entry(
                group or "(none)",
                _multiple_text(multiple),
                min(multiple, 1.0),
                _previous_text(multiple, old_multiple),
                GoToNode(worst_nodes[group]),
                role="text" if mismatches.isdisjoint(groups[group]) else "bad",
            )
        )
    return tuple(entries)


def _worst_multiples(report: NumericsReport) -> dict[str, float]:
    """Returns the larger error of each compared node (in the program, alone) as a multiple of the tolerance."""
    multiples = {}
    for node in report.nodes:
        deviations = [deviation for deviation in (node.error, node.own_error) if deviation is not None]
        if deviations:
            multiples[node.node] = max(map(numerics.tolerance_multiple, deviations))
    return multiples


def _multiple_text(multiple: float) -> str:
    """Formats a multiple of the tolerance, which is infinite if a NaN or an infinity differs."""
    if math.isinf(multiple):
        return "nan/inf"
    return f"{multiple:.2g} x" if multiple else "0"


def _previous_text(multiple: float, old_multiple: float | None) -> str:
    """Returns `was 2 x` for the error in the last result; empty if it is unknown or has the same text."""
    if old_multiple is None or _multiple_text(old_multiple) == _multiple_text(multiple):
        return ""
    return f"was {_multiple_text(old_multiple)}"


# ---- searches --------------------------------------------------------------------------------------------------------

# The answers that the user can choose in the results of tuning and bisection.
USE, SAVE, AGAIN, PLOT = "use", "save", "again", "plot"


def tuning_result(tuned: Tuned, attempts: Sequence[Attempted], is_better: bool) -> Result:
    """Returns the fastest recipes, and the best time of each choice. `is_better`: the search found a faster recipe."""
    measured = sorted((attempt for attempt in attempts if not attempt.problem), key=lambda attempt: attempt.ratio)
    next_steps = [Entry("Use this recipe", " ".join(tuned.choices), answer=USE, key="u")] if is_better else []
    next_steps += [Entry("Plot", "the time of each recipe over the search", answer=PLOT, key="p")] if measured else []
    initial = attempts[0] if attempts and not attempts[0].problem else None
    sections = (
        Section("fastest recipes, time compared with eager", _ratio_entries(measured, initial, _recipe_text)),
        Section("best time of each choice", _choice_entries(measured, initial)),
    )
    lines = tuning_lines(tuned, attempts[0].choices if attempts else ())
    return Result("Tuning", tuple(line.strip() for line in lines), tuple(next_steps), sections)


def precisions_result(tuned: Tuned, attempts: Sequence[Attempted], is_better: bool, names: Mapping[str, str]) -> Result:
    """Returns the recipes by error, and the matrix products by the time that their precisions save.

    `names` are the names of nodes to show, by stable name.
    """
    result = tuning_result(tuned, attempts, is_better)
    initial = attempts[0] if attempts and not attempts[0].problem else None

    def name_of(attempt: Attempted) -> str:
        error = f"{attempt.error:.1e}" if attempt.error > 0 else "no error"
        return f"{error}: {', '.join(attempt.choices)}"

    plot_summary = "the time of each recipe over its error, and over the search"
    next_steps = tuple(
        replace(entry, value=plot_summary) if entry.answer == PLOT else entry for entry in result.next_steps
    )
    nodes = [(node, node.effect) for node in ranked_nodes(tuned) if node.effect is not None]
    largest_saving = max((effect.saved for _, effect in nodes), default=0.0)
    entries = tuple(
        Entry(
            f"{names.get(node.node, node.node)}: {node.precision}",
            f"saves {saving_text(effect.saved)}",
            max(0.0, effect.saved / largest_saving) if largest_saving > 0 else 0.0,
            f"{effect.error:.1e}" if effect.error >= 0 else "",
            GoToNode(node.node),
        )
        for node, effect in nodes[:MAX_ENTRIES]
    )
    sections = (
        Section(
            "recipes by error, time compared with eager", _ratio_entries(timed_by_error(attempts), initial, name_of)
        ),
        Section("products that save the most time, with the error of each alone", entries),
    )
    return replace(result, next_steps=next_steps, sections=tuple(section for section in sections if section.entries))


def _recipe_text(attempt: Attempted) -> str:
    """Returns the choices of a recipe that are not the defaults."""
    choices = [choice for choice in attempt.choices if not choice.endswith("=default")]
    return " ".join(choices) or "all choices at their defaults"


def _ratio_entries(
    measured: Sequence[Attempted], initial: Attempted | None, name_of: Callable[[Attempted], str]
) -> tuple[Entry, ...]:
    """Returns the attempts with their times compared with eager and with the first recipe, which is the current one."""
    slowest = max((attempt.ratio for attempt in measured[:MAX_ENTRIES]), default=0.0)
    return tuple(
        Entry(
            name_of(attempt),
            f"{attempt.ratio:.3f} x",
            attempt.ratio / slowest if slowest else 0.0,
            _ratio_change(attempt, initial),
        )
        for attempt in measured[:MAX_ENTRIES]
    )


def _ratio_change(attempt: Attempted, initial: Attempted | None) -> str:
    """Returns the change of the time compared with the first recipe; empty if the first recipe was not timed."""
    if initial is None:
        return ""
    return "current" if attempt is initial else _change_text(attempt.ratio, initial.ratio)


def _choice_entries(measured: Sequence[Attempted], initial: Attempted | None) -> tuple[Entry, ...]:
    """Returns the values of each choice with the time of the fastest recipe that has it.

    `measured` is sorted by time.
    """
    best: dict[str, Attempted] = {}
    for attempt in measured:
        for choice in attempt.choices:
            best.setdefault(choice, attempt)
    # Choices, as `option=value`, by option. An option with only one value cannot be compared.
    by_option: dict[str, list[str]] = {}
    for choice in best:
        by_option.setdefault(choice.partition("=")[0], []).append(choice)
    choices = [choice for group in by_option.values() if len(group) > 1 for choice in group]
    ranked = sorted(choices, key=lambda choice: best[choice].ratio)[:MAX_ENTRIES]
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
    """Returns the result of a bisection: the culprit, the evidence, and the IR before and after the culprit pass."""
    has_recipe = bool(result.steps or result.lowerings or result.in_eager)
    next_steps = [Entry("Use the correct recipe", answer=USE, key="u")] if has_recipe else []
    next_steps += [
        Entry("Save", "write the recipe and the reduced module to a folder", answer=SAVE, key="s"),
        Entry("Bisect again", "with another criterion", answer=AGAIN, key="b"),
    ]
    nodes = Section(
        "smallest reproducing set of nodes",
        tuple(Entry(name, answer=GoToNode(name)) for name in result.nodes[:MAX_ENTRIES]),
    )
    after = result.after if result.after != result.before else ""
    titled_texts = (("before the pass", result.before), ("after the pass", after))
    return Result(
        "Bisection",
        tuple(bisection_lines(result)),
        tuple(next_steps),
        (nodes,) if result.nodes else (),
        tuple((title, text) for title, text in titled_texts if text),
    )
