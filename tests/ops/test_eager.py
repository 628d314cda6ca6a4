"""Ops that no registry lowers: calls into eager, with what is missing told in the table."""

from __future__ import annotations

import warnings

import torch

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR
from tests.ops.cases import aten, normal
from tests.programs import Line, assert_same


def test_the_reason_names_the_key_and_where_to_add_what_is_missing() -> None:
    line = Line(lambda x: torch.histogram(x, 3)[0], normal(5, 5))
    (found,) = [a for a in line.compile().assignments if a.lowering == EAGER]
    assert "the key 'histogram.bin_ct' to `_ops_map`" in found.reason
    assert "compiler/graph/operations/" in found.reason
    assert "docs/how-to/adding-an-operator.md" in found.reason
    assert "torch-mlir: " in found.reason
    assert found.choices == (TORCH_MLIR, EAGER)


def test_results_that_are_no_tensors_and_that_nothing_reads_are_left_out_of_the_call() -> None:
    x, w, g = normal(2, 3, 8, 8), normal(4, 3, 3, 3), normal(2, 4, 6, 6)

    def gradients(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True])
        _, of_weight, of_bias = aten.convolution_backward(g * 2, x, w, [4], *rest)
        return [of_weight + 1, of_bias]

    line = Line(gradients, x, w, g)
    (node,) = [op for op in line.program.graph.operations if op.target == "convolution_backward.default"]
    assert node.metas[0] is None
    recipe = default_recipe().with_choice(node.stable, EAGER)
    assert_same(line.run(recipe), gradients(x, w, g))
    found = {a.node: a.lowering for a in line.compile(recipe).assignments}
    assert list(found.values()).count(EAGER) == 1
    assert found[node.stable] == EAGER


def test_a_backward_pass_with_an_op_in_eager_is_compiled_around_it() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    x = normal(2, 3, 8, 8)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* runs in eager")  # as a whole, that is
        torch.compile(model, backend="buddy")(x).sum().backward()
    assert_same([parameter.grad for parameter in model.parameters()], expected)


def test_an_op_in_eager_sees_lazy_conjugates_at_the_first_call_too() -> None:
    x = torch.complex(normal(5, 5), normal(5, 5))
    assert_same([torch.compile(lambda x: torch.linalg.eigvals(x.mH), backend="buddy")(x)], [torch.linalg.eigvals(x.mH)])


def test_the_mode_of_floats_is_eagers_whose_order_of_nan_is_its_algorithms() -> None:
    nan = torch.nan
    x = torch.tensor([[nan, 2, nan, 2, nan, 1], [1, nan, 1, 2, nan, 2], [nan] * 6])
    found = torch.compile(lambda x: (x.mode(0), x.mode(1)), backend="buddy")(x)
    assert_same([t for pair in found for t in pair], [*x.mode(0), *x.mode(1)])
