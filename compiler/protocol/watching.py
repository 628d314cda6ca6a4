"""Frames that wait for files to change."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request


class Watch(Request["FilesChanged"], frozen=True):
    """Wait until the content of one of `files` (relative to `directory`) differs from when the program was last opened.

    Answered by `FilesChanged`; another `Watch` waits for the next change.
    """

    files: tuple[str, ...]
    directory: str = ""


class FilesChanged(Frame, frozen=True):
    """The names of the files whose content changed, or that have been missing for longer than an atomic save takes."""

    request: int
    changed: tuple[str, ...]
    gone: tuple[str, ...] = ()
