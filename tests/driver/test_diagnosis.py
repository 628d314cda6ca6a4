"""The sentences of diagnostics: what happened, where, and the passes that they say to switch on or to move."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from buddy.compiler.codegen.objects import ObjectCrash
from buddy.compiler.codegen.objects.llvm_passes import OptimiserError
from buddy.compiler.driver import diagnosis
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import NodeError, new_context
from buddy.compiler.passes.pass_runner import PassRunError
from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.presets import MODULE
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.text.lines import StageText

EXP = "llvm.func @f(%x: f32) {\n  %a = math.exp %x : f32\n  llvm.return\n}"
EXP_TWICE = "llvm.func @f(%x: f32) {\n  %a = math.exp %x : f32\n  %b = math.exp %a : f32\n  llvm.return\n}"
CAST = "llvm.func @f(%x: f32) {\n  %a = builtin.unrealized_conversion_cast %x : f32 to i32\n  llvm.return\n}"
EXP_AND_CASTS = """llvm.func @f(%x: f32) {
  %a = math.exp %x : f32
  %b = builtin.unrealized_conversion_cast %a : f32 to i32
  %c = builtin.unrealized_conversion_cast %a : f32 to i32
  llvm.return
}"""
EXP_AND_SIN = EXP.replace("  llvm.return", "  %b = math.exp %a : f32\n  %c = math.sin %b : f32\n  llvm.return")
EXP_SIN_AND_COS = EXP_AND_SIN.replace("  llvm.return", "  %d = math.cos %c : f32\n  llvm.return")
# In the others the ops are dead code, which simplifications remove.
LIVE = EXP.replace("  llvm.return", "  llvm.call @g(%a) : (f32) -> ()\n  llvm.return") + "\nllvm.func @g(f32)"
TO_LLVM = PassStep("convert-math-to-llvm", "mlir", MODULE, phase="llvm")
TO_LIBM = PassStep("convert-math-to-libm", "mlir", MODULE, phase="llvm")


def off(step: PassStep) -> PassStep:
    return PassStep(step.name, step.level, step.anchor, step.options, enabled=False, phase=step.phase)


@pytest.fixture
def context() -> Iterator[None]:
    with new_context(), ir.Location.unknown():
        yield


def leftover(text: str, *steps: PassStep, preset: str = "") -> Diagnostic | None:
    module = ir.Module.parse(f"module {{ {text} }}").operation
    found = diagnosis.leftover_ops(module, Recipe(steps=steps, preset=preset), LocationSets())
    assert str(module) == str(ir.Module.parse(f"module {{ {text} }}")), "the passes are tried on a copy"
    return found


# ---- ops that are left over ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("context")
def test_a_module_of_the_llvm_dialect_has_nothing_left_over() -> None:
    assert leftover("llvm.func @f() { llvm.return }", off(TO_LLVM)) is None
    assert leftover("") is None


@pytest.mark.usefixtures("context")
def test_kernels_are_for_another_machine() -> None:
    found = leftover("gpu.module @k { }")
    assert found is not None
    assert "buddy-tui run" in found.todo


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    ("text", "what", "count"),
    [
        (EXP, "math.exp is not lowered to the LLVM dialect", 1),
        (EXP_TWICE, "math.exp is not lowered to the LLVM dialect", 2),
        (EXP_AND_SIN, "math.exp and 1 other kind of op are not lowered to the LLVM dialect", 2),
        (EXP_SIN_AND_COS, "math.exp and 2 other kinds of op are not lowered to the LLVM dialect", 2),
        (EXP_AND_CASTS, "math.exp is not lowered to the LLVM dialect", 1),
        (CAST, "builtin.unrealized_conversion_cast is not lowered to the LLVM dialect", 1),
    ],
    ids=["one", "two", "two kinds", "three kinds", "an op and casts", "a cast"],
)
def test_the_most_frequent_op_is_named_and_casts_only_if_nothing_else_is_left(text: str, what: str, count: int) -> None:
    """Casts wait for the conversions of what is left."""
    found = leftover(text)
    assert found is not None
    assert (found.what, found.where, found.node) == (what, f"after the last pass, {count} of them", "")


@pytest.mark.usefixtures("context")
def test_what_to_do_is_to_switch_on_a_pass_that_converts_the_op() -> None:
    expected = {
        (off(TO_LLVM),): "switch on convert-math-to-llvm",
        (off(TO_LLVM), off(TO_LIBM)): "switch on convert-math-to-llvm or convert-math-to-libm",
        (off(TO_LLVM), TO_LIBM): "switch on convert-math-to-llvm",
        (off(PassStep("canonicalize")),): "add a pass that converts math.exp to the LLVM dialect",
        (off(PassStep("no-such-pass")),): "add a pass that converts math.exp to the LLVM dialect",
        (off(PassStep("convert-math-to-llvm", "graph")),): "add a pass that converts math.exp to the LLVM dialect",
        (): "add a pass that converts math.exp to the LLVM dialect",
    }
    for steps, todo in expected.items():
        found = leftover(LIVE, *steps)
        assert found is not None
        assert found.todo == todo


@pytest.mark.usefixtures("context")
def test_a_pass_that_the_recipe_lacks_is_one_of_its_preset() -> None:
    found = leftover(EXP, preset="default")
    assert found is not None
    assert "convert-math-to-llvm" in found.todo.removeprefix("switch on ").split(" or ")
    unknown = leftover(EXP, preset="no-such-preset")
    assert unknown is not None
    assert unknown.todo.startswith("add a pass")


@pytest.mark.usefixtures("context")
def test_a_conversion_that_ran_before_the_op_was_there_is_to_be_moved() -> None:
    early = "move convert-math-to-llvm after the pass that creates math.exp, or add it there again"
    found = leftover(EXP, TO_LLVM)
    assert found is not None
    assert found.todo == early
    # A pass of an early phase is no conversion that is too early, nor is one that only simplifies.
    for step in (PassStep("convert-math-to-llvm", "mlir", MODULE, phase="fused"), PassStep("cse", phase="llvm")):
        found = leftover(EXP if step.name == "cse" else LIVE, step)
        assert found is not None
        assert found.todo == "add a pass that converts math.exp to the LLVM dialect"


@pytest.mark.usefixtures("context")
def test_casts_that_stay_are_of_conversions_that_disagree() -> None:
    """Moving a pass does not help: the types on both sides of a cast are final."""
    found = leftover(CAST, PassStep("reconcile-unrealized-casts", "mlir", MODULE, phase="llvm"))
    assert found is not None
    assert "index-bitwidth: their types must match" in found.todo


@pytest.mark.usefixtures("context")
def test_the_pass_that_would_convert_an_op_is_found_by_the_error_of_another() -> None:
    module = ir.Module.parse(f"module {{ {LIVE} }}").operation
    recipe, error = (
        Recipe(steps=(off(TO_LLVM),), preset=""),
        PassRunError("failed to legalize operation 'math.exp' that was"),
    )
    assert diagnosis.converters_of(error, module, recipe, LocationSets()) == ["convert-math-to-llvm"]
    other = PassRunError("failed to legalize operation 'math.sin'")
    assert diagnosis.converters_of(other, module, recipe, LocationSets()) == []
    assert diagnosis.converters_of(PassRunError("out of memory"), module, recipe, LocationSets()) == []


# ---- nodes, steps, and the stage that changed an op ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "where"),
    [
        (("mm.0", "mm", "net.py:3"), "node mm.0 (aten.mm), net.py:3"),
        (("mm.0", "mm", ""), "node mm.0 (aten.mm)"),
        (("", "mm_1", ""), "node mm_1 (aten.mm)"),
    ],
)
def test_a_node_is_named_with_its_place_in_the_program(node: tuple[str, str, str], where: str) -> None:
    stable, name, location = node
    op: Any = SimpleNamespace(stable=stable, name=name, location=location, target="aten.mm")
    found = diagnosis.of_node(NodeError(op, "it has no lowering"))
    assert (found.what, found.where, found.node) == ("it has no lowering", where, stable)


def test_a_step_is_named_by_its_number_from_one_and_its_options() -> None:
    step = PassStep("canonicalize", options=(("max-iterations", 3),))
    bare = diagnosis.of_step(PassRunError("it failed", "all of it"), step, 4)
    assert (bare.what, bare.detail, bare.step, bare.node) == ("it failed", "all of it", 4, "")
    assert bare.where == "pass 5 canonicalize{max-iterations=3}"
    assert bare.todo == "compare the IR before and at the failure, change the pass's options, or switch it off"
    full = diagnosis.of_step(PassRunError("it failed", node="mm.0"), step, 0, ("a", "b"), "fuse-rows")
    assert full.where == (
        "pass 1 canonicalize{max-iterations=3}, on an op of mm.0, which fuse-rows last rewrote"
    )  # fmt: skip
    assert (full.todo, full.node) == (f"switch on a or b, or {bare.todo}", "mm.0")


def stage(name: str, content: str, line_sets: tuple[int, ...]) -> tuple[Stage, StageText]:
    return Stage(0, name, "", "", 0), StageText(content, line_sets, ((), ("mm.0",), ("exp.0",)))


def test_the_last_stage_that_changed_an_op_is_named_whatever_the_names_of_values() -> None:
    trail = [
        stage("lower", "%0 = a\n%1 = b", (1, 2)),
        stage("first", "%0 = c\n%1 = b", (1, 2)),
        stage("second", "%7 = c\n%8 = d", (1, 2)),
        stage("third", "%8 = d\n%9 = c", (2, 1)),
    ]
    assert diagnosis.last_rewriter(1, trail) == "first"
    assert diagnosis.last_rewriter(2, trail) == "second"
    assert diagnosis.last_rewriter(3, trail) == ""
    assert diagnosis.last_rewriter(1, trail[:1]) == ""
    doubled = [*trail, stage("fourth", "%8 = d\n%9 = c\n%10 = c", (2, 1, 1))]
    assert diagnosis.last_rewriter(1, doubled) == "fourth", "one more of the same is a change"


def test_an_error_keeps_the_stages_up_to_the_failure() -> None:
    trail = [stage("lower", "%0 = a", (1,))]
    assert diagnosis.CompilationError(diagnosis.no_entry("forward"), trail).stages == trail
    assert diagnosis.CompilationError(diagnosis.no_entry("forward")).stages == []


# ---- LLVM, backends, and calling the entry function ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [("\n  \nerror: a\nerror: b", "error: a"), ("", "no reason given"), ("\n \n", "no reason given")],
)
def test_a_translation_that_fails_gives_its_first_line_and_keeps_the_rest(text: str, what: str) -> None:
    found = diagnosis.of_translation(text)
    assert (found.what, found.detail, found.where) == (what, text, "translation to LLVM IR")
    assert found.todo == "look at the last stage: every op must be of the LLVM dialect"


def test_a_crash_and_a_failure_of_llvm_say_where() -> None:
    found = diagnosis.of_crash(ObjectCrash("forward", "SIGSEGV"))
    assert (found.what, found.where) == ("LLVM crashed (SIGSEGV)", "machine code of @forward")
    found = diagnosis.of_optimiser(OptimiserError("no such target\nand more"))
    assert (found.what, found.detail) == ("LLVM's optimiser failed: no such target", "no such target\nand more")
    assert found.where == "LLVM's passes"


def test_a_pass_that_llvm_does_not_have_is_named_with_up_to_three_similar_ones() -> None:
    found = diagnosis.unknown_llvm_pass(
        "loop-unrol", ("loop-unroll", "loop-unroll-a", "loop-unroll-b", "loop-unr", "x")
    )
    similar = found.todo.removeprefix("did you mean ").partition("? ")[0].split(", ")
    assert similar[0] == "loop-unroll"
    assert len(similar) == 3
    assert found.what == "LLVM's pipeline has no pass 'loop-unrol' at this optimization level"
    assert diagnosis.unknown_llvm_pass("abc", ("xyz",)).todo.startswith("the stages with llvm_stages name")


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    found = diagnosis.unknown_backend("tvm", ("native", "iree"))
    assert (found.what, found.todo.partition(",")[0]) == ("unknown backend 'tvm'", "choose one of native")
    assert "native, iree, or load the plug-in" in found.todo


def test_an_error_of_a_plug_in_is_placed_at_the_line_that_raised_it() -> None:
    def inner() -> None:
        raise KeyError("nothing")

    with pytest.raises(KeyError) as caught:
        inner()
    found = diagnosis.of_plugin_backend("mine", caught.value)
    line = inner.__code__.co_firstlineno + 1
    assert (found.what, found.where) == ("the backend mine raised KeyError: 'nothing'", f"{__file__}:{line}")
    assert found.detail.startswith("Traceback")


def test_what_cannot_be_called_is_named_with_what_would_make_it_callable() -> None:
    found = diagnosis.no_entry("forward")
    assert found.what.startswith("@forward never had buffers as arguments")
    assert "one-shot-bufferize" in found.todo
    found = diagnosis.wrong_convention("forward", 3)
    assert found.what.startswith("@forward does not take its 3 buffers")
    assert found.where == "convert-func-to-llvm"
    found = diagnosis.unchained_packing("forward")
    assert found.where == "hoist-parameters, contractions-to-kernels"
    assert "chain-packings" in found.todo
    assert diagnosis.no_lowerings("stablehlo").what == "no registry lowers ops to stablehlo"
    found = diagnosis.wrong_result_size("add.0", 1, 32, 16)
    assert (found.what, found.node) == ("result 1 is 32 bytes, but the caller's buffer has 16", "add.0")
