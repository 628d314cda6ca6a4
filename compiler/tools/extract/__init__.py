"""Extracts nodes of a captured graph as a separate program, with their real inputs, and as a script."""

from buddy.compiler.tools.extract.parts import Subgraph, part_of
from buddy.compiler.tools.extract.program import extract
from buddy.compiler.tools.extract.script import GraphScript, script_of

__all__ = ["GraphScript", "Subgraph", "extract", "part_of", "script_of"]
