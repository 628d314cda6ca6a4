"""Opens a dump: indexes it step by step, and reads the texts of its stages.

The first stages can be read while the rest is scanned.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from buddy.compiler.importers.dumps.folders import FolderScan
from buddy.compiler.importers.dumps.locations import MAX_LOCATED_CHARACTERS, find_source_lines
from buddy.compiler.importers.dumps.logs import LogScan, digest_of
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.importers.dumps.torch_logs import TORCH_PREFIX, TorchLogScan
from buddy.compiler.protocol.dump_files import DumpFormat, files_in
from buddy.compiler.protocol.text.lines import IndexedText

# Longer texts are truncated, because they would fill the memory.
MAX_TEXT_BYTES = 192 << 20
# The bytes of control characters, without tab and newline, and the pictures that Unicode has for them. 0xC2 is the
# first byte of the control characters beyond ASCII in UTF-8.
_CONTROL_BYTES = bytes(range(9)) + bytes(range(11, 32)) + b"\x7f\xc2"
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {0x7F: "\u2421"}
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def read_text(dump: Dump, stage: DumpStage) -> str:
    """Returns the text of a stage. Invalid UTF-8 is replaced, and control characters are shown as pictures.

    Raises `OSError` if the file cannot be read, or another text stands there now.
    """
    path = dump.files[stage.file]
    with path.open("rb") as file:
        file.seek(stage.offset)
        data = file.read(min(stage.length, MAX_TEXT_BYTES))
    if len(data) < min(stage.length, MAX_TEXT_BYTES):
        raise OSError(f"{path} has become shorter since it was opened")
    if stage.strip == "torch-log":
        data = TORCH_PREFIX.sub(b"", data)
    elif stage.strip == "tab":
        data = re.sub(rb"^\t", b"", data, flags=re.MULTILINE)
    if stage.length <= MAX_TEXT_BYTES and digest_of(data) != stage.digest:
        raise OSError(f"{path} was rewritten since it was opened")
    text = data.decode("utf-8", "replace")
    if len(data.translate(None, _CONTROL_BYTES)) < len(data):
        text = text.replace("\r\n", "\n").translate(_PICTURES)
    if stage.strip:
        text = text.rstrip("\n")
    if stage.length > MAX_TEXT_BYTES:
        text += f"\n… {stage.length - MAX_TEXT_BYTES:,} more bytes in {os.fspath(path)}"
    return text + "\n"


def indexed_text(dump: Dump, stage: DumpStage) -> IndexedText:
    """Returns the text of a stage, with the Python lines of its ops as the names of nodes. Raises like `read_text`."""
    text = read_text(dump, stage)
    if len(text) > MAX_LOCATED_CHARACTERS:
        return IndexedText(text)
    # The distinct sets of source lines, numbered; each line of the text has the number of its set.
    sets: dict[tuple[str, ...], int] = {(): 0}
    source_lines = find_source_lines(text, stage.language)
    set_of_line = array("I", (sets.setdefault(names, len(sets)) for names in source_lines))
    return IndexedText(text, set_of_line, tuple(sets)) if len(sets) > 1 else IndexedText(text)


# The path, modification time and size of each file.
_Statuses = tuple[tuple[str, int, int], ...]


class DumpScan:
    """The scan of a dump. Of a log that has grown, `index` reads only what is new."""

    def __init__(self, path: Path, dump_format: DumpFormat) -> None:
        self.dump = Dump(path, dump_format)
        self._log = LogScan(self.dump, path) if dump_format == "log" else None
        self._statuses: _Statuses = ()

    def index(self) -> Iterator[None]:
        """Indexes the dump, and yields after each chunk. Raises `OSError` if a file cannot be read."""
        dump = self.dump
        dump.is_complete = False
        self._statuses = _statuses(dump.path)
        dump.size = sum(size for _, _, size in self._statuses)
        if self._log is not None:
            yield from self._log.scan()
        elif dump.format in ("torch-log", "torch-trace"):
            paths = (
                [dump.path] if dump.path.is_file() else [path for path in files_in(dump.path) if path.suffix == ".log"]
            )
            for path in paths:
                yield from TorchLogScan(dump, path, is_trace=dump.format == "torch-trace").scan()
        else:
            yield from FolderScan(dump).scan()
        dump.is_complete = True

    def is_current(self) -> bool:
        """Returns whether no file has changed or was deleted since the scan."""
        try:
            return self.dump.is_complete and self._statuses == _statuses(self.dump.path)
        except OSError:
            return False

    def can_continue(self) -> bool:
        """Returns whether the dump is a log that has grown, so that `index` reads only what is new."""
        return self._log is not None and self.dump.is_complete and self._log.has_grown()


def _statuses(path: Path) -> _Statuses:
    paths = files_in(path) if path.is_dir() else [path]
    statuses = [(str(file), file.stat()) for file in paths]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in statuses)
