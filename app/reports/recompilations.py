"""What TorchDynamo did in a run, as rows, text and JSON. Does not import Textual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from buddy.app.reports import formatting
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import DynamoBreak, DynamoCompile, DynamoGuard, DynamoReport, GuardFailure, UserFrame

DynamoRowKind = Literal["break", "recompiled", "limit", "error", "guard"]
# The number of guards in the text; JSON has all of them.
_MAX_GUARDS = 30
_MAX_EXPRESSION = 72
_MAX_FIXES = 2


@dataclass(frozen=True)
class DynamoRow:
    """A row of the table. `title` is the reason of a break, or a guard; `change` is `before -> after` of its value.

    `line` is the user's line (`file:line`), "" if unknown; `about` is everything else that is known. `seconds` is the
    duration of a compilation, `failed` the number of failures of a guard; -1 if unknown.
    """

    kind: DynamoRowKind
    function: str
    title: str
    change: str = ""
    line: str = ""
    about: str = ""
    seconds: float = -1.0
    failed: int = -1

    @property
    def cost(self) -> str:
        """The time of a compilation, or how often a guard failed."""
        if self.kind == "guard":
            return f"{self.failed} failed" if self.failed >= 0 else ""
        return formatting.seconds(self.seconds) if self.seconds >= 0 else ""


def dynamo_rows(report: DynamoReport) -> list[DynamoRow]:
    """The rows: breaks, recompilations and errors in the order of the run, then guards, those that failed first."""
    events = [(found.compile, 1, _break_row(report, found)) for found in report.breaks]
    for index, compiled in enumerate(report.compiles):
        if compiled.failures:
            events.append((index, 0, _recompilation_row(compiled)))
        if compiled.problem:
            events.append((index, 2, DynamoRow("error", compiled.function, compiled.problem, line=_line(compiled))))
    for limit in report.limits:
        title = f"{limit.setting} ({limit.limit}) reached: calls that no compiled code fits run in eager"
        fix = f"remove the cause of the recompilations, or raise torch._dynamo.config.{limit.setting}"
        events.append(
            (limit.compile, 3, DynamoRow("limit", limit.function, title, line=limit.location, about=f"fix: {fix}"))
        )
    events.sort(key=lambda event: event[:2])
    return [*(row for _, _, row in events), *(_guard_row(report, guard) for guard in user_guards(report))]


def _break_row(report: DynamoReport, found: DynamoBreak) -> DynamoRow:
    # The fix is first: a small screen shows only the first lines.
    parts = [*(f"fix: {fix}" for fix in found.fixes[:1]), _stack_text(found.frames[:-1]), found.explanation]
    if found.skipped:
        parts.insert(0, "Dynamo skips the function: all of it runs in eager")
    line = found.frames[-1].location if found.frames else ""
    text = found.frames[-1].text if found.frames else ""
    title = f"{found.reason}: {text}" if text else found.reason
    function = found.frames[-1].function if found.frames else ""
    return DynamoRow(
        "break", function or report.compiles[found.compile].function, title, line=line, about=_joined(parts)
    )


def _recompilation_row(compiled: DynamoCompile) -> DynamoRow:
    failure = compiled.failures[0]
    also = ", ".join(f"{name} {before} -> {after}" for name, before, after in failure.changes[:4])
    call = f"called at {formatting.short_location(compiled.call.location)}" if compiled.call else ""
    parts = [
        f"compilation {compiled.number} of {compiled.function}",
        call,
        f"fix: {failure.fix}" if failure.fix else "",
    ]
    parts += [f"also changed: {also}" if also else ""]
    line = failure.frame.location if failure.frame else _line(compiled)
    return DynamoRow(
        "recompiled",
        compiled.function,
        failure.expression,
        change_text(failure),
        line,
        _joined(parts),
        compiled.seconds,
    )


def _guard_row(report: DynamoReport, guard: DynamoGuard) -> DynamoRow:
    function = report.compiles[guard.compile].function
    line = guard.frame.location if guard.frame else ""
    text = guard.frame.text if guard.frame else ""
    counts = f"checked {guard.checked} times" if guard.checked >= 0 else ""
    parts = (f"{guard.kind} guard of {function}", guard.scope and f"on a {guard.scope} value", counts, text)
    return DynamoRow("guard", function, guard.expression, line=line, about=_joined(parts), failed=guard.failed)


def change_text(failure: GuardFailure) -> str:
    """The checked value before and after, such as `[2, 4] -> [3, 4]`; "" if both are unknown."""
    if not failure.before and not failure.after:
        return ""
    return f"{failure.before or '?'} -> {failure.after or '?'}"


def _line(compiled: DynamoCompile) -> str:
    """The user's line of a compilation: the call, if the function is of a library."""
    is_library = "/torch/_dynamo/" in compiled.file
    return compiled.call.location if compiled.call and (is_library or not compiled.file) else compiled.location


def _stack_text(frames: Sequence[UserFrame]) -> str:
    calls = ", ".join(f"{formatting.short_location(frame.location)} in {frame.function}" for frame in reversed(frames))
    return f"called from {calls}" if calls else ""


def _joined(parts: Sequence[str]) -> str:
    return " · ".join(part for part in parts if part)


