"""Formats of the files that outlive a version of the program: recipes, sessions, settings and reproducers.

Each file has the number of its format and the version that has written it. A file without a number is one of version
0.1, or written by hand. A file of an older format is read. One of a later format is rejected, because this version
could misread it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from buddy.compiler.protocol.errors import BuddyError

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
        """Raises `LaterFormatError` for a later format; it names the version that has written the file, and this one.

        It also raises if `number` is not a whole number from 1.
        """
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise LaterFormatError(
                f"not a {self.kind}: the format is {str(number)[:60]!r}, not a whole number - at `$.{FORMAT}`"
            )
        if number > self.latest:
            written = f"it was written by {str(writer)[:60] or 'a later version'}, in format {number}"
            this = f"this is {own_version()}, which reads formats up to {self.latest}"
            raise LaterFormatError(
                f"a {self.kind} of a later version: {written}; {this}", todo="update buddy-tui to read it"
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
