"""Converts a recipe's options for a pass written here to the types of the pass's defaults."""

from __future__ import annotations

from collections.abc import Mapping

from buddy.compiler.protocol.recipe import OptionValue

_WORDS = {"true": True, "false": False}
_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def typed_options(
    name: str, known: Mapping[str, OptionValue], given: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Returns `given` for pass `name`, whose options have the defaults `known`.

    Raises `ValueError` for an unknown option, listing the known ones, or for a value of the wrong type.
    """
    for key in given:
        if key not in known:
            raise ValueError(f"{name} has no option {key!r}; it has {', '.join(known) or 'none'}")
    return {key: _typed(name, key, known[key], value) for key, value in given.items()}


def _typed(name: str, key: str, default: OptionValue, value: OptionValue) -> OptionValue:
    """The value converted to the type of `default`: a text, or another number, may represent the same value."""
    if isinstance(default, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    kind = type(default)
    try:
        found = _WORDS[value.lower()] if kind is bool and isinstance(value, str) else kind(value)
    except (KeyError, ValueError, OverflowError):
        found = None
    if found is None or (not isinstance(value, str) and found != value):
        raise ValueError(f"{name}: {key} is {_KINDS.get(kind, kind.__name__)}, not {value!r:.60}")
    return found
