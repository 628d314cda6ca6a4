"""Finds what makes a program fail, differ from eager, or slow: passes, lowerings, nodes."""

from buddy.compiler.tools.bisect.search import bisect
from buddy.compiler.tools.bisect.trials import BisectionStopped

__all__ = ["BisectionStopped", "bisect"]
