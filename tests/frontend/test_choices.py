"""How nodes are lowered, as the options of `torch.compile` say it: by node, and by op."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.driver import compile_graph
from buddy.compiler.frontend import backend
from buddy.compiler.protocol.recipe import EAGER

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
    monkeypatch.setattr(backend.program_cache, "find_program", lambda *_: None)
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
