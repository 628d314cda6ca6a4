"""The text of one stage with the nodes that each line comes from."""

from __future__ import annotations

import msgspec


class StageText(msgspec.Struct, frozen=True):
    """`content` is the text without location marks; `line_sets[i]` indexes `sets` for line `i` (0: no node).

    `sets[k]` are stable node names; `sets[0]` is empty.
    """

    content: str
    line_sets: tuple[int, ...] = ()
    sets: tuple[tuple[str, ...], ...] = ((),)
