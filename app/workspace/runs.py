"""The runs of a program in this and earlier sessions: recipes, inputs and results. No Textual."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from buddy.compiler.protocol import OutputReport, RunReport
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.protocol.run_report import InputChoice

LENGTH = 50


class RunRecord(msgspec.Struct, frozen=True):
    """One run: its end (seconds since the epoch), recipe, inputs and report.

    To keep records small, an input file is stored as its path and `held`, the hash of its content, and the report has
    no images of values.
    """

    at: float
    recipe: Recipe
    report: RunReport
    inputs: InputChoice = InputChoice()
    held: str = ""

    @property
    def clock(self) -> str:
        """The time of day of its end."""
        return time.strftime("%H:%M:%S", time.localtime(self.at))


def recorded(at: float, recipe: Recipe, report: RunReport, inputs: InputChoice) -> RunRecord:
    """The record of a run on `inputs`."""
    return RunRecord(at, recipe, _without_values(report), without_content(inputs), content_hash(inputs))


def _without_values(report: RunReport) -> RunReport:
    beside = tuple(replace(side, outputs=_without_images(side.outputs)) for side in report.beside)
    return replace(report, outputs=_without_images(report.outputs), beside=beside)


def _without_images(outputs: tuple[OutputReport, ...]) -> tuple[OutputReport, ...]:
    return tuple(replace(output, histogram=(), map=()) for output in outputs)


def without_content(inputs: InputChoice) -> InputChoice:
    """The inputs without the content of a file."""
    return replace(inputs, content=b"")


def content_hash(inputs: InputChoice) -> str:
    """The hash of the content of an input file; empty if the inputs are not from a file."""
    return hashlib.sha256(inputs.content).hexdigest() if inputs.content else ""


def with_run(runs: Sequence[RunRecord], record: RunRecord) -> list[RunRecord]:
    """The runs with another one added; beyond the limit, the oldest are dropped."""
    return [*runs, record][-LENGTH:]


def recipe_summary(recipe: Recipe, preset: Recipe | None) -> str:
    """A short description of a recipe: its preset, and the number of differences from it."""
    parts = [recipe.preset]
    if preset is not None and recipe.steps != preset.steps:
        on, before = _enabled(recipe), _enabled(preset)
        came, went = len(on - before), len(before - on)
        parts += [f"+{came}"] * (came > 0) + [f"-{went}"] * (went > 0)
        parts += ["moved"] * (not came and not went)
    eager = sum(choice.lowering == EAGER for choice in recipe.choices)
    parts += [f"{eager} in eager"] * (eager > 0)
    parts += [recipe.dialect] * (recipe.dialect != "linalg") + [f"{recipe.threads} threads"] * (recipe.threads > 1)
    return " ".join(parts)


def _enabled(recipe: Recipe) -> set[tuple[int, str]]:
    """The enabled passes, by text and by the number of earlier passes with the same text."""
    seen: dict[str, int] = {}
    found = set()
    for step in recipe.steps:
        if step.enabled:
            spelling = f"{step.anchor}({step.spelling()})"
            found.add((seen.get(spelling, 0), spelling))
            seen[spelling] = seen.get(spelling, 0) + 1
    return found
