"""The instructions that samples found threads at, as a table to go on from."""

from __future__ import annotations

from collections.abc import Mapping

from buddy.app.panes.pane import Column
from buddy.app.reports import profile
from buddy.app.screens.table import TableScreen
from buddy.compiler.protocol import HotSpot, Sampling


class HotScreen(TableScreen[HotSpot]):
    """Returns the instruction to go to, or `None`; `names` are those that nodes have in the table of the graph."""

    KEYS_TEXT = "enter goes to the line of assembly, q closes"

    def __init__(self, sampling: Sampling, names: Mapping[str, str]) -> None:
        self._names = names
        super().__init__(_columns(sampling, names), sampling.spots)
        self._title = f"Hot instructions: {profile.sampled_words(sampling)}"

    def about(self, row: HotSpot) -> str:
        nodes = ", ".join(self._names.get(node, node) for node in row.nodes)
        return f"{row.text}: {row.samples} samples, of {nodes or 'no node'}; it may have been the instruction before"


def _columns(sampling: Sampling, names: Mapping[str, str]) -> tuple[Column[HotSpot], ...]:
    return (
        Column("share", 6, lambda spot: (f"{spot.samples / sampling.samples:.1%}", "number"), right=True),
        Column("where", 32, lambda spot: (f"@{spot.function}+{spot.offset:x}", "accent"), since=100),
        Column("instruction", 0, lambda spot: (spot.text, "text")),
        Column("nodes", 24, lambda spot: (" ".join(names.get(node, node) for node in spot.nodes), "dim"), since=70),
    )
