"""How nodes are lowered and in which precision they multiply, as the options of `torch.compile` say it: by node, op."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.driver import compile_graph
from buddy.compiler.frontend import compiled_graph
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.support.target import host

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

MODEL = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU()).eval()
BOTH = ["1/gelu.0", "3/gelu.0"]
X = torch.randn(2, 4)


def in_eager(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], model: Any = MODEL) -> list[str]:
    """The nodes that options leave to eager, in the first graph."""
    found: list[list[str]] = []
    compiled = compile_graph.compile_graph

    def noting(graph: Any, recipe: Any, registry: Any, on_lowered: Any) -> Any:
        found.append([choice.node for choice in recipe.choices if choice.lowering == EAGER])
        return compiled(graph, recipe, registry, on_lowered)

    monkeypatch.setattr(compile_graph, "compile_graph", noting)
    monkeypatch.setattr(compiled_graph.program_cache, "find_program", lambda *_: None)
    with torch.no_grad():
        ours = torch.compile(model, backend="buddy", options=options)(X)
        torch.testing.assert_close(ours, model(X))
    return found[0]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"choices": {"gelu": "eager"}}, BOTH),
        ({"lowering:gelu": "eager"}, BOTH),
        ({"choices": {"gelu.default": "eager"}}, BOTH),
        ({"choices": {"3/gelu": "eager"}}, BOTH[1:]),
        ({"choices": {"1/gelu.0": "eager"}}, BOTH[:1]),
        ({"choices": {"gelu": "eager", "1/gelu.0": "linalg"}}, BOTH[1:]),
    ],
)
def test_an_op_stands_for_all_of_its_nodes(
    options: dict[str, Any], nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_eager(monkeypatch, options) == nodes


@pytest.mark.parametrize("fallback", ["eager", "error"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"choices": {"gelu.0": "eager"}}, "unknown node 'gelu.0' (did you mean 3/gelu.0?); the graph has 0/t.0"),
        ({"lowering:0/addmm.7": "eager"}, "unknown node '0/addmm.7' (did you mean 0/addmm.0?)"),
        ({"choices": {"nosuch": "eager"}}, "unknown node or op 'nosuch'; the graph has 0/t.0"),
        ({"lowering:gelu": "nonsense"}, "unknown registry 'nonsense' for gelu; the registries are linalg, math"),
        ({"choices": {"addmm": "lnalg"}}, "unknown registry 'lnalg' for addmm (did you mean linalg?)"),
        ({"choices": {"0/addmm.0": "math"}}, "math has no lowering of 0/addmm.0; it may be linalg"),
    ],
)
def test_what_there_is_not_is_named(options: dict[str, Any], said: str, fallback: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=re.escape(said)) as raised, torch.no_grad():
        torch.compile(MODEL, backend="buddy", options=options | {"fallback": fallback})(X)
    assert isinstance(raised.value.inner_exception, ValueError)


def test_an_op_that_only_other_graphs_have_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return torch.nn.functional.gelu(x)

    with pytest.warns(UserWarning, match="choices: a graph does not have the op gelu; it has add"):
        assert in_eager(monkeypatch, {"choices": {"gelu": "eager"}}, f) == []


def test_choices_hold_in_training() -> None:
    x = X.clone().requires_grad_()
    torch.compile(MODEL, backend="buddy", options={"choices": {"gelu": "eager", "1/gelu.0": "linalg"}})(
        x
    ).sum().backward()
    found, x.grad = x.grad, None
    MODEL(x).sum().backward()
    torch.testing.assert_close(found, x.grad)


# ---- precisions ------------------------------------------------------------------------------------------------------


def linear_in(layer: nn.Linear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    weight = layer.weight.to(dtype).float()
    return x.to(dtype).float() @ weight.t() + layer.bias


@pytest.mark.parametrize("freeze", [False, True])
def test_all_products_or_those_of_one_node_are_in_bfloat16(freeze: bool) -> None:
    layer, other = nn.Linear(64, 48).eval(), nn.Linear(48, 32).eval()
    model, x = nn.Sequential(layer, other), torch.randn(5, 64)
    for options, dtypes in (
        ({"precision": "bf16"}, (torch.bfloat16, torch.bfloat16)),
        ({"precision": "bf16", "precisions": {"0/addmm.0": "f32"}}, (torch.float32, torch.bfloat16)),
        ({"precisions": {"0/addmm": "bf16"}}, (torch.bfloat16, torch.float32)),
    ):
        torch._dynamo.reset()
        with torch.no_grad():
            ours = torch.compile(model, backend="buddy", options={"freeze": freeze, "verify": True, **options})(x)
            reference = linear_in(other, linear_in(layer, x, dtypes[0]), dtypes[1])
            torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-3)
            assert (ours - reference).norm() < (model(x) - reference).norm() / 50


def test_verification_is_by_the_arithmetic_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a tolerance that the precision's own error would need."""
    from buddy.compiler.frontend.errors import VerificationError
    from buddy.compiler.ops import rounded_operands

    x = torch.randn(16, 256)
    with torch.no_grad():
        model = nn.Linear(256, 64).eval()
        torch.compile(model, backend="buddy", options={"precision": "int8", "verify": True})(x)
        torch._dynamo.reset()
        monkeypatch.setattr(rounded_operands, "INT8_LIMIT", 126)
        monkeypatch.setattr(compiled_graph.program_cache, "find_program", lambda *_: None)
        monkeypatch.setattr(compiled_graph.program_cache, "store_program", lambda *_: None)
        with pytest.raises(VerificationError):
            torch.compile(model, backend="buddy", options={"precision": "int8", "verify": True})(x)


