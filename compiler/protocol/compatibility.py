"""Compatibility with other versions of this program: the formats of files, and the names of version 0.1.

Recipes, sessions, settings and reproducers outlive a version. Each file has the number of its format and the version
that has written it. A file without a number is one of version 0.1, or written by hand. A file of an older format is
read. One of a later format is rejected, because this version could misread it.

Old names are accepted until version 0.3. Most give a warning with the new name; those in saved histories and in filters
do not. Modules that were renamed are in `buddy.compiler.support.renamed_modules`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import msgspec

from buddy.compiler.protocol.errors import BuddyError

# ---- formats of files ------------------------------------------------------------------------------------------------


# The fields of `Stamp`, as they are spelled in files.
FORMAT, WRITER = "format", "written_by"


class LaterFormatError(BuddyError, ValueError):
    """A file has a later format than this version reads, or the number of its format is invalid."""


class Stamp(msgspec.Struct, frozen=True):
    """The fields that say what has written a file; a file of version 0.1 has neither."""

    format: int = 1
    written_by: str = ""


@dataclass(frozen=True)
class FileFormat:
    """The format of one kind of file, such as "recipe".

    `latest` is written, and increases when an older program would misread a file or reject a field of it.
    """

    kind: str
    latest: int

    def stamp(self) -> dict[str, int | str]:
        """Returns the fields that every file of this kind starts with."""
        return {FORMAT: self.latest, WRITER: own_version()}

    def check_stamp(self, stamp: Stamp) -> None:
        """Raises `LaterFormatError` as `check` does."""
        self.check(stamp.format, stamp.written_by)

    def check(self, number: object, writer: object = "") -> None:
        """Raises `LaterFormatError` for a later format, and if `number` is not a whole number from 1.

        The message names the version that has written the file (`writer`), and this version.
        """
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise LaterFormatError(
                f"not a {self.kind}: the format is {str(number)[:60]!r}, not a whole number - at `$.{FORMAT}`"
            )
        if number > self.latest:
            written_by = f"it was written by {str(writer)[:60] or 'a later version'}, in format {number}"
            read_by = f"this is {own_version()}, which reads formats up to {self.latest}"
            raise LaterFormatError(
                f"a {self.kind} of a later version: {written_by}; {read_by}", todo="update buddy-tui to read it"
            )


RECIPE = FileFormat("recipe", 2)
SESSION = FileFormat("session", 1)
SETTINGS = FileFormat("settings file", 1)
REPRODUCER = FileFormat("reproducer", 1)


@lru_cache(maxsize=1)
def own_version() -> str:
    """Returns the name and the version of this program."""
    from importlib import metadata  # takes time at each start

    try:
        return f"buddy-tui {metadata.version('buddy-tui')}"
    except metadata.PackageNotFoundError:
        return "buddy-tui of a source tree"


# ---- names of version 0.1 --------------------------------------------------------------------------------------------


# Recipe fields, which are also options of `torch.compile` and names in `buddy-tui tune --vary`.
RECIPE_FIELDS = {"flavour": "dialect"}
# Ids of actions, as in the table `keys` of the settings.
ACTION_IDS = {
    "passes.flavour": "passes.dialect",
    "ir.search": "search",
    "ir.next-match": "search.next",
    "ir.previous-match": "search.previous",
}
# Fields of the Graph pane's filter.
FILTER_FIELDS = {"road": "lowering"}

_T = TypeVar("_T")


def with_new_names(values: Mapping[str, object], table: Mapping[str, str], label: str) -> dict[str, object]:
    """Returns `values` with the keys of `table` replaced by their new names.

    Warns of each replaced key, called a `label` in the message. A key is not replaced if its new name is also a key, so
    that the caller rejects it.
    """
    renamed = dict(values)
    for old, new in table.items():
        if old in renamed and new not in renamed:
            warn_renamed(f"{label} {old!r}", repr(new))
            renamed[new] = renamed.pop(old)
    return renamed


def warn_renamed(old: str, new: str) -> None:
    """Emits a `FutureWarning` that `old` is now called `new`."""
    # The name is in a file, a command line or a dictionary, so no level of the stack leads to it.
    warnings.warn(f"{old} is now {new}; the old name works until version 0.3", FutureWarning, stacklevel=2)


def decode_recipes(data: bytes, message_type: type[_T]) -> _T:
    """Decodes MessagePack as `message_type`, with new names for the fields of all recipes in it.

    Raises `msgspec.DecodeError` and `RecursionError`.
    """
    if any(name.encode() in data for name in RECIPE_FIELDS):
        data = msgspec.msgpack.encode(_with_new_field_names(msgspec.msgpack.decode(data)))
    return msgspec.msgpack.decode(data, type=message_type)


def _with_new_field_names(data: object) -> object:
    """Returns `data`, plain values such as a saved history, with new names for the fields of all recipes in it."""
    if isinstance(data, list):
        return [_with_new_field_names(value) for value in data]
    if not isinstance(data, dict):
        return data
    is_recipe = "preset" in data and "steps" in data
    return {
        RECIPE_FIELDS.get(key, key) if is_recipe else key: _with_new_field_names(value) for key, value in data.items()
    }
