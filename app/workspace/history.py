"""The recipe of one graph as it is edited: what it was before each edit, and what undoing took back. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from buddy.compiler.protocol.recipe import Recipe

MERGE_SECONDS = 1.0
LENGTH = 500
# How many edits each way outlast the session, and the bytes that all of them may take: IR edited by hand is long.
KEPT = 50
KEPT_BYTES = 8 << 20


class Edit(msgspec.Struct, frozen=True):
    """A point in the history: the recipe, the act that led to it, and what makes neighbouring acts one."""

    recipe: Recipe
    title: str = ""
    merge: str = ""
    at: float = 0.0


class Edits(msgspec.Struct, frozen=True):
    """A history as it is kept between sessions: what can be undone, what there is now, what can be done again.

    `session` names the workbench that has kept it, `others` has what others of that program have kept last.
    """

    past: list[Edit]
    now: Edit
    future: list[Edit]
    session: str = ""
    others: dict[str, Edits] = {}

    def of(self, change: Callable[[Recipe], Recipe]) -> Edits:
        """The same with each recipe as `change` makes it."""
        past, (now,), future = (
            [msgspec.structs.replace(edit, recipe=change(edit.recipe)) for edit in edits]
            for edits in (self.past, [self.now], self.future)
        )
        others = {
            session: msgspec.structs.replace(edits, others={}).of(change) for session, edits in self.others.items()
        }
        return Edits(past, now, future, self.session, others)

    def up_to(self, recipe: Recipe) -> Edits:
        """The history of `recipe`, which is at its end, or, where a workbench died as it kept them, one edit later."""
        if self.now.recipe == recipe:
            return self
        return Edits([*self.past, self.now], Edit(recipe, "the recipe as it was kept"), [])


class History:
    """A recipe that starts as `preset`, or as `kept` where one was kept from last time."""

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
        """What can be undone to, the latest first: each with the recipe as it was after that act."""
        return list(reversed(self._past))

    @property
    def journal(self) -> list[tuple[int, Edit]]:
        """Every edit there is, the latest first, and how many steps there are to it: undone ones have positive ones."""
        done = list(enumerate([*self._past, self._now], -len(self._past)))
        return [*reversed(list(enumerate(reversed(self._future), 1))), *reversed(done)]

    def go(self, steps: int) -> None:
        """Undo so many edits at once, or, for a positive number, do them again."""
        for _ in range(abs(steps)):
            (self.redo if steps > 0 else self.undo)()

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)

    def edit(self, recipe: Recipe, title: str, merge: str = "") -> bool:
        """Make `recipe` the current one; acts of one `merge` name in quick succession are undone together."""
        if recipe == self.recipe:
            return False
        if not self._continues(merge):
            self._past = [*self._past[-LENGTH:], self._now]
        self._future.clear()
        self._now = Edit(recipe, title, merge, self._clock())
        self.restored = False
        return True

    def kept(self) -> Edits:
        """The edits nearest to now, for another session."""
        past, future = ([_plain(edit) for edit in edits[-KEPT:]] for edits in (self._past, self._future))
        now = _plain(self._now)
        while _length(found := Edits(past, now, future)) > KEPT_BYTES and (past or future):
            # What is far away goes first: the edits nearest to now stand last on both sides.
            past, future = past[len(past) // 2 + 1 :], future[len(future) // 2 + 1 :]
        return found

    def take(self, edits: Edits) -> None:
        """Go on where another session ended, with the edits that led to the recipe."""
        self._past, self._future = edits.past, edits.future
        self._now = msgspec.structs.replace(edits.now, recipe=self.recipe)

    def undo(self) -> str:
        """Go back one edit; returns its title, "" when there is none."""
        if not self._past:
            return ""
        title = self._now.title
        self._future.append(self._now)
        self._now, self.restored = self._past.pop(), False
        return title

    def redo(self) -> str:
        """Take the last undone edit up again; returns its title, "" when there is none."""
        if not self._future:
            return ""
        self._past.append(self._now)
        self._now, self.restored = self._future.pop(), False
        return self._now.title

    def _continues(self, merge: str) -> bool:
        recent = self._clock() - self._now.at < MERGE_SECONDS
        return bool(merge) and merge == self._now.merge and recent


def _plain(edit: Edit) -> Edit:
    """An edit without what matters only while it is made."""
    return msgspec.structs.replace(edit, merge="", at=0.0)


def _length(edits: Edits) -> int:
    return len(msgspec.msgpack.encode(edits))
