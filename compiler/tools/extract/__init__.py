"""Extracts nodes of a captured graph as a separate program, with their real inputs, and as a script."""

from buddy.compiler.tools.extract.extraction import GraphScript, Subgraph, extract, extract_subgraph, make_script

__all__ = ["GraphScript", "Subgraph", "extract", "extract_subgraph", "make_script"]
