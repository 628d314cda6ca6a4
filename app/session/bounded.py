"""Bounded dictionaries that keep the newest entries."""

from __future__ import annotations

from typing import Any

# Maximum number of stage texts with cached data: more than a pipeline has.
TEXTS = 128
# Maximum number of texts with another form: fewer than an engine keeps.
FORMS = 32


def keep_newest(kept: dict[Any, Any] | list[Any], most: int) -> None:
    """Drop the oldest entries of `kept` beyond `most`."""
    if isinstance(kept, list):
        del kept[: max(0, len(kept) - most)]
    else:
        for key in list(kept)[: max(0, len(kept) - most)]:
            del kept[key]
