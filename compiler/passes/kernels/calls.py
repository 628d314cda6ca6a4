"""Calls of kernels in a module, of this compiler and of a BLAS, and how memrefs are passed to them.

Calls pass buffers as bare pointers, which do not include an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, func, ir, memref
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import collect, unique_symbol
from buddy.compiler.passes.kernels.access import UnsupportedError, flat_type, flatten, layout_of
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.packing import Packing
from buddy.compiler.passes.kernels.weights import PackedWeights, Place, mark_streamed
from buddy.compiler.support.blas import symbol


def argument_types(types: Sequence[Any]) -> list[Any]:
    """Returns the types of a kernel's arguments, for operands of `types`."""
    return [found for type_ in types for found in _types_passed(type_)]


def passed_values(values: Sequence[Any]) -> list[Any]:
    """Returns the arguments for the memrefs `values`; emitted at the insertion point."""
    return [part for value in values for part in _values_passed(value)]


def flat_operands(arguments: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Returns the operands of `types` as 1-D memrefs, from a kernel's arguments; emitted at the insertion point."""
    left = iter(arguments)
    return [
        _flat_operand(next(left), next(left), type_) if _has_dynamic_offset(type_) else flatten(next(left))
        for type_ in types
    ]


def _has_dynamic_offset(type_: Any) -> bool:
    return layout_of(type_).offset is None


def _types_passed(type_: Any) -> list[Any]:
    if not _has_dynamic_offset(type_):
        return [type_]
    return [ir.MemRefType.get([], type_.element_type, memory_space=type_.memory_space), ir.IndexType.get()]


def _values_passed(value: Any) -> list[Any]:
    return list(memref.ExtractStridedMetadataOp(value).results[:2]) if _has_dynamic_offset(value.type) else [value]


def _flat_operand(base: Any, offset: Any, type_: Any) -> Any:
    dynamic, span = ir.ShapedType.get_dynamic_stride_or_offset(), layout_of(type_).span
    return memref.reinterpret_cast(flat_type(type_), base, [offset], [], [], [dynamic], [span], [1])


# (name, types of the operands) -> the function, emitted at the insertion point
Build = Callable[[str, Sequence[Any]], func.FuncOp]


class KernelCalls:
    """The kernels of one pass over `root`; with `pack_weights`, weights are packed outside of the call."""

    def __init__(self, root: Any, locations: LocationSets, pack_weights: bool) -> None:
        self.root, self.locations = root, locations
        self.packs = pack_weights
        self._weights = PackedWeights(root)
        self._functions: dict[Hashable, tuple[str, Any, list[Any]]] = {}  # name, function, locations of its calls
        self._packed_for: dict[Packing, list[Any]] = {}  # locations of the ops that read the packed weights

    def parameter(self, value: Any) -> Place | None:
        """Returns where `value` comes from, if it is an unmodified parameter; otherwise `None`."""
        return self._weights.parameter(value)

    def packed(self, place: Place, panels: Packing, location: Any) -> Any:
        """Returns the buffer for the weights at `place`, packed as `panels`."""
        assert self.packs, "only weights that can be packed outside of the call are parameters"
        self._packed_for.setdefault(panels, []).append(location)
        return self._weights.packed(place, panels)

    def streamed(self, place: Place) -> None:
        """Marks the weights at `place`, for the runner, as read sequentially and in place by a kernel."""
        mark_streamed(self._weights, place)

    def call(self, op: Any, key: Hashable, symbol: str, operands: Sequence[Any], location: Any, build: Build) -> None:
        """Calls, in front of `op`, the kernel for `key` and the types of `operands`."""
        types = [value.type for value in operands]
        whole = (key, tuple(str(type_) for type_ in types))
        if whole not in self._functions:
            name = unique_symbol(self.root, symbol)
            with ir.InsertionPoint(self.root.regions[0].blocks[0]), location:
                self._functions[whole] = (name, build(name, types), [])
        name, _, locations = self._functions[whole]
        locations.append(location)
        with ir.InsertionPoint(op), location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), passed_values(operands))

    def called(self) -> dict[str, list[Any]]:
        """Returns the locations of the calls of each kernel."""
        return {name: list(locations) for name, _, locations in self._functions.values()}

    def finish(self) -> None:
        """Emits the packing functions, and sets the locations of shared functions to those of all their calls."""
        written = self._weights.finish()
        for _, function, locations in self._functions.values():
            self._locate(function, locations)
        for panels, functions in written.items():
            for function in functions:
                self._locate(function, self._packed_for[panels])

    def _locate(self, function: Any, locations: list[Any]) -> None:
        union = self.locations.union(locations)

        def place(op: Any) -> Any:
            op.location = union
            return ir.WalkResult.ADVANCE

        function.operation.walk(place)


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
