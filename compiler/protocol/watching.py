"""Frames that wait for files to change."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request


class Watch(Request["FilesChanged"], frozen=True):
    """Wait until one of `files` (relative to `directory`) holds something else than when the program was last opened.

    The answer is `FilesChanged`; another `Watch` waits for the next change.
    """

    files: tuple[str, ...]
    directory: str = ""


class FilesChanged(Frame, frozen=True):
    """The files, as they were named, that hold something else, or are gone for longer than an editor would take."""

    request: int
    changed: tuple[str, ...]
    gone: tuple[str, ...] = ()
