"""Emits calls of a BLAS library for the contractions that are matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.mlir.bindings import arith, func, ir, memref
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.calls import kernel_body
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.support.blas import gemm_symbol

# Values of the enumerations CBLAS_LAYOUT and CBLAS_TRANSPOSE in cblas.h.
_ROW_MAJOR, _NOT_TRANSPOSED, _TRANSPOSED = 101, 111, 112

_BYTES = {"f32": 4, "f64": 8}


@dataclass(frozen=True)
class BlasMatrix:
    """A row-major matrix in memory, which a call reads as it is or `transposed`.

    `leading` is BLAS's leading dimension: the number of elements from one row to the next.
    """

    transposed: bool
    leading: int


@dataclass(frozen=True)
class BlasProduct:
    """The sizes and matrices of one call of `cblas_?gemm`."""

    m: int
    n: int
    k: int
    a: BlasMatrix
    b: BlasMatrix
    leading_c: int


def blas_product(contraction: Contraction) -> BlasProduct:
    """Returns the call that computes the contraction for one iteration of the outer loops.

    Raises `UnsupportedError` for element types other than f32 and f64, for sums over several loops, and for a matrix
    that BLAS cannot read or write where it is.
    """
    c = contraction
    if c.element not in _BYTES or c.input_elements != (c.element, c.element) or c.result_element != c.element:
        raise UnsupportedError(f"the library has no matrix product of {c.describe_types()}")
    if len(c.k) > 1:
        raise UnsupportedError("a sum over several loops is not a matrix product")
    k, k_a, k_b = (c.k[0].size, *c.k[0].strides[:2]) if c.k else (1, 1, 1)
    a = _matrix(c.m.size, k, c.m.strides[0], k_a)
    b = _matrix(k, c.n.size, k_b, c.n.strides[1])
    result = _matrix(c.m.size, c.n.size, c.m.strides[2], c.n.strides[2])
    if result.transposed:
        raise UnsupportedError("the rows of its result are not contiguous")
    return BlasProduct(c.m.size, c.n.size, k, a, b, result.leading)


def _matrix(rows: int, columns: int, row_stride: int, column_stride: int) -> BlasMatrix:
    """Returns how a matrix is stored. Raises `UnsupportedError` if BLAS cannot access it where it is.

    BLAS requires that rows or columns are contiguous, and that the leading dimension is not less than their length.
    """
    if column_stride == 1 or columns == 1:
        if rows == 1 or row_stride >= columns:
            return BlasMatrix(transposed=False, leading=max(1, columns, row_stride if rows > 1 else 0))
        raise UnsupportedError("the rows of one of its matrices overlap")
    if row_stride == 1 or rows == 1:
        if column_stride >= rows:
            return BlasMatrix(transposed=True, leading=max(1, column_stride))
        raise UnsupportedError("the columns of one of its matrices overlap")
    raise UnsupportedError("one of its matrices is contiguous in neither direction")


def declare_gemm(root: ir.Operation, element: str, index_bits: int) -> str:
    """Declares the library's `cblas_?gemm` for `element` in `root`, if it is new; returns its name."""
    name = gemm_symbol(element, index_bits)
    declared = {str(op.attributes["sym_name"]).strip('"') for op in root.regions[0].blocks[0]}
    if name not in declared:
        enum, size, scalar = ir.IntegerType.get_signless(32), _size_type(index_bits), ir.Type.parse(element)
        pointer = ir.IntegerType.get_signless(64)
        # Layout, transpositions of A and B; m, n, k; alpha; A and B with their leading dimensions; beta; C with its.
        inputs = [*[enum] * 3, *[size] * 3, scalar, pointer, size, pointer, size, scalar, pointer, size]
        with ir.InsertionPoint(root.regions[0].blocks[0]):
            func.FuncOp(name, (inputs, []), visibility="private")
    return name


def _size_type(index_bits: int) -> ir.Type:
    """Returns the type of sizes and leading dimensions in the library."""
    return ir.IntegerType.get_signless(index_bits)


def emit_blas_wrapper(
    name: str, types: Sequence[ir.Type], contraction: Contraction, callee: str, index_bits: int, accumulate: bool
) -> func.FuncOp:
    """Emits a private function of three operands that calls `callee` in each iteration of the outer loops.

    `types` are those of the operands. Unless `accumulate`, the old values of C are not read.
    """
    with kernel_body(name, types) as (function, e, operands):
        first, second, c = operands
        inputs = (second, first) if contraction.swapped else (first, second)
        _BlasCalls(e, [*inputs, c], contraction, callee, index_bits, accumulate).emit()
    return function


class _BlasCalls:
    """Emits the calls of `callee` for one contraction; `flats` are A, B and C as 1-D memrefs."""

    def __init__(
        self,
        e: KernelEmitter,
        flats: list[ir.Value],
        contraction: Contraction,
        callee: str,
        index_bits: int,
        accumulate: bool,
    ) -> None:
        self.e, self.c, self.callee, self.accumulate = e, contraction, callee, accumulate
        self.size_type, self.product = _size_type(index_bits), blas_product(contraction)
        self.addresses = [self._start_address(flat) for flat in flats]

    def emit(self) -> None:
        """Emits the loops over C around the calls."""
        self.e.nest([loop.size for loop in self.c.outer], self._emit_call)

    def _start_address(self, flat: ir.Value) -> ir.Value:
        """Emits the address of the first element of `flat`, as a value of type `index`."""
        base = memref.extract_aligned_pointer_as_index(flat)
        offset = memref.ExtractStridedMetadataOp(flat).results[1]
        return arith.addi(base, arith.muli(offset, self.e.value(_BYTES[self.c.element])))

    def _emit_call(self, outer: list[Index]) -> None:
        """Emits the call for one iteration of the outer loops."""
        e, p = self.e, self.product
        a, b, c = (self._pointer(number, outer) for number in range(3))
        enums = [_ROW_MAJOR, *(_TRANSPOSED if m.transposed else _NOT_TRANSPOSED for m in (p.a, p.b))]
        scalar = ir.Type.parse(self.c.element)
        alpha, beta = e.splat(scalar, 1), e.splat(scalar, 1 if self.accumulate else 0)
        operands = [
            *(self._constant(value, ir.IntegerType.get_signless(32)) for value in enums),
            *(self._constant(value, self.size_type) for value in (p.m, p.n, p.k)),
            alpha, a, self._constant(p.a.leading, self.size_type), b, self._constant(p.b.leading, self.size_type),
            beta, c, self._constant(p.leading_c, self.size_type),
        ]  # fmt: skip
        func.CallOp([], ir.FlatSymbolRefAttr.get(self.callee), operands)

    def _pointer(self, number: int, outer: list[Index]) -> ir.Value:
        """Emits the address of operand `number` (A, B, C) for one iteration of the outer loops, as an i64."""
        size = _BYTES[self.c.element]
        offset = self.e.dot(outer, [loop.strides[number] * size for loop in self.c.outer])
        address = self.addresses[number]
        address = address if isinstance(offset, int) and offset == 0 else arith.addi(address, self.e.value(offset))
        return arith.index_cast(ir.IntegerType.get_signless(64), address)

    def _constant(self, value: int, type_: ir.Type) -> ir.Value:
        return self.e.constant(ir.IntegerAttr.get(type_, value))
