"""Frames of bisections, which search for the cause of a failure, of wrong results, or of slow code."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.recipe import PassStep, Recipe

FailureKind = Literal["any", "fails", "differs", "slower"]


class Criterion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What counts as wrong: an error or a crash (`fails`), results that differ from eager (`differs`), slow code
    (`slower`), or either of the first two (`any`).

    `tolerance` is multiplied with the tolerance of each element type. `slower` is the minimum speedup that disabling a
    pass must give for that pass to be the culprit. `step_seconds` is the limit for one step of a trial (a pass,
    lowering, code generation, the run), `seconds` that for all trials.
    """

    kind: FailureKind = "any"
    tolerance: float = 1.0
    slower: float = 1.1
    step_seconds: float = 20.0
    seconds: float = 300.0


class Bisect(Request["Bisected"], frozen=True):
    """Find what makes the program of `recipe` wrong; answered by `Progress`, then `Bisected` or `Failed`."""

    recipe: Recipe
    criterion: Criterion = Criterion()


class Culprit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A responsible step of the recipe: its `index`, and the plug-in that it comes from (`origin`), if any."""

    index: int = msgspec.field(name="place")
    step: PassStep
    origin: str = ""


class WrongLowering(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lowering that is wrong by itself: the lowering of op class `op` by `registry`, for these nodes.

    `correct` are the other lowerings, which give correct results.
    """

    op: str
    registry: str
    nodes: tuple[str, ...]
    origin: str = ""
    correct: tuple[str, ...] = msgspec.field(default=(), name="right")


class BisectionResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a bisection.

    `summary` is the result in a sentence. `failure` describes the failure, if any. `steps` are the responsible
    passes; if no pass is responsible, `lowerings` are the responsible lowerings. `nodes` are those of the smallest
    subgraph that fails by itself on its real inputs; `in_eager` is the smallest set of nodes that must run in eager for
    the whole program to be right, where equal layers count as one. `recipe` gives right results; `confirmed` says that
    this was tried on the whole program. `before` is the module of `nodes` before the culprit pass, `after` the output
    of the pass, `functions` the functions in which the two differ, and `command` runs that pass on the file `name`.
    """

    summary: str = msgspec.field(name="told")
    recipe: Recipe
    failure: str = msgspec.field(default="", name="wrong")
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
    """The result of the bisection."""

    request: int
    finding: BisectionResult
