"""The stages of one graph on the screen: those of the current compilation, then outdated ones of the last."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from buddy.app.workspace.bookmarks import Key as Key
from buddy.compiler.protocol import Stage

_SUFFIXES = {"fx": ".txt", "buddy": ".txt", "mlir": ".mlir", "llvm": ".ll", "asm": ".s", "ptx": ".ptx"}


class StageRow(NamedTuple):
    """A stage, its key (pass name and number of earlier ones with it), and why it is outdated (empty if it is not)."""

    stage: Stage
    key: Key
    stale: str = ""


class StagePosition(NamedTuple):
    """A line of the stage with that key."""

    key: Key
    line: int


def key_stages(stages: Iterable[Stage]) -> list[tuple[Key, Stage]]:
    """Stages with keys that do not change when steps are renumbered."""
    seen: Counter[str] = Counter()
    pairs = []
    for stage in stages:
        pairs.append(((stage.name, seen[stage.name]), stage))
        seen[stage.name] += 1
    return pairs


class StageBoard:
    """Collects the stages of a compilation, and keeps the stages of the last one until they are replaced."""

    def __init__(self) -> None:
        self._current: list[Stage] = []
        self._outdated: list[Stage] = []
        self._complete: list[Stage] = []
        self._previous_complete: list[Stage] = []
        self._reason = ""
        self._is_compiling = False
        self._last_time = 0.0

    def begin(self, reason: str) -> None:
        """Start a compilation. The current stages are outdated for `reason` until they are replaced."""
        self._outdated = [row.stage for row in self.rows() if row.stage.state != "failed"]
        self._current, self._reason, self._is_compiling = [], reason, True
        self._last_time = time.monotonic()

    def add(self, stage: Stage) -> None:
        if self._is_compiling:
            self._current.append(stage)
            self._last_time = time.monotonic()

    def finish(self, stages: Sequence[Stage]) -> None:
        """Mark the compilation as complete."""
        if [stage.text for stage in stages] != [stage.text for stage in self._complete]:
            self._previous_complete, self._complete = self._complete, list(stages)
        self._current, self._outdated, self._is_compiling = list(stages), [], False

    def seconds_left(self) -> float | None:
        """The time that the missing stages took last time; `None` if there are none, or their time is unknown."""
        later = [row.stage.milliseconds for row in self.rows() if row.stale] if self._is_compiling else []
        return max(0.0, sum(later) / 1e3 - (time.monotonic() - self._last_time)) if later else None

    def before_edit(self, key: Key) -> Stage | None:
        """The stage with that key in the last complete compilation with different texts."""
        whole = [stage.text for stage in self._current] == [stage.text for stage in self._complete]
        return dict(key_stages(self._previous_complete if whole else self._complete)).get(key)

    def fail(self, stages: Sequence[Stage], reason: str) -> None:
        """End the compilation with `stages` (up to the failure). Later stages stay outdated for `reason`."""
        if not self._is_compiling:
            self.begin(reason)
        known = {(stage.index, stage.text) for stage in self._current}
        self._current += [stage for stage in stages if (stage.index, stage.text) not in known]
        self._reason, self._is_compiling = reason, False

    @property
    def failed(self) -> Stage | None:
        return next((stage for stage in reversed(self._current) if stage.state == "failed"), None)

    def rows(self) -> list[StageRow]:
        """All stages in order, with outdated stages after the current ones."""
        current = key_stages(self._current)
        rows = [StageRow(stage, key) for key, stage in current]
        return rows + [
            StageRow(stage, key, self._reason) for key, stage in self._outdated_rows({key for key, _ in current})
        ]

    def _outdated_rows(self, done: set[Key]) -> list[tuple[Key, Stage]]:
        last = key_stages(self._outdated)
        reached = max((place for place, (key, _) in enumerate(last) if key in done), default=-1)
        return last[reached + 1 :]


def phase_of(rows: Sequence[StageRow], index: int) -> str:
    """The phase of row `index`; a step without a phase has the phase of the previous stage."""
    for row in reversed(rows[: index + 1]):
        if row.stage.phase:
            return row.stage.phase
    return ""


def file_name(stage: Stage) -> str:
    """A file name that sorts in stage order: `07-canonicalize.mlir`."""
    failed = ".failed" * (stage.state == "failed")
    return f"{stage.index:02}-{stage.name}{failed}{_SUFFIXES[stage.language]}"
