"""The recipe being edited, its history, and where it is kept between sessions. No Textual."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buddy.compiler.recipe import Recipe, digest, from_toml, to_toml

Origin = Literal["none", "preset", "restored", "edited"]
MERGE_SECONDS = 1.0
HISTORY = 500


@dataclass(frozen=True)
class Edit:
    """A point in the history: the recipe, the act that led to it, and what makes neighbouring acts one."""

    recipe: Recipe
    title: str = ""
    merge: str = ""
    at: float = 0.0


class Workspace:
    """One program's recipe. Every edit is kept at once under `store`, and can be undone."""

    def __init__(
        self,
        source: str,
        arguments: tuple[str, ...] = (),
        store: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.arguments = arguments
        self.path = recipe_path(source, arguments, store or default_store())
        self.origin: Origin = "none"
        self.problem = ""
        self._preset = Recipe(source, arguments)
        self._past: list[Edit] = []
        self._future: list[Edit] = []
        self._now = Edit(self._preset)
        self._clock = clock

    @property
    def recipe(self) -> Recipe:
        return self._now.recipe

    @property
    def ready(self) -> bool:
        """A recipe has been chosen: a preset's, or the one kept from last time."""
        return self.origin != "none"

    def begin(self, preset: Recipe) -> None:
        """Start from the recipe kept for this source, or from `preset`."""
        self._preset = _addressed(preset, self.source, self.arguments)
        kept = self._restore()
        self._now = Edit(kept or self._preset)
        self.origin = "restored" if kept and kept != self._preset else "preset"

    def edit(self, recipe: Recipe, title: str, merge: str = "") -> bool:
        """Make `recipe` the current one; acts of one `merge` name in quick succession are undone together."""
        if recipe == self.recipe:
            return False
        if not self._continues(merge):
            self._past = [*self._past[-HISTORY:], self._now]
        self._future.clear()
        self._now = Edit(recipe, title, merge, self._clock())
        self._changed()
        return True

    def undo(self) -> str:
        """Go back one edit; returns its title, "" when there is none."""
        if not self._past:
            return ""
        title = self._now.title
        self._future.append(self._now)
        self._now = self._past.pop()
        self._changed()
        return title

    def redo(self) -> str:
        """Take the last undone edit up again; returns its title, "" when there is none."""
        if not self._future:
            return ""
        self._past.append(self._now)
        self._now = self._future.pop()
        self._changed()
        return self._now.title

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)

    @property
    def preset(self) -> Recipe:
        """What the recipe was before any edit of the user's."""
        return self._preset

    def _continues(self, merge: str) -> bool:
        recent = self._clock() - self._now.at < MERGE_SECONDS
        return bool(merge) and merge == self._now.merge and recent

    def _changed(self) -> None:
        self.origin = "preset" if self.recipe == self._preset else "edited"
        try:
            self._keep()
            self.problem = ""
        except OSError as error:
            self.problem = f"the recipe could not be kept: {error}"

    def _keep(self) -> None:
        if self.recipe == self._preset:
            self.path.unlink(missing_ok=True)
        else:
            write_whole(self.path, to_toml(self.recipe))

    def _restore(self) -> Recipe | None:
        try:
            kept = from_toml(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.problem = f"the recipe kept from last time could not be read: {error}"
            return None
        return _addressed(kept, self.source, self.arguments)


def default_store() -> Path:
    """Where recipes are kept; `BUDDY_TUI_STATE` names another folder."""
    import platformdirs

    return Path(os.environ.get("BUDDY_TUI_STATE") or platformdirs.user_state_dir("buddy-tui"))


def recipe_path(source: str, arguments: tuple[str, ...], store: Path) -> Path:
    """The file that keeps the recipe of `source`, wherever it is opened from."""
    path, colon, name = source.partition(":")
    place = os.path.realpath(path) if os.path.exists(path) else path
    return store / "recipes" / f"{digest(place + colon + name, arguments)}.toml"


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, "utf-8")
    beside.replace(path)


def _addressed(recipe: Recipe, source: str, arguments: tuple[str, ...]) -> Recipe:
    import msgspec

    return msgspec.structs.replace(recipe, source=source, arguments=arguments)
