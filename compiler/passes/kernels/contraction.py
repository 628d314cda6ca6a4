"""Analyses a contraction, of any linalg op, into four classes of loops, and emits its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, linalg, vector
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, layout_of, loop_sizes, loops_of, merge
from buddy.compiler.passes.kernels.emit import element_of

FLOATS = ("bf16", "f16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
_NARROW_FLOATS = frozenset({"bf16", "f16"})


def accumulator(factors: tuple[str, str], result: str) -> str | None:
    """Returns the accumulator type for products of `factors` with a result of type `result`.

    Narrow floats accumulate in f32 and are rounded once, integers in the result's type, modulo its width. `None` if no
    kernel fits: factors of different types, or a result narrower than they are.
    """
    a, b = factors
    if a != b:
        return None
    if a in FLOATS and result in FLOATS and bits(result) >= bits(a):
        return "f32" if result in _NARROW_FLOATS else result
    return result if a in INTEGERS and result in INTEGERS and bits(result) >= bits(a) else None


def bits(element: str) -> int:
    """Returns the width of an element type such as "bf16" or "i8"."""
    return int(element.lstrip("bfi"))


def bytes_of(element: str) -> int:
    return bits(element) // 8


def converted(value: Any, element: Any, unsigned: bool = False) -> Any:
    """Converts a scalar or vector to elements of type `element`: sign-extends, or rounds to nearest even.

    `unsigned` integers are zero-extended.
    """
    old = element_of(value.type)
    if old == element:
        return value
    type_ = ir.VectorType.get(value.type.shape, element) if isinstance(value.type, ir.VectorType) else element
    widens = element.width > old.width
    if isinstance(element, ir.FloatType):
        return arith.extf(type_, value) if widens else arith.truncf(type_, value)
    if not widens:
        return arith.trunci(type_, value)
    return (arith.extui if unsigned else arith.extsi)(type_, value)


def multiply_add(left: Any, right: Any, total: Any) -> Any:
    """Returns `left * right + total`: rounded once for vectors of floats, modulo the width for integers."""
    if not isinstance(element_of(total.type), ir.FloatType):
        return arith.addi(arith.muli(left, right), total)
    if not isinstance(total.type, ir.VectorType):
        return arith.addf(arith.mulf(left, right), total)
    return vector.fma(left, right, total)


def add(left: Any, right: Any) -> Any:
    """Returns the sum of two scalars or vectors of the same type."""
    is_float = isinstance(element_of(left.type), ir.FloatType)
    return arith.addf(left, right) if is_float else arith.addi(left, right)


_WIDENS = frozenset({"arith.extf", "arith.extsi", "arith.extui"})
NAMED = frozenset({"linalg.contract", "linalg.matmul", "linalg.batch_matmul"})
_MULTIPLY_ADD = (["arith.mulf", "arith.addf", "linalg.yield"], ["arith.muli", "arith.addi", "linalg.yield"])


def indexing_maps(op: Any) -> list[Any]:
    """Returns the affine maps of a linalg op that has `indexing_maps`."""
    return [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]


def is_contraction(op: Any) -> bool:
    """True if `op` computes `C[c] += A[a] * B[b]` over its loops; factors may be widened before multiplying."""
    if op.name == "linalg.generic":
        shaped = len(op.operands) == 3 and all(isinstance(value.type, ir.ShapedType) for value in op.operands)
        return shaped and sum_type(op) is not None and _multiplies_and_adds(op) and _has_reduction(op)
    return op.name in NAMED and sum_type(op) is not None and _multiplies_and_adds(op)


def reads_loops(op: Any) -> bool:
    """True if operands are indexed by single loops; a convolution, which is not, is no `linalg.contract`."""
    return all(isinstance(e, ir.AffineDimExpr) for map_ in indexing_maps(op) for e in map_.results)


def elements_of(op: Any) -> tuple[str, str, str]:
    """Returns the element types of A, B and C."""
    a, b, c = (str(value.type.element_type) for value in op.operands)
    return a, b, c


def sum_type(op: Any) -> str | None:
    """Returns the accumulator type of `op`, or `None` if no kernel fits its types."""
    a, b, c = elements_of(op)
    return accumulator((a, b), c)


def unsigned_factors(op: Any) -> tuple[bool, bool]:
    """Returns, for A and B, whether a contraction zero-extends their elements: MLIR integers are signless."""
    block = op.regions[0].blocks[0]
    widened = [inner.operation.operands[0] for inner in block.operations if inner.operation.name == "arith.extui"]
    a, b, _ = block.arguments
    return a in widened, b in widened


def rebuilt(op: Any, operands: Sequence[Any], maps: Sequence[Any]) -> Any:
    """Returns the result of a contraction like `op`, on tensors, of other operands (A, B, C) that it reads by `maps`.

    Emitted at the insertion point.
    """
    a, b, c = operands
    if not any(unsigned_factors(op)):
        return linalg.contract(a, b, outs=[c], indexing_maps=maps)
    unsigned, in_c = unsigned_factors(op), {e.position for e in maps[2].results}
    kinds = ["parallel" if loop in in_c else "reduction" for loop in range(maps[2].n_dims)]
    attributes = (
        [ir.AffineMapAttr.get(map_) for map_ in maps],
        [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds],
    )
    new = linalg.GenericOp([c.type], [a, b], [c], *map(ir.ArrayAttr.get, attributes))
    elements = [value.type.element_type for value in operands]
    block = new.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * 3)
    with ir.InsertionPoint(block):
        *factors, total = block.arguments
        left, right = (converted(v, total.type, zeros) for v, zeros in zip(factors, unsigned, strict=True))
        linalg.yield_([multiply_add(left, right, total)])
    return new.results[0]


def _multiplies_and_adds(op: Any) -> bool:
    block = op.regions[0].blocks[0]
    body = [inner.operation for inner in block.operations]
    if [inner.name for inner in body[-3:]] not in _MULTIPLY_ADD:
        return False
    *casts, product, total, result = body
    a, b, c = block.arguments
    widened = {a: a, b: b}
    for cast in casts:
        if cast.name not in _WIDENS or cast.operands[0] not in (a, b):
            return False
        widened[cast.operands[0]] = cast.result
    return (
        _is_pair(product.operands, widened[a], widened[b])
        and _is_pair(total.operands, product.result, c)
        and result.operands[0] == total.result
    )


def _is_pair(operands: Any, first: Any, second: Any) -> bool:
    left, right = operands
    return (left == first and right == second) or (left == second and right == first)


def _has_reduction(op: Any) -> bool:
    return any("reduction" in str(kind) for kind in op.attributes["iterator_types"])


@dataclass(frozen=True)
class Contraction:
    """`C[outer, m, n] += sum over k of A[outer, m, k] * B[outer, k, n]`.

    Strides of a loop are those of (A, B, C), in elements. `swapped` means that A is the op's second operand. `m` and
    `n` are the loops that a register block covers (of size 1 if absent); `outer` are all others. Products accumulate in
    `element`; `factor` and `result` are the element types of A and B, and of C ("" for `element`). `unsigned` says for
    A and B whether their integers are unsigned.
    """

    element: str
    outer: tuple[Loop, ...]
    m: Loop
    n: Loop
    k: tuple[Loop, ...]
    swapped: bool
    factor: str = ""
    result: str = ""
    unsigned: tuple[bool, bool] = (False, False)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Returns the loops over C: the outer ones, m, n."""
        return (*self.outer, self.m, self.n)

    @property
    def factor_element(self) -> str:
        return self.factor or self.element

    @property
    def depth(self) -> int:
        """Returns the products per element of C."""
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
    """Returns the contraction that `op` (on memrefs) computes.

    Raises `UnsupportedError` for dynamic shapes, and where plain vector loops are better.
    """
    maps = indexing_maps(op)
    layouts = [layout_of(value.type) for value in op.operands]
    sizes = loop_sizes(maps[0].n_dims, maps, layouts)
    in_c = {e.position for e in maps[2].results if isinstance(e, ir.AffineDimExpr)}
    loops = loops_of(sizes, [d not in in_c for d in range(len(sizes))], maps, layouts)
    for loop in loops:
        if not (loop.used[0] or loop.used[1]):
            raise UnsupportedError("a loop of the contraction indexes neither factor")
    found = _roles(merge(loops), sum_type(op) or "")
    first, second = unsigned_factors(op)
    unsigned = (second, first) if found.swapped else (first, second)
    return replace(found, factor=elements_of(op)[0], result=elements_of(op)[2], unsigned=unsigned)


