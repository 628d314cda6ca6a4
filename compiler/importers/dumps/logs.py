"""Finds the stages of a log, chunk by chunk: the position of each header, and a hash of the IR after it.

No text stays in memory. The file is read, not mapped: if another program truncated a mapped log, the process would end.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from buddy.compiler.importers.dumps.headers import MODULE, Header, anchor_of, first_op_name, read_header
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.protocol.dump_files import language_of_text

CHUNK_BYTES = 1 << 20
# The maximum lengths of the start of a stage, in which its anchor is found, and of a line that may be a header.
_HEAD_BYTES, _MAX_HEADER_BYTES = 64 << 10, 16 << 10
# The hexadecimal digits of a stage's hash that are kept.
_DIGEST_DIGITS = 24
# Evenly spaced samples of a log show whether it has grown or was rewritten: all bytes of logs up to 256 KiB.
_SAMPLES, _SAMPLE_BYTES = 64, 4 << 10
# Ops are counted in dumps up to this size: counting is much slower than reading.
MAX_COUNTED_BYTES = 16 << 20
# A line that starts with an op, whose name is the group, by language.
_OP_PATTERNS = {
    "mlir": re.compile(rb'^[ \t]*(?:%[^=\n]*= )?"?([a-z_]\w*(?:\.[\w$.]+)?)"?(?=[ ({<]|$)', re.MULTILINE),
    "llvm": re.compile(rb"^[ \t]+(?:%\S+ = )?(?:tail |musttail |notail )?([a-z]\w*)\b(?!:)", re.MULTILINE),
    "hlo": re.compile(rb"^[ \t]+(?:ROOT )?%?[\w.-]+ = (?:\([^=\n]*?\)|\S+) ([a-z][\w-]*)\(", re.MULTILINE),
}
_PHASES = {"mlir": "mlir", "llvm": "llvm", "text": "output"}
# The start of a line that may be the last one of complete IR.
_LAST_LINE = re.compile(rb"^(?:\s*\}|[#!@;]|attributes |declare |\{-#|#-\})")


def lines_from(file: BinaryIO, position: int) -> Iterator[bytes]:
    """Yields the rest of a file from `position` on, in pieces of whole lines where lines are not too long."""
    file.seek(position)
    rest = b""
    while data := file.read(CHUNK_BYTES):
        data = rest + data
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < 2 * CHUNK_BYTES:
            rest = data
            continue
        rest = data[cut:] if cut else b""
        yield data[:cut] if cut else data
    if rest:
        yield rest


def _hash_samples(file: BinaryIO, end: int) -> bytes:
    """Returns the hash of `_SAMPLES` pieces of the first `end` bytes of a file; the last piece ends at `end`."""
    state = hashlib.sha1(usedforsecurity=False)
    length = min(_SAMPLE_BYTES, -(-end // _SAMPLES))
    for number in range(_SAMPLES):
        file.seek((end - length) * number // (_SAMPLES - 1))
        state.update(file.read(length))
    return state.digest()


def digest_of(data: bytes) -> str:
    """Returns the `digest` of a `StageHash` to which `data` was added."""
    return hashlib.sha1(data.rstrip(b"\r\n"), usedforsecurity=False).hexdigest()[:_DIGEST_DIGITS]


class StageHash:
    """The hash, the number of lines and the length of a stage's bytes, without newlines at its end."""

    def __init__(self, language: str, counts_ops: bool) -> None:
        self._state = hashlib.sha1(usedforsecurity=False)
        # The line ends at the end of the bytes so far; they belong to the stage only if more text follows.
        self._held_back = b""
        self._pattern = _OP_PATTERNS.get(language) if counts_ops else None
        self.head = b""
        self.tail = b""
        self.ops: Counter[str] | None = Counter() if self._pattern is not None else None
        self.length = self.lines = 0
        self.is_binary = False

    def add(self, data: bytes) -> None:
        """Adds the next bytes, which start a line."""
        if len(self.head) < _HEAD_BYTES:
            self.head += data[: _HEAD_BYTES - len(self.head)]
        text = data.rstrip(b"\r\n")
        if text:
            self._state.update(self._held_back)
            self._state.update(text)
            self.length += len(self._held_back) + len(text)
            self.lines += self._held_back.count(b"\n") + text.count(b"\n")
            self._held_back = b""
            self.tail = text[-256:]
            self.is_binary = self.is_binary or b"\0" in text
            if self._pattern is not None and self.ops is not None:
                self.ops.update(match.decode() for match in self._pattern.findall(text))
        self._held_back += data[len(text) :]

    @property
    def digest(self) -> str:
        return self._state.hexdigest()[:_DIGEST_DIGITS]

    @property
    def total_lines(self) -> int:
        """The number of lines; the last one ends the text."""
        return self.lines + bool(self.length)

    @property
    def ends_early(self) -> bool:
        """Whether the last line of the text cannot end IR."""
        return bool(self.tail) and _LAST_LINE.match(self.tail[self.tail.rfind(b"\n") + 1 :]) is None


