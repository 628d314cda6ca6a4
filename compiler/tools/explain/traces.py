"""Reads the records of TorchDynamo from files: `TORCH_TRACE`'s structured trace, and text logs of `TORCH_LOGS`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from buddy.compiler.protocol.dynamo import DynamoReport
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.one_shot_messages import ReadTrace, TraceProgress, TraceRead, TraceRecord, TraceRefused
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.explain.report import READ_ARTIFACTS, READ_RECORDS, ReportBuilder

# The start of a line of both formats: level and date, time, process, place in torch.
_PREFIX = re.compile(r"^(?:\[(rank\d+)\]:\s*)?([VIWEC]\d{4} [\d:.]+) (\d+) (\S+?:\d+)\] ?(.*)$")
_TEXT = re.compile(r"^(?:\[(?:!\d+/?)?(\d+/\d+)(?:_\d+)?\] ?)?(?:\[__(\w+)\] ?)?(.*)$")
_RANK = re.compile(r"rank_?(\d+)")
_RECOMPILING = re.compile(r"Recompiling function (\S+) in (.+):(\d+)\s*\n")
_LIMIT = re.compile(r"torch\._dynamo hit config\.(\w+) \((\d+)\)\s+function: '(.+?)' \((.+?):(\d+)\)")
_STARTING = re.compile(r"torchdynamo start (?:compiling|tracing) (\S+) (.+?):(\d+)")
# Only this many characters of a payload are kept; a guard tree of a large model has a few million.
_MAX_PAYLOAD = 16 << 20
_PROGRESS_BYTES = 4 << 20
_BINARY_PROBE = 4096


class TraceError(BuddyError):
    """A trace cannot be read."""


def trace_files(path: Path) -> list[Path]:
    """The files of a trace: `path` itself, or the logs in the folder. Raises `TraceError`."""
    try:
        if not path.is_dir():
            path.open("rb").close()
            return [path]
        files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in (".log", ".txt", ".err"))
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}"
        raise TraceError(what, str(path), "check the path") from error
    if not files:
        todo = "run the script with TORCH_TRACE=DIR, and pass DIR"
        raise TraceError(f"{path} holds no trace: it has no .log file", str(path), todo)
    return files


@serves(ReadTrace)
def serve(channel: Channel) -> None:
    """Reads the trace that the first message names."""
    request = channel.receive()
    try:
        path = Path(request.directory, request.path)
        channel.send(TraceRead(read_trace(path, lambda done: channel.send(TraceProgress(done)))))
    except TraceError as error:
        channel.send(TraceRefused(error.diagnostic))


def read_trace(path: Path, on_progress: Callable[[float], None] = lambda done: None) -> DynamoReport:
    """The report of a trace: a file, or all logs in a folder. Files that are no trace are named in its notes.

    Raises `TraceError` if no file is a trace.
    """
    files = trace_files(path)
    builder, notes, found = ReportBuilder(), list[str](), 0
    total, start, told = sum(file.stat().st_size for file in files) or 1, 0, 0
    for number, file in enumerate(files):
        rank = _RANK.search(file.name)
        process = (f"rank {rank[1]}" if rank else f"file {number}") if len(files) > 1 else ""
        reader = _Reader(process)
        with file.open("rb") as stream:
            if b"\0" in stream.read(_BINARY_PROBE):
                notes.append(f"{file} is a binary file")
                continue
            stream.seek(0)
            for record, position in reader.records(stream):
                builder.take(record)
                if start + position - told > _PROGRESS_BYTES:
                    told = start + position
                    on_progress(min(told / total, 1.0))
        start += file.stat().st_size
        found += reader.found
        notes += [] if reader.found else [f"{file} has no line of TORCH_TRACE or TORCH_LOGS"]
        notes += [f"{file}: {reader.damaged} records could not be read"] if reader.damaged else []
    if not found:
        todo = "run the script with TORCH_TRACE=DIR, or with TORCH_LOGS=recompiles,graph_breaks,guards 2> FILE"
        raise TraceError(f"{path} is no trace of TorchDynamo", notes[0] if notes else str(path), todo)
    return builder.report(tuple(notes))


@dataclass
class _Message:
    """A message that is being read: a structured record, or a message of a text log, which may have several lines."""

    head: str = ""
    fields: dict[str, Any] | None = None
    compile: str = ""
    artifact: str = ""
    lines: list[str] = field(default_factory=list)
    size: int = 0


class _Reader:
    """Reads the records of one file. `found` counts its messages, `damaged` the lines that could not be decoded."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._message = _Message()
        self.found = self.damaged = 0

    def records(self, stream: IO[bytes]) -> Iterator[tuple[TraceRecord, int]]:
        """The records, each with the position in the file after it."""
        position = 0
        for raw in stream:
            position += len(raw)
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            match = _PREFIX.match(line)
            if match is None:
                self._continue(line)
                continue
            self.found += 1
            if match[5].startswith("{"):
                yield from self._finish(position)
                self._begin_structured(match[5])
            elif not self._extends(match):
                yield from self._finish(position)
                self._begin_text(match)
        yield from self._finish(position)

    def _begin_structured(self, text: str) -> None:
        try:
            fields = json.loads(text)
        except ValueError:
            self.damaged += 1
            self._message = _Message()
            return
        name = next(iter(fields), "")
        wanted = name in READ_RECORDS or (name == "artifact" and _artifact_name(fields) in READ_ARTIFACTS)
        self._message = _Message(head=name, fields=fields) if wanted else _Message()

    def _begin_text(self, match: re.Match[str]) -> None:
        text = _TEXT.match(match[5])
        assert text is not None
        head = f"{match[2]} {match[4]}"
        self._message = _Message(head, None, text[1] or "", text[2] or "", [text[3]])

    def _extends(self, match: re.Match[str]) -> bool:
        """Whether a line belongs to the text message before it; if so, it is added."""
        message = self._message
        if message.fields is not None or message.head != f"{match[2]} {match[4]}":
            return False
        text = _TEXT.match(match[5])
        assert text is not None
        if (text[1] or "", text[2] or "") != (message.compile, message.artifact):
            return False
        self._add(text[3])
        return True

    def _continue(self, line: str) -> None:
        """Adds a line of a payload; other lines are the program's output."""
        if self._message.fields is not None and line.startswith("\t"):
            self._add(line[1:])

    def _add(self, line: str) -> None:
        if self._message.size < _MAX_PAYLOAD:
            self._message.lines.append(line)
            self._message.size += len(line)

    def _finish(self, position: int) -> Iterator[tuple[TraceRecord, int]]:
        message, self._message = self._message, _Message()
        if message.fields is not None:
            yield structured_record(message.fields, "\n".join(message.lines), self._process), position
        elif message.lines:
            yield from ((record, position) for record in _records_of_text(message, self._process))


