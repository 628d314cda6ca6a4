"""The profile of a run: the time of each module as a tree with bars, and the instructions with the most samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from buddy.app.reports import formatting, profile
from buddy.app.reports.profile import FlameNode, in_milliseconds
from buddy.app.screens.modal import ListScreen, TableScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.table import Column
from buddy.compiler.protocol import HotSpot, Sampling

# Entries with a smaller share of the total time are hidden until `Z` shows them.
MIN_SHARE = 0.01
# The width of the marker and of the columns "ms" and "share" with the space after them, in cells.
_NUMBERS_WIDTH = 19
# The minimum number of entries for which the box is high enough, and the lines of its border and head.
_MIN_ENTRIES, _FRAME_LINES = 4, 3


class _Row(NamedTuple):
    """A row of the tree: a module or a node, and its depth. The root has depth 0."""

    flame: FlameNode
    depth: int


class FlameTree(CursorView):
    """The tree of modules and nodes. In each module, the slowest entry is first; shares are of the total time."""

    def __init__(self, root: FlameNode) -> None:
        super().__init__()
        self._root = root
        # The folded modules, each by the `id` of its `FlameNode`.
        self._folded: set[int] = set()
        self._rows: list[_Row] = []
        self._shows_all = False
        self._update_rows()

    def _update_rows(self) -> None:
        self._rows = []
        self._add_rows(self._root, 0)

    def _add_rows(self, flame: FlameNode, depth: int) -> None:
        self._rows.append(_Row(flame, depth))
        if id(flame) not in self._folded:
            for child in flame.children_by_time():
                if self._shows_all or child.seconds >= MIN_SHARE * self._root.seconds:
                    self._add_rows(child, depth + 1)

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def node(self) -> str:
        """The stable name of the node under the cursor; empty for a module."""
        return self._rows[self.cursor].flame.node

    def head(self, width: int) -> list[Cells]:
        return [[("        ms  share  ", "dim")]]

    def row_cells(self, row: int, width: int) -> Cells:
        flame, depth = self._rows[row]
        share = flame.seconds / self._root.seconds if self._root.seconds else 0.0
        sign = " " if not flame.children else "+" if id(flame) in self._folded else "-"
        name = f"{'  ' * depth}{sign} {flame.name}"
        columns = max((width - _NUMBERS_WIDTH) // 2, 8)
        bar = formatting.progress_bar(share, max(width - _NUMBERS_WIDTH - columns - 1, 4), self.glyphs)
        return [
            (">" if row == self.cursor else " ", "key"),
            (f"{in_milliseconds(flame.seconds):>9}", "number"),
            (f"{share:>7.1%}  ", "dim"),
            (formatting.clip(name, columns, self.glyphs).ljust(columns), "text" if flame.node else "title"),
            (f" {bar}", "accent" if flame.node else "ok"),
        ]

    def toggle_fold(self) -> None:
        """Folds or unfolds the module under the cursor."""
        flame = self._rows[self.cursor].flame
        if flame.children:
            self._folded ^= {id(flame)}
            self._update_rows()
            self.rows_changed()

    def toggle_small_entries(self) -> None:
        """Shows or hides the entries below `MIN_SHARE`."""
        current, self._shows_all = self._rows[self.cursor].flame, not self._shows_all
        self._update_rows()
        self.cursor = next((index for index, row in enumerate(self._rows) if row.flame is current), 0)
        self.rows_changed()


class FlameScreen(ListScreen[str | None]):
    """The time of each module, as a tree. Returns the stable name of the chosen node, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("space,z,right,left", "move('toggle_fold')", show=False),
        Binding("Z", "toggle_small_entries", show=False),
    ]

    def __init__(self, root: FlameNode, title: str) -> None:
        self._tree_view = FlameTree(root)
        super().__init__(title, "enter goes to the node, space folds, Z shows all, q closes", self._tree_view)

    def full_height(self) -> int:
        return max(self._tree_view.row_count, _MIN_ENTRIES) + _FRAME_LINES

    def action_toggle_small_entries(self) -> None:
        self._tree_view.toggle_small_entries()
        self.fit()

    def action_choose(self) -> None:
        """Returns the node under the cursor; folds or unfolds a module."""
        if self._tree_view.node:
            self.dismiss(self._tree_view.node)
        else:
            self._tree_view.toggle_fold()

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()


class HotSpotScreen(TableScreen[HotSpot]):
    """The instructions with the most samples. Returns the chosen one, or `None`.

    `names` maps the stable names of nodes to their names in the graph table.
    """

    KEYS_TEXT = "enter goes to the line of assembly, q closes"

    def __init__(self, sampling: Sampling, names: Mapping[str, str]) -> None:
        self._names = names
        super().__init__(_columns(sampling, names), sampling.spots)
        self._title = f"Hot instructions: {profile.sampling_text(sampling)}"

    def foot_text(self, row: HotSpot) -> str:
        nodes = _node_names(row, self._names, ", ")
        return f"{row.text}: {row.samples} samples, from {nodes or 'no node'}; perhaps of the instruction before it"


def _node_names(spot: HotSpot, names: Mapping[str, str], separator: str) -> str:
    return separator.join(names.get(node, node) for node in spot.nodes)


def _columns(sampling: Sampling, names: Mapping[str, str]) -> tuple[Column[HotSpot], ...]:
    """Returns the columns of the table of instructions."""
    return (
        Column(
            "share",
            6,
            lambda spot: (f"{spot.samples / sampling.samples:.1%}", "number"),
            right_aligned=True,
            key=lambda spot: spot.samples,
        ),
        Column("where", 32, lambda spot: (f"@{spot.function}+{spot.offset:#x}", "accent"), min_width=100),
        Column("instruction", 0, lambda spot: (spot.text, "text")),
        Column("nodes", 24, lambda spot: (_node_names(spot, names, " "), "dim"), min_width=70),
    )
