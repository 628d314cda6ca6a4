"""Every line of every stage leads to the nodes it comes from, down to instructions."""

from __future__ import annotations

import re

import pytest

from buddy.compiler.presets import default_recipe
from buddy.compiler.protocol import Stage
from buddy.compiler.provenance import LocationSets
from buddy.compiler.text.stage_text import StageText
from tests.models import stack
from tests.programs import Line

# What an MLIR module prints beside ops: the module, ends of regions, attribute aliases, block labels and `else`.
_NO_OP = re.compile(r"^\s*(module|#|\}|\^|$)")
# Functions of the C library are declared once, for no one node's sake.
_DECLARED = re.compile(r"^\s*(llvm\.func|func\.func private) @(free|malloc|erff)\(.*[^{]$")

WAYS = [(flavour, preset) for flavour in ("linalg", "tosa") for preset in ("default", "upstream")]


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def line(request: pytest.FixtureRequest) -> Line:
    line = Line(*stack(2))
    line.compile(default_recipe(flavour=request.param[0], preset=request.param[1]))
    return line


def mlir(line: Line) -> list[tuple[Stage, StageText]]:
    return [(stage, text) for stage, text in line.stages if stage.language == "mlir"]


def of_language(line: Line, language: str) -> StageText:
    return next(text for stage, text in line.stages if stage.language == language)


def pairs(text: StageText) -> list[tuple[str, tuple[str, ...]]]:
    """Each line with the nodes it comes from."""
    return [(found, text.sets[n]) for found, n in zip(text.content.splitlines(), text.line_sets, strict=True)]


def test_every_text_has_a_set_for_each_line(line: Line) -> None:
    for stage, text in line.stages:
        assert len(text.line_sets) == len(text.content.splitlines()), stage.name


def test_every_op_of_every_mlir_stage_leads_to_nodes(line: Line) -> None:
    for stage, text in mlir(line):
        bare = [found for found, nodes in pairs(text) if not nodes and not _NO_OP.match(found)]
        assert [found for found in bare if not _DECLARED.match(found)] == [], stage.name


def test_only_nodes_of_the_graph_are_led_to(line: Line) -> None:
    known = {op.stable for op in line.program.graph.body}
    for stage, text in line.stages:
        assert {name for _, nodes in pairs(text) for name in nodes} <= known, stage.name


def test_every_node_that_computes_is_led_to_by_machine_code(line: Line) -> None:
    found = {name for _, nodes in pairs(of_language(line, "asm")) for name in nodes}
    shape_only = ("view", "getitem", "t", "alias")
    computing = [op for op in line.program.graph.operations if op.target.split(".")[0] not in shape_only]
    assert {op.stable for op in computing} <= found


def test_no_location_marks_are_left_in_the_text(line: Line) -> None:
    for stage, text in mlir(line):
        assert " loc(" not in text.content, stage.name


def test_llvm_ir_has_no_debug_metadata(line: Line) -> None:
    content = of_language(line, "llvm").content
    assert "!dbg" not in content
    assert not re.search(r"^!\d+ =", content, re.MULTILINE)


def test_llvm_ir_defines_every_function_of_the_program(line: Line) -> None:
    content = of_language(line, "llvm").content
    defined = re.findall(r"^define .*@(\w+)\(.*\{$", content, re.MULTILINE)
    assert {"forward", "layers"} <= set(defined)
    assert len(re.findall(r"^\}$", content, re.MULTILINE)) == len(defined)


def test_instructions_of_llvm_ir_lead_to_nodes(line: Line) -> None:
    instructions = [nodes for found, nodes in pairs(of_language(line, "llvm")) if found.startswith("  ")]
    assert sum(map(bool, instructions)) >= 0.95 * len(instructions)


def test_assembly_lists_every_function_of_the_llvm_ir(line: Line) -> None:
    defined = re.findall(r"^define .*@(\w+)\(", of_language(line, "llvm").content, re.MULTILINE)
    listed = re.findall(r"^(\w+):$", of_language(line, "asm").content, re.MULTILINE)
    assert sorted(listed) == sorted(defined)


def test_instructions_lead_to_nodes(line: Line) -> None:
    instructions = [nodes for found, nodes in pairs(of_language(line, "asm")) if found.startswith("  ")]
    assert len(instructions) > 100
    assert sum(map(bool, instructions)) >= 0.9 * len(instructions)


def test_calls_in_assembly_name_their_callee(line: Line) -> None:
    content = of_language(line, "asm").content
    assert re.search(r"call .*# .*layers", content) or re.search(r"# layers$", content, re.MULTILINE)


def test_jumps_in_assembly_go_to_labels_that_are_there(line: Line) -> None:
    content = of_language(line, "asm").content
    for function in re.split(r"\n(?=\w+:\n)", content):
        wanted = set(re.findall(r"\s(\.L[0-9a-f]+)$", function, re.MULTILINE))
        assert wanted <= set(re.findall(r"^(\.L[0-9a-f]+):$", function, re.MULTILINE))


def test_a_set_of_nodes_has_one_number_whatever_their_order() -> None:
    sets = LocationSets()
    assert sets.intern(["b", "a"]) == sets.intern(["a", "b", "a"]) == 1
    assert sets.sets == [(), ("a", "b")]
    assert sets.intern([]) == 0


def test_several_locations_are_the_union_of_their_sets() -> None:
    sets = LocationSets()
    first, second = sets.intern(["a"]), sets.intern(["b"])
    number = sets.number_in(f'fused["graph":{first}:0, callsite("graph":{second}:0 at unknown)]')
    assert sets.sets[number] == ("a", "b")
