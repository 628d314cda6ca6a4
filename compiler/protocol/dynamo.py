"""TorchDynamo's work in a run of a script: a report on compiled functions, graph breaks, guards and recompilations.

`read_break` reads TorchDynamo's messages about graph breaks: the reason, the explanation, and how to avoid the break.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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

    The break happened first in the compilation `compile`, and `times` times in all. If Dynamo has `skipped` the
    function, all of it runs in eager.
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


# ---- messages about graph breaks -------------------------------------------------------------------------------------


# The setting without which Dynamo breaks the graph at recurrent layers.
ALLOW_RNN = "torch._dynamo.config.allow_rnn = True"
# Texts in Dynamo's messages, each with advice on avoiding the graph break; the first text that a message contains
# counts. Dynamo's own hints follow the advice, except for those that do not say how to change the program.
_FIXES = (
    ("generic_jump", "compute both sides and select with torch.where, or use torch.cond"),
    ("data-dependent branching", "compute both sides and select with torch.where, or use torch.cond"),
    (
        "Tensor.item()",
        "keep the number in a tensor; if a number is needed, set torch._dynamo.config.capture_scalar_outputs = True",
    ),
    (
        "builtin operator `print`",
        "print outside the compiled function, or add print to torch._dynamo.config.reorderable_logging_functions",
    ),
    (
        "logging.Logger",
        "log outside the compiled function, or add the logging method to torch._dynamo.config.ignore_logging_functions",
    ),
    (
        "warnings",
        "warn outside the compiled function, or add warnings.warn to "
        "torch._dynamo.config.reorderable_logging_functions",
    ),
    ("torch._dynamo.disable", "remove the disable, or call the function outside the compiled one"),
    ("torch.compiler.disable", "remove the disable, or call the function outside the compiled one"),
    ("Dynamic shape operator", "set torch._dynamo.config.capture_dynamic_output_shape_ops = True, or avoid the op"),
    ("Data dependent operator", "set torch._dynamo.config.capture_scalar_outputs = True, or avoid the op"),
    ("RNN, GRU, or LSTM", f"set {ALLOW_RNN}: each recurrent layer is then compiled as a loop over its steps"),
    ("recompile limit", "remove the cause of the recompilations, or raise torch._dynamo.config.recompile_limit"),
    ("marked as skipped", "call the function outside the compiled one, or register it as an op by torch.library"),
)
# The fix of a graph break for which Dynamo gives no advice.
BREAK_FIX = "move the line out of the compiled function, or replace it by tensor operations"
# Starts of hints that do not say how to change the program.
_OTHER_HINTS = (
    "Please report",
    "It may be possible to write",
    "This graph break may have occurred",
    "This graph break is fundamental",
    "This is likely to",
    "Your code may result in an error",
    "Please double check",
)
_EXPLANATION, _HINT, _CONTEXT = "  Explanation:", "  Hint:", "  Developer debug context:"
_LINK = re.compile(r"https://\S*/gb/gb\d+\.html")
# The text before the reason in Dynamo's messages, and the lines that follow a message.
_PROLOGUE = re.compile(
    r"^(?:Encountered graph break when attempting to trace .*?:\s*\n|Graph Break Reason: )", re.MULTILINE
)
_END = re.compile(
    r"^(?:User code traceback:|Stack variable source attribution:|from user code:|Traceback )", re.MULTILINE
)


class BreakMessage(NamedTuple):
    """The parts of a message: the reason in one line, the explanation, fixes (best first), a link to PyTorch's page."""

    reason: str
    explanation: str = ""
    fixes: tuple[str, ...] = ()
    link: str = ""


def read_break(message: str) -> BreakMessage:
    """Returns the parts of Dynamo's message about a graph break."""
    text = _END.split(message, maxsplit=1)[0]
    head, _, rest = text.partition(_EXPLANATION)
    lines = [line.strip() for line in _PROLOGUE.sub("", head).splitlines() if line.strip()]
    # The reason is the last line before the explanation. Without an explanation, it is the first line.
    reason = (lines[-1] if rest else lines[0]) if lines else ""
    own_fixes = [fix for phrase, fix in _FIXES if phrase.lower() in text.lower()][:1]
    if reason.startswith("generic_jump"):
        reason = "a branch on a tensor's value"
    hints = [hint for hint in _hints(text) if not hint.startswith(_OTHER_HINTS)]
    link = _LINK.search(message)
    # The explanation ends at the first hint, at the context, or at an empty line.
    explanation = " ".join(rest.partition(_HINT)[0].partition(_CONTEXT)[0].partition("\n\n")[0].split())
    return BreakMessage(reason, explanation, tuple(dict.fromkeys([*own_fixes, *hints])), link[0] if link else "")


def _hints(text: str) -> list[str]:
    """Returns Dynamo's hints, each in one line. A hint ends at the next one, or at an empty line."""
    return [" ".join(hint.partition("\n\n")[0].split()) for hint in text.split(_HINT)[1:]]
