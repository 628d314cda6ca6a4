"""Builds steps of a pipeline from short entries, for the modules that hold pipelines as data.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

from buddy.compiler.protocol.recipe import OptionValue, PassStep

MODULE, FUNC = "builtin.module", "func.func"

Entry = str | tuple[str, str] | tuple[str, str, dict[str, OptionValue]]


def steps_of(phase: str, *entries: Entry) -> list[PassStep]:
    """Steps of one phase; an entry is a pass name, a name with its anchor, or both with options."""
    return [step_of(phase, *((entry,) if isinstance(entry, str) else entry)) for entry in entries]


def step_of(phase: str, name: str, anchor: str = MODULE, options: dict[str, OptionValue] | None = None) -> PassStep:
    """One step of a phase."""
    return PassStep(name, "mlir", anchor, tuple((options or {}).items()), phase=phase)
