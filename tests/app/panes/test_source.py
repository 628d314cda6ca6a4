"""The source pane on the real engine: links in both directions, the gutter, and code that is not as it was captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.panes.source import SourcePane
from buddy.app.screens.picker import PickerScreen
from buddy.app.widgets.look import Cells

Open = Callable[..., Any]

TWO_LINES = """import torch


def model(x):
    y = x.exp()
    return y.neg()


example_inputs = (torch.ones(8),)
"""

CALLS = '''"""A model with a helper, branches and a node in eager."""

import torch


def helper(x):
    # Two nodes.
    y = x.exp()
    return y.neg()


def unused(x):
    return x + 1


class Model(torch.nn.Module):
    def forward(self, x):
        size = x.shape[0]
        if size > 1000:
            x = x - 1
        else:
            x = x * 2
        x = torch.linalg.svd(
            x
        )[1]
        return helper(x)


model = Model()
example_inputs = (torch.ones(8, 8),)
'''


def row_of(bench: Any, name: str) -> int:
    return next(k for k, row in enumerate(bench.app.graph.rows) if row.name == name)


def line_of(text: str, part: str) -> int:
    return next(k for k, line in enumerate(text.split("\n")) if part in line)


def text_of(cells: Cells) -> str:
    return "".join(text for text, _ in cells)


async def shown(bench: Any) -> SourcePane:
    """Show the source pane, and wait for its lines."""
    await bench.press("g", "P")
    await bench.until(lambda: bench.app.source.line is not None, "the file's lines")
    return bench.app.source


@pytest.mark.slow
async def test_the_source_pane_follows_the_others_and_leads_them(workbench: Open, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_LINES)
    async with workbench(tmp_path / "two.py", size=(160, 50)) as bench:
        app = bench.app
        source = await shown(bench)
        for name, line in (("neg", 5), ("exp", 4)):
            app.graph.move_to(row_of(bench, name))
            await bench.until(lambda at=line: source.cursor == at, f"the line of {name}")
        await bench.sees("y = x.exp()")
        assert ("def ", "syntax:keyword") in source.row_cells(3, 80)
        assert ("return ", "syntax:keyword") in source.row_cells(5, 80)
        app.context.layout.show_pane("source")
        await bench.press("j")
        assert app.graph.current.name == "neg"
        assert source.cursor == 5
        ir = app.ir
        await bench.until(lambda: any("neg" in node for node in ir.nodes_of(ir.cursor)), "the IR of the line")
        await bench.press("enter")
        assert app.pane is app.graph
        await bench.press("g", "P")
        assert "source" not in app.context.layout.visible_order


@pytest.mark.slow
async def test_a_line_and_its_ops_are_linked_in_all_panes(workbench: Open, tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    async with workbench(tmp_path / "calls.py", size=(160, 50)) as bench:
        app, graph, ir = bench.app, bench.app.graph, bench.app.ir
        exp = row_of(bench, "exp")
        assert graph.background(exp + 1) == "", "nothing is linked while the pane is hidden"
        source = await shown(bench)
        await bench.press("3")
        await bench.drawn()
        # From the graph: the line of the node, and its IR.
        graph.move_to(exp)
        line = line_of(CALLS, "x.exp()")
        await bench.until(lambda: source.cursor == line, "the line of exp")
        assert source.background(line) == "linked-line"
        linked = [row for row in ir.rows_on_screen() if ir.background(row) == "linked-line"]
        assert all("exp" in node for row in linked for node in ir.line_at(row).own_nodes)
        colour = source.row_cells(line, 80)[1][1]
        assert colour.startswith("line-")
        numbers = [(text.strip(), role) for text, role in graph.row_cells(exp, 80)]
        assert (str(graph.rows[exp].index), colour) in numbers
        # From the IR.
        app.context.layout.show_pane("ir")
        rows = range(ir.row_count)
        await bench.until(lambda: all(ir.line_at(row) for row in rows), "the lines of the stage")
        neg = next(row for row in rows if any("neg" in node for node in ir.line_at(row).own_nodes))
        ir.move_to(neg)
        assert source.cursor == line_of(CALLS, "y.neg()")
        assert graph.current.name == "neg"
        # From the source: the nodes that a line calls, from a line without nodes of its own.
        app.context.layout.show_pane("source")
        call = line_of(CALLS, "return helper(x)")
        source.move_to(call)
        assert app.context.selection.linked_nodes == {graph.rows[exp].stable, graph.rows[row_of(bench, "neg")].stable}
        assert graph.background(exp) == "linked-line" or graph.cursor == exp
        assert any(text_of(graph.row_cells(row, 60)).startswith("=") for row in (exp, row_of(bench, "neg")))
        await bench.press("enter")
        screen = await bench.opened(PickerScreen)
        assert [choice.title for choice in screen._choices] == ["exp.0", "neg.0"]
        await bench.press("escape")
        # What was drawn before is drawn again when the link moves on.
        source.move_to(line_of(CALLS, "# Two nodes."))
        await bench.passed_on()
        assert not app.context.selection.linked_nodes
        assert not any(line.lstrip("│").startswith("=") for line in bench.screen)


@pytest.mark.slow
async def test_the_gutter_says_how_lines_are_compiled_and_a_line_without_nodes_says_why(
    workbench: Open, tmp_path: Path
) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    async with workbench(tmp_path / "calls.py", size=(160, 50)) as bench:
        app, graph = bench.app, bench.app.graph
        source = await shown(bench)
        graph.move_to(row_of(bench, "neg"))
        await bench.press("space")
        await bench.settled()
        marks = {"x.exp()": "x", "y.neg()": "e", "return helper": ":", "x.shape[0]": " "}
        for part, mark in marks.items():
            assert source._facts_of(line_of(CALLS, part)).mark == mark, part
        app.context.layout.show_pane("source")
        reasons = {
            "import torch": "an import",
            "# Two nodes": "a comment",
            "x = x - 1": f"this `if` (line {line_of(CALLS, 'if size') + 1}): not executed",
            "return x + 1": "unused: not called in this capture",
            "x.shape[0]": "no operation on tensors",
            "model = Model()": "when the module is loaded",
            ")[1]": "part of the statement",
            "def helper": "the header of helper",
        }
        for part, reason in reasons.items():
            source.move_to(line_of(CALLS, part))
            await bench.press("enter")
            assert reason in app.context.status.message, part
            assert app.pane is source
        await bench.press("g", "g")
        await bench.sees("no node: a string")
        # Times, once there is a profile.
        assert "ms" not in text_of(source.foot(90)[0])
        await bench.press("g", "c")
        await bench.until(lambda: app.state.profile is not None, "the profile")
        facts = source._facts_of(line_of(CALLS, "x * 2"))
        whole = app.state.profile.whole
        seconds = next(time.seconds for time in app.state.profile.nodes if "mul" in time.node)
        assert facts.is_fused or (facts.seconds == seconds and facts.share == seconds / whole)
        source.move_to(line_of(CALLS, "return helper"))
        cells = source.row_cells(source.cursor, 90)
        assert any(source._facts_of(source.cursor).time_text in text for text, _ in cells)


BREAK = """import torch


