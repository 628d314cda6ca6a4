"""The Core ATen list: every overload that PyTorch tags as core, and how it is handled here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from buddy.compiler.frontend.aten import default_decompositions, target_key
from buddy.compiler.frontend.complex_numbers import RULES
from buddy.compiler.frontend.distributions import RULES as OF_RANDOM_BITS
from buddy.compiler.frontend.graph_splitter import BETWEEN
from buddy.compiler.graph.operation import default_ops_map
from buddy.compiler.ops import registries
from buddy.compiler.tools.coverage.plan import CoreOp

# Stands for the rules of `frontend/complex_numbers` in the list of registries.
_BY_PARTS = "complex numbers"


def core_ops() -> list[CoreOp]:
    """Each overload with our registries that lower its class, or the rules for complex numbers.

    Without either, whether it is decomposed. A number read out of a tensor is read at a graph break.

    Overloads that write to their arguments are functionalized, since graphs contain no others.
    """
    classes, found, rules = default_ops_map(), registries(), default_decompositions()
    ops = []
    for op in _overloads():
        seen = _functional(op)
        cls = classes.get(target_key(seen))
        lowered = tuple(name for name, registry in found.items() if cls is not None and cls.__name__ in registry)
        if not lowered and op in RULES and op not in rules:
            lowered = (_BY_PARTS,)
        if op is torch.ops.aten._local_scalar_dense.default:
            lowered = (BETWEEN,)
        decomposed = seen in rules or seen in OF_RANDOM_BITS or _is_composite(seen)
        why = "" if cls is None or lowered or seen in OF_RANDOM_BITS else cls.only_eager
        ops.append(CoreOp(target_key(op), lowered, not lowered and decomposed, why))
    return ops


def _functional(op: Any) -> Any:
    """The overload that replaces a mutating one in graphs; other overloads are returned unchanged."""
    if not op._schema.is_mutable:
        return op
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, f"{name}_functional", None)
    overload = op._overloadname.removesuffix("out").removesuffix("_") or "default"
    return getattr(packet or getattr(torch.ops.aten, name), overload, op)


def _is_composite(op: Any) -> bool:
    """Whether PyTorch itself expresses it by other ops, or by its argument's sizes, before capture."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def _overloads() -> Iterator[Any]:
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            overloads = (getattr(packet, overload) for overload in packet.overloads())
            yield from (op for op in overloads if torch.Tag.core in op.tags)
