"""What is kept of things that come without end: the newest so many."""

from __future__ import annotations

from typing import Any

# Texts of stages of which something is remembered: more than a pipeline has.
TEXTS = 128
# Texts of which there is another form: fewer than an engine keeps.
FORMS = 32


def keep_newest(kept: dict[Any, Any] | list[Any], most: int) -> None:
    """Drop what has been longest in `kept`, beyond `most`."""
    if isinstance(kept, list):
        del kept[: max(0, len(kept) - most)]
    else:
        for key in list(kept)[: max(0, len(kept) - most)]:
            del kept[key]
