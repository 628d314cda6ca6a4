"""The text of one stage with the nodes that each line comes from."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Origins(NamedTuple):
    """The numbers of ops, or bytes of machine code, with own nodes, with derived nodes only, and without nodes."""

    direct: int = 0
    derived: int = 0
    nowhere: int = 0


class StageText(msgspec.Struct, frozen=True):
    """`content` is the text without location marks; `line_sets[i]` indexes `sets` for line `i` (0: no node).

    `sets[k]` are stable node names; `sets[0]` is empty. `derived[k]` are the names in it that were derived because a
    pass had dropped the op's own location. `machine[i]` is the machine code of line `i`, at most 255 bytes.
    """

    content: str
    line_sets: tuple[int, ...] = ()
    sets: tuple[tuple[str, ...], ...] = ((),)
    derived: dict[int, tuple[str, ...]] = {}
    origins: Origins = Origins()
    machine: tuple[bytes, ...] = ()
