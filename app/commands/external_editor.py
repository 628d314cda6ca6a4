"""A text handed to the user's own editor, and what comes back of it. No Textual."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class EditorError(Exception):
    """The editor gave no text to take; the message says why, and where there is one that was not taken."""


class NoEditorError(EditorError):
    """There is no such editor: the text has not been shown to anybody."""


def editor_words(command: str) -> list[str]:
    """The words of `$EDITOR`. Raises `NoEditorError` where they cannot be told apart."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise NoEditorError(f"$EDITOR is {command!r}: {error}") from error


def edited_by(editor: Sequence[str], name: str, text: str) -> str:
    """What the editor leaves of `text`, which it gets as a file called `name`.

    Raises `NoEditorError` where it does not start, and `EditorError` where it ends with another status than 0 or leaves
    no such file. What it has written and is not taken stays where it is.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="buddy-tui-"))
    except OSError as error:
        raise NoEditorError(f"there is no place for the text: {error.strerror}") from error
    path = folder / name
    try:
        path.write_text(text, "utf-8")
        status = _run([*editor, str(path)])
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoEditorError(f"{editor[0]} does not start: {error.strerror}") from error
    try:
        edited = path.read_text("utf-8", "replace")
    except OSError as error:
        # A file by another name may be what the editor wrote.
        kept = _kept(folder, sorted(folder.iterdir()) if folder.is_dir() else [])
        raise EditorError(f"{editor[0]} leaves no text to take: {error.strerror}{kept}") from error
    if status != 0:
        kept = _kept(folder, [path] if edited != text else [])
        raise EditorError(f"{editor[0]} ended with {status}, so nothing is taken{kept}")
    shutil.rmtree(folder, ignore_errors=True)
    return edited


def _kept(folder: Path, worth: Sequence[Path]) -> str:
    """Where what is worth keeping is, ready to stand behind a message; without any the folder goes."""
    if worth:
        return f"; what it wrote is in {worth[0]}"
    shutil.rmtree(folder, ignore_errors=True)
    return ""


def _run(words: Sequence[str]) -> int:
    with _interrupts_are_for_the_child():
        return subprocess.run(words, check=False).returncode


@contextmanager
def _interrupts_are_for_the_child() -> Iterator[None]:
    """Ctrl+c reaches every process of the terminal: the editor's to use, and not the end of the workbench.

    A handler that does nothing rather than `SIG_IGN`, which the editor would inherit; handlers it does not.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
