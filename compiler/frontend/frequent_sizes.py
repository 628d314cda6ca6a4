"""Compiles a graph with symbolic sizes for each set of sizes that recurs, while the code for all sizes is in use."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import torch

from buddy.compiler.driver import background
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime import LoadedProgram

# Maximum number of sets of sizes with separate code, for each graph: each set takes the memory of its intermediates.
# None is evicted, because a program that cycles through more sets would compile all the time.
MAX_SIZES = 16
# Maximum number of sets of sizes whose calls are counted; counting starts again when there are more.
_MAX_COUNTED = 1024
_log = logging.getLogger("buddy.frontend")


class FrequentSizes:
    """Counts the calls of a graph by the values of its symbols.

    After `calls` calls with the same values, the graph is compiled for them in another process, with `recipe`; later
    calls with these values run the result. `load` makes a program of the artifact, or returns `None` to reject it.
    Unless `allow_eager`, code that runs ops in eager is not used. Under `torch.use_deterministic_algorithms`, no code
    is added: the bits of a result would depend on the number of calls.
    """

    def __init__(
        self,
        graph: Graph,
        recipe: Recipe,
        calls: int,
        allow_eager: bool,
        load: Callable[[Artifact], LoadedProgram | None],
    ) -> None:
        self._data, self._recipe, self._calls = serialization.to_data(graph), recipe, calls
        self._allow_eager, self._load = allow_eager, load
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._submitted: set[tuple[int, ...]] = set()
        self._programs: dict[tuple[int, ...], LoadedProgram] = {}
        self._lock = threading.Lock()

    def find_program(self, symbols: Mapping[str, int]) -> LoadedProgram | None:
        """Returns the program for these values of the symbols, or `None` before it is compiled; counts the call."""
        sizes = tuple(symbols.values())
        program = self._programs.get(sizes)
        if program is None and len(self._submitted) < MAX_SIZES and sizes not in self._submitted:
            self._count(sizes, symbols)
        return program

    def _count(self, sizes: tuple[int, ...], symbols: Mapping[str, int]) -> None:
        """Counts a call with these values of `symbols`; after enough calls, submits the graph for compilation."""
        with self._lock:
            if len(self._counts) >= _MAX_COUNTED:
                self._counts.clear()
            self._counts[sizes] += 1
            is_due = self._counts[sizes] >= self._calls and sizes not in self._submitted
            if not is_due or torch.are_deterministic_algorithms_enabled():
                return
            self._submitted.add(sizes)
            del self._counts[sizes]
        data = serialization.substitute_sizes(self._data, symbols)
        # Not `self`: a graph that is no longer used is released.
        on_done = partial(_add_program, weakref.ref(self), dict(symbols), time.monotonic())
        background.submit(data, self._recipe, on_done)

    def add(self, symbols: Mapping[str, int], artifact: Artifact, seconds: float) -> None:
        """Uses `artifact` for the calls with these values of the symbols; `seconds` is the time since it was due."""
        values = ", ".join(f"{name} = {value}" for name, value in symbols.items())
        if artifact.eager_nodes and not self._allow_eager:
            _log.info("graph %s: no separate code for %s, since ops would run in eager", self._data.name, values)
            return
        program = self._load(artifact)
        if program is None:
            _log.info(
                "graph %s: no separate code for %s, which would need separate packed weights",
                self._data.name,
                values,
            )
            return
        self._programs[tuple(symbols.values())] = program
        _log.info("graph %s: compiled for %s in the background, ready after %.1f s", self._data.name, values, seconds)


def _add_program(
    owner: weakref.ref[FrequentSizes], symbols: Mapping[str, int], submitted: float, artifact: Artifact
) -> None:
    """Adds an artifact to its graph, unless the graph is released. `submitted` is the time of the submission."""
    frequent = owner()
    if frequent is not None:
        frequent.add(symbols, artifact, time.monotonic() - submitted)
