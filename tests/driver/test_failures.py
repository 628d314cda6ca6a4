"""A compilation that cannot be: a diagnostic says what, where and what to do, and the IR at the failure is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch

from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.compilation import CompilationError, Compiler
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes import base
from buddy.compiler.passes.base import MlirPass, PassContext
from buddy.compiler.protocol.presets import MODULE, default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe
from tests.programs import Line, captured, step_number, with_options, without


@pytest.fixture(scope="module")
def line() -> Line:
    return Line(lambda x, y: torch.softmax(x @ y, -1), torch.randn(3, 4), torch.randn(4, 5))


def inserted(step: PassStep, before: str, recipe: Recipe | None = None) -> Recipe:
    """The default recipe, or another, with one more step."""
    recipe = recipe or default_recipe()
    place = step_number(recipe, before)
    return msgspec.structs.replace(recipe, steps=(*recipe.steps[:place], step, *recipe.steps[place:]))


def test_an_unknown_pass_is_named_with_its_place(line: Line) -> None:
    recipe = inserted(PassStep("no-such-pass", phase="fused"), "fuse-elementwise")
    diagnostic = line.fail(recipe).diagnostic
    assert diagnostic.what == "unknown pass"
    assert "no-such-pass" in diagnostic.where
    assert diagnostic.step == step_number(recipe, "no-such-pass")
    assert diagnostic.todo


def test_an_unknown_graph_pass_is_named(line: Line) -> None:
    diagnostic = line.fail(inserted(PassStep("no-such-pass", "graph", ""), "tosa-to-linalg")).diagnostic
    assert diagnostic.what == "unknown graph pass"
    assert "no-such-pass" in diagnostic.where


@pytest.mark.parametrize(
    ("name", "option", "said"),
    [
        ("canonicalize", ("max-iterations", "many"), "max-iterations: 'many' value invalid"),
        ("canonicalize", ("region-simplify", "wrong"), "region-simplify: Cannot find option named 'wrong'"),
        ("canonicalize", ("no-such-option", 1), "no-such-option"),
        ("plan-memory", ("no-such-option", 1), "no option 'no-such-option'"),
        ("contractions-to-kernels", ("packing", 1), "it has "),
    ],
)
def test_a_wrong_option_is_named(line: Line, name: str, option: tuple[str, Any], said: str) -> None:
    diagnostic = line.fail(with_options(default_recipe(), name, option)).diagnostic
    assert name in diagnostic.where
    assert said in diagnostic.what


def test_a_wrong_anchor_is_named(line: Line) -> None:
    recipe = default_recipe()
    number = step_number(recipe, "plan-memory")
    diagnostic = line.fail(recipe.with_step(number, anchor="func.func")).diagnostic
    assert "runs on builtin.module, not on func.func" in diagnostic.what


def test_a_pass_of_mlir_that_fails_says_why_and_of_which_node(line: Line) -> None:
    """On tensors, arithmetic leaves the bodies of contractions before the contractions themselves."""
    error = line.fail(inserted(PassStep("convert-arith-to-llvm", "mlir", MODULE, phase="fused"), "one-shot-bufferize"))
    ((stage, _),) = error.stages
    assert (stage.name, stage.state) == ("convert-arith-to-llvm", "failed")
    assert re.search(r"in the body \('linalg\.\w+'\)", error.diagnostic.what)
    assert error.diagnostic.node == "mm.0"
    assert "mm.0" in error.diagnostic.where
    assert f"which {_rewriter_of(line, 'mm.0')} last rewrote" in error.diagnostic.where


def _rewriter_of(line: Line, node: str) -> str:
    """The last stage that changed how the ops of a node read, whatever the numbers of their values."""
    found, before = "", None
    for stage, text in line.stages:
        if stage.language == "mlir":
            numbered = zip(text.content.splitlines(), text.line_sets, strict=True)
            now = [re.sub(r"%\w+", "%", one) for one, k in numbered if text.sets[k] == (node,)]
            found = stage.name if before is not None and sorted(now) != before else found
            before = sorted(now)
    return found


def test_a_pass_of_mlir_that_fails_without_a_word_is_said_to(line: Line) -> None:
    options = (("max-num-rewrites", 1), ("test-convergence", True))
    never = PassStep("canonicalize", "mlir", MODULE, options, phase="llvm")
    assert line.fail(inserted(never, "convert-cf-to-llvm")).diagnostic.what == "it failed without a message"


def test_a_conversion_that_comes_too_early_is_named(line: Line) -> None:
    recipe = default_recipe()
    place = step_number(recipe, "convert-arith-to-llvm")
    early, rest = recipe.steps[place], (*recipe.steps[:place], *recipe.steps[place + 1 :])
    recipe = inserted(early, "convert-scf-to-cf", msgspec.structs.replace(recipe, steps=rest))
    assert line.fail(recipe).diagnostic.todo.startswith("move convert-arith-to-llvm after the pass that creates")


def test_memory_is_planned_before_loops_are_branches(line: Line) -> None:
    recipe = inserted(PassStep("convert-scf-to-cf", "mlir", MODULE, phase="kernels"), "plan-memory")
    what = line.fail(recipe).diagnostic.what
    assert re.fullmatch(r"@\w+ has several blocks: move plan-memory before convert-scf-to-cf", what)


def test_what_has_no_room_for_its_results_is_not_run() -> None:
    line = Line(lambda x: torch.exp(x) + 1, torch.randn(4))
    line.compile()
    wide = re.sub(r"return %\w+ : tensor<4xf32>", "%w = tensor.empty() : tensor<8xf32>\nreturn %w : tensor<8xf32>",
                  line.text("lower").replace("-> tensor<4xf32> {", "-> tensor<8xf32> {"))  # fmt: skip
    step = PassStep("replace-ir", "mlir", MODULE, (("text", wide),), phase="toplevel")
    diagnostic = line.fail(inserted(step, "fuse-elementwise")).diagnostic
    assert diagnostic.what == "result 0 is 32 bytes, but the caller's buffer has 16"
    assert diagnostic.node == "add.0"


@dataclass(frozen=True)
class Faulty(MlirPass):
    name = "faulty"
    summary = "breaks the module, or raises"
    how: str = "raise"

    def run(self, root: Any, context: PassContext) -> None:
        function = next(op for op in root.regions[0].blocks[0] if op.operation.name == "func.func")
        if self.how == "raise":
            raise KeyError("nothing here")
        list(function.operation.regions[0].blocks[0].operations)[-1].operation.erase()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base._REGISTRY, "faulty", Faulty)
    monkeypatch.setattr("buddy.compiler.passes.pass_runner.own_passes", base.registered_passes)


@pytest.mark.usefixtures("faulty")
def test_ir_that_does_not_verify_is_kept_as_the_pass_left_it(line: Line) -> None:
    step = PassStep("faulty", options=(("how", "break"),), phase="fused")
    error = line.fail(inserted(step, "fuse-elementwise"))
    ((stage, text),) = error.stages
    assert (stage.name, stage.state, stage.phase) == ("faulty", "failed", "fused")
    assert "func.func @forward" in text.content
    assert "return" not in text.content
    assert "terminator" in f"{error.diagnostic.what} {error.diagnostic.detail}"
    assert line.stages[-1][0].name == "fold-transposes"


@pytest.mark.usefixtures("faulty")
def test_a_fault_in_a_pass_of_ours_is_a_diagnostic(line: Line) -> None:
    error = line.fail(inserted(PassStep("faulty", phase="fused"), "fuse-elementwise"))
    assert "KeyError" in error.diagnostic.what
    assert "faulty" in error.diagnostic.where
    assert "Traceback" in error.diagnostic.detail


@pytest.mark.parametrize(
    "name", ["convert-arith-to-llvm", "finalize-memref-to-llvm", "convert-cf-to-llvm", "convert-scf-to-cf"]
)
def test_ops_left_over_name_the_pass_that_would_convert_them(line: Line, name: str) -> None:
    diagnostic = line.fail(without(default_recipe(), name)).diagnostic
    assert "not lowered to the LLVM dialect" in diagnostic.what
    assert name in diagnostic.todo


def test_casts_between_types_that_do_not_meet_are_told_of_before_anything_translates_them(line: Line) -> None:
    """Translating one ends the process."""
    recipe = with_options(default_recipe(), "convert-arith-to-llvm", ("index-bitwidth", 4))
    diagnostic = line.fail(recipe).diagnostic
    assert "builtin.unrealized_conversion_cast is not lowered" in diagnostic.what
    assert "index-bitwidth" in diagnostic.todo


@pytest.mark.parametrize("name", ["convert-arith-to-llvm", "finalize-memref-to-llvm", "convert-cf-to-llvm"])
def test_ops_left_over_name_the_node_they_come_from(name: str) -> None:
    """Each of the two nodes leaves ops of several kinds."""
    line = Line(lambda x: torch.cumsum(torch.sort(x, -1)[0], -1), torch.randn(3, 4))
    diagnostic = line.fail(without(default_recipe(), name)).diagnostic
    node = _first_node_of(diagnostic.what.split()[0], line)
    assert diagnostic.node == node
    assert diagnostic.where.endswith(f", the first from {node}")


def _first_node_of(kind: str, line: Line) -> str:
    """The node of the first op of that kind in the last stage's text."""
    _, text = line.stages[-1]
    numbered = zip(text.content.splitlines(), text.line_sets, strict=True)
    return next(text.sets[number][0] for one, number in numbered if kind in re.findall(r"[\w.]+", one))


