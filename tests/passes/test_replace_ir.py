"""`replace-ir`: edited text becomes the module, and lines keep the nodes they come from."""

from __future__ import annotations

from typing import Any

import pytest

from buddy.compiler.driver.pass_trials import check_ir
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_mlir, print_with_locations
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.passes.base import PassContext, PassError
from buddy.compiler.passes.replace_ir import ReplaceIr

MODULE = """module {
  func.func @f(%arg0: f32, %arg1: f32) -> f32 {
    %0 = arith.addf %arg0, %arg1 : f32
    %1 = arith.mulf %0, %0 : f32
    return %1 : f32
  }
}
"""


@pytest.fixture
def module() -> Any:
    """The module above; its first op comes from node `add.0`, its second from `mul.0`."""
    locations = LocationSets()
    with new_context():
        found = ir.Module.parse(MODULE).operation
        function = found.regions[0].blocks[0].operations[0]
        ops = list(function.regions[0].blocks[0].operations)
        for op, name in zip(ops, ("add.0", "mul.0", "output.0"), strict=True):
            op.operation.location = locations.location([name])
        yield found, locations


def edited(module: Any, old: str, new: str) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The text after an edit, and the nodes of each line."""
    operation, locations = module
    with locations.unmapped_location(operation.context):
        ReplaceIr(MODULE.replace(old, new)).run(operation, PassContext(locations))
    operation.verify()
    text = print_mlir(print_with_locations(operation, locations).text, locations)
    return text.content, {
        line.strip(): locations.sets[number]
        for line, number in zip(text.content.splitlines(), text.line_sets, strict=True)
    }


def test_a_changed_line_gets_the_nodes_of_the_line_it_replaces(module: Any) -> None:
    text, nodes = edited(module, "mulf %0, %0", "subf %0, %arg1")
    assert text == MODULE.replace("mulf %0, %0", "subf %0, %arg1")
    assert nodes["%0 = arith.addf %arg0, %arg1 : f32"] == ("add.0",)
    assert nodes["%1 = arith.subf %0, %arg1 : f32"] == ("mul.0",)
    assert nodes["return %1 : f32"] == ("output.0",)


def test_new_lines_come_from_no_node_and_move_the_others_along(module: Any) -> None:
    line = "    %0 = arith.addf %arg0, %arg1 : f32\n"
    _, nodes = edited(module, line, "    %c = arith.constant 1.0 : f32\n" + line)
    assert nodes["%cst = arith.constant 1.000000e+00 : f32"] == ()
    assert nodes["%0 = arith.addf %arg0, %arg1 : f32"] == ("add.0",)


def test_the_attributes_of_the_module_are_replaced(module: Any) -> None:
    operation, _ = module
    operation.attributes["buddy.old"] = ir.UnitAttr.get(operation.context)
    text, _ = edited(module, "module {", "module attributes {buddy.new = 1 : i32} {")
    assert text.startswith("module attributes {buddy.new = 1 : i32} {")


def test_what_does_not_parse_is_told_with_its_place(module: Any) -> None:
    operation, locations = module
    with (
        locations.unmapped_location(operation.context),
        pytest.raises(PassError, match=r"line 4, column \d+: use of undeclared"),
    ):
        ReplaceIr(MODULE.replace("%0, %0", "%0, %nosuch")).run(operation, PassContext(locations))


def test_a_check_names_line_and_column() -> None:
    assert check_ir(MODULE).message == ""
    found = check_ir(MODULE.replace("arith.mulf", "arith.nosuch"))
    assert (found.line, found.column) == (4, 10)
    found = check_ir(MODULE.replace("return %1 : f32", "return"))
    assert found.line == 5
    assert "operands" in found.message
