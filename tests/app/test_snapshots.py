"""Pictures of what one size and one theme show: the sizes between, the other themes, ASCII, what went wrong.

All screens in the dark and the light at both sizes are in `test_pictures.py`. `pytest tests/app/test_snapshots.py
--snapshot-update` takes new ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from buddy.compiler.protocol.presets import default_recipe
from tests.app.picturing import DRAWN, SEVERAL, STEPS, TRAINING, after

pytestmark = pytest.mark.slow


def test_four_panes_high_contrast_at_120_columns(snap_compare: Any, bench: Any) -> None:
    """120×40 in the high-contrast theme."""
    assert snap_compare(bench("buddy-high-contrast"), terminal_size=(120, 40), run_before=after("3"))


def test_the_outputs_at_80_columns_in_ascii(snap_compare: Any, bench: Any) -> None:
    """80×24 in ASCII only."""
    before = after("shift+tab", run=True)
    assert snap_compare(bench(ascii_mode=True), terminal_size=(80, 24), run_before=before)


def test_a_failing_pass(snap_compare: Any, bench: Any) -> None:
    """A required pass is disabled: the failure is marked, the tab shows the diagnostic, later tabs are stale."""
    steps = tuple(step for step in STEPS if step.name != "one-shot-bufferize")
    assert snap_compare(bench(steps=steps), terminal_size=(120, 40), run_before=after("exclamation_mark"))


def test_several_graphs(snap_compare: Any, bench: Any) -> None:
    """160×50: the line of graph tabs under the header, and the graph break of the graph on the screen."""
    assert snap_compare(bench(source=SEVERAL), terminal_size=(160, 50), run_before=after("3"))


def test_several_graphs_at_80_columns(snap_compare: Any, bench: Any) -> None:
    """80×24: the picker with the full reason of the entry under the cursor."""
    assert snap_compare(bench(source=SEVERAL), terminal_size=(80, 24), run_before=after("g", "l"))


@pytest.mark.parametrize("size", [(160, 50), (80, 24)], ids=["160x50", "80x24"])
def test_a_graph_of_training(snap_compare: Any, bench: Any, size: tuple[int, int]) -> None:
    """The graph pane of a forward graph, on the whole screen: what is saved for the backward graph."""
    # The steps of other pictures do not lower all ops of this program.
    workbench = bench(source=TRAINING, steps=default_recipe().steps)
    assert snap_compare(workbench, terminal_size=size, run_before=after("plus", "G", "k"))


@pytest.mark.parametrize("theme", ["buddy-colour-blind", "buddy-ansi", "buddy-ansi-light"])
def test_a_diff_in_the_other_themes(snap_compare: Any, bench: Any, theme: str) -> None:
    """Syntax colours, a diff and the cursor, in the themes without other pictures."""
    assert snap_compare(bench(theme), terminal_size=(120, 40), run_before=after("tab", "tab", "3", DRAWN, "d", DRAWN))
