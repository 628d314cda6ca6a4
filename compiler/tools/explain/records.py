"""Parts of records of TorchDynamo: Python frames, which may be the user's, and described values as texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from buddy.compiler.protocol.dynamo import UserFrame

_LIBRARY_PATH = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<(?!ipython)|^[^/<]|/torch/_dynamo/")
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n(?:\s+(?P<text>(?!File ").*)\n?)?',
    re.MULTILINE,
)
RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+?)_at_(\d+)$")
_STACK_TITLE = "User stack trace:"


def is_user_file(path: str) -> bool:
    """Whether a path is of the user's code: neither of an installed package, nor of Python."""
    return bool(path) and not _LIBRARY_PATH.search(path)


def read_frames(text: str) -> list[UserFrame]:
    """The frames of the first Python traceback in `text`."""
    text = text.partition("\nTraceback (most recent call last)")[0]
    return [
        tidy(
            UserFrame(match["file"], int(match["line"]), match["function"].strip(), (match["text"] or "").strip(" ^~"))
        )
        for match in _FRAME.finditer(text)
    ]


def function_title(name: str) -> str:
    """The name of a function; `forward after line 13` for what Dynamo compiles after a graph break."""
    match = RESUMED.match(name)
    return f"{match[1]} after line {match[2]}" if match else name


def tidy(frame: UserFrame) -> UserFrame:
    return msgspec.structs.replace(frame, function=function_title(frame.function), text=frame.text.strip())


def without_repetitions(frames: Sequence[UserFrame]) -> tuple[UserFrame, ...]:
    """The frames, without repetitions of a line: a compiled function and its wrapper."""
    return tuple(frame for n, frame in enumerate(frames) if not n or frames[n - 1].place != frame.place)


def stack_of(reason: str) -> list[UserFrame]:
    return read_frames(reason.partition(_STACK_TITLE)[2]) if _STACK_TITLE in reason else []


def size_text(value: Any) -> str:
    return (
        ""
        if value is None
        else str([str(size) if not isinstance(size, int) else size for size in value]).replace("'", "")
    )


def with_size(sizes: str, index: int, size: str) -> str:
    """`[3, 4]` for the sizes `[*, 4]`, the index 0 and the size 3."""
    parts = sizes.strip("[]").split(", ")
    return f"[{', '.join([*parts[:index], size, *parts[index + 1 :]])}]" if index < len(parts) else sizes


def value_texts(before: Mapping[str, Any], after: Mapping[str, Any], kind: str = "") -> tuple[str, str]:
    """Two values that our hooks have described, as texts that differ."""
    tensors = [value["tensor"] for value in (before, after) if "tensor" in value]
    if not kind and len(tensors) == 2:
        names = [n for n in ("dtype", "size", "stride", "requires_grad", "device") if tensors[0][n] != tensors[1][n]]
        names = [name for name in names if name != "stride" or "size" not in names]
        first, second = (", ".join(f"{name} {tensor[name]}" for name in names) for tensor in tensors)
        return first, second
    texts = [_text(value, kind) for value in (before, after)]
    if texts[0] == texts[1]:
        texts = [_text(value, "") for value in (before, after)]
    return (texts[0], texts[1]) if texts[0] != texts[1] else (texts[0], f"another {texts[1]}")


def _text(value: Mapping[str, Any], kind: str) -> str:
    if not value:
        return "nothing"
    if kind == "type":
        return str(value["type"])
    if kind == "length" and "length" in value:
        return f"length {value['length']}"
    tensor = value.get("tensor")
    if tensor:
        own = {"symbolic size": "size", "rank": "size"}.get(kind, kind)
        return str(tensor.get(own) or value["text"])
    return str(value["text"])