def split_at(contraction: Contraction, boundaries: Sequence[int]) -> Contraction:
    """Splits each loop of the contraction at the strides in C that are listed in `boundaries`.

    The faster part keeps the loop's role, the other becomes an outer loop. Raises `UnsupportedError` if a loop is not
    divisible there.
    """
    for stride in boundaries:
        for role in ("m", "n", *range(len(contraction.outer))):
            contraction = _cut(contraction, role, stride)
    return contraction


def _cut(contraction: Contraction, role: str | int, stride: int) -> Contraction:
    loop = contraction.outer[role] if isinstance(role, int) else getattr(contraction, role)
    step = loop.strides[2]
    if not step < stride < step * loop.size:
        return contraction
    inner, rest = divmod(stride, step)
    if rest or loop.size % inner:
        raise UnsupportedError("an operand is not linear along a loop of the kernel")
    slow = replace(loop, size=loop.size // inner, strides=tuple(inner * s for s in loop.strides))
    fast = replace(loop, size=inner)
    outer = list(contraction.outer)
    if isinstance(role, int):
        outer[role : role + 1] = [slow, fast]
        return replace(contraction, outer=tuple(outer))
    cut = replace(contraction, outer=(*outer, slow))
    return replace(cut, m=fast) if role == "m" else replace(cut, n=fast)


def _roles(loops: list[Loop], element: str) -> Contraction:
    """Chooses the loops of the register block; exchanges the factors if C is contiguous along the first one."""
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
