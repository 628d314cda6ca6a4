"""The tree of a module in generic form: it prints what MLIR prints, and edits keep the module valid."""

from functools import partial
from typing import Any

import pytest

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.tools.reduce import steps
from buddy.compiler.tools.reduce.edits import signature_of
from buddy.compiler.tools.reduce.generic_ir import GenericFormError, parse
from tests.tools.reduce.large_module import large_module

BRANCHES = """
func.func @f(%a: i32, %c: i1) -> (i32, i32) {
  %x:2 = "some.pair"(%a) {big = dense<"0x0102"> : tensor<2xi8>, text = "a } b"} : (i32) -> (i32, i32)
  cf.cond_br %c, ^one(%x#1 : i32), ^two
^one(%y: i32):
  %z = arith.addi %y, %x#0 : i32
  return %z, %y : i32, i32
^two:
  %s = "some.set"() {set = affine_set<(d0) : (d0 - 1 >= 0)>} : () -> i32
  cf.br ^one(%s : i32)
}
func.func @g(%a: i32, %c: i1) -> i32 {
  %r:2 = call @f(%a, %c) : (i32, i1) -> (i32, i32)
  return %r#0 : i32
}
llvm.func @h(%p: !llvm.ptr, %s: !llvm.struct<(i32, ptr)>) -> i32 {
  %v = llvm.load %p : !llvm.ptr -> i32
  llvm.return %v : i32
}
"""


@pytest.fixture
def context() -> Any:
    context = ir.Context()
    context.allow_unregistered_dialects = True
    return context


def generic(text: str, context: Any) -> str:
    module = ir.Module.parse(text, context)
    return str(module.operation.get_asm(print_generic_op_form=True, assume_verified=True))


@pytest.mark.parametrize("text", [BRANCHES, large_module(ops=40)], ids=["branches", "large"])
def test_the_tree_prints_the_module_that_it_was_parsed_from(text: str, context: Any) -> None:
    tree = parse(generic(text, context))
    assert generic(str(tree), context) == generic(text, context)
    assert str(tree.clone()) == str(tree)


def test_the_removal_of_ops_keeps_the_module_valid(context: Any) -> None:
    """Removed values become arguments, also of the functions that call the changed one."""
    tree = parse(generic(BRANCHES, context))
    names = [op.name for op in tree.walk()]
    for name in ("some.pair", "arith.addi", "some.set", "llvm.load"):
        changed = steps.apply_step(tree, steps.ReductionStep("", partial(steps.remove_ops, [names.index(name)])))
        assert changed is not None
        assert name not in generic(str(changed), context)
    without_pair = steps.apply_step(
        tree, steps.ReductionStep("", partial(steps.remove_ops, [names.index("some.pair")]))
    )
    assert without_pair is not None
    signatures = [signature_of(op) for op in without_pair.walk()]
    assert [len(signature.inputs) for signature in signatures if signature is not None] == [4, 4, 2]


def test_a_branch_that_is_always_taken_removes_the_other_block(context: Any) -> None:
    tree = parse(generic(BRANCHES, context))
    (step, *_) = [
        step for kind in steps.STEP_KINDS for step in kind(tree) if step.what.startswith("always take branch 0")
    ]
    changed = steps.apply_step(tree, step)
    assert changed is not None
    text = generic(str(changed), context)
    assert "some.set" not in text
    assert "cf." not in text


def test_a_text_in_another_form_is_rejected_with_its_line() -> None:
    with pytest.raises(GenericFormError, match="line 2: expected an op in generic form"):
        parse("\nfunc.func @f() { return }")
