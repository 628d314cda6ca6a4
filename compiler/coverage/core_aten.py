"""The Core ATen list: every overload that PyTorch tags as core, and what becomes of it here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from buddy.compiler.coverage.plan import CoreOp
from buddy.compiler.frontend.aten import default_decompositions, target_key
from buddy.compiler.frontend.complex_numbers import RULES
from buddy.compiler.graph.operation import default_ops_map
from buddy.compiler.ops import registries

# What stands for a registry: `frontend/complex_numbers`.
_BY_PARTS = "complex numbers"


def core_ops() -> list[CoreOp]:
    """Each overload with the registries of ours that lower its class, or the rules that take complex numbers apart;
    without either, whether it is decomposed."""
    classes, found, rules = default_ops_map(), registries(), default_decompositions()
    ops = []
    for op in _overloads():
        cls = classes.get(target_key(op))
        lowered = tuple(name for name, registry in found.items() if cls is not None and cls.__name__ in registry)
        if not lowered and op in RULES and op not in rules:
            lowered = (_BY_PARTS,)
        why = "" if cls is None or lowered else cls.only_eager
        ops.append(CoreOp(target_key(op), lowered, not lowered and op in rules, why))
    return ops


def _overloads() -> Iterator[Any]:
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            overloads = (getattr(packet, overload) for overload in packet.overloads())
            yield from (op for op in overloads if torch.Tag.core in op.tags)
