"""The files that store the recipe of one graph and its edits between sessions. No Textual.

Several workbenches may have a program open. Each saves its recipe at every edit, so the file has the recipe that was
edited last. A recipe of another workbench that it replaces is kept in the edits.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from buddy.app.workspace.files import Stamp, exclusive_lock, stamp_of, write_whole, write_whole_bytes
from buddy.app.workspace.history import KEPT_BYTES, Edit, Edits
from buddy.compiler.protocol.recipe import Recipe, from_toml, to_toml
from buddy.compiler.protocol.renamed import RECIPE_FIELDS, with_new_field_names

# Maximum number of other workbenches whose edits are kept; the latest ones.
_OTHERS = 8

Kept = TypeVar("Kept")
Stamps = tuple[Stamp, ...]
_NEVER: Stamps = (None,)


class RecipeFile:
    """The recipe in the file `path`, with its edits in a second file; `addressed` sets its source and graph."""

    def __init__(self, path: Path, addressed: Callable[[Recipe], Recipe]) -> None:
        self.path = path
        self.edits_path = path.with_suffix(".edits")
        self._addressed = addressed
        self._session = secrets.token_hex(4)
        self._seen = _NEVER
        self._changed_by_others = False
        self._others: dict[str, Edits] = {}
        self._unread: list[Path] = []

    def read(self) -> tuple[Recipe | None, Edits | None, str]:
        """The saved history, and an error if it cannot be read. The next edit renames an unreadable file."""
        self._seen, problem = self._stamp(), ""
        recipe = edits = None
        try:
            recipe = self._recipe()
        except (OSError, ValueError) as error:
            self._unread.append(self.path)
            problem = f"the saved recipe could not be read: {error}"
        try:
            edits = self._edits()
        except (OSError, ValueError, RecursionError) as error:
            self._unread.append(self.edits_path)
            problem = f"the saved edits could not be read: {error}"
        self._others = dict(edits.others) if edits is not None else {}
        return recipe, edits, problem

    def keep(self, recipe: Recipe | None, edits: Edits) -> bool:
        """Save a recipe (`None` deletes it) and its edits.

        Returns whether another workbench has saved something in between. Raises `OSError`.
        """
        with exclusive_lock(self.path.with_suffix(".lock")):
            self._read_changes()
            meanwhile, self._changed_by_others = self._changed_by_others, False
            # Encode first, so that an error leaves the files unchanged.
            text, encoded = to_toml(recipe) if recipe is not None else "", self._encoded(edits)
            try:
                while self._unread:
                    path = self._unread.pop()
                    path.replace(path.with_name(f"{path.name}.unread"))
                if text:
                    write_whole(self.path, text)
                else:
                    self.path.unlink(missing_ok=True)
                write_whole_bytes(self.edits_path, encoded)
            finally:
                self._seen = self._stamp()
        return meanwhile

    def others(self) -> list[Edit]:
        """The recipes of other workbenches, the latest of each first."""
        self._read_changes()
        histories = reversed(self._others.values())
        return [edit for edits in histories for edit in (edits.now, *reversed(edits.past), *edits.future)]

    def _read_changes(self) -> None:
        """Read what others have saved since the files were last read or written here."""
        if (now := self._stamp()) == self._seen:
            return
        first, self._seen = self._seen == _NEVER, now
        recipe, edits = _or_none(self._recipe), _or_none(self._edits)
        if recipe is not None:
            edits = edits.up_to(recipe) if edits is not None else Edits([], Edit(recipe), [])
        if edits is None:
            return
        for session, theirs in [*edits.others.items(), (edits.session, edits)]:
            self._others.pop(session, None)
            if session != self._session:
                self._others[session] = msgspec.structs.replace(theirs, others={})
        self._changed_by_others |= not first and edits.session != self._session

    def _encoded(self, edits: Edits) -> bytes:
        """The edits and those of other workbenches: all their recipes, and as much of their histories as fits."""
        others = dict([*self._others.items()][-_OTHERS:])
        oldest = iter([*others])
        while True:
            edits = msgspec.structs.replace(edits, session=self._session, others=others)
            data = msgspec.msgpack.encode(edits)
            if len(data) <= 2 * KEPT_BYTES or (session := next(oldest, None)) is None:
                return data
            others[session] = Edits([], others[session].now, [], session)

    def _stamp(self) -> Stamps:
        """The stamps of the files, which change when another workbench replaces them."""
        return stamp_of(self.path), stamp_of(self.edits_path)

    def _recipe(self) -> Recipe | None:
        """The saved recipe, `None` without a file. Raises `OSError` and `ValueError` if it cannot be read."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # the next edit writes the file with the new names
                return self._addressed(from_toml(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return None

    def _edits(self) -> Edits | None:
        """The saved edits. Raises `OSError`, `ValueError` and `RecursionError` if they cannot be read."""
        try:
            data = self.edits_path.read_bytes()
        except FileNotFoundError:
            return None
        if any(name.encode() in data for name in RECIPE_FIELDS):
            data = msgspec.msgpack.encode(with_new_field_names(msgspec.msgpack.decode(data)))
        return msgspec.msgpack.decode(data, type=Edits).of(self._addressed)


def _or_none(read: Callable[[], Kept | None]) -> Kept | None:
    try:
        return read()
    except (OSError, ValueError, RecursionError):
        return None
