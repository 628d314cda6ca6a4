"""LLVM's optimiser pass by pass: what changed, what is skipped, the nodes of each line, and the same results."""

from __future__ import annotations

import pytest

from buddy.compiler.codegen.machines import this_machine
from buddy.compiler.codegen.objects.llvm_passes import OptimiserError, optimise_functions, parse_passes

pytestmark = pytest.mark.process
SUM = """
define i64 @sum(i64 %n, ptr %p) {
entry:
  %total = alloca i64
  store i64 0, ptr %total
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %before = load i64, ptr %total
  %place = getelementptr i64, ptr %p, i64 %i
  %element = load i64, ptr %place
  %after = add i64 %before, %element
  store i64 %after, ptr %total
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  %result = load i64, ptr %total
  ret i64 %result
}
"""


def test_the_module_after_each_pass_that_changes_it() -> None:
    (result,) = optimise_functions([SUM], 2, this_machine(), (), prints=True)
    assert result.data.startswith(b"\x7fELF")
    changes = {each.name: each.text for each in reversed(result.passes) if each.text}
    assert "alloca" in changes[""], "the first one is the input"
    assert "alloca" not in changes["sroa"]
    assert "<2 x i64>" in changes["loop-vectorize"] or "<4 x i64>" in changes["loop-vectorize"]
    unchanged = [each.name for each in result.passes if not each.text]
    assert {"inferattrs", "loop-idiom"} <= set(unchanged)
    assert "loop-vectorize" in result.names


def test_a_disabled_pass_is_skipped_wherever_it_runs() -> None:
    (result,) = optimise_functions([SUM], 2, this_machine(), ("loop-vectorize", "instcombine"), prints=True)
    skipped = [each.name for each in result.passes if each.skipped]
    assert set(skipped) == {"loop-vectorize", "instcombine"}
    assert skipped.count("instcombine") > 3
    last = [each.text for each in result.passes if each.text][-1]
    assert " x i64>" not in last.replace("getelementptr", "")


def test_without_printing_the_passes_are_still_known() -> None:
    (result,) = optimise_functions([SUM], 2, this_machine(), (), prints=False)
    assert not any(each.text for each in result.passes)
    assert "instcombine" in result.names


def test_llvm_rejects_a_module() -> None:
    with pytest.raises(OptimiserError, match="expected type"):
        optimise_functions(["define nonsense"], 2, this_machine(), (), prints=True)


def test_managers_and_analyses_are_no_passes() -> None:
    printed = """\
*** IR Dump At Start ***
define void @f() {
}
BISECT: running pass (1) sroa on f
*** IR Dump After SROAPass on f ***
define void @f() {
; changed
}
*** IR Pass PassManager<llvm::Function> on f ignored ***
*** IR Dump After RequireAnalysisPass<llvm::GlobalsAA, llvm::Module> on [module] omitted because no change ***
*** IR Dump After CoroEarlyPass on [module] omitted because no change ***
BISECT: NOT running pass (2) gvn on f
"""
    passes = parse_passes(printed)
    assert [(each.name, each.skipped) for each in passes] == [
        ("", False), ("sroa", False), ("coro-early", False), ("gvn", True),
    ]  # fmt: skip
    assert passes[1].text == "define void @f() {\n; changed\n}\n"
