"""`contractions-to-blas`: replaces matrix products on memrefs by calls of a packaged OpenBLAS, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, func, ir, memref
from buddy.compiler.mlir.walk import nested_ops, unique_symbol, zero_fill_before
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.calls import call_arguments, kernel_body, set_location
from buddy.compiler.passes.kernels.contraction import Contraction, analyse_contraction, is_contraction
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.support import blas
from buddy.compiler.support.blas import gemm_symbol

# ---- calls of the library --------------------------------------------------------------------------------------------


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
        # Layout, transpositions of A and B; m, n, k; alpha; A, leading dimension; B, the same; beta; C, the same.
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
        self.e, self.contraction, self.callee, self.accumulate = e, contraction, callee, accumulate
        self.size_type, self.product = _size_type(index_bits), blas_product(contraction)
        self.addresses = [self._start_address(flat) for flat in flats]

    def emit(self) -> None:
        """Emits the loops over C around the calls."""
        self.e.nest([loop.size for loop in self.contraction.outer], self._emit_call)

    def _start_address(self, flat: ir.Value) -> ir.Value:
        """Emits the address of the first element of `flat`, as a value of type `index`."""
        base = memref.extract_aligned_pointer_as_index(flat)
        offset = memref.ExtractStridedMetadataOp(flat).results[1]
        return arith.addi(base, arith.muli(offset, self.e.value(_BYTES[self.contraction.element])))

    def _emit_call(self, outer: list[Index]) -> None:
        """Emits the call for one iteration of the outer loops."""
        e, product = self.e, self.product
        a, b, c = (self._pointer(number, outer) for number in range(3))
        matrices = (product.a, product.b)
        enums = [_ROW_MAJOR, *(_TRANSPOSED if matrix.transposed else _NOT_TRANSPOSED for matrix in matrices)]
        scalar = ir.Type.parse(self.contraction.element)
        alpha, beta = e.splat(scalar, 1), e.splat(scalar, 1 if self.accumulate else 0)
        operands = [
            *(self._constant(value, ir.IntegerType.get_signless(32)) for value in enums),
            *(self._constant(value, self.size_type) for value in (product.m, product.n, product.k)),
            alpha,
            a, self._constant(product.a.leading, self.size_type),
            b, self._constant(product.b.leading, self.size_type),
            beta,
            c, self._constant(product.leading_c, self.size_type),
        ]  # fmt: skip
        func.CallOp([], ir.FlatSymbolRefAttr.get(self.callee), operands)

    def _pointer(self, number: int, outer: list[Index]) -> ir.Value:
        """Emits the address of operand `number` (A, B, C) for one iteration of the outer loops, as an i64."""
        size = _BYTES[self.contraction.element]
        offset = self.e.dot(outer, [loop.strides[number] * size for loop in self.contraction.outer])
        address = self.addresses[number]
        address = address if isinstance(offset, int) and offset == 0 else arith.addi(address, self.e.value(offset))
        return arith.index_cast(ir.IntegerType.get_signless(64), address)

    def _constant(self, value: int, type_: ir.Type) -> ir.Value:
        return self.e.constant(ir.IntegerAttr.get(type_, value))


# ---- the pass --------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class ContractionsToBlas(MlirPass):
    """Replaces the matrix products that the library supports; others, or all if it is not installed, are unchanged.

    With `nodes`, a comma-separated list of node names, only the matrix products of these nodes are replaced.
    """

    name: ClassVar[str] = "contractions-to-blas"
    summary: ClassVar[str] = "replace matrix products by calls of OpenBLAS (scipy-openblas32, or the one inside NumPy)"

    nodes: str = ""

    def run(self, root: ir.Operation, context: PassContext) -> None:
        library = blas.find_blas()
        nodes = frozenset(name.strip() for name in self.nodes.split(",") if name.strip())
        rewriter = _Rewriter(root, context, library) if library is not None else None
        for op in [op for op in nested_ops(root) if op.name.startswith("linalg.") and not len(op.results)]:
            if not is_contraction(op) or not _is_selected(op, nodes, context):
                continue
            try:
                if rewriter is None:
                    raise UnsupportedError("no BLAS library is installed (pip install scipy-openblas32)")
                rewriter.rewrite(op)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} unchanged: {reason}")


def _is_selected(op: ir.Operation, nodes: frozenset[str], context: PassContext) -> bool:
    """True if `op` comes from one of `nodes`, or if `nodes` is empty."""
    names = context.locations.sets[context.locations.number_of(op.location)]
    return not nodes or not nodes.isdisjoint(names)


class _Rewriter:
    """Replaces contractions of one module by calls of a BLAS library; equal contractions share a function."""

    def __init__(self, root: ir.Operation, context: PassContext, library: blas.Blas) -> None:
        self.root, self.context, self.library = root, context, library
        self.functions: dict[object, tuple[str, Any, list[Any]]] = {}  # key -> name, function, locations of its calls

    def rewrite(self, op: ir.Operation) -> None:
        """Replaces `op`. Raises `UnsupportedError`, before anything is changed, if the library does not support it."""
        contraction = analyse_contraction(op)
        product = blas_product(contraction)
        fill = zero_fill_before(op, op.operands[2])
        name = self._function_for(op, contraction, fill is None)
        if fill is not None:
            fill.erase()
        with ir.InsertionPoint(op), op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), call_arguments(list(op.operands)))
        text = f"{product.m}x{product.n}x{product.k}: {self.library.package}"
        self.context.remark(ContractionsToBlas.name, op.location, text)
        op.erase()

    def _function_for(self, op: ir.Operation, contraction: Contraction, accumulate: bool) -> str:
        """Returns the name of the function that calls the library for `op`; emits the function if it is new."""
        types = [value.type for value in op.operands]
        key = (tuple(map(str, types)), contraction, accumulate)
        if key not in self.functions:
            bits = self.library.index_bits
            with op.location:
                callee = declare_gemm(self.root, contraction.element, bits)
                name = unique_symbol(self.root, f"blas_{contraction.m.size}x{contraction.depth}x{contraction.n.size}")
                with ir.InsertionPoint(self.root.regions[0].blocks[0]):
                    function = emit_blas_wrapper(name, types, contraction, callee, bits, accumulate)
            self.functions[key] = (name, function, [])
        name, function, locations = self.functions[key]
        locations.append(op.location)
        set_location(function, self.context.locations.union(locations))
        return name
