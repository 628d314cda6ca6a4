"""Judges the outcome of a recipe's run: outputs are compared with eager's again, with NumPy.

The product's own verdict is not trusted: its arrays are compared here by the same rule and tolerances, implemented
separately.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from buddy.compiler.protocol import Failed, Ran
from buddy.compiler.protocol.errors import Diagnostic
from buddy.compiler.protocol.recipe import IREE, Recipe

# "right": matches eager. "differs": does not, is reported as wrong, and an option of the recipe explains it. "refused":
# a diagnostic that says what and where. "crashed": a process of the engine crashed, in MLIR, LLVM or another compiler,
# and the diagnostic names the step. "stopped": not done in time, and ended when cancelled. All others are faults,
# including compiled code that crashes: passes must preserve a program's meaning, so a crash is as wrong as wrong
# outputs.
Outcome = Literal[
    "right", "differs", "refused", "crashed", "stopped",
    "wrong", "called right", "called wrong", "eager changed", "unsaid", "own fault", "own crash", "code crash",
    "hang", "lost",
]  # fmt: skip
GOOD: frozenset[str] = frozenset({"right", "differs", "refused", "crashed", "stopped"})

# `|ours - eager| <= absolute * max(1, rms(eager)) + relative * |eager|`; other element types have to be equal.
TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
    "float32": (1e-5, 1.3e-6),
    "complex64": (1e-5, 1.3e-6),
    "bfloat16": (1e-2, 1.6e-2),
    "float16": (1e-2, 1e-3),
    "complex32": (1e-5, 1e-3),
}

# Options that are documented to change numerics, or known to be wrong in MLIR, as `pass` or `pass option=value`.
MAY_DIFFER: Mapping[str, str] = {
    "convolutions-to-kernels winograd=4": "errors three times those of the window's products",
}


@dataclass(frozen=True)
class Ending:
    """The outcome of a recipe; `why` is readable, and the same for similar failures."""

    outcome: Outcome
    why: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.outcome in GOOD

    @property
    def kind(self) -> str:
        """The common part of endings with one cause: the outcome, and the reason without numbers and names of
        values.

        How code that corrupts memory fails is random.
        """
        why = "" if self.outcome == "code crash" else self.why
        return f"{self.outcome}: {re.sub(r'[0-9]+', '#', why)[:80]}"


Arrays = Mapping[str, Any]


def arrays_of(ran: Ran) -> Arrays:
    """`output/NAME` and `eager/NAME` of the run."""
    return np.load(io.BytesIO(ran.values), allow_pickle=False)


def of_run(ran: Ran, recipe: Recipe, reference: Arrays | None) -> Ending:
    """The ending of a finished run; `reference` contains eager's outputs of an earlier run."""
    arrays, report = arrays_of(ran), ran.report
    if reference is not None and (changed := _changed(arrays, reference, report)):
        return Ending("eager changed", changed)
    said = next((said for output in report.outputs if (said := _difference(arrays, output))), "")
    unchanged = report.inputs_unchanged
    if report.ok:
        return Ending("called right", said) if said else Ending("right")
    if not said and unchanged:
        return Ending("called wrong", ", ".join(f"{o.name} {o.verdict}" for o in report.outputs))
    why = said or "; ".join(report.notes)
    return Ending("differs", why) if excuse(recipe) else Ending("wrong", why)


def excuse(recipe: Recipe) -> str:
    """Why the outputs of a recipe may differ from eager's; "" if nothing explains that."""
    words = {step.name for step in recipe.steps if step.enabled}
    words |= {f"{step.name} {key}={value}" for step in recipe.steps if step.enabled for key, value in step.options}
    words |= {IREE} & {recipe.backend}
    return next((why for what, why in MAY_DIFFER.items() if what in words), "")


def _changed(arrays: Arrays, reference: Arrays, report: Any) -> str:
    for output in report.outputs:
        key = f"eager/{output.name}"
        if key in reference and (said := differing(arrays[key], reference[key], output.dtype)):
            return f"{output.name}, compared with the first run: {said}"
    return ""


def _difference(arrays: Arrays, output: Any) -> str:
    ours, theirs = f"output/{output.name}", f"eager/{output.name}"
    if ours not in arrays or theirs not in arrays:
        return f"{output.name} is missing"
    said = differing(arrays[ours], arrays[theirs], output.dtype)
    return f"{output.name}: {said}" if said else ""


def differing(ours: Any, theirs: Any, dtype: str) -> str:
    """Where two arrays, with elements of torch's `dtype`, differ by more than the tolerance; "" if nowhere."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.shape} {ours.dtype} beside {theirs.shape} {theirs.dtype}"
    if not ours.size:
        return ""
    absolute, relative = TOLERANCES.get(dtype, (0.0, 0.0))
    if not absolute:
        far = ours != theirs
    else:
        wide = np.complex128 if np.iscomplexobj(ours) else np.float64
        mine, other = ours.astype(wide), theirs.astype(wide)
        finite = np.isfinite(other)
        rms = float(np.sqrt(np.mean(np.abs(other[finite]) ** 2))) if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            near = np.abs(mine - other) <= absolute * max(1.0, rms) + relative * np.abs(other)
            same = (mine == other) | (np.isnan(mine) & np.isnan(other))
        far = ~(near & finite) & ~same
    if not far.any():
        return ""
    at = tuple(int(place) for place in np.argwhere(far)[0])
    return f"{ours[at]} at {list(at)}, eager has {theirs[at]}; {int(far.sum())} of {far.size} are wrong"


# ---- failures --------------------------------------------------------------------------------------------------------

_CRASHED = re.compile(
    r"crashed:? \(?(SIG\w+|signal|exit)|(?:ended|exited) .*\((SIG\w+|exit code)|process (?:ended|exited) \("
)
_CODE_CRASHED = re.compile(r"^(the compiled kernel|the process) crashed")
_OWN_FAULT = re.compile(
    r"internal error in|fault of its own|fault in the pass itself|(?:its result|it made IR that) does not verify"
    r"|^(the run|compiling|importing[^:]*) failed: \w+:"
)


def of_failure(failed: Failed, by_ours: bool) -> Ending:
    """The ending of a failed request; `by_ours` says that a pass of ours failed."""
    found = failed.diagnostic
    why = f"{found.what} · {found.where}"
    if _OWN_FAULT.search(found.what):
        return Ending("own fault", f"{why}\n{found.detail}".strip())
    if not found.what.strip() or not found.where.strip():
        return Ending("unsaid", f"{why} · {found.todo}")
    if not _CRASHED.search(found.what):
        return Ending("refused", f"{why} · {found.todo}")
    if _CODE_CRASHED.search(found.what):
        return Ending("code crash", why + _last_words(found))
    return Ending("own crash" if by_ours else "crashed", why + _last_words(found))


def _last_words(found: Diagnostic) -> str:
    line = found.detail.strip().rpartition("\n")[2]
    return f" ({line[:200]})" if line else ""
