"""Shapes in command-line syntax: `x=4x128`, or with an element type `x=4x128xi64`. Imports neither torch nor MLIR."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SHAPE = re.compile(r"(\w+)=(\d+(?:x\d+)*)?(?:(?<=\d)x|(?<==))?([a-z]+[0-9][a-z0-9]*)?")


@dataclass(frozen=True)
class ShapeWord:
    """`name` is a parameter's name, or its index from 0; `dtype` is spelled as in MLIR, "" if not given."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""


def shape_word(text: str) -> ShapeWord:
    """Parses a shape word. Raises `ValueError`."""
    found = _SHAPE.fullmatch(text.strip())
    if found is None or not (found[2] or found[3]):
        raise ValueError(f"{text!r} is not a shape")
    return ShapeWord(found[1], tuple(map(int, found[2].split("x"))) if found[2] else (), found[3] or "")


def shape_for(words: Sequence[ShapeWord], name: str, number: int) -> ShapeWord | None:
    """The shape given for a parameter, by its name or its index; None if there is none."""
    return next((word for word in words if word.name in (name, str(number))), None)


def check_names(words: Sequence[ShapeWord], names: Sequence[str]) -> None:
    """Raises `ValueError` for a word that names none of the parameters, which are called `names`, in order."""
    known = {*names, *map(str, range(len(names)))}
    for word in words:
        if word.name not in known:
            raise ValueError(f"unknown input {word.name}; there are {', '.join(names) or 'none'}")
