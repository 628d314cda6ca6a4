"""Defines the fields of the records of TorchDynamo's trace, and reads Python frames and values in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

import msgspec

from buddy.compiler.protocol.dynamo import UserFrame

# Paths of installed packages and of Python, and texts in `<>` that stand for a path, except IPython's cells.
_LIBRARY_PATH = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<(?!ipython)|^[^/<]|/torch/_dynamo/")
# A frame of a printed Python traceback.
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n(?:\s+(?P<text>(?!File ").*)\n?)?',
    re.MULTILINE,
)
# The name that Dynamo gives the function with the code after a graph break.
RESUME_FUNCTION = re.compile(r"^torch_dynamo_resume_in_(.+?)_at_(\d+)$")
_STACK_TITLE = "User stack trace:"

# ---- the fields of records, after JSON -------------------------------------------------------------------------------
# The versions of Dynamo write different fields, so each field of Dynamo's records may be missing.

# A Python frame: file, line, function, and the text of the line.
PlainFrame = tuple[str, int, str, str]


class StackFrame(TypedDict, total=False):
    """A frame of Dynamo's stacks; `filename` is the path, or the number of a path in a record `str`."""

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
    """`describe_tensor`: a tensor, numbered by `describer_id` and `id`; symbolic sizes are texts."""

    describer_id: int
    id: int
    dtype: str
    requires_grad: bool
    size: list[int | str]
    stride: list[int | str]


class SourceFields(TypedDict, total=False):
    """`describe_source`: the source of the tensor with the same `describer_id` and `id`."""

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
    """A failed guard of the earlier compilation `entry`, by Dynamo's id, and `serial`, by the number of our hooks.

    `reason` is Dynamo's text, `frames` the user's frames that made the guard necessary. `changes` are the changed
    values before and after, by source.
    """

    entry: str
    reason: str
    serial: int
    frames: list[PlainFrame]
    changes: dict[str, tuple[ValueFields, ValueFields]]


class ValuesFields(TypedDict):
    """`buddy_values`: the values that the guards of a compilation check, by source; `serial` numbers compilations.

    `frames` are the user's lines that read each source, `closure` the names of variables of enclosing functions.
    """

    serial: int
    values: dict[str, ValueFields]
    frames: dict[str, PlainFrame]
    closure: list[str]


class LimitFields(TypedDict, total=False):
    """`buddy_limit`: the `setting` of `torch._dynamo.config` that limits recompilations, which a function reached."""

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


# `buddy_counts`: serial number of a compilation, checks of its guards, calls, and failures by source.
CountFields = tuple[int, int, int, dict[str, int]]

# ---- frames and values -----------------------------------------------------------------------------------------------


def is_user_file(path: str) -> bool:
    """Returns whether a path is of the user's code: neither of an installed package, nor of Python, nor empty."""
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
    """Returns the frames without those on the line of the frame before, such as a wrapper and the wrapped function."""
    return tuple(frame for n, frame in enumerate(frames) if not n or frames[n - 1].location != frame.location)


def user_stack_of(reason: str) -> list[UserFrame]:
    """Returns the user's frames that Dynamo prints below a reason why a guard failed; empty if it prints none."""
    return read_frames(reason.partition(_STACK_TITLE)[2]) if _STACK_TITLE in reason else []


def size_text(value: Sequence[int | str] | None) -> str:
    """Returns sizes or strides as text, such as `[2, s0]`; "" if they are unknown."""
    return "" if value is None else f"[{', '.join(map(str, value))}]"


def with_size(sizes: str, index: int, size: str) -> str:
    """Returns `[3, 4]` for the sizes `[*, 4]`, the index 0 and the size 3."""
    parts = sizes.strip("[]").split(", ")
    return f"[{', '.join([*parts[:index], size, *parts[index + 1 :]])}]" if index < len(parts) else sizes


def value_texts(before: ValueFields, after: ValueFields, kind: str = "") -> tuple[str, str]:
    """Returns two values that our hooks have described, as texts that differ.

    `kind` is what a guard checks of them, "" for the whole values. Of two tensors, only changed properties are named.
    """
    tensors = [value["tensor"] for value in (before, after) if "tensor" in value]
    if not kind and len(tensors) == 2:
        names = ("dtype", "size", "stride", "requires_grad", "device")
        changed_names = [name for name in names if tensors[0][name] != tensors[1][name]]
        if "size" in changed_names and "stride" in changed_names:
            changed_names.remove("stride")  # strides follow from sizes
        first, second = (", ".join(f"{name} {tensor[name]}" for name in changed_names) for tensor in tensors)
        return first, second
    texts = [_text(value, kind) for value in (before, after)]
    if texts[0] == texts[1]:
        texts = [_text(value, "") for value in (before, after)]
    return (texts[0], texts[1]) if texts[0] != texts[1] else (texts[0], f"another {texts[1]}")


def _text(value: ValueFields, kind: str) -> str:
    """Returns what guards of `kind` check of a value, or all of it."""
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
    """Returns the error that ended a compilation, in one line, "" for none; all of its text for a recompile limit."""
    reason = str(metrics.get("fail_reason") or "").strip()
    if not metrics.get("fail_type"):
        return ""
    if is_recompile_limit(reason):
        return reason
    # Dynamo writes the type as `<class 'package.Error'>` or `package.Error`.
    type_name = str(metrics["fail_type"]).rpartition(".")[2].rstrip("'>")
    first_line = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return f"{type_name}: {first_line}"


def is_recompile_limit(problem: str) -> bool:
    """Returns whether the error of a compilation says that its function has been compiled too often."""
    return "recompile limit" in problem or "recompile_limit" in problem
