"""Edits a text in the user's external editor. No Textual."""

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
    """The editor returned no usable text. The message has the reason, and the path of a text that was rejected."""


class NoEditorError(EditorError):
    """The editor was not found, so the user has not seen the text."""


def editor_words(command: str) -> list[str]:
    """The words of `$EDITOR`. Raises `NoEditorError` if the shell cannot split them."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise NoEditorError(f"$EDITOR is {command!r}: {error}") from error


def edit_in_external_editor(editor: Sequence[str], name: str, text: str) -> str:
    """Edit `text` as a file called `name`. Returns the edited text.

    Raises `NoEditorError` if the editor does not start, and `EditorError` if it exits with a status other than 0 or
    leaves no such file. Rejected files are not deleted.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="buddy-tui-"))
    except OSError as error:
        raise NoEditorError(f"no temporary folder for the text: {error.strerror}") from error
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
        # The editor may have written a file with another name.
        note = _describe_output(folder, sorted(folder.iterdir()) if folder.is_dir() else [])
        raise EditorError(f"{editor[0]} left no readable text: {error.strerror}{note}") from error
    if status != 0:
        note = _describe_output(folder, [path] if edited != text else [])
        raise EditorError(f"{editor[0]} exited with status {status}, so the text is not used{note}")
    shutil.rmtree(folder, ignore_errors=True)
    return edited


def _describe_output(folder: Path, files: Sequence[Path]) -> str:
    """A suffix for a message with the path of the first file in `files`. Without files, deletes the folder."""
    if files:
        return f"; its output is in {files[0]}"
    shutil.rmtree(folder, ignore_errors=True)
    return ""


def _run(words: Sequence[str]) -> int:
    with _interrupts_are_for_the_child():
        return subprocess.run(words, check=False).returncode


@contextmanager
def _interrupts_are_for_the_child() -> Iterator[None]:
    """Ignore ctrl+c, which reaches every process of the terminal, while the editor runs.

    This uses an empty handler, because the editor would inherit `SIG_IGN`.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
