"""The results of a coverage run as statistics, text and a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from buddy.compiler.tools.coverage.plan import STEPS, CallResult, CoreOp, PairResult

# Maximum length of a reason in tables; the file has all of it.
_REASON = 140
_ADVICE = re.compile(r": (?:a script adds the key|add a lowering under that name) .*? has the three steps")
_COUNTED = ("compiled", "torch-mlir", "eager", "wrong", "error", "crash", "timeout", "refused", "skipped")


def summary(results: Sequence[PairResult], core: Sequence[CoreOp]) -> dict[str, Any]:
    """Statistics per dtype and in total: pairs by outcome, calls that completed each step, the shares that are
    compiled, and Core ATen.

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
