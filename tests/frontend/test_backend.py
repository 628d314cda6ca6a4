"""`torch.compile(f, backend="buddy")`: values, gradients, other shapes, mutation, fallback, and memory."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend import compiled_graph
from buddy.compiler.frontend.backend import BackendSettings

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ERROR = {"fallback": "error"}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function compiled, where a graph that silently stayed in eager is an error."""
    return torch.compile(function, backend="buddy", options={**ERROR, **options})


def agree(function: Callable[..., Any], *args: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(*args), function(*args))


# A graph that falls back to eager agrees with eager, and shows nothing.
NO_FALLBACK = pytest.mark.filterwarnings("error:a graph of")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


def test_pytorch_finds_the_back_end_by_its_name() -> None:
    assert "buddy" in torch._dynamo.list_backends()


def test_a_module_agrees_with_eager() -> None:
    agree(Block().eval(), torch.randn(4, 16))


def test_results_of_every_structure() -> None:
    def f(x: torch.Tensor) -> dict[str, Any]:
        y = x.relu()
        return {"same": x, "twice": (y, y), "view": y[0], "number": 3, "none": None, "shape": x.shape[0]}

    x = torch.randn(3, 4)
    result, expected = compiled(f)(x), f(x)
    assert result["same"] is x
    assert (result["number"], result["none"], result["shape"]) == (3, None, 3)
    torch.testing.assert_close(result["twice"], expected["twice"])
    torch.testing.assert_close(result["view"], expected["view"])


def test_results_keep_the_strides_of_eager() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        places = torch.arange(6).view(2, 3).expand(x.shape)
        unpooled = torch.nn.functional.max_unpool2d(y.to(memory_format=torch.channels_last), places, 2)
        return [y.transpose(0, 3), y[:, :1].expand(-1, 5, -1, -1), y[0, 0, 0].expand(2, 3, -1), y[..., ::2], unpooled]

    x = torch.randn(2, 2, 2, 3)
    for result, expected in zip(compiled(f)(x), f(x), strict=True):
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected)


