"""`options={"verify": …}`: what compiled code gets wrong is said at the first call, by the node that is wrong."""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend import VerificationError
from buddy.compiler.frontend.backend_settings import VERIFY_VARIABLE, BackendSettings
from buddy.compiler.passes import base
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("error:a graph of")]

PLANTS = Path(__file__).parent.parent / "tools" / "bisect" / "plants"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it; what importing registers stays."""
    own_passes()
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def planted(file: str, name: str, after: str) -> Recipe:
    """The default recipe with the pass of a file of faults behind the step `after`."""
    recipe = default_recipe()
    runpy.run_path(str(PLANTS / f"{file}.py"))
    place = next(index for index, step in enumerate(recipe.steps) if step.name == after)
    step = PassStep(name, "mlir", "builtin.module", phase=recipe.steps[place].phase)
    return recipe.__replace__(steps=(*recipe.steps[: place + 1], step, *recipe.steps[place + 1 :]))


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="buddy", options=options)


def signs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ y - x).sum(-1)


INPUTS = torch.linspace(-1, 1, 64).reshape(8, 8), torch.linspace(2, -1, 64).reshape(8, 8)


@pytest.fixture
def wrong() -> Recipe:
    return planted("flip_one_sign", "flip-one-sign", "fuse-elementwise")


def test_a_wrong_result_is_an_error_that_names_the_node_and_its_line(wrong: Recipe) -> None:
    with pytest.raises(VerificationError, match="result 0 of a compiled graph differs from eager's") as caught:
        compiled(signs, recipe=wrong, verify=True)(*INPUTS)
    told = caught.value.diagnostic
    assert told.node == "sub.0"
    assert told.where.startswith("node sub.0, ")
    assert "test_verify.py" in told.where
    assert "'choices': {'sub.0': 'eager'}" in told.todo


def test_what_the_error_says_to_do_helps(wrong: Recipe) -> None:
    function = compiled(signs, recipe=wrong, verify=True, choices={"sub.0": "eager"})
    torch.testing.assert_close(function(*INPUTS), signs(*INPUTS))


def test_without_it_the_wrong_result_is_returned(wrong: Recipe) -> None:
    assert not torch.allclose(compiled(signs, recipe=wrong)(*INPUTS), signs(*INPUTS))


def test_every_call_raises_until_one_agrees(wrong: Recipe) -> None:
    function = compiled(lambda x, y: x - y, recipe=wrong, verify=True)
    for _ in range(2):
        with pytest.raises(VerificationError):
            function(*INPUTS)
    same = INPUTS[0], INPUTS[0].clone()
    assert torch.equal(function(*same), torch.zeros(8, 8))
    function(*INPUTS)  # not compared any more


def test_warn_goes_on_in_eager(wrong: Recipe) -> None:
    function = compiled(signs, recipe=wrong, verify="warn")
    with pytest.warns(UserWarning, match=r"runs in eager: .*node sub\.0"):
        first = function(*INPUTS)
    assert torch.equal(first, function(*INPUTS))
    torch.testing.assert_close(first, signs(*INPUTS))


def test_the_environment_asks_for_it_and_an_option_goes_before_it(
    wrong: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VERIFY_VARIABLE, "1")
    with pytest.raises(VerificationError):
        compiled(signs, recipe=wrong)(*INPUTS)
    torch._dynamo.reset()
    compiled(signs, recipe=wrong, verify=False)(*INPUTS)
    monkeypatch.setenv(VERIFY_VARIABLE, "warn")
    assert BackendSettings.of({}).verify == "warn"
    monkeypatch.setenv(VERIFY_VARIABLE, "sometimes")
    with pytest.raises(
        ValueError, match=f"{VERIFY_VARIABLE} is 'sometimes' in the environment; it may be 1, warn or 0"
    ):
        BackendSettings.of({})


@pytest.mark.parametrize("value", ["error", "yes", 1, None])
def test_another_value_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"verify is .*; it may be True .raise an error"):
        BackendSettings.of({"verify": value})


def test_a_gradient_that_is_wrong_is_one_of_the_backward_graph(wrong: Recipe) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).sum()

    x = INPUTS[0].clone().requires_grad_()
    function = compiled(loss, recipe=wrong, verify=True)(x)
    with pytest.raises(VerificationError, match="result 0"):  # 1 - tanh(x)²
        function.backward()


# ---- what is right is not called wrong -------------------------------------------------------------------------------


@pytest.fixture
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5)
        self.down = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(self.norm(torch.nn.functional.gelu(self.up(x)))))


@pytest.mark.parametrize("freeze", [False, True])
def test_a_training_step_and_an_evaluation_agree(strict: None, freeze: bool) -> None:
    model, eager, x = Block(), Block(), torch.randn(8, 16)
    eager.load_state_dict(model.state_dict())
    function = compiled(model, verify=True, freeze=freeze, fallback_random=True)
    for side in (function, eager):
        torch.manual_seed(3)  # the comparison draws no further numbers from the generator
        side(x).sum().backward()
        side(x)
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)  # written twice, not four times
    model.eval(), eager.eval()
    with torch.no_grad():
        torch.testing.assert_close(function(x), eager(x))


def add_in_place(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def test_an_input_is_written_to_once(strict: None) -> None:
    x = torch.zeros(4)
    assert torch.equal(compiled(add_in_place, verify=True)(x), torch.full((4,), 2.0))
    assert torch.equal(x, torch.ones(4))


def test_views_keep_their_memory(strict: None) -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y[:3], y[1:]

    a, b = compiled(two, verify=True)(torch.zeros(4))
    a.add_(100)
    assert b.tolist() == [101, 101, 1]


@pytest.mark.parametrize("fallback_random", [False, True])
def test_random_numbers_are_those_without_verifying(strict: None, fallback_random: bool) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.dropout(x, 0.5)

    found = []
    for verify in (True, False):
        torch._dynamo.reset()
        torch.manual_seed(5)
        function = compiled(noisy, verify=verify, fallback_random=fallback_random)
        found.append((function(INPUTS[0]), function(INPUTS[0])))
    torch.testing.assert_close(*found)


def test_under_autocast_both_sides_convert(strict: None) -> None:
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)
    function = torch.compile(layer, backend="buddy", options={"verify": True})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert function(x).dtype is torch.bfloat16


def test_sizes_that_change_and_numbers(strict: None) -> None:
    function = torch.compile(lambda x, n: (x * n).softmax(-1), backend="buddy", dynamic=True, options={"verify": True})
    for rows, number in ((3, 2), (5, 2), (9, 4)):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(function(x, number), (x * number).softmax(-1))


def test_a_graph_in_pieces_is_compared_piece_by_piece(strict: None) -> None:
    def pieces(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x.relu()).float().sum(0) * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = compiled(pieces, verify=True)
        torch.testing.assert_close(function(INPUTS[0]), pieces(INPUTS[0]))


def test_not_a_number_equals_itself(strict: None) -> None:
    x = torch.tensor([1.0, -1.0, torch.inf, torch.nan])
    torch.testing.assert_close(compiled(torch.log, verify=True)(x), torch.log(x), equal_nan=True)
