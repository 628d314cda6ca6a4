"""Diagnostics, and the base class of this project's errors. Imports neither torch nor MLIR."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Diagnostic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message for the user: what happened, where, and what to do.

    `detail` is further text, such as the output of a process. `step` is the index of the recipe's step that failed, or
    -1; `node` is the stable name of the node at which it failed, or "".
    """

    what: str
    where: str = ""
    todo: str = ""
    severity: Severity = "error"
    detail: str = ""
    step: int = -1
    node: str = ""

    def __str__(self) -> str:
        return " · ".join(part for part in (self.what, self.where, self.todo) if part)


# The maximum number of lines of a diagnostic's detail that are printed; these are the last ones.
_MAX_DETAIL_LINES = 20


def diagnostic_text(diagnostic: Diagnostic, heading: str) -> str:
    """Returns lines for a terminal: the heading with what happened, where, what to do, and the end of the detail."""
    lines = [f"{heading}: {diagnostic.what}"]
    lines += [f"  {name}: {text}" for name, text in (("where", diagnostic.where), ("to do", diagnostic.todo)) if text]
    lines += [f"  | {line}" for line in diagnostic.detail.strip().splitlines()[-_MAX_DETAIL_LINES:]]
    return "\n".join(lines)


# The hint of a diagnostic for an unexpected exception of this package.
REPORT_BUG = "this is a bug: please report it with the log"


class BuddyError(Exception):
    """The base of all errors of this project; `diagnostic` says what happened, and where and what to do if known.

    It takes a diagnostic, or the parts of one; its text is the diagnostic's. Errors that are also a `ValueError` or
    another of Python's errors derive from both.
    """

    def __init__(self, what: str | Diagnostic = "", where: str = "", todo: str = "", detail: str = "") -> None:
        self.diagnostic = what if isinstance(what, Diagnostic) else Diagnostic(str(what), where, todo, detail=detail)
        super().__init__(str(self.diagnostic))

    @property
    def where(self) -> str:
        """Where it happened: a file and line, a node, an option, a part of the program; "" if unknown."""
        return self.diagnostic.where

    @property
    def todo(self) -> str:
        """What the user can do about it; "" if unknown."""
        return self.diagnostic.todo


def diagnostic_of(error: BaseException, what: str, where: str, todo: str = "") -> Diagnostic:
    """Returns the diagnostic of a `BuddyError` that says where it happened; for other errors, a new diagnostic.

    The new one consists of `what` followed by the error, `where` and `todo`.
    """
    if isinstance(error, BuddyError) and error.where:
        return error.diagnostic
    return Diagnostic(f"{what}: {type(error).__name__}: {error}", where, todo)


def _identity(code: Any) -> tuple[str, str]:
    """Returns the module and the qualified name of a class or function; "" for a callable without a name."""
    return code.__module__, getattr(code, "__qualname__", "")


def check_registration(kind: str, name: str, first: Any, second: Any) -> None:
    """Raises `BuddyError` if `first`, which has registered `name`, is other code than `second`.

    Both are functions or classes; `first` is `None` if nobody has registered the name. `kind` says in the message what
    is registered, such as "preset". The same code may register again: a notebook's cell that runs twice, or a file that
    is loaded again.
    """
    if first is not None and _identity(first) != _identity(second):
        raise duplicate_name_error(kind, name, first.__module__, second.__module__)


def duplicate_name_error(kind: str, name: str, first: str, second: str) -> BuddyError:
    """Returns the error of a second registration of a name, by the module `second` after the module `first`."""
    what = f"the {kind} {name!r} is registered twice: by {first} and by {second}"
    return BuddyError(what, second, "choose another name, or load only one of them")
