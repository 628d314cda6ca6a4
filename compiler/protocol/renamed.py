"""Names of version 0.1 that are still accepted, until version 0.3.

Most give a warning with the new name; those in saved histories and in filters do not. Modules that were renamed are in
`buddy.compiler.support.renamed_modules`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TypeVar

import msgspec

# Recipe fields, which are also options of `torch.compile` and names in `buddy-tui tune --vary`.
RECIPE_FIELDS = {"flavour": "dialect"}
# Ids of actions, as in the table `keys` of the settings.
ACTION_IDS = {
    "passes.flavour": "passes.dialect",
    "ir.search": "search",
    "ir.next-match": "search.next",
    "ir.previous-match": "search.previous",
}
# Fields of the Graph pane's filter.
FILTER_FIELDS = {"road": "lowering"}

_T = TypeVar("_T")


def with_new_names(values: Mapping[str, object], table: Mapping[str, str], label: str) -> dict[str, object]:
    """Returns `values` with the keys of `table` replaced by their new names.

    Warns of each replaced key, called a `label` in the message. A key is not replaced if its new name is also a key, so
    that the caller rejects it.
    """
    renamed = dict(values)
    for old, new in table.items():
        if old in renamed and new not in renamed:
            warn_renamed(f"{label} {old!r}", repr(new))
            renamed[new] = renamed.pop(old)
    return renamed


def warn_renamed(old: str, new: str) -> None:
    """Emits a `FutureWarning` that `old` is now called `new`."""
    # The name is in a file, a command line or a dictionary, so no level of the stack leads to it.
    warnings.warn(f"{old} is now {new}; the old name works until version 0.3", FutureWarning, stacklevel=2)


def decode_recipes(data: bytes, message_type: type[_T]) -> _T:
    """Decodes MessagePack as `message_type`, with new names for the fields of all recipes in it.

    Raises `msgspec.DecodeError` and `RecursionError`.
    """
    if any(name.encode() in data for name in RECIPE_FIELDS):
        data = msgspec.msgpack.encode(_with_new_field_names(msgspec.msgpack.decode(data)))
    return msgspec.msgpack.decode(data, type=message_type)


def _with_new_field_names(data: object) -> object:
    """Returns `data`, plain values such as a saved history, with new names for the fields of all recipes in it."""
    if isinstance(data, list):
        return [_with_new_field_names(value) for value in data]
    if not isinstance(data, dict):
        return data
    is_recipe = "preset" in data and "steps" in data
    return {
        RECIPE_FIELDS.get(key, key) if is_recipe else key: _with_new_field_names(value) for key, value in data.items()
    }
