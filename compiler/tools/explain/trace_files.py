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
from buddy.compiler.protocol.one_shot_messages import ReadTrace, TraceProgress, TraceRead, TraceRecord, TraceUnreadable
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.explain.report import READ_ARTIFACTS, READ_RECORDS, ReportBuilder

# The start of a line of both formats: rank, level, date and time, process id, place in torch.
_PREFIX = re.compile(
    r"^(?:\[rank(?P<rank>\d+)\]:\s*)?(?P<time>[VIWEC]\d{4} [\d:.]+) (?P<pid>\d+) (?P<place>\S+?:\d+)\] ?(?P<rest>.*)$"
)
# The rest of the line in a text log: the compile id, the artifact and the message.
_TEXT_BODY = re.compile(r"^(?:\[(?:!\d+/?)?(\d+/\d+)(?:_\d+)?\] ?)?(?:\[__(\w+)\] ?)?(.*)$")
_RANK = re.compile(r"rank_?(\d+)")
# Messages of text logs.
_RECOMPILING = re.compile(r"Recompiling function (\S+) in (.+):(\d+)\s*\n")
_LIMIT_HIT = re.compile(r"torch\._dynamo hit config\.(\w+) \((\d+)\)\s+function: '(.+?)' \((.+?):(\d+)\)")
_COMPILE_START = re.compile(r"torchdynamo start (?:compiling|tracing) (\S+) (.+?):(\d+)")
# No line is added to a payload of this many characters or more; a guard tree of a large model has a few million.
_MAX_CHARACTERS = 16 << 20
# The number of bytes between two reports of progress.
_PROGRESS_BYTES = 4 << 20
# The number of bytes at the start of a file that are searched for a zero byte.
_PROBE_BYTES = 4096


class TraceError(BuddyError):
    """A trace cannot be read."""


def trace_files(path: Path) -> list[Path]:
    """Returns the files of a trace: `path` itself, or the logs in the folder. Raises `TraceError`."""
    try:
        if not path.is_dir():
            path.open("rb").close()
            return [path]
        files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in (".log", ".txt", ".err"))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise TraceError(message, str(path), "check the path") from error
    if not files:
        hint = "run the script with TORCH_TRACE=DIR, and pass DIR"
        raise TraceError(f"{path} holds no trace: it has no file ending in .log, .txt or .err", str(path), hint)
    return files


@serves(ReadTrace)
def serve(channel: Channel) -> None:
    """Reads the trace that the first message names."""
    request = channel.receive()
    try:
        path = Path(request.directory, request.path)
        channel.send(TraceRead(read_trace(path, lambda done: channel.send(TraceProgress(done)))))
    except TraceError as error:
        channel.send(TraceUnreadable(error.diagnostic))


def read_trace(path: Path, on_progress: Callable[[float], None] = lambda done: None) -> DynamoReport:
    """Returns the report of a trace: a file, or all logs in a folder. Files that are not traces are named in its notes.

    Calls `on_progress` with the share of bytes that have been read. Raises `TraceError` if no file is a trace.
    """
    files = trace_files(path)
    builder, notes, log_lines = ReportBuilder(), list[str](), 0
    sizes = [_size(file) for file in files]
    total, bytes_before, reported = sum(sizes) or 1, 0, 0

    def on_position(position: int) -> None:
        nonlocal reported
        if bytes_before + position - reported > _PROGRESS_BYTES:
            reported = bytes_before + position
            on_progress(min(reported / total, 1.0))

    for file, size in zip(files, sizes, strict=True):
        rank = _RANK.search(file.name)
        process = (f"rank {rank[1]}" if rank else file.name) if len(files) > 1 else ""
        reader = _Reader(process)
        problem = _take_records(file, reader, builder, on_position)
        if problem:
            notes.append(problem)
        bytes_before += size
        log_lines += reader.log_lines
        if reader.unreadable:
            notes.append(f"{file}: {_record_count(reader.unreadable)} could not be read")
        if reader.truncated:
            notes.append(f"{file}: {_record_count(reader.truncated)} of more than {_MAX_CHARACTERS >> 20} MiB, cut")
    if not log_lines:
        hint = "run the script with TORCH_TRACE=DIR, or with TORCH_LOGS=recompiles,graph_breaks,guards 2> FILE"
        reasons = f": {'; '.join(notes)}" if notes else ""
        raise TraceError(f"{path} is not a trace of TorchDynamo{reasons}", str(path), hint)
    return builder.report(tuple(notes))


