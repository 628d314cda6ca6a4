"""Recognises contractions in linalg ops, classifies their loops (outer, m, n, k), and emits their arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buddy.compiler.mlir.bindings import arith, ir, linalg, vector
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, layout_of, loop_sizes, loops_of, merge_loops
from buddy.compiler.passes.kernels.emit import element_type, with_element_type

# ---- element types and arithmetic on them ----------------------------------------------------------------------------

FLOATS = ("bf16", "f16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
_NARROW_FLOATS = frozenset({"bf16", "f16"})


def accumulator_element(a: str, b: str, result: str) -> str | None:
    """Returns the element type of the sums of a contraction of elements `a` and `b` with a result of type `result`.

    Sums of 16-bit floats are f32, and are rounded once. Sums of integers have the result's type, and wrap around. `a`
    and `b` may be different types that convert to the sums without rounding: narrower floats, or 8-bit integers.
    Returns `None` if no kernel fits: if `a` and `b` differ in another way, or if `result` is narrower.
    """
    if result in FLOATS and {a, b} & set(FLOATS):
        is_exact = all(
            element == "i8" or (element in FLOATS and bit_width(element) <= bit_width(result)) for element in (a, b)
        )
        sums = "f32" if result in _NARROW_FLOATS else result
        return sums if is_exact else None
    if a != b:
        return None
    return result if a in INTEGERS and result in INTEGERS and bit_width(result) >= bit_width(a) else None


def bit_width(element: str) -> int:
    """Returns the width of an element type such as "bf16" or "i8"."""
    return int(element.lstrip("bfi"))


def byte_width(element: str) -> int:
    """Returns the bytes of an element of a type of whole bytes, such as "bf16"."""
    return bit_width(element) // 8


def convert_elements(value: ir.Value, element: ir.Type, unsigned: bool = False) -> ir.Value:
    """Converts a scalar or vector to elements of type `element`, which is a float if `value` is one.

    Floats are rounded to nearest even. Integers are truncated or extended, by zeros if `unsigned`, otherwise by their
    sign; they may also become floats.
    """
    old = element_type(value.type)
    if old == element:
        return value
    type_ = with_element_type(value.type, element)
    widens = element.width > old.width
    if isinstance(element, ir.FloatType) and not isinstance(old, ir.FloatType):
        # To 32 bits first: processors convert vectors of these. A zero-extended narrower integer is not negative.
        wide = convert_elements(value, ir.IntegerType.get_signless(32), unsigned)
        return (arith.uitofp if unsigned and old.width >= 32 else arith.sitofp)(type_, wide)
    if isinstance(element, ir.FloatType):
        return arith.extf(type_, value) if widens else arith.truncf(type_, value)
    if not widens:
        return arith.trunci(type_, value)
    return (arith.extui if unsigned else arith.extsi)(type_, value)


def emit_multiply_add(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    """Returns `left * right + total`: rounded once for vectors of floats, twice for scalars; integers wrap around."""
    if not isinstance(element_type(total.type), ir.FloatType):
        return arith.addi(arith.muli(left, right), total)
    if not isinstance(total.type, ir.VectorType):
        return arith.addf(arith.mulf(left, right), total)
    return vector.fma(left, right, total)


def emit_add(left: ir.Value, right: ir.Value) -> ir.Value:
    """Returns the sum of two scalars or vectors of the same type."""
    is_float = isinstance(element_type(left.type), ir.FloatType)
    return arith.addf(left, right) if is_float else arith.addi(left, right)


# ---- matching ops ----------------------------------------------------------------------------------------------------

_EXTENSIONS = frozenset({"arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp"})
_UNSIGNED_EXTENSIONS = frozenset({"arith.extui", "arith.uitofp"})
# The named ops that are contractions; `linalg.generic` may be one too.
NAMED_CONTRACTIONS = frozenset({"linalg.contract", "linalg.matmul", "linalg.batch_matmul"})
# The names of the last ops of the body of a contraction, of floats and of integers.
_MULTIPLY_ADD = (["arith.mulf", "arith.addf", "linalg.yield"], ["arith.muli", "arith.addi", "linalg.yield"])


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """Returns the affine maps of a linalg op that has `indexing_maps`."""
    return [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]


def is_contraction(op: ir.Operation) -> bool:
    """True if `op` computes `C[c] += A[a] * B[b]` over its loops, for element types that kernels support.

    Elements of A and B may be extended before they are multiplied. Convolutions are included, see `has_plain_indices`.
    """
    if op.name == "linalg.generic":
        has_shaped_operands = len(op.operands) == 3 and all(isinstance(v.type, ir.ShapedType) for v in op.operands)
        return has_shaped_operands and sum_type(op) is not None and _multiplies_and_adds(op) and _has_reduction(op)
    return op.name in NAMED_CONTRACTIONS and sum_type(op) is not None and _multiplies_and_adds(op)


def has_plain_indices(op: ir.Operation) -> bool:
    """True if each dim of the operands is indexed by a single loop, as `linalg.contract` requires.

    It is false for convolutions, whose image is indexed by sums of loops.
    """
    return all(isinstance(e, ir.AffineDimExpr) for map_ in indexing_maps(op) for e in map_.results)


def element_types(op: ir.Operation) -> tuple[str, str, str]:
    """Returns the element types of A, B and C."""
    a, b, c = (str(value.type.element_type) for value in op.operands)
    return a, b, c


def sum_type(op: ir.Operation) -> str | None:
    """Returns the accumulator type of `op`, or `None` if no kernel fits its types."""
    return accumulator_element(*element_types(op))


def unsigned_inputs(op: ir.Operation) -> tuple[bool, bool]:
    """Returns for A and B whether a contraction zero-extends their integers. Their MLIR types are signless."""
    block = op.regions[0].blocks[0]
    extended = [
        inner.operation.operands[0] for inner in block.operations if inner.operation.name in _UNSIGNED_EXTENSIONS
    ]
    a, b, _ = block.arguments
    return a in extended, b in extended


def rebuild_contraction(op: ir.Operation, operands: Sequence[ir.Value], maps: Sequence[ir.AffineMap]) -> ir.Value:
    """Emits a contraction on tensors that computes what `op` computes, from other `operands` (A, B, C).

    `maps` are the indexing maps of `operands`. Returns the result: of a `linalg.contract`, or of a `linalg.generic` if
    elements are zero-extended.
    """
    a, b, c = operands
    if not any(unsigned_inputs(op)):
        return linalg.contract(a, b, outs=[c], indexing_maps=maps)
    unsigned, in_c = unsigned_inputs(op), {e.position for e in maps[2].results}
    kinds = ["parallel" if loop in in_c else "reduction" for loop in range(maps[2].n_dims)]
    map_attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
    iterators = ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds])
    new = linalg.GenericOp([c.type], [a, b], [c], map_attributes, iterators)
    elements = [value.type.element_type for value in operands]
    block = new.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * 3)
    with ir.InsertionPoint(block):
        *inputs, total = block.arguments
        left, right = (
            convert_elements(v, total.type, is_unsigned) for v, is_unsigned in zip(inputs, unsigned, strict=True)
        )
        linalg.yield_([emit_multiply_add(left, right, total)])
    return new.results[0]


def _multiplies_and_adds(op: ir.Operation) -> bool:
    """True if the body of `op` yields `c + a * b`, with optional extensions of a and b."""
    block = op.regions[0].blocks[0]
    body = [inner.operation for inner in block.operations]
    if [inner.name for inner in body[-3:]] not in _MULTIPLY_ADD:
        return False
    *casts, product, total, terminator = body
    a, b, c = block.arguments
    extended: dict[ir.Value, ir.Value] = {a: a, b: b}
    for cast in casts:
        if cast.name not in _EXTENSIONS or cast.operands[0] not in (a, b):
            return False
        extended[cast.operands[0]] = cast.result
    return (
        is_pair(product.operands, extended[a], extended[b])
        and is_pair(total.operands, product.result, c)
        and terminator.operands[0] == total.result
    )


def is_pair(operands: ir.OpOperandList, first: ir.Value, second: ir.Value) -> bool:
    """True if `operands` are `first` and `second`, in any order."""
    left, right = operands
    return (left == first and right == second) or (left == second and right == first)


def _has_reduction(op: ir.Operation) -> bool:
    return any("reduction" in str(kind) for kind in op.attributes["iterator_types"])


# ---- loops in their roles --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contraction:
    """`C[outer, m, n] += sum over k of A[outer, m, k] * B[outer, k, n]`.

    Each loop has the strides of (A, B, C), in elements. `swapped` means that A is the op's second operand, and B its
    first one. `m` and `n` are the loops that a register block covers (of size 1 if absent); `outer` has all other loops
    over C. Sums have the element type `element`; `input_elements` are those of A and B, and `result_element` is that of
    C. `unsigned` says for A and B whether their integers are unsigned.
    """

    element: str
    outer: tuple[Loop, ...]
    m: Loop
    n: Loop
    k: tuple[Loop, ...]
    swapped: bool
    input_elements: tuple[str, str]
    result_element: str
    unsigned: tuple[bool, bool] = (False, False)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Returns the loops over C: the outer ones, m, n."""
        return (*self.outer, self.m, self.n)

    @property
    def depth(self) -> int:
        """Returns the number of products per element of C."""
        return math.prod(loop.size for loop in self.k)

    def describe_types(self) -> str:
        """Returns the element types of A and B, as "bf16" or "f32 and i8"."""
        return " and ".join(dict.fromkeys(self.input_elements))

    @property
    def flops(self) -> int:
        """Returns the number of multiplications and additions."""
        return 2 * math.prod(loop.size for loop in self.loops) * self.depth