def user_guards(report: DynamoReport) -> list[DynamoGuard]:
    """The guards on the user's values, each once per function: those that failed most often first."""
    found = dict[tuple[str, str], DynamoGuard]()
    for guard in report.guards:
        if guard.library:
            continue
        key = (report.compiles[guard.compile].function, guard.expression)
        known = found.get(key)
        if known is not None and known.checked >= 0:
            checked, failed = known.checked + guard.checked, known.failed + guard.failed
            guard = msgspec.structs.replace(known, checked=checked, failed=failed)
        found[key] = guard if known is None or known.checked >= 0 else known
    return sorted(found.values(), key=lambda guard: -guard.failed)


# ---- text and JSON ---------------------------------------------------------------------------------------------------


def dynamo_summary(report: DynamoReport) -> str:
    """One line: how many functions were compiled how often, recompilations, graph breaks."""
    if not report.compiles and not report.breaks:
        return "no function was compiled: the script calls nothing that torch.compile returned"
    functions = len({(compiled.function, compiled.location) for compiled in report.compiles})
    seconds = sum(compiled.seconds for compiled in report.compiles if compiled.seconds > 0)
    times = f"{_count(functions, 'function')} compiled {_count(len(report.compiles), 'time')}"
    parts = [f"{times} in {formatting.seconds(seconds)}" if seconds else times]
    parts += [_count(len(report.recompilations), "recompilation"), _count(len(report.breaks), "graph break")]
    parts += [f"{limit.setting} reached by {limit.function}" for limit in report.limits[:3]]
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def dynamo_text(report: DynamoReport) -> str:
    """The summary, graph breaks, recompilations by function, limits, and the guards on the user's values."""
    sections = [dynamo_summary(report)]
    if report.breaks:
        lines = [line for number, found in enumerate(report.breaks, 1) for line in _break_lines(number, found)]
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
        f"  {compiled.function} at {_line(compiled)}: {compiled.problem}"
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


def _break_lines(number: int, found: DynamoBreak) -> Iterator[str]:
    frame = found.frames[-1] if found.frames else None
    times = f", {found.times} times" if found.times > 1 else ""
    location = f"{frame.location}{f' in {frame.function}' if frame.function else ''}" if frame else "unknown line"
    yield f"  {number}. {location}{times}{f': {frame.text}' if frame and frame.text else ''}"
    for caller in reversed(found.frames[:-1]):
        yield f"     called from {caller.location} in {caller.function}: {caller.text}"
    yield f"     reason: {found.reason}{' (the whole function runs in eager)' if found.skipped else ''}"
    yield from (f"     fix: {fix}" for fix in found.fixes[:_MAX_FIXES])


def _recompilation_lines(report: DynamoReport) -> Iterator[str]:
    by_function = dict[tuple[str, str], list[DynamoCompile]]()
    for compiled in report.compiles:
        by_function.setdefault((compiled.function, compiled.location), []).append(compiled)
    for (function, _), compiles in by_function.items():
        if all(compiled.number == 1 for compiled in compiles):
            continue
        seconds = sum(compiled.seconds for compiled in compiles if compiled.seconds > 0)
        time = f", {formatting.seconds(seconds)}" if seconds else ""
        yield f"  {function} at {_line(compiles[0])}: {_count(len(compiles), 'compilation')}{time}"
        last_fix = ""
        for compiled in compiles:
            if not compiled.failures:
                continue
            failure = compiled.failures[0]
            yield f"    {_recompilation_line(compiled, failure)}"
            if failure.changes:
                also = ", ".join(f"{name} {before} -> {after}" for name, before, after in failure.changes)
                yield f"       also changed: {also}"
            if failure.fix and failure.fix != last_fix:
                yield f"       fix: {failure.fix}"
            last_fix = failure.fix


def _recompilation_line(compiled: DynamoCompile, failure: GuardFailure) -> str:
    change = change_text(failure)
    details = [f"read at {formatting.short_location(failure.frame.location)}" if failure.frame else ""]
    details += [f"called at {formatting.short_location(compiled.call.location)}" if compiled.call else ""]
    time = formatting.seconds(compiled.seconds) if compiled.seconds >= 0 else ""
    details_text = ", ".join(part for part in (*details, time) if part)
    text = f"{compiled.number}: failed guard {failure.expression}{f', {failure.source}: {change}' if change else ''}"
    return f"{text} ({details_text})" if details_text else text


def _guard_lines(report: DynamoReport, guards: Sequence[DynamoGuard]) -> Iterator[str]:
    counts = any(guard.checked >= 0 for guard in guards)
    heading = ["kind", "scope", "guard", "function", *(["checked", "failed"] if counts else []), "line"]
    rows = [
        [
            guard.kind, guard.scope, _clipped(guard.expression), report.compiles[guard.compile].function,
            *([guard.checked, guard.failed] if counts else []),
            formatting.short_location(guard.frame.location) if guard.frame else "",
        ]
        for guard in guards[:_MAX_GUARDS]
    ]  # fmt: skip
    yield from (f"  {line}" for line in table(heading, rows, frozenset(heading) - {"checked", "failed"}).splitlines())
    hidden = Counter(guard.library for guard in report.guards)[True]
    rest = [f"{len(guards) - _MAX_GUARDS} more" if len(guards) > _MAX_GUARDS else ""]
    rest += [f"{_count(hidden, 'guard')} on values of torch and Python" if hidden else ""]
    if text := " and ".join(part for part in rest if part):
        yield f"  {text}; --json lists all"


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_EXPRESSION else f"{text[: _MAX_EXPRESSION - 1]}…"


def dynamo_json(report: DynamoReport) -> dict[str, object]:
    """The report as plain values; `compile` in entries is an index in `compiles`."""
    values: dict[str, Any] = msgspec.to_builtins(report)
    return {"summary": dynamo_summary(report), **values}
