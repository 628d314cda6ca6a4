"""The texts of the stages, each stored once under a hash of its content, within a memory limit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping

from buddy.compiler.protocol.text.lines import IndexedText

DEFAULT_LIMIT = 1 << 30


def text_name(
    content: str, line_sets: bytes, sets: tuple[tuple[str, ...], ...],
    derived: Mapping[int, tuple[str, ...]] | None = None, machine: bytes = b"",
) -> str:  # fmt: skip
    """The name of a text: equal for equal contents and machine code that come from equal nodes."""
    state = hashlib.sha256(content.encode("utf-8", "surrogatepass"))
    state.update(line_sets)
    state.update("\0".join("\1".join(names) for names in sets).encode())
    state.update("\0".join(f"{number}\1" + "\1".join(names) for number, names in (derived or {}).items()).encode())
    state.update(machine)
    return state.hexdigest()[:24]


class TextStore:
    """Texts by name. Pinned texts stay; the others are evicted, least recently used first, beyond `limit` bytes."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._texts: OrderedDict[str, IndexedText] = OrderedDict()
        self._pins: dict[Hashable, frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def names(self) -> tuple[str, ...]:
        return tuple(self._texts)

    @property
    def size(self) -> int:
        """The size of all texts in bytes."""
        return sum(text.size for text in self._texts.values())

    def put(self, name: str, text: IndexedText) -> None:
        if name not in self._texts:
            self._texts[name] = text
        self._texts.move_to_end(name)
        self._evict(spare=name)

    def get(self, name: str) -> IndexedText | None:
        text = self._texts.get(name)
        if text is not None:
            self._texts.move_to_end(name)
        return text

    def drop(self, name: str) -> None:
        """Removes a text, unless it is pinned."""
        if not any(name in pinned for pinned in self._pins.values()):
            self._texts.pop(name, None)

    def pin(self, owner: Hashable, names: Iterable[str]) -> None:
        """Keeps the texts `names` for `owner`, instead of those pinned for it before."""
        self._pins[owner] = frozenset(names)
        self._evict()

    def unpin(self, owner: Hashable) -> None:
        self._pins.pop(owner, None)
        self._evict()

    def _evict(self, spare: str = "") -> None:
        size = self.size
        if size <= self._limit:
            return
        pinned = frozenset({spare}).union(*self._pins.values())
        for name in [name for name in self._texts if name not in pinned]:
            if size <= self._limit:
                return
            size -= self._texts.pop(name).size
