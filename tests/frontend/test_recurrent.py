"""Recurrent layers: one node for each layer and direction, a loop in the IR, gradients, dropout, lengths."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from buddy.compiler.frontend.capture import capture
from buddy.compiler.graph.node import Op
from buddy.compiler.protocol.presets import default_recipe, without_packing
from buddy.compiler.protocol.recipe import Recipe
from tests.programs import Line, assert_same, captured
from tests.support.filecheck_text import filecheck

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


def layers_of(operations: Sequence[Op]) -> list[str]:
    return [op.stable for op in operations if op.target.startswith("buddy.")]


def tensors(result: Any) -> list[torch.Tensor]:
    return [t for part in result for t in (part if isinstance(part, tuple) else (part,))]


def text_after(line: Line, recipe: Recipe, stage: str) -> str:
    line.compile(recipe)
    return line.text(stage)


class Tagger(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> Any:
        return self.rnn(x)


def test_each_layer_and_direction_is_one_node_of_its_module() -> None:
    graph = captured(Tagger(nn.LSTM(6, 8, 2, bidirectional=True)).eval(), torch.randn(30, 2, 6)).graph
    assert layers_of(graph.operations) == [f"rnn/lstm_layer.{i}" for i in range(4)]
    assert len(graph.operations) < 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.slow
def test_half_precision_is_at_least_as_accurate_as_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        model, x = kind(6, 37).to(dtype).eval(), torch.randn(12, 5, 6).to(dtype)
        with torch.no_grad():
            exact, eager = copy.deepcopy(model).double()(x.double())[0], model(x)[0].double()
            ours = Line(model, x).run()[0].double()
        assert (ours - exact).abs().max() <= 1.2 * (eager - exact).abs().max()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.LSTM(6, 37, 2, batch_first=True, bidirectional=True), (33, 4, 6)),
        (nn.LSTM(6, 8, 2, proj_size=3, bidirectional=True), (5, 2, 6)),
        (nn.GRU(6, 37, 2, bias=False), (1, 33, 6)),
        (nn.GRU(6, 8, 2, dropout=0.5), (5, 6)),
        (nn.RNN(6, 8, 2, nonlinearity="relu", bidirectional=True), (7, 1, 6)),
    ],
    ids=lambda value: str(value),
)
@pytest.mark.slow
def test_modules_agree_with_eager_on_one_and_two_threads(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with torch.no_grad():
        expected = tensors(model.eval()(x))
        line = Line(model, x)
        for threads in (1, 2):
            assert_same(line.run(replace(default_recipe(), threads=threads)), expected)


@pytest.mark.slow
def test_initial_states_are_inputs() -> None:
    model, x = nn.LSTM(6, 8, 2).eval(), torch.randn(5, 3, 6)
    states = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    with torch.no_grad():
        line = Line(lambda x, h, c: tensors(model(x, (h, c))), x, *states)
        assert_same(line.run(), tensors(model(x, states)))


def test_packed_sequences_are_one_node_where_the_states_are_given() -> None:
    model = nn.GRU(6, 8)
    packed = pack_sequence([torch.randn(n, 6) for n in (7, 5, 5, 1)])

    def run(data: torch.Tensor, sizes: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        return torch.gru(data, sizes, states, model._flat_weights, True, 1, 0.0, False, False)[0]

    with torch.no_grad():
        (graph,) = capture(run, (packed.data, packed.batch_sizes, torch.zeros(1, 4, 8)))
    assert layers_of(graph.graph.operations) == ["gru_layer.0"]


@pytest.mark.slow
def test_one_program_serves_all_lengths_and_batches() -> None:
    model = nn.LSTM(6, 8, 2, bidirectional=True).eval()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="buddy", dynamic=True, options={"fallback": "error"})
        for length, batch in ((5, 3), (1, 1), (33, 2), (2, 33)):
            x = torch.randn(length, batch, 6)
            assert_same(tensors(compiled(x)), tensors(model(x)))


def test_the_steps_are_a_loop_around_one_product_and_one_fused_op() -> None:
    filecheck(
        text_after(Line(nn.LSTM(6, 8).eval(), torch.randn(5, 2, 6)), default_recipe(), "lower"),
        """
        CHECK: linalg.contract
        CHECK-SAME: tensor<10x6xf32>, tensor<32x6xf32>
        CHECK: scf.for
        CHECK: linalg.contract
        CHECK-SAME: tensor<2x8xf32>, tensor<32x8xf32>
        CHECK: linalg.generic
        CHECK-NOT: linalg.generic
        CHECK: tensor.insert_slice
        CHECK: scf.yield
        """,
    )


@pytest.mark.slow
def test_the_recipe_can_unroll_the_steps_or_leave_them_to_eager() -> None:
    model, x = nn.GRU(6, 8).eval(), torch.randn(5, 2, 6)
    line = Line(model, x)
    with torch.no_grad():
        expected = tensors(model(x))
    for choice, loops in (("unrolled", 0), ("eager", 0), ("linalg", 1)):
        recipe = default_recipe().with_choice("gru_layer.0", choice)
        assert text_after(line, recipe, "lower").count("scf.for") == loops
        assert_same(line.run(recipe), expected)


def test_other_precisions_are_refused_with_the_reason() -> None:
    line = Line(nn.LSTM(6, 8).eval(), torch.randn(5, 2, 6))
    assignments = line.compile(replace(default_recipe(), precision="bf16")).assignments
    (layer,) = [assignment for assignment in assignments if assignment.node == "lstm_layer.0"]
    assert "add up from step to step" in layer.precision_reason


@pytest.mark.slow
def test_weights_are_packed_once_before_the_loop() -> None:
    """Without `freeze`, weights are not packed before the call; a kernel would pack them again in each step."""
    line = Line(nn.LSTM(16, 32).eval(), torch.randn(6, 8, 16))
    text = text_after(line, without_packing(default_recipe()), "contractions-to-kernels")
    filecheck(text, "CHECK: call @pack_before_loop\nCHECK: scf.for\nCHECK-NOT: call @pack_before_loop")


@pytest.mark.filterwarnings("error:a graph of")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.slow
def test_gradients_agree_with_eager(kind: Any) -> None:
    model, x = kind(6, 8, 2, bidirectional=True), torch.randn(5, 3, 6)
    theirs = copy.deepcopy(model)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(model, backend="buddy")(x)[0].sin().sum().backward()
    theirs(x)[0].sin().sum().backward()
    assert_same([p.grad for p in model.parameters()], [p.grad for p in theirs.parameters()])


@pytest.mark.parametrize(
    ("model", "layer"),
    [(nn.LSTM(6, 8, bidirectional=True), "lstm"), (nn.GRU(6, 8, bidirectional=True), "gru")],
    ids=["LSTM", "GRU"],
)
def test_with_gradients_each_direction_is_one_node_forward_and_one_backward(model: nn.Module, layer: str) -> None:
    lengths = {}
    for steps in (3, 30):
        graphs = [
            graph.graph.operations
            for graph in capture(lambda x: model(x)[0].sum(), (torch.randn(steps, 2, 6),), grad=True)
        ]
        forward, backward = (sorted(layers_of(operations)) for operations in graphs)
        assert forward == [f"{layer}_layer.{i}" for i in range(2)]
        assert backward == [f"{layer}_layer_backward.{i}" for i in range(2)]
        lengths[steps] = [len(operations) for operations in graphs]
    assert lengths[3] == lengths[30]


@pytest.mark.slow
def test_gradients_of_initial_and_last_states_agree_with_eager_at_each_length() -> None:
    model = nn.LSTM(6, 8, bias=False)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="buddy", dynamic=True, options={"fallback": "error"})
        for length, batch in ((5, 3), (33, 2)):
            x, states = torch.randn(length, batch, 6), torch.randn(2, 1, batch, 8)
            found = []
            for run in (model, compiled):
                leaves = [x.clone().requires_grad_(), *(state.clone().requires_grad_() for state in states)]
                output, (hidden, cell) = run(leaves[0], (leaves[1], leaves[2]))
                loss = output.sin().sum() + hidden.cos().sum() + (cell * 2).sum()
                found.append(torch.autograd.grad(loss, [*leaves, *model.parameters()]))
            assert_same(found[1], found[0])


@pytest.mark.filterwarnings("error:a graph of")
@pytest.mark.slow
def test_layers_with_projections_are_unrolled_with_gradients() -> None:
    model, x = nn.LSTM(6, 8, proj_size=3), torch.randn(4, 3, 6)
    (forward, _) = capture(lambda x: model(x)[0].sum(), (x,), grad=True)
    assert not layers_of(forward.graph.operations)
    with torch._dynamo.config.patch(allow_rnn=True):
        loss = torch.compile(model, backend="buddy")(x)[0].sin().sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert_same(found, torch.autograd.grad(model(x)[0].sin().sum(), list(model.parameters())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.slow
def test_gradients_in_half_precision_are_at_least_as_accurate_as_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for kind in (nn.LSTM, nn.GRU):
        model, x = kind(6, 37).to(dtype), torch.randn(12, 5, 6).to(dtype)
        exact = copy.deepcopy(model).double()

        def gradients(run: Any, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
            found = torch.autograd.grad(run(x)[0].double().sin().sum(), list(module.parameters()))
            return [gradient.double() for gradient in found]

        expected, eager = gradients(exact, exact, x.double()), gradients(model, model, x)
        with torch._dynamo.config.patch(allow_rnn=True):
            ours = gradients(torch.compile(model, backend="buddy"), model, x)
        for a, b, c in zip(ours, eager, expected, strict=True):
            # Both round each weight's gradient once at the end, so that the last digit may go either way.
            assert (a - c).norm() <= 1.2 * (b - c).norm()


@pytest.mark.slow
def test_dropout_between_layers_draws_as_in_eager() -> None:
    """PyTorch's own decomposition ignores it."""
    model, x = nn.GRU(6, 8, 2, dropout=0.5), torch.randn(5, 3, 6)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="buddy", options={"fallback_random": True})
        compiled(x)
        torch.manual_seed(3)
        expected = tensors(model(x))
        torch.manual_seed(3)
        assert_same(tensors(compiled(x)), expected)
