"""The report on TorchDynamo in a run of a script: compiled functions, graph breaks, guards, recompilations."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.errors import Diagnostic


class UserFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frame of a Python stack, and the text of its line, "" if unknown."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}"


class DynamoBreak(msgspec.Struct, frozen=True, omit_defaults=True):
    """A graph break. `frames` are the user's frames, the innermost last; `link` is PyTorch's page about it.

    It happened first in the compilation `compile`, and `times` times in all. If Dynamo has `skipped` the function, all
    of it runs in eager.
    """

    compile: int
    reason: str
    explanation: str = ""
    fixes: tuple[str, ...] = ()
    frames: tuple[UserFrame, ...] = ()
    link: str = ""
    skipped: bool = False
    times: int = 1


class DynamoGuard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition on which the code of the compilation `compile` is reused.

    `kind` is what it checks, such as `size` or `type`; `scope` says where the checked value `source` is found: in a
    local, a global, a closure, an attribute, or nowhere. `frame` is the line that reads the value. `checked` counts the
    checks of the compiled code's guards, `failed` those in which a guard on this value failed; -1 if unknown.
    `library` guards are on values of torch and Python, not of the user.
    """

    compile: int
    kind: str
    expression: str
    source: str = ""
    scope: str = ""
    frame: UserFrame | None = None
    checked: int = -1
    failed: int = -1
    library: bool = False


class GuardFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The guard that failed, so that the code of the compilation `compile` was not reused.

    `before` is the checked value when that code was compiled, `after` when the guard failed; "" if unknown. `changes`
    are the other values that the guards check and that had changed, as (source, before, after).
    """

    compile: int
    kind: str
    expression: str
    source: str = ""
    scope: str = ""
    before: str = ""
    after: str = ""
    frame: UserFrame | None = None
    fix: str = ""
    changes: tuple[tuple[str, str, str], ...] = ()


class DynamoCompile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A compilation of a function by Dynamo, the `number`th of that function, from 1.

    `id` is Dynamo's, such as `0/1`. `call` is the user's line that called the function. `failures` say for each earlier
    compilation, the newest first, why its code was not reused. `problem` is the error that ended the compilation.
    `seconds` includes those of the backend; -1 if unknown. `calls` counts the calls of the compiled code.
    """

    id: str
    function: str
    file: str = ""
    line: int = 0
    number: int = 1
    call: UserFrame | None = None
    seconds: float = -1.0
    backend_seconds: float = -1.0
    failures: tuple[GuardFailure, ...] = ()
    problem: str = ""
    guards: int = 0
    ops: int = 0
    calls: int = -1

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


class RecompileLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dynamo has compiled a function `limit` times, and now runs it in eager if no compiled code can be reused."""

    function: str
    location: str = msgspec.field(name="place")
    setting: str
    limit: int
    compile: int = -1


class DynamoReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that was recorded, in the order in which it happened; `compile` in entries is an index here.

    `torch` is the version of PyTorch. `problem` says why the record ends before the script does, if it does.
    """

    compiles: tuple[DynamoCompile, ...] = ()
    breaks: tuple[DynamoBreak, ...] = ()
    guards: tuple[DynamoGuard, ...] = ()
    limits: tuple[RecompileLimit, ...] = ()
    notes: tuple[str, ...] = ()
    torch: str = ""
    problem: Diagnostic | None = None

    @property
    def recompilations(self) -> tuple[DynamoCompile, ...]:
        return tuple(compiled for compiled in self.compiles if compiled.failures or compiled.number > 1)


class ExplainDynamo(Request["DynamoExplained"], frozen=True):
    """Run `source` as Python does, or read `trace`, and report what TorchDynamo did.

    `trace` is a file, or a folder of `TORCH_TRACE`. Answered by `Progress`, `Printout`, `DynamoProgress`, then
    `DynamoExplained` or `Failed`. After `timeout` seconds, the script is stopped, and what it did is reported.
    """

    source: str = ""
    arguments: tuple[str, ...] = ()
    directory: str = ""
    trace: str = ""
    timeout: float = 600.0


class DynamoProgress(Frame, frozen=True):
    """What has been recorded so far."""

    request: int
    report: DynamoReport


class DynamoExplained(Frame, frozen=True):
    """What was recorded, or read from the trace."""

    request: int
    report: DynamoReport
