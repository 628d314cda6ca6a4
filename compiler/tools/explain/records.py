"""Defines the fields of the records of TorchDynamo's trace, reads Python frames and values in them, and collects them.

A `RecordedCompile` has what the records say of a compilation; `checked_values` finds the value that a failed guard
checked, at the time of the compilation and of the failure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import msgspec

from buddy.compiler.protocol.dynamo import DynamoCompile, UserFrame
from buddy.compiler.tools.explain.guards import GuardTree, Reason, TensorFacts, as_written, differing_keys, read_reason

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
    """A failed guard of an earlier compilation, which is `entry` in Dynamo and number `serial` in our hooks.

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
    """Returns the frames without those on the same line as the frame before, such as that of a wrapped function."""
    locations_before = [None, *(frame.location for frame in frames)]
    return tuple(frame for frame, before in zip(frames, locations_before, strict=False) if frame.location != before)


def user_stack_of(reason: str) -> list[UserFrame]:
    """Returns the user's frames that Dynamo prints below a reason why a guard failed; empty if it prints none."""
    return read_frames(reason.partition(_STACK_TITLE)[2]) if _STACK_TITLE in reason else []


def size_text(sizes: Sequence[int | str] | None) -> str:
    """Returns sizes or strides as text, such as `[2, s0]`; "" if they are unknown."""
    return "" if sizes is None else f"[{', '.join(map(str, sizes))}]"


def with_size(sizes: str, index: int, size: str) -> str:
    """Returns `[3, 4]` for the sizes `[*, 4]`, the index 0 and the size 3."""
    parts = sizes.strip("[]").split(", ")
    return f"[{', '.join([*parts[:index], size, *parts[index + 1 :]])}]" if index < len(parts) else sizes


def value_texts(before: ValueFields, after: ValueFields, kind: str = "") -> tuple[str, str]:
    """Returns two values that our hooks have described, as texts that differ.

    `kind` is what a guard checks of the values, "" for all of it. Of two tensors, only changed properties are named.
    """
    tensors = [value["tensor"] for value in (before, after) if "tensor" in value]
    if not kind and len(tensors) == 2:
        names = ("dtype", "size", "stride", "requires_grad", "device")
        changed_names = [name for name in names if tensors[0][name] != tensors[1][name]]
        if "size" in changed_names and "stride" in changed_names:
            changed_names.remove("stride")  # strides follow from sizes
        first, second = (", ".join(f"{name} {tensor[name]}" for name in changed_names) for tensor in tensors)
        return first, second
    texts = [_checked_text(value, kind) for value in (before, after)]
    if texts[0] == texts[1]:
        texts = [_checked_text(value, "") for value in (before, after)]
    return (texts[0], texts[1]) if texts[0] != texts[1] else (texts[0], f"another {texts[1]}")


def _checked_text(value: ValueFields, kind: str) -> str:
    """Returns what guards of `kind` check of a value; the text of the whole value if that is not recorded."""
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
    """Returns type and first line of the error that ended a compilation, or ""; the whole text of a recompile limit."""
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


# ---- recorded compilations -------------------------------------------------------------------------------------------


@dataclass
class RecordedValues:
    """The recorded values of a compilation, by source as the user writes it.

    `tensors` and `numbers` come from Dynamo's trace, and `hooked` from this project's hooks, which record more.
    """

    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    hooked: dict[str, ValueFields] = field(default_factory=dict)