@torch.compile(backend="buddy")
def f(x):
    y = x.exp()
    print("broken")
    return y.neg()


f(torch.ones(8))
"""


@pytest.mark.slow
async def test_a_graph_break_is_marked_and_the_lines_of_other_graphs_name_them(workbench: Open, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BREAK)
    async with workbench(tmp_path / "broken.py", size=(160, 50)) as bench:
        app = bench.app
        assert len(app.state.graphs) == 2
        source = await shown(bench)
        app.context.layout.show_pane("source")
        source.move_to(line_of(BREAK, "print"))
        assert ("! ", "bad") in source.row_cells(source.cursor, 80)
        assert "graph break: " in text_of(source.foot(90)[0])
        source.move_to(line_of(BREAK, "y.neg()"))
        assert f"its nodes are in the graph {app.state.graphs[1].name}" in text_of(source.foot(140)[0])


@pytest.mark.slow
async def test_the_code_on_the_screen_is_the_code_that_was_captured(
    workbench: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "two.py"
    file.write_text(TWO_LINES)
    # Far shorter than a request takes: a check must not start a request again that is on its way.
    monkeypatch.setattr("buddy.app.panes.source.CHECK_SECONDS", 0.002)
    async with workbench(file, size=(160, 50)) as bench:
        app, source = bench.app, bench.app.source
        # Changed before the pane is shown for the first time.
        file.write_text(f"# A line more.\n{TWO_LINES.replace('exp', 'tanh')}")
        await shown(bench)
        app.graph.move_to(row_of(bench, "neg"))
        await bench.until(lambda: source.cursor == 5, "the line of neg")
        await bench.sees("changed on disk since the capture")
        assert source.line.text.strip() == "return y.neg()"
        assert "y = x.exp()" in text_of(source.row_cells(4, 80))
        assert ("~", "stale") in source.row_cells(4, 80)
        assert ("~", "stale") not in source.row_cells(5, 80)
        app.context.layout.show_pane("source")
        source.move_to(4)
        await bench.sees("the file on disk has another line here; exp.0, compiled")
        # Changed back, deleted, and captured again while the pane is shown.
        file.write_text(TWO_LINES)
        # The status line may say "changed on disk" too: it compares times, not contents.
        await bench.until(lambda: not bench.shows("changed on disk since the capture"), "the same file")
        file.unlink()
        await bench.sees("deleted on disk since the capture")
        assert "y = x.exp()" in text_of(source.row_cells(4, 80))
        file.write_text(f"# A line more.\n{TWO_LINES}")
        app.session.reload((str(file),))
        await bench.until(lambda: source.row_count == TWO_LINES.count("\n") + 1, "the new file")
        assert source.cursor == 4, "the cursor stays on its line while the pane has focus"
        app.session.compile_current()
        await bench.settled()
        assert source.cursor == 4, "a compilation moves nothing"
        app.context.layout.show_pane("graph")
        app.graph.move_to(row_of(bench, "neg"))
        await bench.until(lambda: source.cursor == 6, "the line of neg")


# An escape sequence in a comment, a tab, a carriage return at each end of a line, a very long line, a form feed.
UNUSUAL = (
    """import torch