def analyse_contraction(op: ir.Operation) -> Contraction:
    """Returns the contraction that `op` (on memrefs) computes.

    Raises `UnsupportedError` for dynamic shapes or strides, for a loop that indexes neither A nor B, and if a plain
    vector loop is better.
    """
    maps = indexing_maps(op)
    layouts = [layout_of(value.type) for value in op.operands]
    sizes = loop_sizes(maps[0].n_dims, maps, layouts)
    in_c = {e.position for e in maps[2].results if isinstance(e, ir.AffineDimExpr)}
    loops = loops_of(sizes, [d not in in_c for d in range(len(sizes))], maps, layouts)
    for loop in loops:
        if not (loop.used[0] or loop.used[1]):
            raise UnsupportedError("a loop of the contraction indexes neither of its inputs")
    contraction = _assign_roles(merge_loops(loops), sum_type(op) or "", element_types(op))
    first, second = unsigned_inputs(op)
    return replace(contraction, unsigned=(second, first) if contraction.swapped else (first, second))


def split_contraction(contraction: Contraction, boundaries: Sequence[int]) -> Contraction:
    """Returns the contraction with each loop over C split at the strides in C that `boundaries` has.

    The inner part, with the smaller stride, keeps the role of the loop; the other part becomes an outer loop. Raises
    `UnsupportedError` if the size of a loop is not divisible there.
    """
    for stride in boundaries:
        for role in ("m", "n", *range(len(contraction.outer))):
            contraction = _split_loop(contraction, role, stride)
    return contraction