LEFT_OVER = """
llvm.func @f(%x: f32) {
  %a = math.sin %x : f32 loc("graph":1:0)
  %b = math.exp %a : f32 loc("graph":2:0)
  %c = math.exp %b : f32 loc("graph":3:0)
  %d = math.cos %c : f32 loc("graph":4:0)
  llvm.return
}
"""


def test_of_ops_left_over_the_first_of_the_kind_named_gives_the_node() -> None:
    locations = LocationSets()
    # The first exp is of node exp.0 alone: a.0 is derived from the ops around it.
    for own, derived in ((["sin.0"], []), (["exp.0"], ["a.0"]), (["exp.1"], []), (["cos.0"], [])):
        locations.intern(own, derived)
    with ir.Context(), ir.Location.unknown():
        diagnostic = diagnosis.leftover_ops(ir.Module.parse(LEFT_OVER).operation, Recipe(), locations)
    assert diagnostic is not None
    assert diagnostic.what == "math.exp and 2 other kinds of op are not lowered to the LLVM dialect"
    assert diagnostic.where == "after the last pass, 2 of them, the first from exp.0"
    assert diagnostic.node == "exp.0"


@pytest.mark.parametrize("name", ["results-to-out-params", "one-shot-bufferize"])
@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_without_bufferization_the_diagnostic_says_what_to_switch_on(line: Line, name: str, preset: str) -> None:
    diagnostic = line.fail(without(default_recipe(preset=preset), name)).diagnostic
    assert name in f"{diagnostic.what} {diagnostic.todo}"