def structured_record(fields: dict[str, Any], payload: str, process: str = "") -> TraceRecord:
    """The record of Dynamo's structured trace with these fields, of which the first one names it."""
    name = next(iter(fields), "")
    own = fields.get(name)
    if name == "artifact":
        name = _artifact_name(fields)
    number = fields.get("frame_id"), fields.get("frame_compile_id")
    compile_id = f"{number[0]}/{number[1]}" if None not in number else ""
    return TraceRecord(name, compile_id, json.dumps(own, default=repr).encode(), payload, process)


def _artifact_name(fields: dict[str, Any]) -> str:
    artifact = fields.get("artifact")
    return str(artifact.get("name", "")) if isinstance(artifact, dict) else ""


def _records_of_text(message: _Message, process: str) -> Iterator[TraceRecord]:
    """The records of a message of a text log, in the form of the structured trace."""
    text = "\n".join(message.lines)

    def record(name: str, fields: Any, payload: str = "") -> TraceRecord:
        return TraceRecord(name, message.compile, json.dumps(fields).encode(), payload, process)

    if message.artifact == "graph_breaks" and "Graph break" in text and "suppressed due to duplicate" not in text:
        yield record("dynamo_graph_break_reason", {}, text)
    elif message.artifact in ("recompiles", "recompiles_verbose") and (match := _RECOMPILING.search(text)):
        yield record("buddy_function", {"function": match[1], "file": match[2], "line": int(match[3])})
        yield record("recompile_reasons", {}, json.dumps(_reasons(text[match.end() :])))
    elif message.artifact == "guards" and "TREE_GUARD_MANAGER" in text:
        yield record("dynamo_cpp_guards_str", {}, text)
        yield record("buddy_compiled", {})
    elif match := _LIMIT.search(text):
        fields = {
            "setting": match[1], "limit": int(match[2]), "function": match[3], "file": match[4], "line": int(match[5])
        }  # fmt: skip
        yield record("buddy_limit", fields)
    elif match := _STARTING.search(text):
        yield record("buddy_function", {"function": match[1], "file": match[2], "line": int(match[3])})


def _reasons(text: str) -> list[str]:
    """The reasons in a message of the log `recompiles` or `recompiles_verbose`, each with its user's stack."""
    reasons: list[str] = []
    for line in text.splitlines():
        item = re.match(r"^\s*- (\d+/\d+: .*)$", line)
        if item:
            reasons.append(item[1])
        elif reasons and not line.strip().startswith(("triggered by", "guard ")):
            reasons[-1] += f"\n{line.strip('- ').rstrip()}"
    return reasons
