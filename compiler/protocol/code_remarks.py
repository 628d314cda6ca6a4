"""Frames that ask for the remarks of LLVM's passes during code generation."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import Recipe

# The pass name of remarks from LLVM, which does not print which of its passes they come from.
LLVM = "llvm"


class ExplainCode(Request["CodeExplained"], frozen=True):
    """Collect LLVM's remarks on each node's code under a recipe; answered by `CodeExplained`, or `Failed`.

    The functions are compiled again for this, so it takes as long as code generation.
    """

    recipe: Recipe


class CodeExplained(Frame, frozen=True):
    """`remarks` are tuples (`LLVM`, node, text), like those of `Compiled`."""

    request: int
    graph: int
    remarks: tuple[tuple[str, str, str], ...]
