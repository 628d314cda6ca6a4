"""Frames that look for what makes a program fail, give wrong numbers, or slow."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import PassStep, Recipe

Wrong = Literal["any", "fails", "differs", "slower"]


class Criterion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What counts as wrong: that it fails or crashes, differs from eager, or is slower; `any` is whichever of the first
    two it does.

    `tolerance` is a multiple of what each element type is allowed. `slower` is how many times as fast it has to become
    without a pass for that to be at fault. `each` is the seconds that one step of a trial may take (a pass, lowering,
    machine code, the run), `within` those of all trials.
    """

    kind: Wrong = "any"
    tolerance: float = 1.0
    slower: float = 1.1
    each: float = 20.0
    within: float = 300.0


class Bisect(Request["Bisected"], frozen=True):
    """Look for what makes the program of `recipe` wrong: `Progress`, then `Bisected` or `Failed`."""

    recipe: Recipe
    criterion: Criterion = Criterion()


class Culprit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of the recipe that is at fault: its place, and the plug-in that it comes from, if it does."""

    place: int
    step: PassStep
    origin: str = ""


class WrongLowering(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lowering that is at fault by itself: of op class `op` by `registry`, for these nodes.

    `right` are the other ways to lower them that give the right numbers.
    """

    op: str
    registry: str
    nodes: tuple[str, ...]
    origin: str = ""
    right: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a search came to.

    `wrong` says how the program fails, "" where it does not. `steps` are the passes that are at fault, or `lowerings`
    where no pass is. `nodes` are the fewest that fail by themselves, with their real inputs; `in_eager` the fewest
    that make the whole program right once they are computed in eager, equal layers together. `recipe` is right
    (`confirmed` if that was tried on the whole program). `before` is the module of `nodes` before the pass at fault,
    `after` what the pass made of it, `functions` those in which the two differ, and `command` runs that pass on the
    file `name`.
    """

    told: str
    recipe: Recipe
    wrong: str = ""
    steps: tuple[Culprit, ...] = ()
    lowerings: tuple[WrongLowering, ...] = ()
    nodes: tuple[str, ...] = ()
    in_eager: tuple[str, ...] = ()
    confirmed: bool = False
    functions: tuple[str, ...] = ()
    name: str = ""
    before: str = ""
    after: str = ""
    command: str = ""
    trials: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class Bisected(Frame, frozen=True):
    """What was found."""

    request: int
    finding: Finding
