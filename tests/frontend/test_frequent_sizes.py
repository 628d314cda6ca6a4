"""Sizes that recur get code of their own, compiled in the background; results stay those of eager."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buddy.compiler.driver import background
from buddy.compiler.frontend import compiled_graph, frequent_sizes
from buddy.compiler.frontend.backend_settings import SPECIALISE_CALLS
from buddy.compiler.graph import serialization
from buddy.compiler.graph.sizes import SymbolSource, plain_size, symbol
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.runtime import LoadedProgram

# Seconds until a small graph is compiled in a process of its own, on a loaded machine.
PATIENCE = 120.0
LOGGER = "buddy.frontend"


@pytest.fixture(autouse=True)
def fresh_dynamo(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, LOGGER)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Attention(nn.Module):
    """Products with several symbolic sizes, views that depend on them, and a float that is computed from one."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / x.shape[1] ** 0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(x.shape)
        return mixed, x[:, : x.shape[1] // 2]


def repeat(function: Callable[..., Any], *args: Any, times: int = SPECIALISE_CALLS) -> Any:
    with torch.no_grad():
        for _ in range(times):
            result = function(*args)
    assert background.wait_until_idle(PATIENCE)
    return result


def specialised_sizes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The sizes in the log, in the order in which their code came into use."""
    messages = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    return [text.partition("compiled for ")[2].partition(" in the background")[0] for text in messages]


def test_recurring_sizes_are_compiled_and_results_stay_those_of_eager(caplog: pytest.LogCaptureFixture) -> None:
    model = Attention().eval()
    compiled = torch.compile(model, backend="buddy", dynamic=True)
    inputs = [torch.randn(2, 9, 32), torch.randn(3, 14, 32)]
    for x in inputs:
        repeat(compiled, x)
    assert specialised_sizes(caplog) == ["s0 = 2, s1 = 9", "s0 = 3, s1 = 14"]
    with torch.no_grad():
        for x in (*inputs, torch.randn(4, 11, 32)):  # the last sizes run the code for all sizes
            ours, theirs = compiled(x), model(x)
            # Sums of 32 products of float32, in another order than eager's.
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
            assert [(y.stride(), y.shape) for y in ours] == [(y.stride(), y.shape) for y in theirs]
            assert ours[1].data_ptr() == x.data_ptr()


def test_the_code_of_a_size_reads_the_weights_of_each_call(caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.Linear(16, 8).eval()
    compiled = torch.compile(layer, backend="buddy", dynamic=True)
    x = torch.randn(5, 16)
    repeat(compiled, x)
    assert specialised_sizes(caplog) == ["s0 = 5"]
    with torch.no_grad():
        layer.weight.mul_(2)
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.fixture
def frozen() -> tuple[nn.Module, Callable[..., Any]]:
    """A model whose frozen weights are packed in the same way for all sizes, and its compiled form."""
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 192)).eval()
    return model, torch.compile(model, backend="buddy", dynamic=True, options={"freeze": True})


def test_the_codes_of_sizes_share_packed_weights(
    frozen: tuple[nn.Module, Callable[..., Any]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiled = frozen
    programs = list[LoadedProgram]()
    load = frequent_sizes.FrequentSizes.add

    def add(self: Any, symbols: Any, artifact: Artifact, seconds: float) -> None:
        load(self, symbols, artifact, seconds)
        programs.extend(self._programs.values())

    monkeypatch.setattr(frequent_sizes.FrequentSizes, "add", add)
    general = set(compiled_graph._programs)
    inputs = [torch.randn(rows, 64) for rows in (48, 80)]
    for x in inputs:
        repeat(compiled, x)
    assert specialised_sizes(caplog) == ["s0 = 48", "s0 = 80"]
    for x in inputs:
        # Sums of 96 products of float32, in another order than eager's.
        torch.testing.assert_close(repeat(compiled, x, times=1), model(x), atol=1e-5, rtol=1e-5)
    general = set(compiled_graph._programs) - general - set(programs)
    places = {copy.data_ptr() for program in general for _, copy in program.packed_pairs()}
    assert places
    for program in programs:
        assert {copy.data_ptr() for _, copy in program.packed_pairs()} <= places


def test_the_code_of_a_size_packs_changed_weights_again(
    frozen: tuple[nn.Module, Callable[..., Any]], caplog: pytest.LogCaptureFixture
) -> None:
    model, compiled = frozen
    x = torch.randn(48, 64)
    repeat(compiled, x)
    assert specialised_sizes(caplog) == ["s0 = 48"]
    for layer in (model[0], model[2]):  # type: ignore[index]
        repeat(compiled, x, times=1)
        with torch.no_grad():
            layer.weight.mul_(2)
        torch.testing.assert_close(repeat(compiled, x, times=1), model(x), atol=1e-5, rtol=1e-5)
        layer.weight.data.mul_(2)  # PyTorch does not count this write
        compiled_graph.refreeze()
        torch.testing.assert_close(repeat(compiled, x, times=1), model(x), atol=1e-5, rtol=1e-5)


def test_code_that_needs_other_packed_weights_is_not_used(
    frozen: tuple[nn.Module, Callable[..., Any]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_graph, "_MAX_OWN_BYTES", -1)
    model, compiled = frozen
    x = torch.randn(48, 64)
    repeat(compiled, x)
    assert not any(specialised_sizes(caplog))
    assert "no separate code for s0 = 48" in caplog.text
    torch.testing.assert_close(repeat(compiled, x, times=1), model(x), atol=1e-5, rtol=1e-5)


def test_other_inputs_of_the_same_sizes_are_checked_as_before(caplog: pytest.LogCaptureFixture) -> None:
    embedding = nn.Embedding(10, 8)
    compiled = torch.compile(embedding, backend="buddy", dynamic=True)
    repeat(compiled, torch.arange(6))
    assert specialised_sizes(caplog)
    with torch.no_grad(), pytest.raises(IndexError):
        compiled(torch.tensor([0, 1, 2, 3, 4, 10]))
    strided = torch.arange(12)[::2] % 10
    with torch.no_grad():
        assert torch.equal(compiled(strided), embedding(strided))


def test_cached_code_of_a_size_reports_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later `torch.compile` for these sizes alone may find it on disk, and its summary counts these nodes."""
    found: list[Artifact] = []
    add = frequent_sizes.FrequentSizes.add

    def watched(self: frequent_sizes.FrequentSizes, symbols: Any, artifact: Artifact, seconds: float) -> None:
        found.append(artifact)
        add(self, symbols, artifact, seconds)

    monkeypatch.setattr(frequent_sizes.FrequentSizes, "add", watched)
    options = {"choices": {"gelu": "eager"}}
    compiled = torch.compile(nn.Sequential(nn.Linear(16, 8), nn.GELU()), backend="buddy", dynamic=True, options=options)
    repeat(compiled, torch.randn(5, 16))
    (artifact,) = found
    assert artifact.n_nodes >= 3
    assert len(artifact.eager_nodes) == 1
    assert "gelu" in artifact.eager_nodes[0]


def test_training_graphs_are_specialised_too(caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 4))
    compiled = torch.compile(layer, backend="buddy", dynamic=True)
    x = torch.randn(7, 16)
    for _ in range(SPECIALISE_CALLS):
        compiled(x).square().sum().backward()
    assert background.wait_until_idle(PATIENCE)
    assert len(specialised_sizes(caplog)) == 2  # forward and backward
    layer.zero_grad()
    compiled(x).square().sum().backward()
    ours = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    layer(x).square().sum().backward()
    for a, b in zip(ours, layer.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, atol=1e-5, rtol=1e-4)  # sums of 24 products in another order