class LogScan:
    """The scan of one log, which can continue when the file has grown."""

    def __init__(self, dump: Dump, path: Path) -> None:
        self._dump, self._path = dump, path
        self._file_number = len(dump.files)
        dump.files.append(path)
        # The position at which the next scan starts, that of the last header, because its text may have grown; and the
        # number of stages before it.
        self._resume_position, self._stages_before = 0, 0
        self._inode = 0
        self._hash_of_samples = b""
        self._headers_without_ir = 0

    def scan(self) -> Iterator[None]:
        """Reads the log from the last header on to its end, and yields after each chunk."""
        dump = self._dump
        while len(dump.stages) > self._stages_before:
            dump.drop_last()
        dump.notes.clear()
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._inode = status.st_ino
            counts = status.st_size <= MAX_COUNTED_BYTES
            reader = _LogReader(dump, self._file_number, self._resume_position, counts)
            for data in lines_from(file, self._resume_position):
                reader.add(data)
                dump.scanned = reader.position
                yield
            self._hash_of_samples = _hash_samples(file, reader.position)
        self._resume_position, self._stages_before = reader.resume_position, reader.stages_before
        reader.finish()
        self._headers_without_ir += reader.headers_without_ir
        if self._headers_without_ir:
            dump.notes.append(
                f"{self._headers_without_ir} passes printed no IR: they ran no pass of their own, or were filtered out"
            )
        yield

    def has_grown(self) -> bool:
        """Returns whether text was appended to the scanned file. A replaced or rewritten file is another dump."""
        scanned = self._dump.scanned
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size <= scanned:
                    return False
                return _hash_samples(file, scanned) == self._hash_of_samples
        except OSError:
            return False


class _LogReader:
    """Reads headers and the IR between them, from a position in the file on.

    `resume_position` is the position of the last header, and `stages_before` the number of stages before it.
    """

    def __init__(self, dump: Dump, file_number: int, position: int, counts_ops: bool) -> None:
        self._dump, self._file_number, self._counts_ops = dump, file_number, counts_ops
        self.position = self.resume_position = position
        self.stages_before = len(dump.stages)
        self.headers_without_ir = 0
        self._header: Header | None = None
        self._start = position
        self._hash = StageHash("text", False)

    def add(self, data: bytes) -> None:
        """Reads whole lines that follow those read before."""
        start = 0
        # Every header has this text; few other lines do.
        match = data.find(b" IR ")
        while match >= 0:
            line_start = data.rfind(b"\n", 0, match) + 1
            end = data.find(b"\n", match) + 1 or len(data)
            header = read_header(data[line_start:end]) if end - line_start <= _MAX_HEADER_BYTES else None
            if header is not None:
                header_position = line_start + header.column
                self._hash.add(data[start:header_position])
                self._end_stage()
                self._begin_stage(header, self.position + header_position, self.position + end)
                start = end
            match = data.find(b" IR ", end)
        self._hash.add(data[start:])
        self.position += len(data)

    def finish(self) -> None:
        """Ends the last stage. It may be incomplete: the log is still being written, or the compiler crashed."""
        header, dump = self._header, self._dump
        if header is not None and not header.has_no_ir and not header.omitted and self._hash.ends_early:
            dump.notes.append(f"the log ends inside its last stage, {header.title}, which may be incomplete")
        self._end_stage()

    def _begin_stage(self, header: Header, position: int, text_position: int) -> None:
        self.resume_position, self.stages_before = position, len(self._dump.stages)
        self._header, self._start = header, text_position
        self._hash = StageHash(header.language, self._counts_ops)

    def _end_stage(self) -> None:
        header, dump, stage_hash = self._header, self._dump, self._hash
        if header is None:
            if stage_hash.length:
                language = language_of_text(stage_hash.head)
                self._add(Header("output", language), stage_hash, MODULE)
            return
        if header.omitted:
            header = header if dump.add_unchanged(header.title, header.ran_on) else header._replace(has_no_ir=True)
        elif not header.has_no_ir and stage_hash.length:
            self._add(header, stage_hash, anchor_of(stage_hash.head, header.language, header.ran_on))
        elif not header.has_no_ir:
            dump.notes.append(f"{header.title} has a header without IR")
        self.headers_without_ir += header.has_no_ir

    def _add(self, header: Header, stage_hash: StageHash, anchor: str) -> None:
        """Adds the stage after a header to the dump."""
        if stage_hash.is_binary:
            self._dump.notes.append(f"the text of {header.title} has binary data in it")
        # A header without a pass stands for output before the first header.
        op = (header.op or first_op_name(stage_hash.head)) if header.language == "mlir" and header.pipeline else ""
        stage = DumpStage(
            header.title, header.language, _PHASES[header.language], self._file_number, self._start,
            stage_hash.length, stage_hash.total_lines, stage_hash.digest, anchor, header.ran_on, failed=header.failed,
            ops=stage_hash.ops,
            pipeline=header.pipeline, before=header.before, op=op,
        )  # fmt: skip
        self._dump.add(stage)
