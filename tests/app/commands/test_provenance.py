"""Provenance of a node on the real engine: its text at every stage, its history, its Python line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buddy.app.reports.nodes import NodeRemark, node_history
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.picker import PickerScreen
from buddy.app.screens.stage_lists import FollowScreen, NodeHistoryScreen
from buddy.compiler.protocol import NOT_APPLIED, Assignment, NodeRow, Stage

Open = Callable[..., Any]


@pytest.mark.slow
async def test_a_node_is_followed_through_all_stages_and_to_its_python_line(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        app = bench.app
        app.graph.show_node(next(row.stable for row in app.graph.rows if row.name == "gelu"))
        await bench.press("F")
        screen = await bench.opened(FollowScreen)
        assert screen.query_one("#box").border_title == "act/gelu.0 in all stages"
        steps = screen._table.rows
        assert [step.row.stage.name for step in steps[:2]] == ["fx", "graph"]
        assert all(step.trace.direct for step in steps)
        place = next(k for k, step in enumerate(steps) if step.row.stage.name == "expand-math-to-polynomials")
        screen._table.move_to(place)
        await bench.press("enter")
        await bench.until(lambda: app.screen is app.screen_stack[0], "the workbench")
        await bench.drawn()
        assert app.ir.chosen_stage.name == "expand-math-to-polynomials"
        assert app.ir.line_number == steps[place].trace.lines[0]
        await bench.press("g", "w")
        screen = await bench.opened(NodeHistoryScreen)
        assert "became a polynomial" in "".join(said.text for said in screen._table.rows)
        said = screen._table.rows[-1]
        assert said.step == "machine code"
        assert said.text.endswith("instructions in @forward, @matmul_128x256x1024_epilogue")
        assert screen._table.page >= len(screen._table.rows) > 3, "all of it at once where the screen has the room"
        screen._table.move_bottom()
        await bench.press("enter")
        await bench.until(lambda: getattr(app.ir.chosen_stage, "language", "") == "asm", "the assembly")
        app.context.layout.show_pane("graph")
        await bench.press("g", "S")
        assert app.pane is app.source
        await bench.until(lambda: app.source.line is not None, "the file's lines")
        assert "self.act(" in app.source.line.text
        assert any("gelu" in node for node in app.source.line.nodes)


@pytest.mark.slow
async def test_assembly_has_arrows_machine_code_and_the_nodes_that_functions_serve(workbench: Open) -> None:
    async with workbench("mlp.py", size=(120, 120)) as bench:
        ir = bench.app.ir
        await bench.press("tab", "tab", "g", "h")
        await bench.sees("only assembly, the last phase, has jumps and machine code")
        await bench.press("plus", "0")
        await bench.drawn()
        ir.move_to(0)
        await bench.until(lambda: bench.shows("for norm/native_layer_norm.0, "), "the nodes of the function")
        found = await bench.app.context.queries.find_jumps(ir.document.text, 0)
        targets = [to for _, to in found.jumps]
        back = [pair for pair in found.jumps if pair[0] > pair[1] and targets.count(pair[1]) == 1]
        jump, place = min(back, key=lambda pair: pair[0] - pair[1])
        ir.move_to(jump)
        await bench.until(lambda: None not in (ir.line_at(jump), ir.line_at(place)), "both ends of the jump")
        label = ir.line_at(place).text
        await bench.until(lambda: any(label in line and "╭▸" in line for line in bench.screen), "the arrow")
        head = next(line for line in bench.screen if label in line)
        tail = next(line for line in bench.screen if line.startswith(">"))
        column = head.index("╭▸")
        assert tail[column : column + 2] == "╰─"
        assert tail.find(label.rstrip(":")) > column
        text = ir.line_at(jump).machine_code
        assert bytes.fromhex(text)
        assert not bench.shows(text)
        await bench.press("g", "h")
        assert any(line.startswith(">") and text in line for line in bench.screen)
        assert ir.painter.margin == next(line for line in bench.screen if label in line).index(label)
        await bench.press("g", "j")
        assert not bench.shows("╭▸")
        await bench.press("o")
        screen = await bench.opened(DetailScreen)
        await bench.sees(f"machine code  {text}")
        await bench.press("q", "g", "o")
        screen = await bench.opened(PickerScreen)
        assert next(one.summary for one in screen._choices if one.title == "pack_0").endswith(", for up/addmm.0")


def test_remarks_are_told_in_the_order_of_the_line() -> None:
    row = NodeRow(3, "mm.0", "call_function", "mm", "aten.mm.default", "", "", "2x2", "f32", location="m.py:7")
    stages = [Stage(0, "fuse", "graph", "", 0), Stage(1, "pack", "kernels", "", 0)]
    remarks = [
        (NOT_APPLIED, "mm.0", "not by tosa"), ("pack", "mm.0", "packed"), ("pack", "mm.0", "packed"),
        ("fuse", "mm.0", "kept"), ("pack", "add.0", "skipped"),
    ]  # fmt: skip
    assignment = Assignment("mm.0", "linalg", function="f", reason="x", slow_path="p is 0", error_path="i is 9")
    found = node_history(row, assignment, remarks, stages)
    assert found == [
        NodeRemark("capture", "aten.mm.default · f32[2x2] · m.py:7"),
        NodeRemark("fuse", "kept"),
        NodeRemark("recipe", "not by tosa"),
        NodeRemark("lowering", "by linalg in @f: x"),
        NodeRemark("lowering", "slow path: eager computes the results if p is 0"),
        NodeRemark("lowering", "error path: eager raises its error if i is 9"),
        NodeRemark("pack", "packed", 2),
    ]
