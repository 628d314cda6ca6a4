"""A recorded compilation, and the values that a guard checked when it was compiled and when the guard failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from buddy.compiler.protocol.dynamo import DynamoCompile, UserFrame
from buddy.compiler.tools.explain.guards import (
    GuardTree,
    Reason,
    TensorFacts,
    as_written,
    differing_keys,
    read_reason,
)
from buddy.compiler.tools.explain.records import FailureFields, ValueFields, value_texts, with_size


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
