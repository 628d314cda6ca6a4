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
# The box is high enough for this many entries, even if the tree shows fewer.
_MIN_ENTRIES = 4
# The lines of the box besides entries: two of the border, and the head.
_FRAME_LINES = 3


class _Row(NamedTuple):
    """A row of the tree: an entry, which is a module or a node, and its depth. The root has depth 0."""

    entry: FlameNode
    depth: int


class FlameTree(CursorView):
    """The tree of modules and nodes. In each module, the slowest entry is first. Shares are of the total time."""

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

    def _add_rows(self, entry: FlameNode, depth: int) -> None:
        """Adds the row of `entry`, which is at `depth`, and the rows below it."""
        self._rows.append(_Row(entry, depth))
        if id(entry) not in self._folded:
            for child in entry.children_by_time():
                if self._shows_all or child.seconds >= MIN_SHARE * self._root.seconds:
                    self._add_rows(child, depth + 1)

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def node(self) -> str:
        """The stable name of the node under the cursor; empty for a module."""
        return self._rows[self.cursor].entry.node

    def head(self, width: int) -> list[Cells]:
        return [[("        ms  share  ", "dim")]]

    def row_cells(self, row: int, width: int) -> Cells:
        entry, depth = self._rows[row]
        share = entry.seconds / self._root.seconds if self._root.seconds else 0.0
        fold_sign = "+" if id(entry) in self._folded else "-"
        name = f"{'  ' * depth}{fold_sign if entry.children else ' '} {entry.name}"
        name_width = max((width - _NUMBERS_WIDTH) // 2, 8)
        bar = formatting.progress_bar(share, max(width - _NUMBERS_WIDTH - name_width - 1, 4), self.glyphs)
        return [
            (">" if row == self.cursor else " ", "key"),
            (f"{in_milliseconds(entry.seconds):>9}", "number"),
            (f"{share:>7.1%}  ", "dim"),
            (formatting.clip(name, name_width, self.glyphs).ljust(name_width), "text" if entry.node else "title"),
            (f" {bar}", "accent" if entry.node else "ok"),
        ]

    def toggle_fold(self) -> None:
        entry = self._rows[self.cursor].entry
        if entry.children:
            self._folded ^= {id(entry)}
            self._update_rows()
            self.rows_changed()

    def toggle_small_entries(self) -> None:
        """Shows or hides the entries below `MIN_SHARE`."""
        current = self._rows[self.cursor].entry
        self._shows_all = not self._shows_all
        self._update_rows()
        self.cursor = next((index for index, row in enumerate(self._rows) if row.entry is current), 0)
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
        """Closes the screen with the node under the cursor, or folds or unfolds the module under the cursor."""
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
    """Returns the names in the graph table of the nodes that an instruction comes from."""
    return separator.join(names.get(node, node) for node in spot.nodes)


def _columns(sampling: Sampling, names: Mapping[str, str]) -> tuple[Column[HotSpot], ...]:
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
