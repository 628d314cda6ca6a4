"""Defines the fields of the records of TorchDynamo's trace, and reads Python frames and values in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

import msgspec

from buddy.compiler.protocol.dynamo import UserFrame

_LIBRARY_PATH = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<(?!ipython)|^[^/<]|/torch/_dynamo/")
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n(?:\s+(?P<text>(?!File ").*)\n?)?',
    re.MULTILINE,
)
# The name that Dynamo gives the function with the code after a graph break.
RESUME_FUNCTION = re.compile(r"^torch_dynamo_resume_in_(.+?)_at_(\d+)$")
_STACK_TITLE = "User stack trace:"

# ---- the fields of records, after JSON -------------------------------------------------------------------------------
# The versions of Dynamo write different fields, so each field of Dynamo's records may be missing.

# File, line, function and text of a line.
PlainFrame = tuple[str, int, str, str]


class StackFrame(TypedDict, total=False):
    """A frame of Dynamo's stacks; `filename` is the number of a text, or the text."""

    filename: int | str
    line: int
    name: str
    loc: str


class StartFields(TypedDict, total=False):
    """`dynamo_start`: the stack at the start of a compilation; our hooks add `callers`, which Dynamo leaves out."""

    stack: list[StackFrame]
    callers: list[PlainFrame]


class FunctionFields(TypedDict):
    """`buddy_function`: the function that is compiled, as text logs name it."""

    function: str
    file: str
    line: int


class TensorFields(TypedDict, total=False):
    """`describe_tensor`: a tensor by number; symbolic sizes are texts."""

    describer_id: int
    id: int
    dtype: str
    requires_grad: bool
    size: list[int | str]
    stride: list[int | str]


class SourceFields(TypedDict, total=False):
    """`describe_source`: the source of the tensor with the number `id`."""

    describer_id: int
    id: int
    source: str


class SymbolFields(TypedDict, total=False):
    """`create_symbol`: the source and the value of a symbolic size."""

    source: str
    val: int | str


class MetricsFields(TypedDict, total=False):
    """`compilation_metrics`: the times, numbers and error of a compilation, at its end."""

    co_name: str
    co_filename: str
    co_firstlineno: int
    entire_frame_compile_time_s: float
    backend_compile_time_s: float
    guard_count: int
    graph_op_count: int
    fail_type: str
    fail_reason: str
    fail_user_frame_filename: str
    fail_user_frame_lineno: int


class ValueFields(TypedDict, total=False):
    """A value that our hooks have described; `tensor` has the properties that guards check."""

    text: str
    type: str
    length: int
    id: int
    tensor: dict[str, str]


class FailureFields(TypedDict, total=False):
    """A failed guard of the compilation `entry`; `changes` are values before and after, by source."""

    entry: str
    reason: str
    serial: int
    frames: list[PlainFrame]
    changes: dict[str, tuple[ValueFields, ValueFields]]


class ValuesFields(TypedDict):
    """`buddy_values`: the values that the guards of a compilation check, by source; `serial` numbers compilations."""

    serial: int
    values: dict[str, ValueFields]
    frames: dict[str, PlainFrame]
    closure: list[str]


class LimitFields(TypedDict, total=False):
    """`buddy_limit`: a limit of recompilations that a function reached."""

    setting: str
    limit: int
    function: str
    file: str
    line: int


class RunnerFields(TypedDict):
    """`buddy_start`: the folder of this package, and the version of PyTorch."""

    folder: str
    torch: str


class NoteFields(TypedDict):
    """`buddy_note`: a note for the report."""

    note: str


# Serial number of a compilation, checks of its guards, calls, and failures by source.
CountFields = tuple[int, int, int, dict[str, int]]

# ---- frames and values -----------------------------------------------------------------------------------------------


def is_user_file(path: str) -> bool:
    """Returns whether a path is of the user's code: neither of an installed package, nor of Python."""
    return bool(path) and not _LIBRARY_PATH.search(path)


