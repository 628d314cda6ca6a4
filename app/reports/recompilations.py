"""TorchDynamo's compilations, graph breaks and guards in a run, as rows, text and JSON. Does not import Textual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from buddy.app.reports import formatting
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import DynamoBreak, DynamoCompile, DynamoGuard, DynamoReport, GuardFailure, UserFrame

DynamoRowKind = Literal["break", "recompiled", "limit", "error", "guard"]
# The maximum number of guards in the text; JSON has all of them.
_MAX_GUARDS = 30
# The maximum number of characters of a guard in the text.
_MAX_EXPRESSION = 72
# The maximum number of fixes for a graph break in the text.
_MAX_FIXES = 2


@dataclass(frozen=True)
class DynamoRow:
    """A row of the table.

    `title` is the reason of a graph break, the expression of a guard, or an error. `change` is the guard's value before
    and after: `[2, 4] -> [3, 4]`. `line` is the user's line (`file:line`), "" if unknown. `details` are all other
    facts. `seconds` is the duration of a compilation, `n_failures` is how often a guard failed; -1 if unknown.
    """

    kind: DynamoRowKind
    function: str
    title: str
    change: str = ""
    line: str = ""
    details: str = ""
    seconds: float = -1.0
    n_failures: int = -1

    @property
    def cost(self) -> str:
        """The time of a compilation, or how often a guard failed; empty if unknown."""
        if self.kind == "guard":
            return f"{self.n_failures} failed" if self.n_failures >= 0 else ""
        return formatting.seconds(self.seconds) if self.seconds >= 0 else ""


def dynamo_rows(report: DynamoReport) -> list[DynamoRow]:
    """Returns breaks, recompilations and errors in the order of the run, then guards, the most often failed first."""
    # Tuples of the index of a compilation, the rank of a row among the rows of that compilation, and the row.
    events = [(graph_break.compile, 1, _break_row(report, graph_break)) for graph_break in report.breaks]
    for index, compiled in enumerate(report.compiles):
        if compiled.failures:
            events.append((index, 0, _recompilation_row(compiled)))
        if compiled.problem:
            row = DynamoRow("error", compiled.function, compiled.problem, line=_user_line(compiled))
            events.append((index, 2, row))
    for limit in report.limits:
        title = f"{limit.setting} ({limit.limit}) reached: calls that no compiled code fits run in eager"
        fix = f"remove the cause of the recompilations, or raise torch._dynamo.config.{limit.setting}"
        row = DynamoRow("limit", limit.function, title, line=limit.location, details=f"fix: {fix}")
        events.append((limit.compile, 3, row))
    events.sort(key=lambda event: event[:2])
    return [*(row for _, _, row in events), *(_guard_row(report, guard) for guard in user_guards(report))]


def _break_row(report: DynamoReport, graph_break: DynamoBreak) -> DynamoRow:
    """Returns the row of a graph break, at the line of the user's innermost frame."""
    # The fix precedes the stack: a small screen shows only the first lines.
    parts = [
        "Dynamo skips the function: all of it runs in eager" if graph_break.skipped else "",
        f"fix: {graph_break.fixes[0]}" if graph_break.fixes else "",
        _stack_text(graph_break.frames[:-1]),
        graph_break.explanation,
    ]
    frame = graph_break.frames[-1] if graph_break.frames else None
    title = f"{graph_break.reason}: {frame.text}" if frame and frame.text else graph_break.reason
    function = frame.function if frame and frame.function else report.compiles[graph_break.compile].function
    return DynamoRow("break", function, title, line=frame.location if frame else "", details=_join(parts))


def _recompilation_row(compiled: DynamoCompile) -> DynamoRow:
    """Returns the row of a compilation that Dynamo started because a guard failed."""
    failure = compiled.failures[0]
    other_changes = ", ".join(f"{name} {before} -> {after}" for name, before, after in failure.changes[:4])
    call = f"called at {formatting.short_location(compiled.call.location)}" if compiled.call else ""
    parts = [
        f"compilation {compiled.number} of {compiled.function}",
        call,
        f"fix: {failure.fix}" if failure.fix else "",
        f"also changed: {other_changes}" if other_changes else "",
    ]
    line = failure.frame.location if failure.frame else _user_line(compiled)
    return DynamoRow(
        "recompiled", compiled.function, failure.expression, change_text(failure), line, _join(parts), compiled.seconds
    )