def test_without_bare_pointers_the_diagnostic_names_the_option(line: Line) -> None:
    diagnostic = line.fail(with_options(default_recipe(), "convert-func-to-llvm")).diagnostic
    assert "use-bare-ptr-memref-call-conv" in diagnostic.todo


def test_a_recipe_without_steps_says_what_is_left(line: Line) -> None:
    diagnostic = line.fail(Recipe()).diagnostic
    assert "not lowered to the LLVM dialect" in diagnostic.what


def outcome(line: Line, recipe: Recipe) -> str:
    """What a person is told to do, or "compiled"."""
    try:
        line.compile(recipe)
    except CompilationError as error:
        return error.diagnostic.what and error.diagnostic.todo
    return "compiled"


@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_any_one_pass_switched_off_compiles_or_says_what_to_do(line: Line, preset: str) -> None:
    recipe = default_recipe(preset=preset)
    for index, step in enumerate(recipe.steps):
        assert outcome(line, recipe.toggled(index)), step.name


def test_the_compiler_goes_on_after_a_failure(line: Line) -> None:
    line.fail(without(default_recipe(), "one-shot-bufferize"))
    assert line.run()[0].shape == (3, 5)


def test_a_node_that_can_neither_be_compiled_nor_called_is_named() -> None:
    graph = captured(lambda x: torch.histogram(x, 3)[0], torch.randn(9)).graph
    node = graph.operations[0]
    node.metas = (None,)
    with pytest.raises(CompilationError) as error:
        Compiler(graph).compile(default_recipe())
    assert "a result that is not a tensor" in error.value.diagnostic.what
    assert node.stable in error.value.diagnostic.where
    assert error.value.diagnostic.node == node.stable
