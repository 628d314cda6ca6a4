"""Errors of the frontend, with what happened, where, and what to do."""

from __future__ import annotations

from buddy.compiler.protocol.errors import BuddyError


class FrontendError(BuddyError):
    """Carries a `Diagnostic`, whose text is the message."""


class UnsupportedGraphError(FrontendError):
    """A Buddy graph cannot represent some part of the captured graph."""


class FallbackError(FrontendError):
    """An op would run in eager, and the caller does not allow that."""


class VerificationError(FrontendError):
    """Compiled code differs from eager, and the caller asked for an error."""


class OptionError(BuddyError, ValueError):
    """An option of the caller does not apply to a graph. This error never makes the graph fall back to eager."""
