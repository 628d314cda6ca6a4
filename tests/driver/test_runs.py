"""What a compiled program does to its caller: right results, in buffers of the caller's, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import LoadedProgram
from tests.models import stack
from tests.programs import Line, assert_same, step_number, without
from tests.support.filecheck_text import filecheck


@pytest.mark.parametrize("preset", ["default", "upstream"])
@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
def test_inputs_and_weights_are_bit_identical_after_runs(dialect: str, preset: str) -> None:
    line = Line(*stack())
    before = [tensor.clone() for tensor in line.program.tensors]
    program = LoadedProgram(line.compile(default_recipe(dialect=dialect, preset=preset)).artifact)
    for _ in range(3):
        program(line.program.tensors)
    assert all(torch.equal(a, b) for a, b in zip(before, line.program.tensors, strict=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, x])[:3] * 2,
        lambda x: x.view(-1),
        lambda x: x + 0,
        lambda x: torch.relu(x).view(4, 3).t(),
        lambda x: torch.ops.aten.slice_scatter(x, x[:1] * 2, 0, 1, 2),
    ],
)
def test_an_input_that_flows_through_is_not_written_to(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 4)
    line, before = Line(function, x), x.clone()
    (result,) = line.run()
    result.fill_(7)
    assert torch.equal(line.program.tensors[0], before)


def test_results_belong_to_the_caller() -> None:
    line = Line(lambda x: x * 2, torch.randn(5))
    program = LoadedProgram(line.compile().artifact)
    (first,) = program([torch.ones(5)])
    (second,) = program([torch.zeros(5)])
    assert first.tolist() == [2.0] * 5
    assert second.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x, x + 1, x),
        lambda x: (x * 2, (x * 2).detach()),
        lambda x: (torch.relu(x), torch.relu(x).view(-1), torch.relu(x).unsqueeze(0)),
        lambda x: [y := x + 1, y, y.view(-1)],
        lambda x: (x.view(2, 6), x.t(), x[1:]),
    ],
)
@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_results_that_share_memory_in_eager_are_each_right(function: Callable[..., Any], preset: str) -> None:
    line = Line(function, torch.randn(3, 4))
    theirs = line.program.eager(line.program.tensors)
    assert_same(line.run(default_recipe(preset=preset)), theirs)


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_a_model_agrees_with_eager(dialect: str, preset: str) -> None:
    model, x = stack()
    with torch.no_grad():
        theirs = model(x)
    assert_same(Line(model, x).run(default_recipe(dialect=dialect, preset=preset)), [theirs])


def test_changed_weights_are_seen_by_the_next_run() -> None:
    model = nn.Linear(16, 64)
    x = torch.randn(8, 16)
    line = Line(model, x)
    program = LoadedProgram(line.compile().artifact)
    program(line.program.tensors)
    with torch.no_grad():
        model.weight.mul_(2)
        assert_same(program(line.program.tensors), [model(x)])


def test_tensors_without_elements_go_in_and_out() -> None:
    line = Line(lambda x, e: (x + 1, e * 2, torch.cat([x, e])), torch.randn(2, 3), torch.randn(0, 3))
    assert_same(line.run(), line.program.eager(line.program.tensors))


@pytest.mark.parametrize("off", ["plan-memory", "vectorize-generics", "expand-math-to-polynomials", "fuse-elementwise"])
def test_an_optimisation_switched_off_changes_no_result(off: str) -> None:
    model, x = stack()
    with torch.no_grad():
        assert_same(Line(model, x).run(without(default_recipe(), off)), [model(x)])


# ---- ops in eager ----------------------------------------------------------------------------------------------------


def test_an_op_without_a_class_is_called_in_eager() -> None:
    line = Line(lambda x: torch.histogram(x * 2, 3)[0] + 1, torch.randn(3, 3))
    (result,) = line.run()
    assert_same([result], [torch.histogram(line.program.tensors[0] * 2, 3)[0] + 1])
    reasons = {a.node: a.reason for a in line.compile().assignments if a.lowering == EAGER}
    assert list(reasons) == ["histogram.0"]
    assert "has no op class" in reasons["histogram.0"]


def test_an_op_in_eager_is_a_call_of_a_declared_function_in_the_ir() -> None:
    line = Line(lambda x: torch.histogram(x, 3)[0], torch.randn(9))
    line.compile()
    filecheck(
        line.text("lower"),
        """
        CHECK: func.func private @[[EAGER:eager_histogram_bin_ct_[0-9a-f]+]]
        CHECK-SAME: (tensor<9xf32> {bufferization.access = "read"})
        CHECK-SAME: -> (tensor<3xf32>, tensor<4xf32>)
        CHECK-SAME: buddy.eager
        CHECK: func.func @forward(%[[X:[a-z0-9]+]]: tensor<9xf32>
        CHECK: %[[RESULTS:[a-z0-9]+]]:2 = call @[[EAGER]](%[[X]])
        CHECK: return %[[RESULTS]]#0
        """,
    )


def test_a_compiled_node_that_may_call_eager_has_a_slow_or_an_error_path() -> None:
    x, at = torch.randn(5, 5), torch.tensor([3, 0])
    line = Line(lambda x, at: torch.linalg.svdvals(x)[at] // 1, x, at)
    assignments = line.compile().assignments
    paths = {a.node: (a.slow_path, a.error_path) for a in assignments if a.slow_path or a.error_path}
    assert paths == {
        "_linalg_svd.0": ("a matrix has an infinity or NaN, or does not converge in 60 sweeps", ""),
        "index.0": ("", "an index is out of range"),
    }
    assert NodeCounts.of(assignments) == NodeCounts(len(assignments), 0, slow_paths=1, error_paths=1)
    names = [call.symbol.rpartition("_")[0] for call in line.compile().artifact.eager_calls]
    assert sorted(names) == ["error_path_index_Tensor", "slow_path__linalg_svd_default"]
    assert all(f"call @{call.symbol}" in line.text("lower") for call in line.compile().artifact.eager_calls)


def test_a_check_of_a_factorization_is_an_error_path_of_its_node() -> None:
    a = torch.eye(3)
    assignments = Line(lambda a: torch.linalg.cholesky(a), a).compile().assignments
    paths = {a.node: (a.slow_path, a.error_path) for a in assignments if a.slow_path or a.error_path}
    assert paths == {
        "linalg_cholesky_ex.0": ("a matrix is not positive definite", ""),
        "_linalg_check_errors.0": ("", "a factorization has failed"),
    }


def test_a_node_in_eager_has_no_path() -> None:
    line = Line(lambda x: torch.linalg.svdvals(x), torch.randn(3, 3))
    compiled = line.compile(default_recipe().with_choice("_linalg_svd.0", EAGER))
    assert not any(a.slow_path or a.error_path for a in compiled.assignments)
    assert [call.symbol[:5] for call in compiled.artifact.eager_calls] == ["eager"]


def test_equal_eager_calls_share_a_declaration() -> None:
    line = Line(lambda x: torch.histogram(torch.histogram(x, 3)[0], 3)[0], torch.randn(3))
    artifact = line.compile().artifact
    assert len(artifact.eager_calls) == 1


def test_any_op_can_be_kept_in_eager_by_hand() -> None:
    line = Line(lambda x: torch.exp(x) + 1, torch.randn(9))
    recipe = default_recipe().with_choice("exp.0", EAGER)
    assert_same(line.run(recipe), [torch.exp(line.program.tensors[0]) + 1])
    (assignment,) = [a for a in line.compile(recipe).assignments if a.node == "exp.0"]
    assert (assignment.lowering, assignment.reason) == (EAGER, "chosen by hand")


def test_a_lowering_that_gives_up_says_why_and_the_next_one_takes_over() -> None:
    line = Line(lambda x: x / 3, torch.randn(9))
    (assignment,) = line.compile(default_recipe(dialect="tosa")).assignments
    assert assignment.lowering == "linalg"
    assert assignment.reason.startswith("tosa: ")
    assert assignment.choices == ("tosa", "linalg", TORCH_MLIR, EAGER)
    assert "tosa." not in line.text("lower")


@pytest.mark.parametrize("wanted", ["", "mm.0"])
def test_products_by_a_library_agree_with_kernels_in_one_program(wanted: str) -> None:
    a, b, bias = torch.randn(33, 20), torch.randn(20, 17), torch.randn(17)
    line = Line(lambda a, b, bias: (torch.relu(a @ b), torch.addmm(bias, a, b)), a, b, bias)
    recipe = default_recipe()
    index = step_number(recipe, "contractions-to-blas")
    options = (("nodes", wanted),) if wanted else ()
    compilation = line.compile(recipe.with_step(index, enabled=True, options=options))
    said = {node for name, node, text in compilation.remarks if name == "contractions-to-blas" and "17x20" in text}
    assert said == ({"mm.0"} if wanted else {"mm.0", "addmm.0"})
    found = LoadedProgram(compilation.artifact)(line.program.tensors)
    assert_same(found, [torch.relu(a @ b), torch.addmm(bias, a, b)], ["relu", "addmm"])
