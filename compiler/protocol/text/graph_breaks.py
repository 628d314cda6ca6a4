"""Reads TorchDynamo's messages about graph breaks: the reason, the explanation, and how to avoid the break."""

from __future__ import annotations

import re
from typing import NamedTuple

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
    """The parts of a message: the reason in one line, the explanation, fixes (the best first), PyTorch's page."""

    reason: str
    explanation: str = ""
    fixes: tuple[str, ...] = ()
    link: str = ""


def read_break(message: str) -> BreakMessage:
    """Returns the parts of Dynamo's message about a graph break."""
    text = _END.split(message, maxsplit=1)[0]
    head, _, rest = text.partition(_EXPLANATION)
    lines = [line.strip() for line in _PROLOGUE.sub("", head).splitlines() if line.strip()]
    # A message without an explanation is only a reason, and what follows it.
    reason = lines[-1] if lines and rest else lines[0] if lines else ""
    own_fixes = [fix for phrase, fix in _FIXES if phrase.lower() in text.lower()][:1]
    if reason.startswith("generic_jump"):
        reason = "a branch on a tensor's value"
    hints = [hint for hint in _hints(text) if not hint.startswith(_OTHER_HINTS)]
    link = _LINK.search(message)
    explanation = " ".join(rest.partition(_HINT)[0].partition(_CONTEXT)[0].partition("\n\n")[0].split())
    return BreakMessage(reason, explanation, tuple(dict.fromkeys([*own_fixes, *hints])), link[0] if link else "")


def _hints(text: str) -> list[str]:
    """Returns Dynamo's hints, each in one line. A hint ends at the next one, or at an empty line."""
    return [" ".join(hint.partition("\n\n")[0].split()) for hint in text.split(_HINT)[1:]]