def _guard_row(report: DynamoReport, guard: DynamoGuard) -> DynamoRow:
    """Returns the row of a guard."""
    function = report.compiles[guard.compile].function
    line = guard.frame.location if guard.frame else ""
    text = guard.frame.text if guard.frame else ""
    counts = f"checked {guard.checked} times" if guard.checked >= 0 else ""
    parts = (f"{guard.kind} guard of {function}", guard.scope and f"on a {guard.scope} value", counts, text)
    return DynamoRow("guard", function, guard.expression, line=line, details=_join(parts), n_failures=guard.failed)


def change_text(failure: GuardFailure) -> str:
    """Returns the checked value before and after, such as `[2, 4] -> [3, 4]`; "" if both are unknown."""
    if not failure.before and not failure.after:
        return ""
    return f"{failure.before or '?'} -> {failure.after or '?'}"


def _user_line(compiled: DynamoCompile) -> str:
    """Returns the line that defines a compiled function; the line that calls the function if it is not the user's."""
    is_of_user = compiled.file and "/torch/_dynamo/" not in compiled.file
    return compiled.location if is_of_user or not compiled.call else compiled.call.location


def _stack_text(frames: Sequence[UserFrame]) -> str:
    """Returns the frames that lead to a call, the innermost first; empty without frames."""
    calls = ", ".join(f"{formatting.short_location(frame.location)} in {frame.function}" for frame in reversed(frames))
    return f"called from {calls}" if calls else ""


def _join(parts: Sequence[str]) -> str:
    """Joins the parts that are not empty."""
    return " · ".join(part for part in parts if part)


def user_guards(report: DynamoReport) -> list[DynamoGuard]:
    """Returns the guards on the user's values, each once per function: those that failed most often first."""
    # By the function and the expression of the guard.
    guards = dict[tuple[str, str], DynamoGuard]()
    for guard in report.guards:
        if guard.library:
            continue
        key = (report.compiles[guard.compile].function, guard.expression)
        earlier = guards.get(key)
        if earlier is None:
            guards[key] = guard
        elif earlier.checked >= 0:
            checked, failed = earlier.checked + guard.checked, earlier.failed + guard.failed
            guards[key] = msgspec.structs.replace(earlier, checked=checked, failed=failed)
    return sorted(guards.values(), key=lambda guard: -guard.failed)


# ---- text and JSON ---------------------------------------------------------------------------------------------------


def dynamo_summary(report: DynamoReport) -> str:
    """Returns one line: how many functions were compiled how often, recompilations, graph breaks."""
    if not report.compiles and not report.breaks:
        return "no function was compiled: the script calls nothing that torch.compile returned"
    n_functions = len({(compiled.function, compiled.location) for compiled in report.compiles})
    seconds = sum(compiled.seconds for compiled in report.compiles if compiled.seconds > 0)
    n_times = formatting.counted(len(report.compiles), "time")
    compilations = f"{formatting.counted(n_functions, 'function')} compiled {n_times}"
    parts = [
        f"{compilations} in {formatting.seconds(seconds)}" if seconds else compilations,
        formatting.counted(len(report.recompilations), "recompilation"),
        formatting.counted(len(report.breaks), "graph break"),
        *(f"{limit.setting} reached by {limit.function}" for limit in report.limits[:3]),
    ]
    return ", ".join(parts)


def dynamo_text(report: DynamoReport) -> str:
    """Returns the summary, graph breaks, recompilations by function, limits, and the guards on the user's values."""
    sections = [dynamo_summary(report)]
    if report.breaks:
        lines = [
            line for number, graph_break in enumerate(report.breaks, 1) for line in _break_lines(number, graph_break)
        ]
        sections.append("\n".join(["Graph breaks", *lines]))
    if report.recompilations:
        sections.append("\n".join(["Recompilations", *_recompilation_lines(report)]))
    if report.limits:
        lines = [
            f"  {limit.function} at {limit.location}: {limit.setting} is {limit.limit}; "
            "calls that no compiled code fits run in eager" for limit in report.limits
        ]  # fmt: skip
        sections.append("\n".join(["Recompile limit reached", *lines]))
    errors = [
        f"  {compiled.function} at {_user_line(compiled)}: {compiled.problem}"
        for compiled in report.compiles
        if compiled.problem
    ]
    if errors:
        sections.append("\n".join(["Errors", *errors]))
    if guards := user_guards(report):
        sections.append(
            "\n".join(["Guards: conditions on which compiled code is reused", *_guard_lines(report, guards)])
        )
    return "\n\n".join(sections)


