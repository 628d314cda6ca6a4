"""The programs that comparing every node takes: the compiled one with its values shown, and each node alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from buddy.compiler.driver import compile_graph
from buddy.compiler.driver.observation import observation
from buddy.compiler.driver.single_node_programs import own_programs
from buddy.compiler.graph.graph import Graph
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.artifact import to_bytes
from buddy.compiler.protocol.numerics_report import ObservedProgram
from buddy.compiler.protocol.recipe import Recipe


def observed_program(
    graph: Graph, recipe: Recipe, first: Registry | None = None, *, every: bool = False, own: bool = True,
    symbols: Mapping[str, int] | None = None, tell: Callable[[str, float], None] = lambda _what, _done: None,
) -> ObservedProgram:  # fmt: skip
    """`graph` compiled by `recipe` so that it shows its values, with `every` those too that are fused.

    With `own` each node is compiled alone, too, for the sizes that `symbols` say: those of the call that is looked at.
    `first` is a registry to search before all others. Raises `CompilationError` as compiling `recipe` does.
    """
    start = time.perf_counter()
    found = observation(graph, recipe, first, every, lambda what: tell(what, -1.0))
    tell("compiling the program that shows its values", -1.0)
    artifact = compile_graph.compile_graph(graph, found.recipe, first)
    programs, why = own_programs(graph, found.plain, recipe, first, symbols or {}, tell) if own else ([], {})
    seconds = time.perf_counter() - start
    return ObservedProgram(found.recipe, to_bytes(artifact), found.seen, tuple(programs), why, seconds, found.notes)