def _split_loop(contraction: Contraction, role: str | int, boundary: int) -> Contraction:
    """Returns the contraction with the loop `role` split at the stride `boundary` in C.

    `role` is "m", "n", or the number of an outer loop. The loop is split if `boundary` is more than the stride of one
    iteration and less than that of all iterations; otherwise it is unchanged.
    """
    loop = contraction.outer[role] if isinstance(role, int) else getattr(contraction, role)
    stride = loop.strides[2]
    if not stride < boundary < stride * loop.size:
        return contraction
    inner_size, remainder = divmod(boundary, stride)
    if remainder or loop.size % inner_size:
        raise UnsupportedError("an operand is not linear along a loop of the kernel")
    outer_strides = tuple(inner_size * loop_stride for loop_stride in loop.strides)
    outer_part = replace(loop, size=loop.size // inner_size, strides=outer_strides)
    inner_part = replace(loop, size=inner_size)
    outer = list(contraction.outer)
    if isinstance(role, int):
        outer[role : role + 1] = [outer_part, inner_part]
        return replace(contraction, outer=tuple(outer))
    outer.append(outer_part)
    if role == "m":
        return replace(contraction, outer=tuple(outer), m=inner_part)
    return replace(contraction, outer=tuple(outer), n=inner_part)


def _assign_roles(loops: list[Loop], element: str, elements: tuple[str, str, str]) -> Contraction:
    """Chooses the loops of the register block; swaps A and B if C is contiguous along a loop over rows.

    `element` is the type of the sums, and `elements` has the types of A, B and C.
    """
    k = tuple(loop for loop in loops if loop.reduction)
    rows = [loop for loop in loops if loop.used == (True, False, True)]
    columns = [loop for loop in loops if loop.used == (False, True, True)]
    swapped = _prefers_swap(rows, columns)
    if swapped:
        rows, columns = [_swap(loop) for loop in columns], [_swap(loop) for loop in rows]
        k, loops = tuple(_swap(loop) for loop in k), [_swap(loop) for loop in loops]
    n = min(columns, key=lambda loop: (loop.strides[2] != 1, -loop.size), default=_unit_loop())
    m = max(rows, key=lambda loop: loop.size, default=_unit_loop())
    outer = tuple(loop for loop in loops if not loop.reduction and loop.dims not in (m.dims, n.dims))
    if n.strides[2] != 1 and any(loop.strides == (1, 1, 1) for loop in outer):
        raise UnsupportedError("it multiplies element by element along its contiguous loop: a vector loop is better")
    ordered = tuple(sorted(k, key=lambda loop: -max(loop.strides[:2])))
    inputs = (elements[1], elements[0]) if swapped else (elements[0], elements[1])
    return Contraction(element, outer, m, n, ordered, swapped, inputs, elements[2])


def _prefers_swap(rows: list[Loop], columns: list[Loop]) -> bool:
    """True if C is contiguous along a loop over rows and no loop over columns, or if there are no columns."""
    if any(loop.strides[2] == 1 for loop in columns):
        return False
    return any(loop.strides[2] == 1 for loop in rows) or not columns


def _swap(loop: Loop) -> Loop:
    """Returns `loop` with A and B exchanged."""
    a, b, c = loop.strides
    used_a, used_b, used_c = loop.used
    return Loop(loop.size, (b, a, c), loop.reduction, loop.dims, (used_b, used_a, used_c))


def _unit_loop() -> Loop:
    return Loop(1, (0, 0, 0), False, (), (False, False, False))
