"""Compiles the programs for comparing every node with eager: the instrumented one, and each node alone."""

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
    """Compiles `graph` by `recipe` with instrumentation, which with `every` includes fused values.

    With `own` each node is also compiled alone, for the sizes in `symbols`, those of the observed call. `first` is a
    registry with priority over all others. Raises `CompilationError`.
    """
    start = time.perf_counter()
    found = observation(graph, recipe, first, every, lambda what: tell(what, -1.0))
    tell("compiling the instrumented program", -1.0)
    artifact = compile_graph.compile_graph(graph, found.recipe, first)
    programs, why = own_programs(graph, found.plain, recipe, first, symbols or {}, tell) if own else ([], {})
    seconds = time.perf_counter() - start
    return ObservedProgram(found.recipe, to_bytes(artifact), found.seen, tuple(programs), why, seconds, found.notes)
