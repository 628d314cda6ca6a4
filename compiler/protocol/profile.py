"""Frames of a profile of a run."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.profile_report import ProfileReport
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice


class Profile(Request["Profiled"], frozen=True):
    """Compile a recipe with counters in its code, and run it; answered by `Progress`, then `Profiled` or `Failed`.

    The compilation on the screen is not replaced. With `peak`, the machine's peak rates are measured, once.
    """

    recipe: Recipe
    repeats: int = 10
    timeout: float = 120.0
    inputs: InputChoice = InputChoice()
    peak: bool = True


class Profiled(Frame, frozen=True):
    request: int
    report: ProfileReport