def _break_lines(number: int, graph_break: DynamoBreak) -> Iterator[str]:
    """Yields the lines of text on a graph break."""
    frame = graph_break.frames[-1] if graph_break.frames else None
    times = f", {graph_break.times} times" if graph_break.times > 1 else ""
    location = f"{frame.location}{f' in {frame.function}' if frame.function else ''}" if frame else "unknown line"
    yield f"  {number}. {location}{times}{f': {frame.text}' if frame and frame.text else ''}"
    for caller in reversed(graph_break.frames[:-1]):
        yield f"     called from {caller.location} in {caller.function}: {caller.text}"
    yield f"     reason: {graph_break.reason}{' (the whole function runs in eager)' if graph_break.skipped else ''}"
    yield from (f"     fix: {fix}" for fix in graph_break.fixes[:_MAX_FIXES])


def _recompilation_lines(report: DynamoReport) -> Iterator[str]:
    """Yields the lines of text on functions that were compiled more than once."""
    by_function = dict[tuple[str, str], list[DynamoCompile]]()
    for compiled in report.compiles:
        by_function.setdefault((compiled.function, compiled.location), []).append(compiled)
    for (function, _), compiles in by_function.items():
        if all(compiled.number == 1 for compiled in compiles):
            continue
        seconds = sum(compiled.seconds for compiled in compiles if compiled.seconds > 0)
        time = f", {formatting.seconds(seconds)}" if seconds else ""
        yield f"  {function} at {_user_line(compiles[0])}: {formatting.counted(len(compiles), 'compilation')}{time}"
        last_fix = ""
        for compiled in compiles:
            if not compiled.failures:
                continue
            failure = compiled.failures[0]
            yield f"    {_recompilation_line(compiled, failure)}"
            if failure.changes:
                other_changes = ", ".join(f"{name} {before} -> {after}" for name, before, after in failure.changes)
                yield f"       also changed: {other_changes}"
            if failure.fix and failure.fix != last_fix:
                yield f"       fix: {failure.fix}"
            last_fix = failure.fix


def _recompilation_line(compiled: DynamoCompile, failure: GuardFailure) -> str:
    """Returns the line of text on a compilation, with the guard that had failed."""
    change = change_text(failure)
    details = (
        f"read at {formatting.short_location(failure.frame.location)}" if failure.frame else "",
        f"called at {formatting.short_location(compiled.call.location)}" if compiled.call else "",
        formatting.seconds(compiled.seconds) if compiled.seconds >= 0 else "",
    )
    details_text = ", ".join(detail for detail in details if detail)
    text = f"{compiled.number}: failed guard {failure.expression}{f', {failure.source}: {change}' if change else ''}"
    return f"{text} ({details_text})" if details_text else text


def _guard_lines(report: DynamoReport, guards: Sequence[DynamoGuard]) -> Iterator[str]:
    """Yields the lines of a table of guards, and the numbers of guards that are omitted."""
    has_counts = any(guard.checked >= 0 for guard in guards)
    heading = ["kind", "scope", "guard", "function", *(["checked", "failed"] if has_counts else []), "line"]
    rows = [
        [
            guard.kind, guard.scope, _clipped(guard.expression), report.compiles[guard.compile].function,
            *([guard.checked, guard.failed] if has_counts else []),
            formatting.short_location(guard.frame.location) if guard.frame else "",
        ]
        for guard in guards[:_MAX_GUARDS]
    ]  # fmt: skip
    yield from (f"  {line}" for line in table(heading, rows, frozenset(heading) - {"checked", "failed"}).splitlines())
    n_library = sum(guard.library for guard in report.guards)
    omitted = []
    if len(guards) > _MAX_GUARDS:
        omitted.append(f"{len(guards) - _MAX_GUARDS} more")
    if n_library:
        omitted.append(f"{formatting.counted(n_library, 'guard')} on values of torch and Python")
    if omitted:
        yield f"  {' and '.join(omitted)}; --json lists all"


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_EXPRESSION else f"{text[: _MAX_EXPRESSION - 1]}…"


def dynamo_json(report: DynamoReport) -> dict[str, object]:
    """Returns the report as plain values; `compile` in entries is an index in `compiles`."""
    values: dict[str, Any] = msgspec.to_builtins(report)
    return {"summary": dynamo_summary(report), **values}
