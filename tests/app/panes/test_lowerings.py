"""The lowering of a node, its reason, and the choice of another one in the graph pane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.app.screens.picker import PickerScreen

pytestmark = pytest.mark.slow
Open = Callable[..., Any]

SCRIPT = """
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8, dtype=torch.float64))

    def forward(self, x):
        y = torch.relu(x @ self.weight)
        return torch.tanh(y * y + x) - torch.sigmoid(x * 2) * y

torch.manual_seed(0)
model = torch.nn.Sequential(Layer(), Layer(), Layer())
example_inputs = torch.randn(4, 8, dtype=torch.float64)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "layers.py"
    path.write_text(SCRIPT)
    return path


def in_dialect(bench: Any, dialect: str) -> None:
    recipe = bench.app.workspace.recipe
    bench.app.context.edits.edit(msgspec.structs.replace(recipe, dialect=dialect), f"{dialect}-first")


def nodes(bench: Any, target: str) -> list[Any]:
    return [row for row in bench.app.state.info.rows if row.target == target]


async def choose(bench: Any, title: str) -> None:
    """Choose a lowering for the node under the cursor."""
    await bench.press("enter")
    assert isinstance(bench.app.screen, PickerScreen)
    await bench.type(title)
    await bench.press("enter")
    await bench.settled()


async def test_the_table_says_which_registry_lowers_a_node_and_why_not_the_first(workbench: Open, script: Path) -> None:
    async with workbench(script, size=(180, 50)) as bench:
        assert not bench.shows("why")
        in_dialect(bench, "tosa")
        await bench.settled()
        bench.app.graph.show_node(nodes(bench, "aten.mm.default")[1].stable)
        await bench.press("plus")
        await bench.drawn()
        await bench.sees("linalg   tosa: no f64 matmul")
        await bench.press("o")
        await bench.until(lambda: any("lowering" in line and "linalg" in line for line in bench.screen), "the node")
        await bench.until(
            lambda: any("why" in line and "tosa: no f64 matmul" in line for line in bench.screen), "the reason"
        )