def read_frames(text: str) -> list[UserFrame]:
    """Returns the frames of the first Python traceback in `text`."""
    text = text.partition("\nTraceback (most recent call last)")[0]
    return [
        tidy_frame(
            UserFrame(match["file"], int(match["line"]), match["function"].strip(), (match["text"] or "").strip(" ^~"))
        )
        for match in _FRAME.finditer(text)
    ]


def function_title(name: str) -> str:
    """Returns the name of a function; `forward after line 13` for what Dynamo compiles after a graph break."""
    match = RESUME_FUNCTION.match(name)
    return f"{match[1]} after line {match[2]}" if match else name


def tidy_frame(frame: UserFrame) -> UserFrame:
    """Returns the frame with a function name for readers (`function_title`), and its line without indentation."""
    return msgspec.structs.replace(frame, function=function_title(frame.function), text=frame.text.strip())


def without_repetitions(frames: Sequence[UserFrame]) -> tuple[UserFrame, ...]:
    """Returns the frames, without repetitions of a line: a compiled function and its wrapper."""
    return tuple(frame for n, frame in enumerate(frames) if not n or frames[n - 1].location != frame.location)


def user_stack_of(reason: str) -> list[UserFrame]:
    """Returns the user's frames that Dynamo prints below a reason why a guard failed; empty if it prints none."""
    return read_frames(reason.partition(_STACK_TITLE)[2]) if _STACK_TITLE in reason else []


def size_text(value: Sequence[int | str] | None) -> str:
    """Returns sizes or strides as text, such as `[2, s0]`; "" if they are unknown."""
    return (
        ""
        if value is None
        else str([str(size) if not isinstance(size, int) else size for size in value]).replace("'", "")
    )


def with_size(sizes: str, index: int, size: str) -> str:
    """Returns `[3, 4]` for the sizes `[*, 4]`, the index 0 and the size 3."""
    parts = sizes.strip("[]").split(", ")
    return f"[{', '.join([*parts[:index], size, *parts[index + 1 :]])}]" if index < len(parts) else sizes


def value_texts(before: ValueFields, after: ValueFields, kind: str = "") -> tuple[str, str]:
    """Returns two values that our hooks have described, as texts that differ."""
    tensors = [value["tensor"] for value in (before, after) if "tensor" in value]
    if not kind and len(tensors) == 2:
        changed_names = [
            n for n in ("dtype", "size", "stride", "requires_grad", "device") if tensors[0][n] != tensors[1][n]
        ]
        changed_names = [name for name in changed_names if name != "stride" or "size" not in changed_names]
        first, second = (", ".join(f"{name} {tensor[name]}" for name in changed_names) for tensor in tensors)
        return first, second
    texts = [_text(value, kind) for value in (before, after)]
    if texts[0] == texts[1]:
        texts = [_text(value, "") for value in (before, after)]
    return (texts[0], texts[1]) if texts[0] != texts[1] else (texts[0], f"another {texts[1]}")


def _text(value: ValueFields, kind: str) -> str:
    if not value:
        return "nothing"
    if kind == "type":
        return str(value["type"])
    if kind == "length" and "length" in value:
        return f"length {value['length']}"
    tensor = value.get("tensor")
    if tensor:
        property_name = {"symbolic size": "size", "rank": "size"}.get(kind, kind)
        return str(tensor.get(property_name) or value["text"])
    return str(value["text"])


def compile_error(metrics: MetricsFields) -> str:
    """Returns the error that ended a compilation, in one line."""
    reason = str(metrics.get("fail_reason") or "").strip()
    first = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    if not metrics.get("fail_type"):
        return ""
    if "recompile limit" in reason or "recompile_limit" in reason:
        return reason
    return f"{str(metrics['fail_type']).rpartition('.')[2].rstrip(chr(39) + '>')}: {first}"


def is_recompile_limit(problem: str) -> bool:
    """Returns whether a compilation ended because its function had been compiled too often."""
    return "recompile limit" in problem or "recompile_limit" in problem
