"""The instructions with the most profile samples, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from buddy.app.panes.pane import Column
from buddy.app.reports import profile
from buddy.app.screens.table import TableScreen
from buddy.compiler.protocol import HotSpot, Sampling


class HotSpotScreen(TableScreen[HotSpot]):
    """Returns the chosen instruction, or `None`. `names` maps stable names of nodes to names in the graph table."""

    KEYS_TEXT = "enter goes to the line of assembly, q closes"

    def __init__(self, sampling: Sampling, names: Mapping[str, str]) -> None:
        self._names = names
        super().__init__(_columns(sampling, names), sampling.spots)
        self._title = f"Hot instructions: {profile.sampling_text(sampling)}"

    def about(self, row: HotSpot) -> str:
        nodes = ", ".join(self._names.get(node, node) for node in row.nodes)
        return (
            f"{row.text}: {row.samples} samples, from {nodes or 'no node'}; the previous instruction may be the cause"
        )


def _columns(sampling: Sampling, names: Mapping[str, str]) -> tuple[Column[HotSpot], ...]:
    return (
        Column("share", 6, lambda spot: (f"{spot.samples / sampling.samples:.1%}", "number"), right=True),
        Column("where", 32, lambda spot: (f"@{spot.function}+{spot.offset:x}", "accent"), since=100),
        Column("instruction", 0, lambda spot: (spot.text, "text")),
        Column("nodes", 24, lambda spot: (" ".join(names.get(node, node) for node in spot.nodes), "dim"), since=70),
    )
