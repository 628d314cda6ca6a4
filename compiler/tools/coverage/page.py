"""Renders the results of a coverage run as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from buddy.compiler.tools.coverage.plan import CoreOp, CoveragePlan, Listing, PairResult, merged
from buddy.compiler.tools.coverage.report import reasons, summary, text

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
# Maximum number of reasons per operator on the page; the file of results has all.
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
            parts += [f"## {title}: {len(found)} pairs", _table(["operator", "dtypes", "why"], _rows(found))]
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
    return ["## Core ATen without a lowering here", _table(heading, rows)] if rows else []


def _rows(results: Sequence[PairResult]) -> Iterable[tuple[str, str, str]]:
    """A row for each operator, its dtypes together; the reasons are those of the first."""
    by_op: dict[str, list[PairResult]] = {}
    for result in results:
        by_op.setdefault(result.op, []).append(result)
    for op, found in by_op.items():
        why = reasons(found[0]) or [found[0].skipped]
        more = f" (and {len(why) - _SHOWN} more)" if len(why) > _SHOWN else ""
        yield f"`{op}`", ", ".join(result.dtype for result in found), "; ".join(why[:_SHOWN]) + more


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(_cell(word) for word in line) + " |" for line in lines)


def _cell(word: str) -> str:
    return word.replace("|", "\\|").replace("<", "&lt;")
