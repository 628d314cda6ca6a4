"""Which tests run when: assigns the marks `process`, `slow` and `full` of pyproject.toml.

`make check` runs the tests without any of these marks in the folders that the Makefile lists as `UNITS`, `make test`
all without `full`, `make test-full` everything.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# A test with one of these fixtures starts processes.
STARTING = frozenset(("bench", "cli", "cluster", "engine", "run_python", "run_warm", "snap_compare", "workbench"))
_RUNNING: list[pytest.Item] = []


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks the tests that start processes with `process`: those with such a fixture, and all that drive a
    workbench.

    Raises `pytest.UsageError` for a `full` without its reason.
    """
    for item in items:
        drives_workbench = inspect.iscoroutinefunction(getattr(item, "function", None))
        if drives_workbench or STARTING.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("process")
        for found in item.iter_markers("full"):
            if not found.args:
                raise pytest.UsageError(f"{item.nodeid}: write why: pytest.mark.full(reason)")


def running(item: pytest.Item) -> None:
    """Records `item` as the running test."""
    _RUNNING[:] = [item]


def refuse_engines_in_unit_tests() -> None:
    """Raises `RuntimeError` in a test that would start an engine without being marked."""
    if _RUNNING and _RUNNING[0].get_closest_marker("process") is None:
        raise RuntimeError(f"{_RUNNING[0].nodeid} starts an engine: mark it with pytest.mark.process")


def sampled(values: Iterable[Any], everywhere: Collection[Any], reason: str) -> list[Any]:
    """Parameters of a test: all of `values`; those that are not in `everywhere` are marked `full` with `reason`."""
    return [value if value in everywhere else pytest.param(value, marks=pytest.mark.full(reason)) for value in values]
