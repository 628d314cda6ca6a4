"""The edit history of one graph's recipe, with undo and redo. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from buddy.compiler.protocol.recipe import Recipe

MERGE_SECONDS = 1.0
LENGTH = 500
# Maximum number of edits saved in each direction, and their size in bytes, because edited IR is long.
KEPT = 50
KEPT_BYTES = 8 << 20


class Edit(msgspec.Struct, frozen=True):
    """A point in the history: the recipe, the title of the edit that led to it, and the name that merges edits."""

    recipe: Recipe
    title: str = ""
    merge: str = ""
    at: float = 0.0


class Edits(msgspec.Struct, frozen=True):
    """A saved history: edits to undo, the current recipe, edits to redo.

    `session` identifies the workbench that saved it; `others` are the last histories of other workbenches.
    """

    past: list[Edit]
    now: Edit
    future: list[Edit]
    session: str = ""
    others: dict[str, Edits] = {}

    def of(self, change: Callable[[Recipe], Recipe]) -> Edits:
        """The history with `change` applied to each recipe."""
        past, (now,), future = (
            [msgspec.structs.replace(edit, recipe=change(edit.recipe)) for edit in edits]
            for edits in (self.past, [self.now], self.future)
        )
        others = {
            session: msgspec.structs.replace(edits, others={}).of(change) for session, edits in self.others.items()
        }
        return Edits(past, now, future, self.session, others)

    def up_to(self, recipe: Recipe) -> Edits:
        """The history of `recipe`. If a workbench crashed while saving, `recipe` is added as one more edit."""
        if self.now.recipe == recipe:
            return self
        return Edits([*self.past, self.now], Edit(recipe, "the saved recipe"), [])


class History:
    """A recipe with its history, which starts with `kept` (the saved recipe), if any, or with `preset`."""

    def __init__(self, preset: Recipe, kept: Recipe | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.preset = preset
        self.restored = kept is not None and kept != preset
        self._past: list[Edit] = []
        self._future: list[Edit] = []
        self._now = Edit(kept or preset)
        self._clock = clock

    @property
    def recipe(self) -> Recipe:
        return self._now.recipe

    @property
    def edits(self) -> list[Edit]:
        """The edits that can be undone, the latest first, each with the recipe after it."""
        return list(reversed(self._past))

    @property
    def journal(self) -> list[tuple[int, Edit]]:
        """Every edit, the latest first, with its distance from the current one: positive for undone edits."""
        done = list(enumerate([*self._past, self._now], -len(self._past)))
        return [*reversed(list(enumerate(reversed(self._future), 1))), *reversed(done)]

    def go(self, steps: int) -> None:
        """Redo that many edits, or, for a negative number, undo them."""
        for _ in range(abs(steps)):
            (self.redo if steps > 0 else self.undo)()

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)

    def edit(self, recipe: Recipe, title: str, merge: str = "") -> bool:
        """Make `recipe` the current one. Edits with the same `merge` name in quick succession are undone together."""
        if recipe == self.recipe:
            return False
        if not self._continues(merge):
            self._past = [*self._past[-LENGTH:], self._now]
        self._future.clear()
        self._now = Edit(recipe, title, merge, self._clock())
        self.restored = False
        return True

    def edits_to_save(self) -> Edits:
        """The edits nearest to the current one, to be saved."""
        past, future = ([_plain(edit) for edit in edits[-KEPT:]] for edits in (self._past, self._future))
        now = _plain(self._now)
        while _length(found := Edits(past, now, future)) > KEPT_BYTES and (past or future):
            # Drop the farthest edits first: the nearest edits are last in both lists.
            past, future = past[len(past) // 2 + 1 :], future[len(future) // 2 + 1 :]
        return found

    def take(self, edits: Edits) -> None:
        """Continue the saved history of another session."""
        self._past, self._future = edits.past, edits.future
        self._now = msgspec.structs.replace(edits.now, recipe=self.recipe)

    def undo(self) -> str:
        """Undo one edit. Returns its title, or an empty string without one."""
        if not self._past:
            return ""
        title = self._now.title
        self._future.append(self._now)
        self._now, self.restored = self._past.pop(), False
        return title

    def redo(self) -> str:
        """Redo the last undone edit. Returns its title, or an empty string without one."""
        if not self._future:
            return ""
        self._past.append(self._now)
        self._now, self.restored = self._future.pop(), False
        return self._now.title

    def _continues(self, merge: str) -> bool:
        recent = self._clock() - self._now.at < MERGE_SECONDS
        return bool(merge) and merge == self._now.merge and recent


def _plain(edit: Edit) -> Edit:
    """An edit without its merge state, which is not saved."""
    return msgspec.structs.replace(edit, merge="", at=0.0)


def _length(edits: Edits) -> int:
    return len(msgspec.msgpack.encode(edits))
