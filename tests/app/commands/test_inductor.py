"""Inductor as the backend of the workbench: its phases are tabs, nodes lead to generated lines, runs show both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.screens.picker import PickerScreen
from buddy.compiler.support.target import missing_cxx_message

Open = Callable[..., Any]


@pytest.mark.slow
async def test_nodes_lead_to_the_generated_code_and_a_run_shows_inductor_and_buddy(workbench: Open) -> None:
    if problem := missing_cxx_message():
        pytest.skip(problem)
    async with workbench("mlp.py", size=(170, 50)) as bench:
        app = bench.app
        await bench.press("g", "i")
        await bench.opened(PickerScreen)
        await bench.type("inductor")
        await bench.press("enter")
        await bench.until(lambda: app.workspace.recipe.backend == "inductor", "the edit")
        await bench.settled()
        assert [tab.name for tab in app.ir.stages.tabs()][:4] == ["torch", "pre-grad", "joint", "post-grad"]
        await bench.sees("Inductor")
        app.context.layout.show_pane("graph")
        app.graph.show_node(next(row.stable for row in app.graph.rows if row.name == "gelu"))
        await bench.press("space")
        await bench.sees("Inductor lowers the graph itself")
        await bench.press("9")
        await bench.until(lambda: getattr(app.ir.chosen_stage, "name", "") == "kernels", "the kernels")
        await bench.drawn()
        await bench.until(lambda: bench.shows("cpp_fused_gelu_0"), "the kernel of the node")
        await bench.press("7")
        await bench.sees("pairs considered")
        await bench.press("r")
        await bench.until(lambda: app.state.graph_state.report is not None, "the run")
        await bench.settled()
        assert app.state.graph_state.report.backend == "inductor"
        assert [side.name for side in app.state.graph_state.report.sides] == ["native"]
        await bench.press("B")
        await bench.opened(PickerScreen)
        await bench.sees("backend native")
