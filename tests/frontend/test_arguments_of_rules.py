"""What ATen's schema says of an op is what its decomposition, and its element-wise lowering, takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from buddy.compiler.frontend.aten import default_decompositions
from buddy.compiler.graph.node import default_ops_map, new_op
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.ops import registries
from buddy.compiler.ops.utils import LoweringError

# Torch's decompositions for overloads with `out` are never met: graphs are functional. What prims are in ATen is
# torch's own pairing, and often a builtin that tells no signature.
OVERLOADS = {
    op: rule
    for op, rule in default_decompositions().items()
    if not op._schema.is_mutable and rule is not getattr(op, "impl_aten", None)
}
RESULT = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}


def parameters_of(rule: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Those of the innermost function, where wrappers pass on whatever comes."""
    found = inspect.signature(rule).parameters
    open_ended = {p.kind for p in found.values()} >= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return inspect.signature(inspect.unwrap(rule)).parameters if open_ended else found


def refused(parameters: Mapping[str, inspect.Parameter], schema: Any, known: set[str]) -> list[str]:
    """The arguments of `schema` that a function with `parameters` has no place for."""
    kinds = [p.kind for p in parameters.values()]
    places = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        places = len(schema.arguments)
    by_position = [a.name for a in schema.arguments if not a.kwarg_only]
    by_name = [a.name for a in schema.arguments if a.kwarg_only and a.name not in parameters]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        by_name = []
    return [*by_position[places:], *(name for name in by_name if name not in known)]


def test_decompositions_take_every_argument_of_their_op() -> None:
    wrong = {str(op): refused(parameters_of(rule), op._schema, {"generator"}) for op, rule in OVERLOADS.items()}
    # In PyTorch 2.11 and 2.12 TorchDynamo itself refuses a side, with any backend: no graph has one.
    known = {"aten.pad_sequence.default": ["padding_side"]} if torch.__version__ < (2, 13) else {}
    assert {op: names for op, names in wrong.items() if names} == known


def test_expressions_take_every_argument_of_their_op() -> None:
    wrong = {}
    for key, cls in default_ops_map().items():
        packet, _, overload = key.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        body = expression(registries()["linalg"].get(cls.__name__))
        if op is not None and body is not None:
            wrong[key] = refused(inspect.signature(body).parameters, op._schema, RESULT)
    assert len(wrong) > 100
    assert {key: names for key, names in wrong.items() if names} == {}


def expression(lowering: Any) -> Callable[..., Any] | None:
    """The expression on one element that a lowering is made of."""
    names = getattr(getattr(lowering, "__code__", None), "co_freevars", ())
    return (
        next(
            (cell.cell_contents for n, cell in zip(names, lowering.__closure__ or (), strict=True) if n == "body"), None
        )
        if names
        else None
    )


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
def test_an_argument_that_an_expression_does_not_know_is_refused(dialect: str) -> None:
    x = new_op(default_ops_map()["tanh.default"], "x", "x", metas=[TensorMeta((3,), TensorDType.Float32)])
    node = new_op(type(x), "y", "tanh.default", [x], [TensorMeta((3,), TensorDType.Float32)])
    node._keyword_arguments = {"sharpness": 2}
    with pytest.raises(LoweringError, match="sharpness"):
        registries()[dialect]["TanhOp"](node, {})
