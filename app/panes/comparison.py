"""What a stage is compared with: the stage before it, a marked one, itself before an edit or by another recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from buddy.app.reports import formatting
from buddy.app.reports.text.differences import DiffRows
from buddy.app.session.stages import StageBoard, StageRow, key_stages
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.recipe import Recipe

How = Literal["off", "line", "structural"]
Against = Literal["previous", "marked", "edit", "other"]
HOW: tuple[How, ...] = ("off", "line", "structural")
AGAINST: tuple[Against, ...] = ("marked", "edit", "other", "previous")


class View(NamedTuple):
    """What is drawn: a text by itself, or one function of it, or its difference from another."""

    text: str
    other: str = ""
    how: How = "off"
    only: str = ""


class Side(NamedTuple):
    """A recipe to compare with, and what it is called."""

    title: str
    recipe: Recipe


class ComparedStages(NamedTuple):
    """The stages of another recipe, or of another graph, and what it is called."""

    title: str
    stages: tuple[Stage, ...]

    def like(self, row: StageRow) -> Stage | None:
        """The stage that stands for that of `row`: of the same step, else the last of its phase."""
        phase = [stage for stage in self.stages if stage.phase == row.stage.phase]
        return dict(key_stages(self.stages)).get(row.key) or (phase[-1] if phase else None)


class Comparison:
    """How stages are compared, and with which."""

    def __init__(self) -> None:
        self.how: How = "off"
        self.against: Against = "previous"
        self.marked: Stage | None = None
        self.others: ComparedStages | None = None

    def next_how(self) -> None:
        self.how = HOW[(HOW.index(self.how) + 1) % len(HOW)]

    def next_against(self, row: StageRow, rows: Sequence[StageRow], board: StageBoard) -> None:
        """Go on to the next stage there is to compare with; with no diff on the screen, begin with the marked one."""
        begin = 0 if self.how == "off" else AGAINST.index(self.against) + 1
        self.how = "structural" if self.how == "off" else self.how
        turns = [AGAINST[(begin + k) % len(AGAINST)] for k in range(len(AGAINST))]
        self.against = next((turn for turn in turns if self._stage(turn, row, rows, board) is not None), "previous")

    def other(self, row: StageRow, rows: Sequence[StageRow], board: StageBoard) -> Stage | None:
        """The stage to compare that of `row` with; `None` where there is none, or nothing is compared."""
        return None if self.how == "off" else self._stage(self.against, row, rows, board)

    def _stage(self, against: Against, row: StageRow, rows: Sequence[StageRow], board: StageBoard) -> Stage | None:
        if against == "marked":
            return self.marked
        if against == "edit":
            return board.before_edit(row.key)
        if against == "other":
            return self.others.like(row) if self.others is not None else None
        place = next((k for k, other in enumerate(rows) if other.key == row.key), 0)
        return rows[place - 1].stage if place > 0 else None

    def told(self, other: Stage | None) -> list[str]:
        """How and with what, in words: `structural diff`, `from canonicalize`."""
        if other is None:
            return [f"{self.how} diff", self._missing()]
        names = {"previous": other.name, "marked": f"{other.name} (marked)", "edit": "before the last edit"}
        if self.others is not None:
            names["other"] = f"{other.name} by {self.others.title}"
        return [f"{self.how} diff", f"from {names[self.against]}"]

    def _missing(self) -> str:
        missing = {"previous": "no stage is before it", "marked": "m marks a stage", "edit": "no edit changed it"}
        if self.against != "other":
            return missing[self.against]
        return f"{self.others.title} has no such stage" if self.others is not None else "B chooses another recipe"


def change_counts(diff: DiffRows, glyphs: formatting.Glyphs) -> str:
    """Lines that came and went, and in how many places: `+13 −23 in 16`."""
    added = sum(hunk[3] for hunk in diff.hunks)
    removed = sum(hunk[1] for hunk in diff.hunks)
    lines = " ".join(filter(None, formatting.op_count_change(added, removed, glyphs)))
    places = len(diff.hunks)
    return f"{lines} in {formatting.count(places)} place{'s' * (places != 1)}" if places else ""


def no_change(view: View, diff: DiffRows) -> Cells:
    """What is said where nothing differs, or nothing that counts."""
    if diff.hunks:
        return []
    return [(" no change " if view.text == view.other else f" no {view.how} change ", "notice")]
