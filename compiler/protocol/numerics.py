"""Frames that hold every node of a compiled program against eager."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.numerics_report import NumericsReport, Reference
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice


class CompareNodes(Request["NodesCompared"], frozen=True):
    """Compile a recipe so that its program shows its values, and compare each with eager: `Progress`, `NodesCompared`.

    What is on the screen stays. With `every`, values that are fused are put into memory to be seen; with `own`, each
    node is compiled alone as well. The comparison is stopped after `timeout` seconds, compiling included.
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
