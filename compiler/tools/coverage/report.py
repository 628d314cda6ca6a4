"""Writes the results of a coverage run as statistics, text and a Markdown page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from buddy.compiler.tools.coverage.session import (
    STEPS,
    CallResult,
    CoreOp,
    CoverageListing,
    CoveragePlan,
    OpDtypePair,
    PairResult,
    merge_lowerings,
)

# The maximum length of a reason in tables; the file of results has the full text.
_MAX_REASON_CHARACTERS = 140
# The advice in a reason on how to compile the op.
_ADVICE = re.compile(r": (?:add the key|add a lowering under that name) .*? has the three steps")
_COUNTED_OUTCOMES = ("compiled", "torch-mlir", "eager", "wrong", "error", "crash", "timeout", "refused", "skipped")


def summary(results: Sequence[PairResult], core: Sequence[CoreOp]) -> dict[str, Any]:
    """Returns the statistics of `results` by dtype (`dtypes`) and in total (`all`), and those of Core ATen (`core`).

    The statistics are the numbers of pairs by outcome and of calls by completed step, and the shares of compiled pairs
    among those that PyTorch captures, without those that Dynamo rejects or that have no samples.
    """
    dtypes = sorted({result.dtype for result in results})
    by_dtype = {dtype: _statistics([r for r in results if r.dtype == dtype]) for dtype in dtypes}
    return {"dtypes": by_dtype, "all": _statistics(results), "core": _core_statistics(core)}


def _core_statistics(core: Sequence[CoreOp]) -> dict[str, Any]:
    not_lowered = [op for op in core if not op.lowered]
    return {
        "overloads": len(core),
        "lowered": len(core) - len(not_lowered),
        "decomposed": sum(op.decomposed for op in not_lowered),
        "eager_by_design": {op.target: op.only_eager for op in not_lowered if op.only_eager},
        "missing": [op.target for op in not_lowered if not op.decomposed and not op.only_eager],
    }


def _statistics(results: Sequence[PairResult]) -> dict[str, Any]:
    outcomes = Counter[str](result.outcome for result in results)
    captured = sum(count for outcome, count in outcomes.items() if outcome not in ("refused", "skipped"))
    compiled_count = outcomes["compiled"]
    reached = [sum(r.reached[step] for r in results if r.reached) for step in range(len(STEPS))]
    return {
        "pairs": len(results),
        **{outcome: outcomes[outcome] for outcome in _COUNTED_OUTCOMES},
        "calls": sum(sum(result.outcomes.values()) for result in results),
        **dict(zip(STEPS, reached, strict=True)),
        "captured": captured,
        "compiled_here": round(compiled_count / captured, 4) if captured else None,
        "without_eager": round((compiled_count + outcomes["torch-mlir"]) / captured, 4) if captured else None,
    }


def statistics_text(statistics: dict[str, Any]) -> str:
    """Returns a `summary` as tables of pairs by dtype and outcome, and of calls by completed step."""
    names = [*statistics["dtypes"], "all"]
    rows = [*statistics["dtypes"].values(), statistics["all"]]
    shares = [(_percent(row["compiled_here"]), _percent(row["without_eager"])) for row in rows]
    return "\n\n".join(
        [
            _text_table(["pairs", *_COUNTED_OUTCOMES, "here", "without eager"], [
                [name, *(row[key] for key in _COUNTED_OUTCOMES), *row_shares]
                for name, row, row_shares in zip(names, rows, shares, strict=True)
            ]),
            _text_table(["calls", "all", *STEPS], [
                [name, row["calls"], *(row[step] for step in STEPS)] for name, row in zip(names, rows, strict=True)
            ]),
            _core_line(statistics["core"]),
        ]
    )  # fmt: skip


def _core_line(core: dict[str, Any]) -> str:
    return (
        f"Core ATen: {core['lowered']} of {core['overloads']} overloads lowered here, {core['decomposed']} decomposed, "
        f"{len(core['eager_by_design'])} in eager by design, {len(core['missing'])} missing"
    )


# ---- conclusions -----------------------------------------------------------------------------------------------------

# The maximum number of reasons in the conclusions, and of the pairs that are named for each change.
_MAX_REASONS, _MAX_NAMED = 10, 4


def top_reasons(results: Sequence[PairResult]) -> list[dict[str, Any]]:
    """Returns the `_MAX_REASONS` most frequent reasons why pairs are not compiled here.

    Each has an outcome, the number of its pairs, their share of all such pairs, and one example (`for`).
    """
    missed = [result for result in results if result.outcome not in ("compiled", "skipped")]
    examples: dict[tuple[str, str], list[str]] = {}
    for result in missed:
        worst_calls = [finding for finding in result.findings if finding.outcome == result.outcome]
        for reason in dict.fromkeys(_shorten(reason) for finding in worst_calls for reason in finding.reasons):
            examples.setdefault((result.outcome, reason), []).append(f"{result.op} {result.dtype}")
    ranked = sorted(examples.items(), key=lambda item: -len(item[1]))[:_MAX_REASONS]
    return [
        {"outcome": outcome, "reason": reason, "pairs": len(pairs), "share": len(pairs) / len(missed), "for": pairs[0]}
        for (outcome, reason), pairs in ranked
    ]


def outcome_changes(before: Mapping[OpDtypePair, PairResult], results: Sequence[PairResult]) -> list[dict[str, Any]]:
    """Returns the changes of outcomes since the results `before`, each with its pairs, the most frequent first."""
    changed: dict[tuple[str, str], list[str]] = {}
    for result in results:
        earlier = before.get(result.pair)
        if earlier is not None and earlier.outcome != result.outcome:
            changed.setdefault((earlier.outcome, result.outcome), []).append(f"{result.op} {result.dtype}")
    ranked = sorted(changed.items(), key=lambda item: -len(item[1]))
    return [{"before": old, "after": new, "pairs": pairs} for (old, new), pairs in ranked]


def conclusions(statistics: dict[str, Any]) -> str:
    """Returns the most frequent reasons, the changed outcomes, and the command to run next, as text.

    `statistics` is a `summary` with two more entries: `reasons` from `top_reasons`, `changed` from `outcome_changes`.
    """
    top, changes = statistics["reasons"], statistics["changed"]
    lines = ["most frequent reasons of the pairs that are not compiled here"] if top else []
    lines += [
        f"{row['pairs']:>6} {_percent(row['share']):>8}  {row['outcome']}: {row['reason']} (such as {row['for']})"
        for row in top
    ]
    lines += ["changed since the last results"] if changes else []
    for entry in changes:
        more = f" and {len(entry['pairs']) - _MAX_NAMED} more" if len(entry["pairs"]) > _MAX_NAMED else ""
        named = ", ".join(entry["pairs"][:_MAX_NAMED])
        lines.append(f"{len(entry['pairs']):>6}  {entry['before']} -> {entry['after']}: {named}{more}")
    if top:
        op = top[0]["for"].split()[0]
        lines.append(f"next: buddy-tui coverage --only {op}; with -o FILE, --again {top[0]['outcome']} repeats them")
    return "\n".join(lines)


def pair_line(result: PairResult) -> str:
    """Returns the text for a pair that is not compiled: its outcome, the numbers of calls by outcome, the reasons."""
    counts = " ".join(f"{outcome} {count}" for outcome, count in result.outcomes.items())
    head = f"{result.outcome:10} {result.op} {result.dtype} ({counts or result.skipped})"
    return "\n".join([head, *(f"    {reason}" for reason in reason_lines(result))])


def reason_lines(result: PairResult) -> list[str]:
    """Returns a line for each reason why calls are not compiled or are wrong, with one example call.

    The reasons for the pair's outcome are first.
    """
    examples: dict[str, CallResult] = {}
    for finding in sorted(result.findings, key=lambda f: f.outcome != result.outcome):
        for reason in finding.reasons:
            examples.setdefault(reason, finding)
    return [f"{finding.outcome}: {_shorten(reason)} · {finding.call}" for reason, finding in examples.items()]


def _shorten(reason: str) -> str:
    """Returns a reason without the advice on how to compile the op, truncated for a table."""
    reason = _ADVICE.sub("", reason)
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[: _MAX_REASON_CHARACTERS - 1] + "…"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _text_table(heading: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    cells = [[str(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heading))]
    aligned_rows = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in cells
    ]
    return "\n".join("  ".join(row) for row in aligned_rows)


# ---- the Markdown page -----------------------------------------------------------------------------------------------


# The titles of the page's sections, by outcome of their pairs.
_SECTIONS = {
    "crash": "The process ended",
    "timeout": "No answer in time",
    "error": "An exception",
    "wrong": "Different from eager",
    "eager": "Partly or wholly in eager",
    "torch-mlir": "Through torch-mlir",
    "refused": "Not captured by PyTorch",
    "skipped": "Without a sample",
}
# The maximum number of reasons per operator on the page; the file of results has all reasons.
_MAX_SHOWN_REASONS = 2

_READING_NOTES = """
A pair is an operator and a dtype; its outcome is the worst of its calls. The samples of a pair and the in-place form of
one of them are compiled as one program; if that program is not right, each call is compiled by itself. Values are
compared as in `buddy-tui run`, with NaN equal to NaN, and with OpInfo's own tolerance for CPU where it declares a wider
one, and 1e-6 for Bessel functions of float64, in which eager errs by up to 8.1e-7; integers and bools must be equal.
Dtypes, shapes, strides of dense results and the arguments after the call must be eager's too; where PyTorch's
decompositions choose other strides than eager, theirs count. Values of uninitialised results (`empty`) are not
compared. Random operators start from the same seed; where compiled code uses its own generator, its results are
compared with those of the captured program run in eager.
"""
_GRADIENT_NOTES = """
The gradients of all inputs for which OpInfo wants them are computed with random gradients of the results, and compared
in the same way; a pair whose operator has no gradient for the dtype is left out.
"""
_SHARE_NOTES = """
Shares are of the pairs that PyTorch captures: *here* is compiled by this project's lowerings alone, *without eager*
includes ops that torch-mlir's passes lower.
"""


def markdown(results: Sequence[PairResult], listing: CoverageListing, plan: CoveragePlan) -> str:
    """Returns the page: the statistics, Core ATen, then every pair that is not compiled here, with the reasons."""
    statistics = "```\n" + statistics_text(summary(results, listing.core)) + "\n```"
    reading = [part.strip() for part in (_READING_NOTES, *([_GRADIENT_NOTES] if plan.backward else []), _SHARE_NOTES)]
    parts = ["# Coverage", _preamble(listing, plan), statistics, *reading, *_core_section(listing.core, results)]
    for outcome, title in _SECTIONS.items():
        pairs = [result for result in results if result.outcome == outcome]
        if pairs:
            parts += [
                f"## {title}: {len(pairs)} pairs",
                _markdown_table(["operator", "dtypes", "why"], _rows_by_op(pairs)),
            ]
    return "\n\n".join(parts) + "\n"


def _preamble(listing: CoverageListing, plan: CoveragePlan) -> str:
    gradients, option = (", gradients included", "--backward ") if plan.backward else ("", "")
    versions = ", ".join(f"{name} {version}" for name, version in listing.versions.items())
    return (
        f"PyTorch's OpInfo samples, at most {plan.samples} distinct ones of each operator and dtype, compiled with the "
        f"preset `{plan.preset}` for the dialect `{plan.dialect}` and compared with eager ({versions}){gradients}. "
        f"Written by\n\n```\nbuddy-tui coverage {option}--samples {plan.samples} --dtypes {','.join(plan.dtypes)} "
        "-o coverage.jsonl --report coverage.md\n```"
    )


def _core_section(core: Sequence[CoreOp], results: Sequence[PairResult]) -> list[str]:
    """Returns the section on overloads that no registry here lowers, with the lowerings of nodes in the samples."""
    lowerings = merge_lowerings(result.lowerings for result in results)
    rows = [
        (
            f"`{op.target}`",
            op.only_eager or ("decomposed before lowering" if op.decomposed else "missing"),
            ", ".join(f"{lowering} {count}" for lowering, count in lowerings.get(op.target, {}).items()) or "none",
        )
        for op in core
        if not op.lowered
    ]
    heading = ["overload", "how it is compiled", "nodes of the samples"]
    return ["## Core ATen without a lowering here", _markdown_table(heading, rows)] if rows else []


def _rows_by_op(results: Sequence[PairResult]) -> Iterable[tuple[str, str, str]]:
    """Yields a row for each operator, with all its dtypes, and the reasons of the first dtype."""
    by_op: dict[str, list[PairResult]] = {}
    for result in results:
        by_op.setdefault(result.op, []).append(result)
    for op, op_results in by_op.items():
        op_reasons = reason_lines(op_results[0]) or [op_results[0].skipped]
        shown = "; ".join(op_reasons[:_MAX_SHOWN_REASONS])
        hidden_count = len(op_reasons) - _MAX_SHOWN_REASONS
        more = f" (and {hidden_count} more)" if hidden_count > 0 else ""
        yield f"`{op}`", ", ".join(result.dtype for result in op_results), shown + more


def _markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    all_rows = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(_escape_cell(text) for text in row) + " |" for row in all_rows)


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
