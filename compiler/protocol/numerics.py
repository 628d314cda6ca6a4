"""Frames that compare every node of a compiled program with eager."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.numerics_report import NumericsReport, Reference
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice


class CompareNodes(Request["NodesCompared"], frozen=True):
    """Compile a recipe so that its program reports its values, and compare each with eager.

    Answered by `Progress`, `NodesCompared`.

    The compilation on the screen is not replaced. With `every`, fused values are written to memory to be compared; with
    `own`, each node is also compiled alone. The comparison is stopped after `timeout` seconds, including compilation.
    """

    recipe: Recipe
    reference: Reference = "eager"
    own: bool = True
    every: bool = False
    timeout: float = 600.0
    inputs: InputChoice = InputChoice()


class NodesCompared(Frame, frozen=True):
    request: int
    report: NumericsReport
