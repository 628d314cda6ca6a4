"""Generates valid values of any message type from its annotations, as seeds for hostile input."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

_PLAIN: dict[Any, Any] = {int: 3, float: 0.5, str: "name", bool: True, bytes: b"\x00\x01", type(None): None, Any: "any"}


def one_of_each(types: Any) -> list[Any]:
    """A value of each member of a union of structs, or of the single struct."""
    return [_value(member, 0) for member in typing.get_args(types) or (types,)]


def _value(kind: Any, depth: int) -> Any:
    """A value other than the default, so that it is encoded; collections have one element, deep ones none."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{field.name: _value(hints[field.name], depth + 1) for field in msgspec.structs.fields(kind)})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _value(arguments[0], depth)
    if origin is Literal:
        return arguments[-1]
    if origin in (list, tuple, set, frozenset):
        return _collection(origin, arguments, depth)
    if origin in (dict, Mapping):
        return {_value(arguments[0], depth): _value(arguments[1], depth + 1)} if depth < 5 else {}
    if arguments:
        return _value(arguments[0], depth)
    return _PLAIN[kind]


def _collection(origin: Any, arguments: tuple[Any, ...], depth: int) -> Any:
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return tuple(_value(argument, depth + 1) for argument in arguments)
    inside = [_value(arguments[0], depth + 1)] if arguments and depth < 5 else []
    return origin(inside)
