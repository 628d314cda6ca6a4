"""Emits a contraction as calls of `cblas_?gemm`: storage of its matrices, and the function that calls the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, func, ir, memref
from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.passes.kernels.crossing import argument_types, flat_operands
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.support.blas import symbol

# Enumeration values in cblas.h.
_ROW_MAJOR, _NOT_TRANSPOSED, _TRANSPOSED = 101, 111, 112

_BYTES = {"f32": 4, "f64": 8}


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix in memory: `leading` elements from row to row, read `transposed` or not."""

    transposed: bool
    leading: int


@dataclass(frozen=True)
class Product:
    """The arguments of one `cblas_?gemm`: sizes and matrices."""

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    leading_c: int


def product_of(contraction: Contraction) -> Product:
    """Returns the call that computes the contraction for one value of its outer loops.

    Raises `UnsupportedError` if a matrix is contiguous in neither direction, or for types other than f32 and f64.
    """
    c = contraction
    if c.element not in _BYTES or c.factor_element != c.element or c.result not in ("", c.element):
        raise UnsupportedError(f"the library has no matrix product of {c.factor_element}")
    if len(c.k) > 1:
        raise UnsupportedError("a sum over several loops is not a matrix product")
    k, k_a, k_b = (c.k[0].size, *c.k[0].strides[:2]) if c.k else (1, 1, 1)
    a = _matrix(c.m.size, k, c.m.strides[0], k_a)
    b = _matrix(k, c.n.size, k_b, c.n.strides[1])
    leading = _matrix(c.m.size, c.n.size, c.m.strides[2], c.n.strides[2])
    if a is None or b is None or leading is None or leading.transposed:
        raise UnsupportedError("one of its matrices is contiguous in neither direction")
    return Product(c.m.size, c.n.size, k, a, b, leading.leading)


def _matrix(rows: int, columns: int, row_stride: int, column_stride: int) -> Matrix | None:
    """Returns how a matrix is stored; BLAS requires that the leading dimension is not less than the row length."""
    if column_stride == 1 or columns == 1:
        if rows == 1 or row_stride >= columns:
            return Matrix(False, max(1, columns, row_stride if rows > 1 else 0))
        return None
    if (row_stride == 1 or rows == 1) and column_stride >= rows:
        return Matrix(True, max(1, column_stride))
    return None


def declare(root: Any, element: str, index_bits: int) -> str:
    """Declares the library's function for `element` in `root`; returns its name."""
    name = symbol(element, index_bits)
    known = {str(op.attributes["sym_name"]).strip('"') for op in root.regions[0].blocks[0]}
    if name not in known:
        integer, word, scalar = ir.IntegerType.get_signless(32), _word(index_bits), ir.Type.parse(element)
        pointer = ir.IntegerType.get_signless(64)
        inputs = [*[integer] * 3, *[word] * 3, scalar, pointer, word, pointer, word, scalar, pointer, word]
        with ir.InsertionPoint(root.regions[0].blocks[0]):
            func.FuncOp(name, (inputs, []), visibility="private")
    return name


def _word(index_bits: int) -> Any:
    return ir.IntegerType.get_signless(index_bits)


def calling_function(
    name: str, types: Sequence[Any], contraction: Contraction, callee: str, index_bits: int, accumulate: bool
) -> func.FuncOp:
    """Emits a private function (A, B, C) that calls `callee` for each value of the outer loops.

    Without `accumulate`, the old values of C are not read.
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        first, second, c = flat_operands(entry.arguments, types)
        factors = (second, first) if contraction.swapped else (first, second)
        _Caller(KernelEmitter(entry), [*factors, c], contraction, callee, index_bits, accumulate).emit()
    return function


class _Caller:
    def __init__(
        self,
        e: KernelEmitter,
        flats: list[Any],
        contraction: Contraction,
        callee: str,
        index_bits: int,
        accumulate: bool,
    ) -> None:
        self.e, self.c, self.callee, self.accumulate = e, contraction, callee, accumulate
        self.word, self.product = _word(index_bits), product_of(contraction)
        self.pointers = [self._start(flat) for flat in flats]

    def emit(self) -> None:
        self.e.nest([loop.size for loop in self.c.outer], self._call)

    def _start(self, flat: Any) -> Any:
        """Returns the address of the first element."""
        base = memref.extract_aligned_pointer_as_index(flat)
        offset = memref.ExtractStridedMetadataOp(flat).results[1]
        return arith.addi(base, arith.muli(offset, self.e.value(_BYTES[self.c.element])))

    def _call(self, outer: list[Index]) -> None:
        e, p = self.e, self.product
        a, b, c = (self._pointer(number, outer) for number in range(3))
        enums = [_ROW_MAJOR, *(_TRANSPOSED if m.transposed else _NOT_TRANSPOSED for m in (p.a, p.b))]
        scalar = ir.Type.parse(self.c.element)
        one, beta = e.splat(scalar, 1), e.splat(scalar, 1 if self.accumulate else 0)
        operands = [
            *(self._number(value, ir.IntegerType.get_signless(32)) for value in enums),
            *(self._number(value, self.word) for value in (p.m, p.n, p.k)),
            one, a, self._number(p.a.leading, self.word), b, self._number(p.b.leading, self.word),
            beta, c, self._number(p.leading_c, self.word),
        ]  # fmt: skip
        func.CallOp([], ir.FlatSymbolRefAttr.get(self.callee), operands)

    def _pointer(self, number: int, outer: list[Index]) -> Any:
        size = _BYTES[self.c.element]
        offset = self.e.dot(outer, [loop.strides[number] * size for loop in self.c.outer])
        address = self.pointers[number]
        address = address if isinstance(offset, int) and offset == 0 else arith.addi(address, self.e.value(offset))
        return arith.index_cast(ir.IntegerType.get_signless(64), address)

    def _number(self, value: int, type_: Any) -> Any:
        return self.e.constant(ir.IntegerAttr.get(type_, value))


def locate(function: Any, location: Any) -> None:
    """Sets `location` on every op of a function."""
    for op in [function.operation, *collect(function.operation)]:
        op.location = location