def test_strides_that_leave_a_tensor_read_its_storage() -> None:
    """Compiled code has no more than the elements of its inputs, so this part runs in eager."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_copy(x, (2, 2), (1, 3), 4) * 2

    x = torch.randn(12)[2:7]
    run = torch.compile(f, backend="buddy")
    torch.testing.assert_close(run(x), f(x))


def test_inputs_of_any_layout() -> None:
    agree(lambda x, y: x * 2 + y, torch.randn(4, 6)[:, ::2], torch.randn(3, 4).t())


def test_other_shapes_agree_with_eager() -> None:
    block = Block().eval()
    run = compiled(block)
    with torch.no_grad():
        for rows in (2, 3, 5, 3):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(run(x), block(x))


def test_sizes_that_are_symbolic_from_the_first_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) * x.shape[0]

    run = torch.compile(f, backend="buddy", dynamic=True, options=ERROR)
    for rows in (2, 7, 2):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), f(x))


def test_what_the_program_mutates_is_mutated_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    ours, theirs = torch.zeros(4), torch.zeros(4)
    torch.testing.assert_close(compiled(f)(ours), f(theirs))
    torch.testing.assert_close(ours, theirs)


def test_inputs_and_weights_stay_as_they_are() -> None:
    block, x = Block().eval(), torch.randn(4, 16)
    before = [x.clone(), *(p.detach().clone() for p in block.parameters())]
    with torch.no_grad():
        compiled(block)(x)
    assert all(torch.equal(a, b) for a, b in zip(before, [x, *block.parameters()], strict=True))


@NO_FALLBACK
def test_gradients_agree_with_eager() -> None:
    ours, theirs = Block(), Block()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 16)
    torch.compile(ours, backend="buddy")(x).pow(2).sum().backward()
    theirs(x).pow(2).sum().backward()
    for mine, his in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, his.grad, atol=1e-4, rtol=1e-4)


@NO_FALLBACK
def test_gradients_where_an_activation_is_saved_twice() -> None:
    ours = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8))
    theirs = copy.deepcopy(ours)
    x = torch.randn(5, 4)
    torch.compile(ours, backend="buddy")(x).pow(2).sum().backward()
    theirs(x).pow(2).sum().backward()
    for mine, his in zip([*ours.parameters(), *ours.buffers()], [*theirs.parameters(), *theirs.buffers()], strict=True):
        torch.testing.assert_close(mine, his)
    for mine, his in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, his.grad, atol=1e-4, rtol=1e-4)


@NO_FALLBACK
def test_training_steps_follow_the_changed_weights() -> None:
    ours, theirs = Block(), Block()
    theirs.load_state_dict(ours.state_dict())
    losses = []
    for model, run in ((ours, torch.compile(ours, backend="buddy")), (theirs, theirs)):
        torch.manual_seed(1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimiser.zero_grad()
            loss = (run(torch.randn(8, 16)) - 1).pow(2).mean()
            loss.backward()
            optimiser.step()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-4)


def test_replaced_weights_are_seen() -> None:
    layer, x = nn.Linear(32, 32).eval(), torch.randn(16, 32)
    run = compiled(layer)
    with torch.no_grad():
        run(x)
        layer.weight.mul_(2)
        torch.testing.assert_close(run(x), layer(x))
        layer.weight = nn.Parameter(torch.randn(32, 32))
        torch.testing.assert_close(run(x), layer(x))


def test_nothing_is_packed_while_training() -> None:
    layer, x = nn.Linear(64, 64), torch.randn(32, 64)
    run, known = compiled(layer, freeze=True), set(compiled_graph._programs)
    run(x).sum().backward()
    assert [program.packed_bytes for program in compiled_graph._programs if program not in known] == [0, 0]
    known = set(compiled_graph._programs)
    with torch.no_grad():
        torch.testing.assert_close(run(x), layer(x))
    (program,) = (program for program in compiled_graph._programs if program not in known)
    assert program.packed_bytes > 0


def test_a_weight_that_an_embedding_shares_stays_as_it_is_beside_its_packed_form() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 32)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.table(tokens) @ self.table.weight.T

    model, tokens = Tied().eval(), torch.randint(50, (2, 9))
    agree(model, tokens)
    with torch.no_grad():
        model.table.weight.mul_(2)
    agree(model, tokens)


def test_an_op_in_eager_is_refused_by_name_where_the_caller_says_so() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.histogram(x, 3)[0]

    with pytest.raises(Exception, match=r"histogram.* would run in eager.*test_backend\.py:\d+.*fallback='eager'"):
        compiled(f)(torch.randn(3, 3))


def test_an_op_in_eager_computes_what_eager_does() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.histogram(x + 1, 3)[0] * 2

    x = torch.randn(3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.compile(f, backend="buddy")(x), f(x))


def test_a_graph_without_words_for_it_runs_in_eager_and_says_so() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).to(torch.float8_e8m0fnu).float()

    x = torch.randn(4)
    with pytest.warns(UserWarning, match="float8_e8m0fnu"):
        result = torch.compile(f, backend="buddy")(x)
    torch.testing.assert_close(result, f(x))


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(Exception, match=r"no option 'fallbak' .*; it has fallback"):
        torch.compile(lambda x: x + 1, backend="buddy", options={"fallbak": "error"})(torch.ones(2))


def test_graph_breaks_give_several_compiled_graphs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + x

    agree(f, torch.randn(5))


def test_a_thousand_runs_do_not_grow_the_process() -> None:
    block, x = Block().eval(), torch.randn(64, 16)
    run = compiled(block)
    with torch.no_grad():
        for _ in range(100):
            run(x)
        # What leaks does so each time; now and then the kernel makes a huge page of pages, most of which nobody uses.
        grown = []
        for _ in range(3):
            before = _resident_kib()
            for _ in range(1000):
                run(x)
            grown.append(_resident_kib() - before)
    assert min(grown) < 2048


def _resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_threads_are_those_of_torch_unless_given() -> None:
    assert BackendSettings().recipe().threads == torch.get_num_threads()
    assert BackendSettings.of({"threads": 3}).recipe().threads == 3
    with pytest.raises(ValueError, match="threads is 'all'; it may be 0, for as many as torch uses, to 1024"):
        BackendSettings.of({"threads": "all"})
