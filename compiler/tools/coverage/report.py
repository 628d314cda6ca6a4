"""The results of a coverage run as statistics, text and a Markdown page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from buddy.compiler.tools.coverage.plan import STEPS, CallResult, CoreOp, CoveragePlan, Listing, PairResult, merged

# Maximum length of a reason in tables; the file has the full text.
_REASON = 140
_ADVICE = re.compile(r": (?:add the key|add a lowering under that name) .*? has the three steps")
_COUNTED = ("compiled", "torch-mlir", "eager", "wrong", "error", "crash", "timeout", "refused", "skipped")


def summary(results: Sequence[PairResult], core: Sequence[CoreOp]) -> dict[str, Any]:
    """Statistics per dtype and in total: pairs by outcome, calls by completed step, compiled shares, and Core ATen.

    Shares are of the pairs that PyTorch can capture: pairs that Dynamo rejects, or without samples, do not count.
    """
    dtypes = sorted({result.dtype for result in results})
    found = {dtype: _figures([r for r in results if r.dtype == dtype]) for dtype in dtypes}
    return {"dtypes": found, "all": _figures(results), "core": _core_figures(core)}


def _core_figures(core: Sequence[CoreOp]) -> dict[str, Any]:
    left = [op for op in core if not op.lowered]
    return {
        "overloads": len(core),
        "lowered": len(core) - len(left),
        "decomposed": sum(op.decomposed for op in left),
        "eager_by_design": {op.target: op.only_eager for op in left if op.only_eager},
        "missing": [op.target for op in left if not op.decomposed and not op.only_eager],
    }


def _figures(results: Sequence[PairResult]) -> dict[str, Any]:
    outcomes = Counter[str](result.outcome for result in results)
    captured = sum(count for outcome, count in outcomes.items() if outcome not in ("refused", "skipped"))
    ours, theirs = outcomes["compiled"], outcomes["torch-mlir"]
    reached = [sum(r.reached[step] for r in results if r.reached) for step in range(len(STEPS))]
    return {
        "pairs": len(results),
        **{outcome: outcomes[outcome] for outcome in _COUNTED},
        "calls": sum(sum(result.outcomes.values()) for result in results),
        **dict(zip(STEPS, reached, strict=True)),
        "captured": captured,
        "compiled_here": round(ours / captured, 4) if captured else None,
        "without_eager": round((ours + theirs) / captured, 4) if captured else None,
    }


def text(figures: dict[str, Any]) -> str:
    """A table of pairs by dtype and outcome, and of calls by step."""
    names = [*figures["dtypes"], "all"]
    rows = [*figures["dtypes"].values(), figures["all"]]
    return "\n\n".join(
        [
            _table(["pairs", *_COUNTED, "here", "without eager"], [
                [name, *(row[key] for key in _COUNTED), _percent(row["compiled_here"]), _percent(row["without_eager"])]
                for name, row in zip(names, rows, strict=True)
            ]),
            _table(["calls", "all", *STEPS], [
                [name, row["calls"], *(row[step] for step in STEPS)] for name, row in zip(names, rows, strict=True)
            ]),
            _core_line(figures["core"]),
        ]
    )  # fmt: skip


def _core_line(core: dict[str, Any]) -> str:
    return (
        f"Core ATen: {core['lowered']} of {core['overloads']} overloads lowered here, {core['decomposed']} decomposed, "
        f"{len(core['eager_by_design'])} in eager by design, {len(core['missing'])} missing"
    )


def line(result: PairResult) -> str:
    """A pair that is not compiled: the outcome, and the reasons with their numbers of calls."""
    counts = " ".join(f"{outcome} {count}" for outcome, count in result.outcomes.items())
    head = f"{result.outcome:10} {result.op} {result.dtype} ({counts or result.skipped})"
    return "\n".join([head, *(f"    {reason}" for reason in reasons(result))])


def reasons(result: PairResult) -> list[str]:
    """The reasons why calls are not compiled, or wrong; each once, worst outcomes first, with an example call."""
    told: dict[str, CallResult] = {}
    for finding in sorted(result.findings, key=lambda f: f.outcome != result.outcome):
        for reason in finding.reasons:
            told.setdefault(reason, finding)
    return [f"{finding.outcome}: {_short(reason)} · {finding.call}" for reason, finding in told.items()]


def _short(reason: str) -> str:
    """A reason without the advice on how to compile the op, truncated for a table."""
    reason = _ADVICE.sub("", reason)
    return reason if len(reason) <= _REASON else reason[: _REASON - 1] + "…"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _table(heading: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    cells = [[str(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heading))]
    lines = [
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in cells
    ]
    return "\n".join("  ".join(words) for words in lines)


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
# Maximum number of reasons per operator on the page; the file of results has all reasons.
_SHOWN = 2

_READING = """
A pair is an operator and a dtype; its outcome is the worst of its calls. The samples of a pair and the in-place form of
one of them are compiled as one program; if that program is not right, each call is compiled by itself. Values are
compared as in `buddy-tui run`, with NaN equal to NaN, and with OpInfo's own tolerance for CPU where it declares a wider
one; integers and bools must be equal. Dtypes, shapes, strides of dense results and the arguments after the call must be
eager's too; where PyTorch's decompositions choose other strides than eager, theirs count. Values of uninitialised
results (`empty`) are not compared. Random operators start from the same seed; where compiled code uses its own
generator, its results are compared with those of the captured program run in eager.
"""
_GRADIENTS = """
The gradients of all inputs for which OpInfo wants them are computed with random gradients of the results, and compared
in the same way; a pair whose operator has no gradient for the dtype is left out.
"""
_SHARES = """
Shares are of the pairs that PyTorch captures: *here* is compiled by this project's lowerings alone, *without eager*
includes ops that torch-mlir's passes lower.
"""


def markdown(results: Sequence[PairResult], listing: Listing, plan: CoveragePlan) -> str:
    """The statistics, Core ATen, then every pair that is not compiled here, with the reason."""
    figures = "```\n" + text(summary(results, listing.core)) + "\n```"
    reading = [part.strip() for part in (_READING, *([_GRADIENTS] if plan.backward else []), _SHARES)]
    parts = ["# Coverage", _preamble(listing, plan), figures, *reading, *_core(listing.core, results)]
    for outcome, title in _SECTIONS.items():
        found = [result for result in results if result.outcome == outcome]
        if found:
            parts += [f"## {title}: {len(found)} pairs", _page_table(["operator", "dtypes", "why"], _rows(found))]
    return "\n\n".join(parts) + "\n"


def _preamble(listing: Listing, plan: CoveragePlan) -> str:
    gradients, option = (", gradients included", "--backward ") if plan.backward else ("", "")
    versions = ", ".join(f"{name} {version}" for name, version in listing.versions.items())
    return (
        f"PyTorch's OpInfo samples, at most {plan.samples} distinct ones of each operator and dtype, compiled with the "
        f"preset `{plan.preset}` for the dialect `{plan.dialect}` and compared with eager ({versions}){gradients}. "
        f"Written by\n\n```\nbuddy-tui coverage {option}--samples {plan.samples} --dtypes {','.join(plan.dtypes)} "
        "-o coverage.jsonl --report coverage.md\n```"
    )


def _core(core: Sequence[CoreOp], results: Sequence[PairResult]) -> list[str]:
    """The overloads that no registry here lowers, and the lowerings of their nodes in the samples."""
    lowerings = merged(result.lowerings for result in results)
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
    return ["## Core ATen without a lowering here", _page_table(heading, rows)] if rows else []


def _rows(results: Sequence[PairResult]) -> Iterable[tuple[str, str, str]]:
    """A row for each operator, its dtypes together; the reasons are those of the first."""
    by_op: dict[str, list[PairResult]] = {}
    for result in results:
        by_op.setdefault(result.op, []).append(result)
    for op, found in by_op.items():
        why = reasons(found[0]) or [found[0].skipped]
        more = f" (and {len(why) - _SHOWN} more)" if len(why) > _SHOWN else ""
        yield f"`{op}`", ", ".join(result.dtype for result in found), "; ".join(why[:_SHOWN]) + more


def _page_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(_cell(word) for word in line) + " |" for line in lines)


def _cell(word: str) -> str:
    return word.replace("|", "\\|").replace("<", "&lt;")
