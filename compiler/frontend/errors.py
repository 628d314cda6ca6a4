"""What the frontend cannot take, said so that a person knows what, where, and what to do."""

from __future__ import annotations

from buddy.compiler.protocol import Diagnostic


class FrontendError(Exception):
    """Carries a `Diagnostic`; its text is the diagnostic's."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


class UnsupportedGraphError(FrontendError):
    """The graph holds something that the Buddy graph has no word for, so all of it stays in eager."""


class FallbackError(FrontendError):
    """An op would stay in eager, and the caller asked for that to be an error."""


class VerificationError(FrontendError):
    """Compiled code has given another result than eager, and the caller asked for that to be an error."""


class OptionError(ValueError):
    """What a caller asks for cannot be had for a graph; it is never answered by leaving the graph to eager."""