async def test_the_picker_lists_every_registry_and_eager_and_resets(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        (gelu,) = nodes(bench, "aten.gelu.default")
        bench.app.graph.show_node(gelu.stable)
        await bench.press("enter")
        titles = [choice.title for choice in bench.app.screen.query_one("ChoiceList").choices]
        assert titles == ["linalg", "tosa", "torch-mlir", "eager", "reset"]
        await bench.press("escape")
        await choose(bench, "tosa")
        assert bench.app.state.problem is None
        assert bench.app.state.assignments[gelu.stable].lowering == "tosa"
        await choose(bench, "reset")
        assert bench.app.workspace.recipe.choices == ()
        assert bench.app.state.assignments[gelu.stable].lowering == "linalg"


OWN_OP = """
import torch

@torch.library.custom_op("mine::my_scale", mutates_args=())
def my_scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@my_scale.register_fake
def shape_of_my_scale(x):
    return torch.empty_like(x)

def model(x):
    return my_scale(x) + 1

example_inputs = torch.randn(4)
"""


async def test_a_lowering_that_has_failed_is_refused_with_the_reason(workbench: Open, tmp_path: Path) -> None:
    path = tmp_path / "own_op.py"
    path.write_text(OWN_OP)
    async with workbench(path, size=(160, 50)) as bench:
        (node,) = nodes(bench, "mine.my_scale.default")
        bench.app.graph.show_node(node.stable)
        recipe, assignment = bench.app.workspace.recipe, bench.app.state.assignments[node.stable]
        assert (assignment.lowering, assignment.choices) == ("eager", ("torch-mlir", "eager"))
        reason = assignment.rejection("torch-mlir")
        await bench.press("enter")
        summaries = {choice.title: choice.summary for choice in bench.app.screen.query_one("ChoiceList").choices}
        assert summaries["torch-mlir"] == f"not possible: {reason}"
        await bench.press("escape")
        await choose(bench, "torch-mlir")
        await bench.sees(f"{node.display_name} cannot be lowered by torch-mlir: {reason}"[:80])
        assert bench.app.workspace.recipe == recipe
        await bench.press("space")
        await bench.sees("no registry lowers mine.my_scale.default, so it runs in eager")
        assert bench.app.workspace.recipe == recipe


async def test_a_choice_for_one_of_several_equal_layers_applies_only_to_it(workbench: Open, script: Path) -> None:
    async with workbench(script, size=(160, 50)) as bench:
        first, second, third = (row.stable for row in nodes(bench, "aten.relu.default"))
        found = bench.app.state.assignments
        assert found[first].function == found[second].function == found[third].function
        bench.app.graph.show_node(second)
        await choose(bench, "eager")
        found = bench.app.state.assignments
        assert [found[node].lowering for node in (first, second, third)] == ["linalg", "eager", "linalg"]
        assert found[first].function == found[third].function != found[second].function
        await bench.press("r")
        await bench.until(lambda: bench.app.state.report is not None, "the report")
        assert bench.app.state.report.ok
        assert bench.app.state.report.nodes_eager == 1


async def test_choices_that_are_not_applied_are_reported(workbench: Open, script: Path) -> None:
    async with workbench(script, size=(160, 50)) as bench:
        relu = nodes(bench, "aten.relu.default")[0].stable
        recipe = bench.app.workspace.recipe.with_choice(relu, "math").with_choice("9/relu.0", "tosa")
        bench.app.context.edits.edit(recipe, "by hand")
        await bench.settled()
        assert bench.app.state.problem is None
        await bench.press("shift+tab", "plus")
        text = " ".join(" ".join(line.strip(" │") for line in bench.screen).split())
        assert f"the recipe lowers {relu} by math, but linalg lowers it: math: no lowering of ReluOp" in text
        assert "the recipe lowers 9/relu.0 by tosa, but no compiled node has that name" in text


async def test_a_node_or_all_picked_nodes_multiply_in_a_chosen_precision(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        first, second = (row.stable for row in nodes(bench, "aten.addmm.default"))
        graph = bench.app.graph
        assert "precision" not in [column.title for column in graph._columns]
        graph.show_node(first)
        await choose(bench, "bf16")
        assert [bench.app.state.assignments[node].precision for node in (first, second)] == ["bf16", ""]
        assert "precision" in [column.title for column in graph._columns]
        await bench.press("o")
        await bench.sees("bf16 (set in the recipe)")
        await bench.press("q", "r")
        await bench.until(lambda: bench.app.state.report is not None, "the report")
        assert bench.app.state.report.ok, "compared with the same arithmetic"
        await bench.press("O")
        await choose(bench, "int8-weights")
        assert {choice.precision for choice in bench.app.workspace.recipe.precisions} == {"int8-weights"}
        assert [bench.app.state.assignments[node].precision for node in (first, second)] == ["int8-weights"] * 2
        await choose(bench, "f32")
        assert bench.app.workspace.recipe.precisions == ()
        assert "precision" not in [column.title for column in graph._columns]


QUANTISED = """
import torch

ops = torch.ops.quantized_decomposed

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (8, 16), dtype=torch.int8))

    def forward(self, q):
        x = ops.dequantize_per_tensor.default(q, 0.02, 113, 0, 255, torch.uint8)
        weight = ops.dequantize_per_tensor.default(self.weight, 0.01, 0, -128, 127, torch.int8)
        return torch.nn.functional.linear(x, weight)

torch.manual_seed(0)
model = Layer()
example_inputs = torch.randint(0, 256, (4, 16), dtype=torch.uint8)
"""


async def test_the_integers_of_a_quantised_program_are_named(workbench: Open, tmp_path: Path) -> None:
    path = tmp_path / "quantised.py"
    path.write_text(QUANTISED)
    async with workbench(path, size=(160, 50)) as bench:
        graph = bench.app.graph
        (product,) = nodes(bench, "aten.mm.default")
        assert "precision" in [column.title for column in graph._columns]
        assert graph._precision_cell(product) == ("int8", "accent")
        graph.show_node(product.stable)
        await bench.press("o")
        await bench.sees("int8: the program is quantised, and its integers are multiplied")
        await bench.sees("multiplies integers, ui8 times i8")
