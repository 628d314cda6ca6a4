"""The graph pane's filter language, the tree of modules, and the drawing of a node's neighbourhood. No Textual."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from buddy.app.panes.graph_nodes import (
    FilterError,
    ModuleRow,
    NodeFacts,
    NodeNeighbours,
    all_modules,
    draw_dot,
    draw_svg,
    op_kind,
    parse_filter,
    tree_rows,
)
from buddy.compiler.protocol import NodeRow


def node(
    index: int, name: str, target: str, module: str = "", inputs: tuple[int, ...] = (), **facts: object
) -> NodeRow:
    opcode = "call_function" if target else "placeholder"
    given = {"shape": "128x768", "dtype": "f32", "bytes": 393216, **facts}
    return NodeRow(index, f"{name}.0", opcode, name, target, "()", "{}", module=module, inputs=inputs, **given)  # type: ignore[arg-type]


ROWS = [
    node(0, "x", "", bytes=64),
    node(1, "mm", "aten.mm.default", "encoder.layer.0.dense", (0,)),
    node(2, "addmm", "aten.addmm.default", "encoder.layer.1.dense", (0, 1)),
    node(3, "gelu", "aten.gelu.default", "encoder.layer.1", (2,), shape="128x3072, 128x1"),
    node(4, "item", "<built-in function getitem>", "pooler", (3,), shape="", dtype=""),
]
LOWERINGS = {"mm": "linalg", "addmm": "tosa", "gelu": "eager", "item": "linalg"}
USES = NodeNeighbours(ROWS)
SECONDS = {"mm": 2e-3, "addmm": 5e-4, "gelu": 3e-5}


def passing(text: str) -> list[str]:
    test = parse_filter(text)
    facts = (
        NodeFacts(row, LOWERINGS.get(row.name, ""), "main", len(USES.users(row)), seconds=SECONDS.get(row.name))
        for row in ROWS
    )
    return [fact.row.name for fact in facts if test(fact)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["x", "mm", "addmm", "gelu", "item"]),
        ("mm", ["mm", "addmm"]),
        ("MM", ["mm", "addmm"]),
        ("op:mm", ["mm"]),
        ("op:*mm", ["mm", "addmm"]),
        ("op:aten.mm.default", ["mm"]),
        ("op:getitem", ["item"]),
        ("op:placeholder", ["x"]),
        ("shape:128x*", ["x", "mm", "addmm", "gelu"]),
        ("shape:128x1", ["gelu"]),
        ("lowering:eager", ["gelu"]),
        ("road:linalg -op:mm", ["item"]),
        ("module:encoder.layer.1", ["addmm", "gelu"]),
        ("module:*.dense", ["mm", "addmm"]),
        ("mem>100kB", ["mm", "addmm", "gelu", "item"]),
        ("mem<=64", ["x"]),
        ("uses=0", ["item"]),
        ("uses>=2", ["x"]),
        ("rank=2 index>2", ["gelu"]),
        ("-dtype:f32", ["item"]),
        ("time>1ms", ["mm"]),
        ("time>=500us", ["mm", "addmm"]),
        ("time<0.1", ["gelu"]),
    ],
)
def test_a_filter_selects_nodes(text: str, names: list[str]) -> None:
    assert passing(text) == names


def test_missing_numbers_are_reported() -> None:
    with pytest.raises(FilterError, match="press g c to profile"):
        parse_filter("mm -time>1ms", {"time": "no node has been timed yet: press g c to profile"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time>1kB", "unknown unit 'kB' in 'time>1kB'; known: us, ms, s"),
        ("colour:red", "unknown field 'colour'; known: op, name"),
        ("size>3", "unknown numeric field 'size'; known: mem"),
        ("mem>3lb", "unknown unit 'lb' in 'mem>3lb'"),
        ("mem:3", "mem is a number: mem>1"),
    ],
)
def test_errors_name_the_invalid_part_and_the_alternatives(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message.replace("'", ".")):
        parse_filter(text)


def test_kinds_of_ops() -> None:
    assert [op_kind(row) for row in ROWS[1:]] == ["mm", "addmm", "gelu", "getitem"]


def shown(folded: set[str]) -> list[str]:
    return [
        f"{'  ' * entry.depth}{entry.name}({len(entry.nodes)})" if isinstance(entry, ModuleRow) else entry.name
        for entry in tree_rows(ROWS, folded)
    ]


def test_the_tree_has_modules_and_nodes_in_graph_order() -> None:
    assert shown(set()) == [
        "x",
        *("encoder(3)", "  layer(3)", "    0(1)", "      dense(1)", "mm"),
        *("    1(2)", "      dense(1)", "addmm", "gelu"),
        *("pooler(1)", "item"),
    ]
    assert shown({"encoder.layer.1", "pooler"}) == [
        "x",
        *("encoder(3)", "  layer(3)", "    0(1)", "      dense(1)", "mm", "    1(2)", "pooler(1)"),
    ]
    assert shown(all_modules(ROWS)) == ["x", "encoder(3)", "pooler(1)"]


def test_neighbours() -> None:
    assert [row.name for row in USES.producers(ROWS[2])] == ["x", "mm"]
    assert [row.name for row in USES.users(ROWS[0])] == ["mm", "addmm"]
    assert [row.name for row in USES.within(ROWS[4], 1)] == ["gelu", "item"]
    assert [row.name for row in USES.within(ROWS[4], 2)] == ["addmm", "gelu", "item"]


def test_a_neighbourhood_in_dot() -> None:
    text = draw_dot(USES.within(ROWS[2], 1), ROWS[2])
    assert text.startswith("digraph {\n")
    assert '  n2 [label="addmm.0\\nf32 128x768", penwidth=3];' in text
    assert "  n1 -> n2;" in text
    assert "n4" not in text


def test_a_neighbourhood_in_svg() -> None:
    root = ElementTree.fromstring(draw_svg(USES.within(ROWS[3], 2), ROWS[3]))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [(float(box.get("y", 0)), float(box.get("width", 0))) for box in root.findall(f"{space}rect")[1:]]
    assert len(boxes) == 5
    assert len(root.findall(f"{space}path")) == 5
    tops = [top for top, _ in boxes]
    assert tops == sorted(tops), "what is read stands above"
    assert max(tops) < float(root.get("height", 0))
    assert "gelu.0" in [text.text for text in root.findall(f"{space}text")]


def test_any_number_of_dashes_parses() -> None:
    assert passing("-" * 4001 + "op:mm") == passing("-op:mm")
    assert passing("-" * 4000 + "op:mm") == passing("op:mm")
