"""The tabs of phases, and of graphs: their labels, their colours, and the tab at a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from buddy.app.widgets.look import Cells


@dataclass(frozen=True)
class PhaseTab:
    """The tab of a phase. `number` counts from 1. `mark` is `!` if a pass failed, `~` if the text is out of date.

    `has_content` is false for a phase without IR. `role`, if not empty, colours the tab while it is inactive.
    """

    name: str
    number: int
    mark: str = ""
    has_content: bool = True
    role: str = ""

    @property
    def key(self) -> str:
        """The digit key of the phase; `-` beyond the tenth."""
        return str(self.number % 10) if self.number <= 10 else "-"


def tab_labels(tabs: Sequence[PhaseTab], active: str, width: int) -> list[str]:
    """Returns one label per tab, at most `width` columns in total if possible. `active` is the name of a tab.

    If necessary, tabs lose their names, first those that are farthest from the active tab.
    """
    active_index = next((index for index, tab in enumerate(tabs) if tab.name == active), 0)
    farthest_first = sorted(range(len(tabs)), key=lambda index: abs(index - active_index), reverse=True)
    labels = [_label(tab, active=index == active_index) for index, tab in enumerate(tabs)]
    for index in farthest_first[:-1]:
        if sum(map(cell_len, labels)) <= width:
            break
        labels[index] = _label(tabs[index], with_name=False)
    return labels


def tab_cells(tabs: Sequence[PhaseTab], active: str, width: int) -> Cells:
    """Returns the labels of the tabs, coloured by their roles."""
    cells: Cells = []
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        cells.append((label, tab_role(tab, active=tab.name == active)))
    return cells


def tab_at(tabs: Sequence[PhaseTab], active: str, width: int, x: int) -> PhaseTab | None:
    """Returns the tab that is drawn at column `x`, `None` beyond the last tab."""
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        x -= cell_len(label)
        if x < 0:
            return tab
    return None


def _label(tab: PhaseTab, *, active: bool = False, with_name: bool = True) -> str:
    """Returns the key, the name and the mark of a tab; in brackets if it is active."""
    text = f"{tab.key} {tab.name}{tab.mark}" if with_name else f"{tab.key}{tab.mark}"
    return f"[{text}]" if active else f" {text} "


def tab_role(tab: PhaseTab, *, active: bool) -> str:
    """Returns the role that colours a tab."""
    if active:
        return "tab-active"
    if tab.role:
        return tab.role
    if tab.mark == "!":
        return "bad"
    return "tab" if tab.has_content else "faint"