def _take_records(file: Path, reader: _Reader, builder: ReportBuilder, on_position: Callable[[int], None]) -> str:
    """Adds the records of a file to `builder`; returns why the file is not a trace, "" if it is one."""
    try:
        with file.open("rb") as stream:
            if b"\0" in stream.read(_PROBE_BYTES):
                return f"{file} is a binary file"
            stream.seek(0)
            for record, position in reader.records(stream):
                builder.take(record)
                on_position(position)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    return "" if reader.log_lines else f"{file} has no line of TORCH_TRACE or TORCH_LOGS"


def _record_count(count: int) -> str:
    return f"{count} record" + "s" * (count != 1)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


@dataclass
class _Message:
    """The message whose lines are being read.

    A structured record has `fields`, and its payload as `lines`. A message of a text log has no fields; all its lines
    are printed with the same time and place (`origin`), compile id and artifact. `size` is its number of characters.
    """

    process: str
    fields: dict[str, Any] | None
    origin: str = ""
    compile_id: str = ""
    artifact: str = ""
    lines: list[str] = field(default_factory=list)
    size: int = 0
    is_truncated: bool = False

    def append(self, line: str) -> None:
        if self.size < _MAX_CHARACTERS:
            self.lines.append(line)
            self.size += len(line)
        else:
            self.is_truncated = True


class _Reader:
    """Reads the records of one file.

    `log_lines` is the number of lines with a prefix of torch's logs, `unreadable` that of the records that cannot be
    decoded, and `truncated` that of the records that exceed `_MAX_CHARACTERS`.

    Several processes may have written the file, such as the ranks of a run to one stderr: a record belongs to the rank
    that its line names. Records without a rank belong to the process `name`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # The open message of each process, and the process of the last line with a prefix.
        self._messages: dict[str, _Message] = {}
        self._last_process = name
        self.log_lines = self.unreadable = self.truncated = 0

    def records(self, stream: IO[bytes]) -> Iterator[tuple[TraceRecord, int]]:
        """Yields the records, each with the number of bytes read so far."""
        position = 0
        for raw_line in stream:
            position += len(raw_line)
            line = raw_line.decode("utf-8", "replace").rstrip("\r\n")
            match = _PREFIX.match(line)
            if match is None:
                self._append_payload_line(line)
                continue
            self.log_lines += 1
            process = self._last_process = f"rank {match['rank']}" if match["rank"] else self._name
            if match["rest"].startswith("{"):
                yield from self._finish(process, position)
                self._begin_structured(match["rest"], process)
            elif not self._append_if_same_message(match, process):
                yield from self._finish(process, position)
                self._begin_text(match, process)
        for process in list(self._messages):
            yield from self._finish(process, position)

    def _begin_structured(self, text: str, process: str) -> None:
        try:
            fields = json.loads(text)
        except ValueError:
            self.unreadable += 1
            return
        name = next(iter(fields), "")
        is_wanted = name in READ_RECORDS or (name == "artifact" and _artifact_name(fields) in READ_ARTIFACTS)
        if is_wanted:
            self._messages[process] = _Message(process, fields)

    def _begin_text(self, match: re.Match[str], process: str) -> None:
        compile_id, artifact, line = _text_body(match["rest"])
        self._messages[process] = _Message(process, None, _origin(match), compile_id, artifact, [line])

    def _append_if_same_message(self, match: re.Match[str], process: str) -> bool:
        """Appends the line if it belongs to the text message before it; returns whether it does."""
        message = self._messages.get(process)
        if message is None or message.fields is not None or message.origin != _origin(match):
            return False
        compile_id, artifact, line = _text_body(match["rest"])
        if (compile_id, artifact) != (message.compile_id, message.artifact):
            return False
        message.append(line)
        return True

    def _append_payload_line(self, line: str) -> None:
        """Appends a line of a payload. Ignores other lines: they are the program's output."""
        message = self._messages.get(self._last_process)
        if message is not None and message.fields is not None and line.startswith("\t"):
            message.append(line[1:])

    def _finish(self, process: str, position: int) -> Iterator[tuple[TraceRecord, int]]:
        """Closes the open message of a process, and yields its records, each with `position`."""
        message = self._messages.pop(process, None)
        if message is None:
            return
        self.truncated += message.is_truncated
        if message.fields is not None:
            yield structured_record(message.fields, "\n".join(message.lines), message.process), position
        else:
            yield from ((record, position) for record in _records_of_text(message))


