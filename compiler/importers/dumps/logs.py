"""Finds the stages of a log, chunk by chunk: the position of each header, and a hash of the IR after it.

No text stays in memory. The file is read, not mapped: if another program truncated a mapped log, the process would end.
In logs of TORCH_LOGS and TORCH_TRACE, the stages are the graphs and the generated code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from buddy.compiler.importers.dumps.headers import MODULE, Header, anchor_of, first_op_name, read_header
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.protocol.dump_files import language_of_text

CHUNK_BYTES = 1 << 20
# The maximum lengths of the start of a stage, in which its anchor is found, and of a line that may be a header.
_HEAD_BYTES, _MAX_HEADER_BYTES = 64 << 10, 16 << 10
# The length of the end of a stage, whose last line shows whether the stage is complete.
_TAIL_BYTES = 256
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
    """Yields the rest of a file from `position` on, in pieces of whole lines unless a line exceeds `CHUNK_BYTES`."""
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
    """The hash, the number of lines and the length of a stage's bytes, without newlines at its end.

    `head` and `tail` are the first and the last bytes. `ops` counts the ops by name, `None` if they are not counted.
    """

    def __init__(self, language: str, counts_ops: bool) -> None:
        self._state = hashlib.sha1(usedforsecurity=False)
        # The newlines at the end of the bytes so far, which belong to the stage only if more text follows.
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
            self.tail = text[-_TAIL_BYTES:]
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
        # The next scan starts at the last header, because the text after it may have grown: the position of this
        # header, and the number of stages before it.
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
            counts_ops = status.st_size <= MAX_COUNTED_BYTES
            reader = _LogReader(dump, self._file_number, self._resume_position, counts_ops)
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
        ir_position = data.find(b" IR ")
        while ir_position >= 0:
            line_start = data.rfind(b"\n", 0, ir_position) + 1
            end = data.find(b"\n", ir_position) + 1 or len(data)
            header = read_header(data[line_start:end]) if end - line_start <= _MAX_HEADER_BYTES else None
            if header is not None:
                header_position = line_start + header.column
                self._hash.add(data[start:header_position])
                self._end_stage()
                self._begin_stage(header, self.position + header_position, self.position + end)
                start = end
            ir_position = data.find(b" IR ", end)
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
        """Adds the stage of the last header to the dump, unless the header has no IR."""
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
            header.title, header.language, _PHASES[header.language], self._file_number, offset=self._start,
            length=stage_hash.length, lines=stage_hash.total_lines, digest=stage_hash.digest, anchor=anchor,
            ran_on=header.ran_on, failed=header.failed, ops=stage_hash.ops, pipeline=header.pipeline,
            before=header.before, op=op,
        )  # fmt: skip
        self._dump.add(stage)


# ---- logs of torch.compile -------------------------------------------------------------------------------------------


# The prefix of each line of TORCH_LOGS, which is not part of the text.
TORCH_PREFIX = re.compile(
    rb"^[A-Z]\d{4} [\d:.]+ \d+ \S+\.py:\d+\] (?:\[(?P<id>\d+/\d+[^\]\n]*)\] )?\[__(?P<name>\w+)\] ?", re.MULTILINE
)
_TRACE_HEADER = re.compile(rb'^V\d{4} [\d:.]+ \d+ \S+\.py:\d+\] (?P<json>\{".*\})\s*$')
# The starts of a new text of the same logger.
_STARTS = (b"TRACED GRAPH", b"Output code:")
# Entries of TORCH_TRACE that are graphs or code, with their phases. Entries called "artifact" have another name inside.
_TRACE_PHASES = {
    "dynamo_output_graph": "dynamo",
    "aot_forward_graph": "aot",
    "aot_backward_graph": "aot",
    "aot_joint_graph": "aot",
    "aot_inference_graph": "aot",
    "inductor_pre_grad_graph": "inductor",
    "inductor_post_grad_graph": "inductor",
    "inductor_output_code": "code",
}
# The names of artifacts that are graphs or code.
_ARTIFACT = re.compile(r".*(?:graph|code|kernel)(?!.*(?:metadata|stack_traces)).*")
# The anchor of texts outside of a compilation.
_NO_GRAPH = "no graph"


class _TextStart(NamedTuple):
    """The start of a text: its title, its phase, the graph that it belongs to."""

    title: str
    phase: str
    anchor: str


class TorchLogScan:
    """The scan of one log. When the file has grown, it is scanned again from its start."""

    def __init__(self, dump: Dump, path: Path, *, is_trace: bool) -> None:
        self._dump, self._path, self._is_trace = dump, path, is_trace
        self._file_number = len(dump.files)
        dump.files.append(path)
        self._ignored = 0

    def scan(self) -> Iterator[None]:
        """Reads the log, and yields after each chunk."""
        reader = _TextReader(self._dump, self._file_number, "tab" if self._is_trace else "torch-log")
        read_lines = self._read_trace if self._is_trace else self._read_log
        position = 0
        with self._path.open("rb") as file:
            for data in lines_from(file, 0):
                read_lines(reader, data, position)
                position += len(data)
                self._dump.scanned += len(data)
                yield
        reader.end()
        if self._ignored:
            self._dump.notes.append(
                f"{self._ignored} lines or entries of {self._path.name} are neither graphs nor code"
            )

    def _read_log(self, reader: _TextReader, data: bytes, position: int) -> None:
        """Reads lines of TORCH_LOGS, which are at byte `position` of the file."""
        for line in data.splitlines(keepends=True):
            match = TORCH_PREFIX.match(line)
            if match is None:
                self._ignored += 1
                reader.end()
            else:
                text = line[match.end() :]
                name, anchor = match["name"].decode(), (match["id"] or b"").decode() or _NO_GRAPH
                is_code = "code" in name and "graph" not in name
                start = _TextStart(name, "code" if is_code else "fx", anchor)
                if start != reader.start or text.startswith(_STARTS):
                    reader.begin(start, position)
                reader.add(line, text)
            position += len(line)

    def _read_trace(self, reader: _TextReader, data: bytes, position: int) -> None:
        """Reads lines of TORCH_TRACE, which are at byte `position` of the file."""
        for line in data.splitlines(keepends=True):
            if line.startswith(b"\t"):
                if reader.start is not None:
                    reader.add(line, line[1:])
            else:
                reader.end()
                start = _trace_start(line)
                if start is None:
                    self._ignored += 1
                else:
                    reader.begin(start, position + len(line))
            position += len(line)


class _TextReader:
    """Collects the lines of the text that is being read, and adds each text to the dump as a stage.

    `start` describes the current text, `None` between texts; `strip` is that of `DumpStage`.
    """

    def __init__(self, dump: Dump, file_number: int, strip: str) -> None:
        self._dump, self._file_number, self._strip = dump, file_number, strip
        self.start: _TextStart | None = None
        self._hash = StageHash("python", False)
        self._position = self._length = 0

    def begin(self, start: _TextStart, position: int) -> None:
        """Ends the text before, and begins another at a byte position of the file."""
        self.end()
        self.start, self._position, self._length = start, position, 0
        self._hash = StageHash("python", False)

    def add(self, line: bytes, text: bytes) -> None:
        """Adds a line of the file, whose `text` follows a prefix."""
        self._length += len(line)
        self._hash.add(text)

    def end(self) -> None:
        """Adds the text to the dump, unless it is empty."""
        start, self.start = self.start, None
        if start is not None and self._hash.length:
            stage = DumpStage(
                start.title, "python", start.phase, self._file_number, offset=self._position, length=self._length,
                lines=self._hash.total_lines, digest=self._hash.digest, anchor=start.anchor, strip=self._strip,
            )  # fmt: skip
            self._dump.add(stage)


def _trace_start(line: bytes) -> _TextStart | None:
    """Returns the start of the text that follows a line of TORCH_TRACE; `None` if it is neither a graph nor code."""
    match = _TRACE_HEADER.match(line)
    try:
        entry = json.loads(match["json"]) if match is not None else None
    except ValueError:
        return None
    if not isinstance(entry, dict) or "has_payload" not in entry:
        return None
    kind = next(iter(entry))
    frame = entry.get("frame_id"), entry.get("frame_compile_id")
    anchor = f"{frame[0]}/{frame[1]}" if None not in frame else _NO_GRAPH
    if kind == "artifact":
        artifact = entry["artifact"]
        name = str(artifact.get("name", "")) if isinstance(artifact, dict) else ""
        is_text = isinstance(artifact, dict) and artifact.get("encoding") == "string"
        phase = "script" if name.endswith("runnable") else "inductor"
        return _TextStart(name, phase, anchor) if is_text and _ARTIFACT.fullmatch(name) else None
    return _TextStart(kind, _TRACE_PHASES[kind], anchor) if kind in _TRACE_PHASES else None
