"""Where the time of a compilation went: by phase and by pass, as a tree. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.app.reports.profile import Flame, add
from buddy.compiler.protocol import Compiled, GraphInfo, Stage

# Between passes a module is cloned, filled with locations and printed: what `torch.compile` does without.
BETWEEN = "(snapshots)"


def compile_flame(stages: Sequence[Stage], compiled: Compiled, info: GraphInfo) -> Flame:
    """Phases with the passes in them; what of the whole no pass took stands beside the phases.

    Stages that were known already count with the time that they took when they were made.
    """
    root = Flame(info.name)
    for name, stage in zip(_names(stages), stages, strict=True):
        add(root, [stage.phase, name], stage.milliseconds / 1e3)
    if not compiled.reused:
        add(root, [BETWEEN], compiled.seconds - root.seconds)
    return root


def by_function(stages: Sequence[Stage]) -> list[tuple[str, float]]:
    """The functions whose machine code was made, with the seconds each took, the longest first.

    They are made in processes side by side, so together they may take more than the stage.
    """
    found = [(name, milliseconds / 1e3) for stage in stages for name, milliseconds in stage.functions]
    return sorted(found, key=lambda each: -each[1])


def _names(stages: Sequence[Stage]) -> list[str]:
    """The names of stages, with a number where one has stood before."""
    seen: dict[str, int] = {}
    names = []
    for stage in stages:
        seen[stage.name] = seen.get(stage.name, 0) + 1
        names.append(stage.name if seen[stage.name] == 1 else f"{stage.name}#{seen[stage.name]}")
    return names


def compile_json(stages: Sequence[Stage], compiled: Compiled, info: GraphInfo) -> dict[str, Any]:
    """The same as plain values; seconds throughout."""
    phases: dict[str, float] = {}
    for stage in stages:
        phases[stage.phase] = phases.get(stage.phase, 0.0) + stage.milliseconds / 1e3
    return {
        "graph": compiled.graph,
        "name": info.name,
        "seconds": compiled.seconds,
        "reused": compiled.reused,
        "phases": [{"phase": phase, "seconds": seconds} for phase, seconds in phases.items()],
        "passes": [
            {"pass": name, "phase": stage.phase, "seconds": stage.milliseconds / 1e3, "ops": stage.ops}
            for name, stage in zip(_names(stages), stages, strict=True)
        ],
        "functions": [{"function": name, "seconds": seconds} for name, seconds in by_function(stages)],
    }
