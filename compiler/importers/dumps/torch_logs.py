"""Finds the graphs and the generated code in logs of TORCH_LOGS and TORCH_TRACE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.importers.dumps.logs import StageHash, lines_from
from buddy.compiler.importers.dumps.records import Dump, DumpStage

# The prefix of each line, which is not part of the text.
TORCH_PREFIX = re.compile(
    rb"^[A-Z]\d{4} [\d:.]+ \d+ \S+\.py:\d+\] (?:\[(?P<id>\d+/\d+[^\]\n]*)\] )?\[__(?P<name>\w+)\] ?", re.MULTILINE
)
_TRACE_HEADER = re.compile(rb'^V\d{4} [\d:.]+ \d+ \S+\.py:\d+\] (?P<json>\{".*\})\s*$')
# The starts of a new text of the same logger.
_STARTS = (b"TRACED GRAPH", b"Output code:")
# Entries of TORCH_TRACE that are graphs or code, with their phases. Entries called "artifact" have a further name.
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
        for line in data.splitlines(keepends=True):
            match = TORCH_PREFIX.match(line)
            if match is None:
                self._ignored += 1
                reader.end()
            else:
                text = line[match.end() :]
                name, anchor = match["name"].decode(), (match["id"] or b"").decode() or _NO_GRAPH
                start = _TextStart(name, "code" if "code" in name and "graph" not in name else "fx", anchor)
                if start != reader.start or text.startswith(_STARTS):
                    reader.begin(start, position)
                reader.add(line, text)
            position += len(line)

    def _read_trace(self, reader: _TextReader, data: bytes, position: int) -> None:
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
                start.title, "python", start.phase, self._file_number, self._position, self._length,
                self._hash.total_lines, self._hash.digest, start.anchor, strip=self._strip,
            )  # fmt: skip
            self._dump.add(stage)


def _trace_start(line: bytes) -> _TextStart | None:
    """Returns what the payload after a line of TORCH_TRACE is; `None` if it is neither a graph nor code."""
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
        value = entry["artifact"]
        name = str(value.get("name", "")) if isinstance(value, dict) else ""
        is_text = isinstance(value, dict) and value.get("encoding") == "string"
        phase = "script" if name.endswith("runnable") else "inductor"
        return _TextStart(name, phase, anchor) if is_text and _ARTIFACT.fullmatch(name) else None
    return _TextStart(kind, _TRACE_PHASES[kind], anchor) if kind in _TRACE_PHASES else None
