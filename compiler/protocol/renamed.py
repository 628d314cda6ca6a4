"""Names of version 0.1 that are still accepted, each with a warning that gives the new name. Version 0.3 drops them.

Modules that were renamed are in `buddy.compiler.support.renamed_modules`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

# Recipe fields, which are also options of `torch.compile` and parameters of `buddy-tui tune`.
RECIPE_FIELDS = {"flavour": "dialect"}
# Ids of actions, as in the table `keys` of the settings.
ACTION_IDS = {"passes.flavour": "passes.dialect"}
# Fields of the Graph pane's filter.
FILTER_FIELDS = {"road": "lowering"}


def with_new_names(names: Mapping[str, Any], table: Mapping[str, str], what: str) -> dict[str, Any]:
    """`names` with the keys of `table` replaced by their new names.

    Warns once for each, with `what` in front. A key whose new name is there as well is left for the caller to reject.
    """
    found = dict(names)
    for old, new in table.items():
        if old in found and new not in found:
            warn_renamed(f"{what} {old!r}", repr(new))
            found[new] = found.pop(old)
    return found


def warn_renamed(old: str, new: str) -> None:
    """Emits a `FutureWarning` that `old` is now called `new`."""
    warnings.warn(f"{old} is now {new}; the old name works until version 0.3", FutureWarning, stacklevel=4)


def with_new_field_names(data: Any) -> Any:
    """Plain values, such as a saved history, with the fields of every recipe in them under their new names."""
    if isinstance(data, list):
        return [with_new_field_names(value) for value in data]
    if not isinstance(data, dict):
        return data
    is_recipe = "preset" in data and "steps" in data
    return {
        RECIPE_FIELDS.get(key, key) if is_recipe else key: with_new_field_names(value) for key, value in data.items()
    }
