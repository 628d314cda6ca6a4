"""The line of phase tabs, with names if they fit, otherwise numbers. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.app.widgets.look import Cells


@dataclass(frozen=True)
class PhaseTab:
    """A phase. `mark` is `!` if a pass failed, `~` if the text is out of date; `there` is true if it has IR.

    `role` colours an inactive tab without a mark.
    """

    name: str
    number: int
    mark: str = ""
    there: bool = True
    role: str = ""

    @property
    def key(self) -> str:
        """The digit key of the phase; `-` beyond the tenth."""
        return str(self.number % 10) if self.number <= 10 else "-"


def tab_labels(tabs: Sequence[PhaseTab], active: str, width: int) -> list[str]:
    """One label per tab, at most `width` characters in total if possible. Far tabs lose their names first."""
    place = next((k for k, tab in enumerate(tabs) if tab.name == active), 0)
    short: set[int] = set()
    by_distance = sorted(range(len(tabs)), key=lambda k: abs(k - place), reverse=True)
    labels = [_label(tab, k == place, k in short) for k, tab in enumerate(tabs)]
    for far in by_distance[:-1]:
        if sum(map(len, labels)) <= width:
            break
        short.add(far)
        labels[far] = _label(tabs[far], False, True)
    return labels


def tab_cells(tabs: Sequence[PhaseTab], active: str, width: int) -> Cells:
    """The line of tabs."""
    cells: Cells = []
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        cells.append((label, tab_role(tab, tab.name == active)))
    return cells


def tab_at(tabs: Sequence[PhaseTab], active: str, width: int, x: int) -> PhaseTab | None:
    """The tab drawn at column `x`."""
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        x -= len(label)
        if x < 0:
            return tab
    return None


def _label(tab: PhaseTab, active: bool, short: bool) -> str:
    text = f"{tab.key}{tab.mark}" if short else f"{tab.key} {tab.name}{tab.mark}"
    return f"[{text}]" if active else f" {text} "


def tab_role(tab: PhaseTab, active: bool) -> str:
    """The role of a tab."""
    if active:
        return "tab-active"
    if tab.role:
        return tab.role
    if tab.mark == "!":
        return "bad"
    return "tab" if tab.there else "faint"