@pytest.mark.parametrize(
    "options",
    [{"specialise": 0}, {"freeze": "release"}, {"verify": True}],
    ids=["turned off", "released weights", "verified"],
)
def test_sizes_are_not_specialised(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(nn.Linear(16, 8).eval(), backend="buddy", dynamic=True, options=options)
    repeat(compiled, torch.randn(5, 16))
    assert not specialised_sizes(caplog)


def test_deterministic_algorithms_keep_the_code_for_all_sizes(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(nn.Linear(16, 8).eval(), backend="buddy", dynamic=True)
    torch.use_deterministic_algorithms(True)
    try:
        repeat(compiled, torch.randn(5, 16))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not specialised_sizes(caplog)


def test_the_number_of_calls_is_an_option(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(nn.Linear(16, 8).eval(), backend="buddy", dynamic=True, options={"specialise": 2})
    x = torch.randn(5, 16)
    repeat(compiled, x, times=1)
    assert not specialised_sizes(caplog)
    repeat(compiled, x, times=1)
    assert specialised_sizes(caplog) == ["s0 = 5"]


@pytest.mark.parametrize("value", [-1, True, "8", 1.5])
def test_a_number_of_calls_that_is_none_is_refused(value: object) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="buddy", options={"specialise": value})
    with pytest.raises(Exception, match="specialise is"):
        compiled(torch.zeros(2))


def test_only_so_many_sizes_get_code(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequent_sizes, "MAX_SIZES", 2)
    compiled = torch.compile(nn.ReLU(), backend="buddy", dynamic=True, options={"specialise": 1})
    for size in (3, 4, 5):
        repeat(compiled, torch.randn(size), times=1)
    assert specialised_sizes(caplog) == ["s0 = 3", "s0 = 4"]
    x = torch.randn(5)
    assert torch.equal(compiled(x), x.relu())


def test_a_process_that_fails_leaves_the_code_for_all_sizes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "buddy.driver")
    monkeypatch.setattr("sys.executable", "/bin/false")
    compiled = torch.compile(nn.Linear(16, 8).eval(), backend="buddy", dynamic=True)
    x = torch.randn(5, 16)
    result = repeat(compiled, x)
    assert not specialised_sizes(caplog)
    assert "not compiled in the background" in caplog.text
    with torch.no_grad():
        assert torch.equal(compiled(x), result)


def test_a_released_graph_takes_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[weakref.ref[Any]] = []

    def watched(*args: Any) -> frequent_sizes.FrequentSizes:
        made = frequent_sizes.FrequentSizes(*args)
        owners.append(weakref.ref(made))
        return made

    monkeypatch.setattr(compiled_graph, "FrequentSizes", watched)
    compiled = torch.compile(nn.Linear(16, 8).eval(), backend="buddy", dynamic=True, options={"specialise": 1})
    with torch.no_grad():
        compiled(torch.randn(5, 16))
    (owner,) = owners
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert owner() is None
    assert background.wait_until_idle(PATIENCE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_starts_without_jobs() -> None:
    child = os.fork()
    if not child:
        os._exit(0 if background.wait_until_idle(0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (64, 3), (130, 67)])
def test_any_size_can_be_inserted(sizes: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y]).cumsum(0)[: x.shape[0]] * x.shape[1] + y.amax(0) - torch.arange(x.shape[1])

    compiled = torch.compile(program, backend="buddy", options={"specialise": 1})
    x, y = torch.randn(sizes), torch.randn(sizes[0] + 1, sizes[1])
    for tensor in (x, y):
        for dim in range(2):
            if tensor.shape[dim] > 1:
                torch._dynamo.mark_dynamic(tensor, dim)
    result = repeat(compiled, x, y, times=1)
    torch.testing.assert_close(result, program(x, y))
    torch.testing.assert_close(compiled(x, y), program(x, y))


def test_symbols_become_numbers_in_arguments_and_shapes() -> None:
    size = symbol("s0")
    node = serialization.NodeData(
        "view", "ViewOp", "aten.view.default", [{"n": "x"}, [{"s": plain_size(size * 2)}, 3]],
        {"end": {"s": plain_size(size // 2)}}, [(["2*s0", 3], "f32"), None],
    )  # fmt: skip
    data = serialization.GraphData("forward", "forward", [node], [], symbols=[SymbolSource("s0", "x", 0)])
    (inserted,) = serialization.substitute_sizes(data, {"s0": 5}).nodes
    assert inserted.args == [{"n": "x"}, [10, 3]]
    assert inserted.kwargs == {"end": 2}
    assert inserted.metas == [([10, 3], "f32"), None]
    assert not serialization.substitute_sizes(data, {"s0": 5}).symbols