@dataclass
class RecordedCompile:
    """A compilation that is being recorded; sources are as the user writes them (`guards.as_written`).

    `index` is its position in the report and `info` its entry there. `process` names the process, "" for the only one.
    `tree` has its guards. `reasons` are those for which earlier code was not reused. `frames` are the user's lines that
    read each source, and `closure` the variables of enclosing functions. `counts` are the checks of its guards and the
    calls of its code, -1 if unknown; `failed` counts failures by source. `tensor_facts` are the tensors that Dynamo has
    described, by the numbers of the describer and of the tensor. A `closed` compilation gets no further records.
    """

    index: int
    info: DynamoCompile
    process: str
    tree: GuardTree = field(default_factory=GuardTree)
    values: RecordedValues = field(default_factory=RecordedValues)
    reasons: list[FailureFields] = field(default_factory=list)
    frames: dict[str, UserFrame] = field(default_factory=dict)
    closure: frozenset[str] = frozenset()
    counts: tuple[int, int] = (-1, -1)
    failed: dict[str, int] = field(default_factory=dict)
    tensor_facts: dict[tuple[int, int], TensorFacts] = field(default_factory=dict)
    closed: bool = False


def checked_values(
    reason: Reason, failed_compile: RecordedCompile | None, new_compile: RecordedCompile, fields: FailureFields
) -> tuple[str, str]:
    """Returns the value that a failed guard checked, before and after, as far as it is known.

    `failed_compile` is the compilation whose guard failed, and `new_compile` the one that followed. `fields` may have
    further values.
    """
    source, before, after = as_written(reason.source), reason.before, reason.after
    hook_change = next(
        (change for name, change in fields.get("changes", {}).items() if as_written(name) == source), None
    )
    if hook_change is not None:
        texts = value_texts(hook_change[0], hook_change[1], reason.kind)
        return (before or texts[0], texts[1]) if reason.kind in ("value", "keys", "length") else texts
    if reason.kind in ("size", "rank", "stride", "dtype", "requires_grad", "device", "tensor"):
        if failed_compile is not None and (facts := _facts(failed_compile, source)) is not None:
            before = facts.of(reason.kind) or before
        if (facts := _facts(new_compile, source)) is not None:
            after = facts.of(reason.kind) or after
        # Sizes may be unknown (`*`), but the reason has the size of one dim.
        if "*" in after and (index := re.match(r"\w+\((\d+)\)", reason.expression)):
            after = with_size(after, int(index[1]), reason.after)
        return differing_keys(before, after) if reason.kind == "device" else (before, after)
    if reason.kind == "symbolic size" and (match := re.search(r"([\w.\[\]'\"]+\.size\(\)\[\d+\])", reason.expression)):
        owner, _, index_text = match[1].partition(".size()[")
        dimension = int(index_text.rstrip("]"))
        return _size_at(_facts(failed_compile, owner), dimension), _size_at(_facts(new_compile, owner), dimension)
    if reason.kind == "global state" and failed_compile is not None:
        return failed_compile.tree.state.get(source, ""), new_compile.tree.state.get(source, "")
    if not after:
        after = _recorded_value(new_compile, source)
    return before, after


def _recorded_value(compile_: RecordedCompile, source: str) -> str:
    """Returns the value of `source` in a compilation, from its symbols and guards; "" if unknown."""
    if source in compile_.values.numbers:
        return compile_.values.numbers[source]
    expressions = (
        line.expression for line in compile_.tree.lines if line.key == source and line.kind in ("value", "length")
    )
    reasons = [read_reason(expression) for expression in expressions]
    return next((reason.before for reason in reasons if reason.before), "")


def _facts(compile_: RecordedCompile | None, source: str) -> TensorFacts | None:
    """Returns what is known of a tensor: from Dynamo's description of it, else from its guard; `None` if nothing."""
    if compile_ is None:
        return None
    guarded, described = compile_.tree.tensors.get(source), compile_.values.tensors.get(source)
    if described is not None and guarded is not None:
        return replace(described, keys=guarded.keys, stride=described.stride or guarded.stride)
    return described or guarded


def _size_at(facts: TensorFacts | None, index: int) -> str:
    """Returns the size along dim `index`, "" if it is unknown or not fixed (`*`)."""
    sizes = facts.size.strip("[]").split(", ") if facts is not None and facts.size else []
    return sizes[index] if index < len(sizes) and sizes[index] != "*" else ""
