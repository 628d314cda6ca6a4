"""What a contraction computes, as loops in four classes, whichever linalg op it was written as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.bindings import ir
from buddy.compiler.kernels.access import Loop, UnsupportedError, layout_of, loop_sizes, loops_of, merge

NAMED = frozenset({"linalg.contract", "linalg.matmul", "linalg.batch_matmul"})


def indexing_maps(op: Any) -> list[Any]:
    """The affine maps of a linalg op that carries `indexing_maps`."""
    return [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]


def is_contraction(op: Any) -> bool:
    """Whether `op` computes `C[c] += A[a] * B[b]` over its loops, in float arithmetic without casts."""
    if op.name in NAMED:
        return _same_float_types(op)
    return op.name == "linalg.generic" and len(op.operands) == 3 and _same_float_types(op) and _multiplies_and_adds(op)


def reads_loops(op: Any) -> bool:
    """Whether operands are indexed by loops alone: a convolution reads at sums of them, and is no `linalg.contract`."""
    return all(isinstance(e, ir.AffineDimExpr) for map_ in indexing_maps(op) for e in map_.results)


def _same_float_types(op: Any) -> bool:
    elements = {str(value.type.element_type) for value in op.operands}
    return len(elements) == 1 and elements <= {"f32", "f64"}


def _multiplies_and_adds(op: Any) -> bool:
    block = op.regions[0].blocks[0]
    body = list(block.operations)
    if [inner.name for inner in body] != ["arith.mulf", "arith.addf", "linalg.yield"]:
        return False
    product, total, result = body
    a, b, c = block.arguments
    return (
        _is_pair(product.operands, a, b)
        and _is_pair(total.operands, product.result, c)
        and result.operands[0] == total.result
        and _has_reduction(op)
    )


def _is_pair(operands: Any, first: Any, second: Any) -> bool:
    left, right = operands
    return (left == first and right == second) or (left == second and right == first)


def _has_reduction(op: Any) -> bool:
    return any("reduction" in str(kind) for kind in op.attributes["iterator_types"])


@dataclass(frozen=True)
class Contraction:
    """`C[outer, m, n] += sum over k of A[outer, m, k] * B[outer, k, n]`.

    Strides of a loop are those of (A, B, C), in elements. `swapped` says that A is the op's second operand. `m` and
    `n` are the loops that a register block covers (size 1 where there is none); `outer` are all the others.
    """

    element: str
    outer: tuple[Loop, ...]
    m: Loop
    n: Loop
    k: tuple[Loop, ...]
    swapped: bool

    @property
    def depth(self) -> int:
        """Products per element of C."""
        total = 1
        for loop in self.k:
            total *= loop.size
        return total

    @property
    def flops(self) -> int:
        total = 2 * self.m.size * self.n.size * self.depth
        for loop in self.outer:
            total *= loop.size
        return total


def analyse(op: Any) -> Contraction:
    """The contraction that `op` (on memrefs) computes.

    Raises `UnsupportedError` for dynamic shapes, and where plain vector loops suit better.
    """
    maps = indexing_maps(op)
    layouts = [layout_of(value.type) for value in op.operands]
    sizes = loop_sizes(maps[0].n_dims, maps, layouts)
    in_c = {e.position for e in maps[2].results if isinstance(e, ir.AffineDimExpr)}
    loops = loops_of(sizes, [d not in in_c for d in range(len(sizes))], maps, layouts)
    for loop in loops:
        if not (loop.used[0] or loop.used[1]):
            raise UnsupportedError("a loop of the contraction indexes neither factor")
    return _roles(merge(loops), str(op.operands[0].type.element_type))


def _roles(loops: list[Loop], element: str) -> Contraction:
    """Choose which loops the register block covers; exchange the factors where C is contiguous along the first one."""
    k = tuple(loop for loop in loops if loop.reduction)
    rows = [loop for loop in loops if loop.used == (True, False, True)]
    columns = [loop for loop in loops if loop.used == (False, True, True)]
    swapped = _prefers_swap(rows, columns)
    if swapped:
        rows, columns = columns, rows
        rows, columns = [_swap(x) for x in rows], [_swap(x) for x in columns]
        k, loops = tuple(_swap(x) for x in k), [_swap(x) for x in loops]
    n = min(columns, key=lambda loop: (loop.strides[2] != 1, -loop.size), default=_single())
    m = max(rows, key=lambda loop: loop.size, default=_single())
    outer = tuple(loop for loop in loops if not loop.reduction and loop.dims not in (m.dims, n.dims))
    if n.strides[2] != 1 and any(loop.strides == (1, 1, 1) for loop in outer):
        raise UnsupportedError("element by element along its contiguous loop")
    ordered = tuple(sorted(k, key=lambda loop: -max(loop.strides[:2])))
    return Contraction(element, outer, m, n, ordered, swapped)


def _prefers_swap(rows: list[Loop], columns: list[Loop]) -> bool:
    if any(loop.strides[2] == 1 for loop in columns):
        return False
    return any(loop.strides[2] == 1 for loop in rows) or not columns


def _swap(loop: Loop) -> Loop:
    a, b, c = loop.strides
    used_a, used_b, used_c = loop.used
    return Loop(loop.size, (b, a, c), loop.reduction, loop.dims, (used_b, used_a, used_c))


def _single() -> Loop:
    return Loop(1, (0, 0, 0), False, (), (False, False, False))