def test_a_precision_that_is_not_applied_is_told_of() -> None:
    message = "computes products in int8-weights, but mm.0 stays in f32: neither of its operands is a parameter"
    for _ in range(2):  # compiled, and from the disk cache
        torch._dynamo.reset()
        with torch.no_grad(), pytest.warns(UserWarning, match=message):
            torch.compile(lambda x: x @ x, backend="buddy", options={"precision": "int8-weights"})(torch.randn(4, 4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "int7"}, "precision is 'int7': it may be 'f32' or 'bf16x3' or 'bf16' or 'int8-dynamic' or "),
        ({"precisions": {"mm": "bf17"}}, "precision is 'bf17'"),
    ],
)
def test_an_unknown_precision_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        BackendSettings.of(options)


def test_gradients_are_in_bfloat16_but_not_in_integers() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(3, 8, requires_grad=True)
    with pytest.warns(UserWarning, match="a graph with gradients is computed in f32"):
        torch.compile(layer, backend="buddy", options={"precision": "int8"})(x).sum().backward()
    found, x.grad = x.grad, None
    layer(x).sum().backward()
    torch.testing.assert_close(found, x.grad)
    torch._dynamo.reset()
    x.grad = None
    torch.compile(layer, backend="buddy", options={"precision": "bf16"})(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.bfloat16().float().sum(0).expand(3, -1))


def test_torch_selects_bfloat16_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`medium` allows it and does not require it; an option has priority."""
    from dataclasses import replace

    from buddy.compiler.frontend import backend_settings

    def precision(**options: Any) -> str:
        return BackendSettings.of(options).recipe().precision

    previous = torch.get_float32_matmul_precision()
    try:
        for has_instruction, selected in ((True, "bf16"), (False, "f32")):
            target = replace(host(), rounds_to_bfloat16=has_instruction)
            monkeypatch.setattr(backend_settings, "host", lambda target=target: target)
            torch.set_float32_matmul_precision("medium")
            assert (precision(), precision(precision="f32")) == (selected, "f32")
            torch.set_float32_matmul_precision("highest")
            assert precision() == "f32"
    finally:
        torch.set_float32_matmul_precision(previous)


def test_a_maximum_error_selects_precisions_at_the_first_call() -> None:
    settings = BackendSettings.of({"max_error": 1e-2, "freeze": True})
    assert (settings.max_error, settings.tune, settings.has_precision) == (1e-2, 300.0, True)
    assert BackendSettings.of({"max_error": 1e-2, "freeze": True, "tune": 9}).tune == 9.0
    for error in ("a bit", -1.0, float("nan"), True):
        with pytest.raises(ValueError, match="give the largest error of a result"):
            BackendSettings.of({"max_error": error, "freeze": True})
    with pytest.raises(ValueError, match="set freeze=True"):
        BackendSettings.of({"max_error": 1e-2})


@pytest.mark.parametrize(
    ("rates", "selected"),
    [
        ({"vdpbf16ps": 107.0, "vfmadd": 54.0}, "f32"),  # a Zen 4
        ({"tdpbf16ps": 540.0, "vdpbf16ps": 50.0, "vfmadd": 75.0}, "bf16x3"),  # a Xeon with AMX
        ({}, "f32"),
    ],
)
def test_torch_selects_pairs_of_bfloat16_where_they_are_faster(
    rates: dict[str, float], selected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`high` selects them for frozen weights only; others would be split in each call."""
    from buddy.compiler.frontend import backend_settings

    monkeypatch.setattr(backend_settings, "measured_rates", lambda target: rates)
    previous = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert BackendSettings.of({"freeze": True}).recipe().precision == selected
        assert BackendSettings.of({}).recipe().precision == "f32"
        assert BackendSettings.of({"freeze": True}).recipe(training=True).precision == "f32"
        assert BackendSettings.of({"freeze": True, "precision": "f32"}).recipe().precision == "f32"
    finally:
        torch.set_float32_matmul_precision(previous)
