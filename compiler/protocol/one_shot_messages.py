"""The requests to one-shot processes, and their answers. A one-shot process answers one request and exits.

The processes (`support.processes`) load MLIR or torch, which may crash or never return, so that the engine does not.
"""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.dynamo import DynamoReport
from buddy.compiler.protocol.errors import Diagnostic
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.protocol.worker_messages import Message


class PassTrials(Message, frozen=True):
    """Try each of `candidates` on a clone of the module `content`.

    Answered by `TrialStarted` and `TrialOutcome` for each.
    """

    content: str
    candidates: tuple[PassStep, ...]
    threads: int = 1


class TrialStarted(Message, frozen=True):
    """The pass of candidate number `number` starts."""

    number: int


class TrialOutcome(Message, frozen=True):
    """The changes by candidate number `number`: differences of op counts by op name, or why it failed (`problem`)."""

    number: int
    changed: bool = False
    deltas: tuple[tuple[str, int], ...] = ()
    milliseconds: float = 0.0
    problem: str = ""


class GenericFormRequest(msgspec.Struct, frozen=True):
    """Print the module `content` in MLIR's generic form; answered by `GenericForm`.

    `line_sets` holds native unsigned 32-bit numbers, one per line: the set of nodes that the line comes from.
    """

    content: str
    line_sets: bytes


class GenericForm(msgspec.Struct, frozen=True):
    """The module in MLIR's generic form, with `line_sets` as in the request, or the reason why it cannot be printed."""

    content: str = ""
    line_sets: bytes = b""
    problem: str = ""


class IrProblem(msgspec.Struct, frozen=True):
    """The first error in a module: line and column from 1, or 0 if unknown. `message` is "" for a valid module."""

    line: int = 0
    column: int = 0
    message: str = ""


class RecordScript(Message, frozen=True):
    """Run a script as Python does; answered by a `TraceRecord` for each event, then `ScriptEnded`."""

    source: str
    arguments: tuple[str, ...] = ()
    directory: str = ""


class ReadTrace(Message, frozen=True):
    """Read a trace or a log; answered by `TraceProgress`, then `TraceRead` or `TraceUnreadable`."""

    path: str
    directory: str = ""


class TraceRecord(Message, frozen=True):
    """A record of Dynamo's structured trace, or of this project's hooks. `fields` are JSON.

    `compile` is Dynamo's number of the compilation, "" outside one. `process` tells processes of one run apart.
    """

    name: str
    compile: str = ""
    fields: bytes = b"{}"
    payload: str = ""
    process: str = ""


class ScriptEnded(Message, frozen=True):
    """The script has ended; `problem` is its error, if any."""

    problem: Diagnostic | None = None


class TraceProgress(Message, frozen=True):
    """The part of the trace that has been read, in 0..1."""

    done: float


class TraceRead(Message, frozen=True):
    """The report of a trace or a log."""

    report: DynamoReport


class TraceUnreadable(Message, frozen=True):
    """The trace cannot be read."""

    diagnostic: Diagnostic
