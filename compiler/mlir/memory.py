"""What may be said about buffers without alias analysis: views of one allocation, and fills of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from buddy.compiler.mlir.bindings import ir

# Function attribute: it runs once per parameter, so unrolling its loops costs more compile time than it saves.
ONCE = "buddy.once"
RESULT = "buddy.result"  # argument attribute: a buffer of the caller's that nothing else overlaps

VIEWS = frozenset(
    {
        "memref.collapse_shape",
        "memref.expand_shape",
        "memref.cast",
        "memref.subview",
        "memref.reinterpret_cast",
        "memref.transpose",
        "memref.view",
    }
)
_BASE = "memref.extract_strided_metadata"  # whose first result is the buffer that it asks about
NO_ACCESS = VIEWS | {"memref.alloc", "memref.dim", "memref.get_global"}


def element_bytes(type_: Any) -> int:
    """Bytes of one element of a scalar type; `index` counts as 8."""
    return 8 if isinstance(type_, ir.IndexType) else (type_.width + 7) // 8


def bytes_of(type_: Any) -> int:
    """The bytes that a memref of static shape holds."""
    element, parts = type_.element_type, 1
    if isinstance(element, ir.ComplexType):
        element, parts = element.element_type, 2
    return math.prod(type_.shape, start=parts * element_bytes(element))


def root_of(value: Any) -> Any:
    """The value that `value` is a view of."""
    while isinstance(value, ir.OpResult) and (value.owner.name in VIEWS or value.owner.name == _BASE):
        value = value.owner.operands[0]
    return value


def accesses(value: Any) -> Iterator[Any]:
    """The ops that read, write, free or hand on the memory behind `value`, through views too."""
    for use in value.uses:
        owner = use.owner.operation
        if owner.name in VIEWS or owner.name == _BASE:
            yield from accesses(owner.results[0])
        else:
            yield owner


def hands_on(user: Any) -> bool:
    """Whether a buffer that `user` takes lives on under another name: returned, carried by a loop, or selected."""
    if user.name in ("func.return", "scf.yield", "scf.condition"):
        return True
    return any(isinstance(result.type, ir.MemRefType) for result in user.results)


def surely_disjoint(left: Any, right: Any) -> bool:
    """Whether two memrefs cannot overlap: views of different buffers, one of which stands by itself."""
    a, b = root_of(left), root_of(right)
    return bool(a != b and (stands_alone(a) or stands_alone(b)))


def stands_alone(root: Any) -> bool:
    """Whether only views of `root` overlap with it: an allocation, or an out-parameter."""
    if isinstance(root, ir.OpResult):
        return root.owner.name in ("memref.alloc", "memref.alloca")
    return isinstance(root, ir.BlockArgument) and RESULT in _argument_attributes(root)


def _argument_attributes(argument: Any) -> Any:
    owner = argument.owner.owner.operation
    if owner.name != "func.func" or "arg_attrs" not in owner.attributes or argument.owner != owner.regions[0].blocks[0]:
        return ()
    flags = ir.ArrayAttr(owner.attributes["arg_attrs"])
    # What a pass that packs weights has just added has none yet.
    return ir.DictAttr(flags[argument.arg_number]) if argument.arg_number < len(flags) else ()


def zero_fill_before(op: Any, buffer: Any) -> Any | None:
    """The `linalg.fill` with zero of `buffer` in the block of `op` after which nothing else up to `op` touches it."""
    before = list(_preceding(op))
    for candidate in reversed(before):
        if candidate.name == "linalg.fill" and candidate.operands[1] == buffer:
            return candidate if _is_zero(candidate.operands[0]) else None
        if _may_touch(candidate, buffer):
            return None
    return None


def _preceding(op: Any) -> Any:
    for other in op.operation.block:
        if other.operation == op.operation:
            return
        yield other.operation


def _may_touch(op: Any, buffer: Any) -> bool:
    if op.name in NO_ACCESS or op.name.startswith(("arith.", "math.")):
        return False
    if len(op.regions) and not op.name.startswith("linalg."):
        return True
    memrefs = [value for value in op.operands if isinstance(value.type, ir.MemRefType)]
    return not all(surely_disjoint(value, buffer) for value in memrefs)


def _is_zero(value: Any) -> bool:
    if not isinstance(value, ir.OpResult) or value.owner.name != "arith.constant":
        return False
    attribute = value.owner.attributes["value"]
    return float(attribute.value) == 0.0
