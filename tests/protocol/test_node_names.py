"""The names of nodes: what a user sees, and what a user may type."""

from __future__ import annotations

import pytest

from buddy.compiler.protocol import GraphInfo, NodeRow


def row(index: int, stable: str, name: str, module: str = "", opcode: str = "call_function") -> NodeRow:
    return NodeRow(index, stable, opcode, name, "aten.addmm.default", "", "", module=module)


ROWS = (
    row(0, "layer.0.query.weight", "arg0_1", opcode="placeholder"),
    row(1, "layer.0.query/addmm.0", "addmm", "layer.0.query"),
    row(2, "layer.0.key/addmm.0", "addmm_1", "layer.0.key"),
    row(3, "layer.0.key/view.0", "view", "layer.0.key"),
    row(4, "add.0", "add"),
    row(5, "add.1", "add_1"),
    row(6, "mul.0", "mul"),
)
INFO = GraphInfo("f", ROWS)


def test_the_module_path_is_first() -> None:
    assert [each.display_name for each in ROWS[:2]] == ["layer.0.query.weight", "layer.0.query/addmm.0"]
    assert [each.short_name for each in ROWS[:2]] == ["layer.0.query.weight", "addmm.0"]
    assert row(0, "", "arg0").display_name == "arg0"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("layer.0.query/addmm.0", [1]),
        ("addmm_1", [2]),
        ("arg0_1", [0]),
        ("layer.0.query", [1]),  # the only node of the module
        ("layer.0.key/view", [3]),  # the number is left out
        ("mul", [6]),
        ("layer.0.key", []),  # two nodes
        ("add", [4]),  # an FX name comes before a name without its number
        ("layer.0", []),
        ("", []),
    ],
)
def test_what_names_a_node(name: str, found: list[int]) -> None:
    assert [each.index for each in INFO.nodes_named(name)] == found