def _origin(match: re.Match[str]) -> str:
    """Returns the part that all lines of a message in a text log have in common: time, process id, place in torch."""
    return f"{match['time']} {match['pid']} {match['place']}"


def _text_body(text: str) -> tuple[str, str, str]:
    """Returns the compile id, the artifact ("" without one) and the message of a line of a text log."""
    match = _TEXT_BODY.match(text)
    assert match is not None, "the pattern matches every line"
    return match[1] or "", match[2] or "", match[3]


def structured_record(fields: dict[str, Any], payload: str, process: str = "") -> TraceRecord:
    """Returns the record of Dynamo's structured trace with these fields.

    The first field has its name and metadata; the name of an artifact is in the metadata.
    """
    name = next(iter(fields), "")
    metadata = fields.get(name)
    if name == "artifact":
        name = _artifact_name(fields)
    frame, attempt = fields.get("frame_id"), fields.get("frame_compile_id")
    compile_id = "" if frame is None or attempt is None else f"{frame}/{attempt}"
    return TraceRecord(name, compile_id, json.dumps(metadata, default=repr).encode(), payload, process)


def _artifact_name(fields: dict[str, Any]) -> str:
    artifact = fields.get("artifact")
    return str(artifact.get("name", "")) if isinstance(artifact, dict) else ""


def _records_of_text(message: _Message) -> Iterator[TraceRecord]:
    """Yields the records that a message of a text log stands for, as `ReportBuilder` takes them."""
    text = "\n".join(message.lines)

    def make_record(name: str, fields: Any, payload: str = "") -> TraceRecord:
        return TraceRecord(name, message.compile_id, json.dumps(fields).encode(), payload, message.process)

    if message.artifact == "graph_breaks" and "Graph break" in text and "suppressed due to duplicate" not in text:
        yield make_record("dynamo_graph_break_reason", {}, text)
    elif message.artifact in ("recompiles", "recompiles_verbose") and (match := _RECOMPILING.search(text)):
        yield make_record("buddy_function", {"function": match[1], "file": match[2], "line": int(match[3])})
        yield make_record("recompile_reasons", {}, json.dumps(_split_reasons(text[match.end() :])))
    elif message.artifact == "guards" and "TREE_GUARD_MANAGER" in text:
        yield make_record("dynamo_cpp_guards_str", {}, text)
        yield make_record("buddy_compiled", {})
    elif match := _LIMIT_HIT.search(text):
        fields = {
            "setting": match[1], "limit": int(match[2]), "function": match[3], "file": match[4], "line": int(match[5])
        }  # fmt: skip
        yield make_record("buddy_limit", fields)
    elif match := _COMPILE_START.search(text):
        yield make_record("buddy_function", {"function": match[1], "file": match[2], "line": int(match[3])})


def _split_reasons(text: str) -> list[str]:
    """Returns the reasons in a message of the log `recompiles` or `recompiles_verbose`, each with the user's frames."""
    reasons: list[str] = []
    for line in text.splitlines():
        item = re.match(r"^\s*- (\d+/\d+: .*)$", line)
        if item:
            reasons.append(item[1])
        elif reasons and not line.strip().startswith(("triggered by", "guard ")):
            reasons[-1] += f"\n{line.strip('- ').rstrip()}"
    return reasons
