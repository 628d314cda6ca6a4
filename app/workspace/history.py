"""The edit history of one graph's recipe, with undo and redo. Does not import Textual."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from buddy.compiler.protocol.recipe import Recipe

# Edits with the same merge key become one if they are less than this apart.
MERGE_SECONDS = 1.0
MAX_UNDO_EDITS = 500
# Limits of a saved history: the edits in each direction, and the bytes of the whole, because edited IR is long.
MAX_SAVED_EDITS = 50
MAX_SAVED_BYTES = 8 << 20


class Edit(msgspec.Struct, frozen=True):
    """A point in the history: the recipe, and the title of the edit that led to it.

    Edits with the same non-empty `merge_key` less than `MERGE_SECONDS` apart become one. `clock_seconds` is the time of
    the edit on the clock of its `History`, 0 in a saved history.
    """

    recipe: Recipe
    title: str = ""
    merge_key: str = msgspec.field(default="", name="merge")
    clock_seconds: float = msgspec.field(default=0.0, name="at")


class SavedHistory(msgspec.Struct, frozen=True):
    """A saved history: edits to undo, the current recipe, edits to redo. The edits nearest to the current one are last.

    `session` identifies the workbench that saved it; `others` are the last histories of other workbenches, by session.
    """

    past: list[Edit]
    now: Edit
    future: list[Edit]
    session: str = ""
    others: dict[str, SavedHistory] = {}

    def map_recipes(self, change: Callable[[Recipe], Recipe]) -> SavedHistory:
        """Returns the history with `change` applied to each recipe, also in `others`."""

        def changed(edit: Edit) -> Edit:
            return msgspec.structs.replace(edit, recipe=change(edit.recipe))

        others = {
            session: msgspec.structs.replace(history, others={}).map_recipes(change)
            for session, history in self.others.items()
        }
        past, future = [changed(edit) for edit in self.past], [changed(edit) for edit in self.future]
        return SavedHistory(past, changed(self.now), future, self.session, others)

    def with_current(self, recipe: Recipe) -> SavedHistory:
        """Returns the history with `recipe` as the current one.

        If `recipe` differs from the current one, it becomes another edit: a workbench has crashed after it wrote the
        recipe file and before it wrote the history.
        """
        if self.now.recipe == recipe:
            return self
        return SavedHistory([*self.past, self.now], Edit(recipe, "the saved recipe"), [])


class History:
    """A recipe with its history, which starts with the saved recipe, or without one, with `preset`.

    `is_restored` is true until the first edit if the saved recipe differs from the preset.
    """

    def __init__(
        self, preset: Recipe, saved: Recipe | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.preset = preset
        self.is_restored = saved is not None and saved != preset
        self._past: list[Edit] = []
        self._future: list[Edit] = []
        self._now = Edit(saved or preset)
        self._clock = clock

    @property
    def recipe(self) -> Recipe:
        return self._now.recipe

    @property
    def past_edits(self) -> list[Edit]:
        """The states before the current one, the latest first: recipes, and the titles of the edits that made them."""
        return list(reversed(self._past))

    @property
    def all_edits(self) -> list[tuple[int, Edit]]:
        """Every edit, the latest first, after its distance from the current one: positive for undone edits."""
        in_order = [*self._past, self._now, *reversed(self._future)]
        return list(reversed(list(enumerate(in_order, -len(self._past)))))

    def undo_or_redo(self, steps: int) -> None:
        """Redoes that many edits, or, for a negative number, undoes them."""
        for _ in range(abs(steps)):
            (self.redo if steps > 0 else self.undo)()

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)

    def edit(self, recipe: Recipe, title: str, merge_key: str = "") -> bool:
        """Makes `recipe` the current one. Returns false if it is already the current one.

        Edits with the same non-empty `merge_key` in quick succession are undone together.
        """
        if recipe == self.recipe:
            return False
        if not self._merges_with_current(merge_key):
            self._past = [*self._past[-MAX_UNDO_EDITS:], self._now]
        self._future.clear()
        self._now = Edit(recipe, title, merge_key, self._clock())
        self.is_restored = False
        return True

    def history_to_save(self) -> SavedHistory:
        """Returns the edits nearest to the current one, as many as the limits allow."""
        past, future = (
            [_without_merge_state(edit) for edit in edits[-MAX_SAVED_EDITS:]] for edits in (self._past, self._future)
        )
        now = _without_merge_state(self._now)
        while (past or future) and _encoded_bytes(SavedHistory(past, now, future)) > MAX_SAVED_BYTES:
            # Drop the farthest half of the edits: the nearest edits are last in both lists.
            past, future = past[len(past) // 2 + 1 :], future[len(future) // 2 + 1 :]
        return SavedHistory(past, now, future)

    def continue_from(self, edits: SavedHistory) -> None:
        """Takes over the saved edits of another session. The current recipe stays."""
        self._past, self._future = edits.past, edits.future
        self._now = msgspec.structs.replace(edits.now, recipe=self.recipe)

    def undo(self) -> str:
        """Undoes one edit. Returns its title, or an empty string without one."""
        if not self._past:
            return ""
        title = self._now.title
        self._future.append(self._now)
        self._now, self.is_restored = self._past.pop(), False
        return title

    def redo(self) -> str:
        """Redoes the last undone edit. Returns its title, or an empty string without one."""
        if not self._future:
            return ""
        self._past.append(self._now)
        self._now, self.is_restored = self._future.pop(), False
        return self._now.title

    def _merges_with_current(self, merge_key: str) -> bool:
        """Whether an edit with this merge key becomes one with the last edit."""
        is_recent = self._clock() - self._now.clock_seconds < MERGE_SECONDS
        return bool(merge_key) and merge_key == self._now.merge_key and is_recent


def _without_merge_state(edit: Edit) -> Edit:
    """Returns the edit as it is saved: later edits are never merged with it."""
    return msgspec.structs.replace(edit, merge_key="", clock_seconds=0.0)


def _encoded_bytes(edits: SavedHistory) -> int:
    return len(msgspec.msgpack.encode(edits))
