"""Frames that ask what LLVM's own passes did while they made machine code."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import Recipe

# Who speaks where LLVM does: it prints no name of a pass.
LLVM = "llvm"


class ExplainCode(Request["CodeExplained"], frozen=True):
    """Have LLVM say what it does to each node's code under a recipe: `CodeExplained`, or `Failed` where it cannot.

    Functions are compiled once more for that, so it takes as long as generating machine code does.
    """

    recipe: Recipe


class CodeExplained(Frame, frozen=True):
    """`remarks` are (`LLVM`, node, text), as those of `Compiled` are."""

    request: int
    graph: int
    remarks: tuple[tuple[str, str, str], ...]
