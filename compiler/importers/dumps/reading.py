"""Reads the text of a stage from its file, with the Python lines that its ops come from."""

from __future__ import annotations

import os
import re
from array import array

from buddy.compiler.importers.dumps.locations import MAX_LOCATED_CHARACTERS, line_places
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.importers.dumps.torch_logs import TORCH_PREFIX
from buddy.compiler.protocol.text.lines import IndexedText

# Longer texts are cut: a terminal has no use for them, and they would fill the memory.
MAX_TEXT_BYTES = 192 << 20
# The bytes of control characters but tab and newline, and the pictures that Unicode has for them. The first byte of
# those beyond ASCII is the last of the list.
_CONTROL_BYTES = bytes(range(9)) + bytes(range(11, 32)) + b"\x7f\xc2"
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {0x7F: "\u2421"}
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def read_text(dump: Dump, stage: DumpStage) -> str:
    """Returns the text of a stage. Invalid UTF-8 is replaced, and control characters are shown as pictures.

    Raises `OSError` if the file cannot be read, or has become shorter.
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
    sets: dict[tuple[str, ...], int] = {(): 0}
    places = line_places(text, stage.language)
    line_sets = array("I", (sets.setdefault(names, len(sets)) for names in places))
    return IndexedText(text, line_sets, tuple(sets)) if len(sets) > 1 else IndexedText(text)