def model(x):
\t# \x1b[2J\x1b[31mred\x07 \u202e \x0c end
\ty = x.exp()  # {long}
\treturn y.neg()
"""
    + "\n" * 10_000
    + "example_inputs = (torch.ones(8),)\n"
)


@pytest.mark.slow
async def test_unusual_code_is_shown_line_by_line(workbench: Open, tmp_path: Path) -> None:
    text = UNUSUAL.replace("{long}", "long " * 20_000).replace("\n", "\r\n")
    (tmp_path / "unusual.py").write_bytes(text.encode())
    async with workbench(tmp_path / "unusual.py", size=(160, 50)) as bench:
        source = await shown(bench)
        assert source.row_count == text.count("\n")
        bench.app.graph.move_to(row_of(bench, "exp"))
        await bench.until(lambda: source.cursor == 4, "the line of exp")
        await bench.sees("        y = x.exp()  # long")
        await bench.sees("# ␛[2J␛[31mred␇")
        assert not any("\x1b" in line or "\r" in line or "\u202e" in line for line in bench.screen)
        bench.app.context.layout.show_pane("source")
        await bench.press("end")
        await bench.until(lambda: source.line is not None, "the last line")
        await bench.sees(f">{source.row_count} ")
        await bench.sees("example_inputs = (torch.ones(8),)")


MADE = """import linecache
import torch

NAMED = "def named(x):\\n    return x.exp()\\n"
made = {{}}
exec(compile("def unnamed(x):\\n\\n\\n    return x.neg()\\n", "<made>", "exec"), made)
exec(compile(NAMED, "{name}", "exec"), made)
cell = "def in_cell(x):\\n    return x.tanh()\\n"
linecache.cache["<ipython-input-7>"] = (len(cell), None, cell.splitlines(True), "<ipython-input-7>")
exec(compile(cell, "<ipython-input-7>", "exec"), made)


def model(x):
    return made["in_cell"](made["named"](made["unnamed"](x)))


example_inputs = (torch.ones(8),)
"""


@pytest.mark.slow
async def test_code_made_by_exec_is_named_and_never_shown_as_the_lines_of_a_file(
    workbench: Open, tmp_path: Path
) -> None:
    # Code may have the name of a file that has nothing to do with it.
    (tmp_path / "other.py").write_text("wrong = 1\nwrong = 2\n")
    (tmp_path / "made.py").write_text(MADE.format(name=tmp_path / "other.py"))
    async with workbench(tmp_path / "made.py", size=(160, 50)) as bench:
        graph, source = bench.app.graph, bench.app.source
        graph.move_to(row_of(bench, "neg"))
        await bench.press("g", "P")
        for name, text in (
            ("neg", "line 4: the code <made> has no file"),
            ("exp", f"line 2: the code {tmp_path}/other.py is not a file of the program"),
            ("tanh", ""),
            ("exp", f"line 2: the code {tmp_path}/other.py is not a file of the program"),
        ):
            graph.move_to(row_of(bench, name))
            if text:
                await bench.until(lambda at=text: at in text_of(source.empty(1000)[0]), text)
                assert source.row_count == 0
                continue
            await bench.until(lambda: source.line is not None, "the cell")
            await bench.sees("return x.tanh()")
            await bench.sees("code without a file")
            assert source.cursor == 1
        assert not bench.shows("wrong")


@pytest.mark.slow
async def test_on_a_narrow_screen_the_source_stays_below_the_pane_that_has_focus(
    workbench: Open, tmp_path: Path
) -> None:
    (tmp_path / "two.py").write_text(TWO_LINES)
    async with workbench(tmp_path / "two.py", size=(80, 24)) as bench:
        app = bench.app
        source = await shown(bench)
        assert app.pane is app.graph
        for pane in ("graph", "ir"):
            app.context.layout.show_pane(pane)
            await bench.passed_on()
            assert app.panes[pane].size.height >= 8
            assert source.size.height >= 5
            assert source.region.y == app.panes[pane].region.bottom
            assert not app.passes.display
        app.context.layout.show_pane("source")
        await bench.passed_on()
        assert app.ir.display
        await bench.press("plus")
        assert source.display
        assert not app.ir.display
        await bench.press("plus", "g", "P")
        assert app.pane is app.ir
        assert not source.display
