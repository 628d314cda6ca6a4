"""Emits each distinct kernel once, and calls of it; converts the memrefs that calls pass.

Calls pass buffers as bare pointers, which do not include an offset. A memref with a dynamic offset is therefore passed
as two arguments: its base and its offset.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import WriteEffects, has_identity_layout, nested_ops, root_of, unique_symbol
from buddy.compiler.passes.kernels.access import flat_type, flatten, layout_of
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.packing import Packing, emit_pack_function
from buddy.compiler.passes.kernels.weights import ArgumentId, PackedWeights, mark_streamed


def argument_types(types: Sequence[ir.Type]) -> list[ir.Type]:
    """Returns the types of a kernel's arguments, for operands of `types`."""
    return [argument_type for type_ in types for argument_type in _argument_types_of(type_)]


def call_arguments(values: Sequence[ir.Value]) -> list[ir.Value]:
    """Emits and returns the arguments of a call for the memrefs `values`."""
    return [argument for value in values for argument in _arguments_of(value)]


def _flat_operands(arguments: Sequence[ir.Value], types: Sequence[ir.Type]) -> list[ir.Value]:
    """Emits the operands of `types` as 1-D memrefs, from the `arguments` of a kernel."""
    remaining = iter(arguments)
    return [
        _flat_operand(next(remaining), next(remaining), type_)
        if _has_dynamic_offset(type_)
        else flatten(next(remaining))
        for type_ in types
    ]


@contextmanager
def kernel_body(name: str, types: Sequence[ir.Type]) -> Iterator[tuple[func.FuncOp, KernelEmitter, list[ir.Value]]]:
    """Emits a private function for operands of `types`; the `with` block emits its body.

    Yields the function, the emitter of the body, and the operands as 1-D memrefs.
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        terminator = func.ReturnOp([])
    with ir.InsertionPoint(terminator):
        yield function, KernelEmitter(entry), _flat_operands(entry.arguments, types)


def _has_dynamic_offset(type_: ir.Type) -> bool:
    return layout_of(type_).offset is None


def _argument_types_of(type_: ir.Type) -> list[ir.Type]:
    if not _has_dynamic_offset(type_):
        return [type_]
    return [ir.MemRefType.get([], type_.element_type, memory_space=type_.memory_space), ir.IndexType.get()]


def _arguments_of(value: ir.Value) -> list[ir.Value]:
    return list(memref.ExtractStridedMetadataOp(value).results[:2]) if _has_dynamic_offset(value.type) else [value]


def _flat_operand(base: ir.Value, offset: ir.Value, type_: ir.Type) -> ir.Value:
    dynamic, span = ir.ShapedType.get_dynamic_stride_or_offset(), layout_of(type_).span
    return memref.reinterpret_cast(flat_type(type_), base, [offset], [], [], [dynamic], [span], [1])


# Emits the function of a kernel: (name, types of the operands) -> function.
KernelBuilder = Callable[[str, Sequence[ir.Type]], func.FuncOp]


def check_pack_limit(pass_name: str, limit: int) -> None:
    """Raises `ValueError` for a `limit` that is not a size in MiB."""
    if limit < 0:
        expected = "0 (no limit) or the maximum size of the weights in MiB"
        raise ValueError(f"{pass_name}: pack-limit must be {expected}, not {limit}")


class KernelCalls:
    """The kernels that one pass emits in the module `root`, and their calls.

    With `pack_weights`, parameters are packed once, before the program is called, unless the weights of the module have
    more than `pack_limit` MiB (0: no limit): the copies would need as much again. Weights that the runtime computes
    from others are packed in any case, because the packed weights replace them.
    """

    def __init__(self, root: ir.Operation, locations: LocationSets, pack_weights: bool, pack_limit: int = 0) -> None:
        self.root, self.locations = root, locations
        self.packs = pack_weights
        self._weights = PackedWeights(root)
        self._is_within_limit = not pack_limit or self._weights.entry_bytes <= pack_limit << 20
        # Of each kernel: its name, its function, and the locations of its calls.
        self._functions: dict[Hashable, tuple[str, ir.Operation, list[ir.Location]]] = {}
        self._readers_of_packing: dict[Packing, list[Any]] = {}  # locations of the ops that read packed weights
        self._packed_before_loops: list[_PackedBeforeLoop] = []

    def parameter(self, value: ir.Value) -> ArgumentId | None:
        """Returns the argument of which `value` is a contiguous view, if it is a parameter; otherwise `None`."""
        return self._weights.parameter(value)

    def packable_parameter(self, value: ir.Value) -> ArgumentId | None:
        """Returns the parameter of which `value` is a contiguous view, if `packed` may pack it."""
        parameter = self.parameter(value) if self.packs else None
        if parameter is None or self._is_within_limit or self._weights.is_prepared(parameter):
            return parameter
        return None

    def packed(self, parameter: ArgumentId, packing: Packing, location: ir.Location) -> ir.Value:
        """Returns the buffer with the packed weights of `parameter`, for the op at `location`."""
        assert self.packs, "only weights that can be packed before the call are parameters"
        self._readers_of_packing.setdefault(packing, []).append(location)
        return self._weights.packed(parameter, packing)

    def pack_before_loop(
        self, loop: ir.Operation, value: ir.Value, packing: Packing, location: ir.Location
    ) -> ir.Value:
        """Returns a buffer with `value` packed before `loop`, inside which `value` does not change."""
        for packed in self._packed_before_loops:
            if packed.packing == packing and packed.holds(loop, value):
                self._packed_before_loops.append(replace(packed, loop=loop))
                return packed.buffer
        type_ = ir.MemRefType.get(list(packing.shape), value.type.element_type)
        with ir.InsertionPoint(loop), location:
            buffer = memref.alloc(type_, [], [])
        self._packed_before_loops.append(_PackedBeforeLoop(loop, value, packing, buffer))
        self.call(
            loop, ("pack", packing), "pack_before_loop", [value, buffer], location,
            lambda name, types: emit_pack_function(name, types[0], types[1], packing, public=False),
        )  # fmt: skip
        return buffer

    def requested_packing(self, loop: ir.Operation, value: ir.Value) -> Packing | None:
        """Returns the packing of `value` before `loop` that another kernel has requested, or `None`."""
        return next((packed.packing for packed in self._packed_before_loops if packed.holds(loop, value)), None)

    def mark_streamed(self, parameter: ArgumentId) -> None:
        """Marks the weights of `parameter`, for the runner, as read sequentially and in place by a kernel."""
        mark_streamed(self._weights, parameter)

    def call(
        self,
        op: ir.Operation,
        key: Hashable,
        symbol: str,
        operands: Sequence[ir.Value],
        location: ir.Location,
        build: KernelBuilder,
    ) -> None:
        """Emits a call of a kernel before `op`.

        The kernel is that for `key` and the types of `operands`; `build` emits it at the first such call, with a name
        that starts with `symbol`.
        """
        types = [value.type for value in operands]
        function_key = (key, tuple(str(type_) for type_ in types))
        if function_key not in self._functions:
            name = unique_symbol(self.root, symbol)
            with ir.InsertionPoint(self.root.regions[0].blocks[0]), location:
                self._functions[function_key] = (name, build(name, types), [])
        name, _, locations = self._functions[function_key]
        locations.append(location)
        with ir.InsertionPoint(op), location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), call_arguments(operands))

    def call_locations(self) -> dict[str, list[ir.Location]]:
        """Returns the locations of the calls of each kernel."""
        return {name: list(locations) for name, _, locations in self._functions.values()}

    def finish(self) -> None:
        """Emits the packing functions, and gives each kernel and packing function the locations of all its users."""
        packing_functions = self._weights.finish()
        for _, function, locations in self._functions.values():
            set_location(function, self.locations.union(locations))
        for packing, functions in packing_functions.items():
            for function in functions:
                set_location(function, self.locations.union(self._readers_of_packing[packing]))


@dataclass(frozen=True)
class _PackedBeforeLoop:
    """A `buffer` to which `value` is packed before `loop`, so that kernels in the loop need not pack it."""

    loop: ir.Operation
    value: ir.Value
    packing: Packing
    buffer: ir.Value

    def holds(self, loop: ir.Operation, value: ir.Value) -> bool:
        """True if the buffer has the elements of `value` in `loop`: its own loop, or one that directly follows.

        A loop that directly follows is over other rows of the same contraction: only computations of bounds are
        between the two loops, which write nothing but the result of the contraction.
        """
        return self.value == value and (self.loop == loop or _follows(self.loop, loop))


# Ops between the loops over rows of one contraction.
_BOUND_OPS = ("arith.", "memref.dim", "affine.apply")


def _follows(first: ir.Operation, second: ir.Operation) -> bool:
    """True if `second` is after `first`, with only ops between them that compute bounds of loops."""
    if first.block != second.block:
        return False
    ops = [op.operation for op in first.block.operations]
    start, end = ops.index(first) + 1, ops.index(second)
    return start <= end and all(op.name.startswith(_BOUND_OPS) for op in ops[start:end])


def invariant_loop(op: ir.Operation, value: ir.Value, module: ir.Operation) -> ir.Operation | None:
    """Returns the outermost `scf.for` around `op` that neither defines nor writes the elements of `value`.

    Returns `None` if there is no such loop, or if `value` is not a dense buffer of static shape. `module` defines the
    functions that the loop calls.
    """
    root = root_of(value)
    if not (value.type.has_static_shape and has_identity_layout(value.type) and _is_distinct_buffer(root)):
        return None
    effects = WriteEffects(module)
    defined_in = value.owner if isinstance(value, ir.BlockArgument) else value.owner.operation.block
    outermost, block = None, op.operation.block
    while block != defined_in and block.owner.operation.name != "func.func":
        parent = block.owner.operation
        if effects.may_write(root, parent):
            break
        if parent.name == "scf.for":
            outermost = parent
        block = parent.block
    return outermost


def _is_distinct_buffer(root: ir.Value) -> bool:
    """True if `root` is a function's argument, an allocation or a global, not an argument or result of a loop."""
    if isinstance(root, ir.BlockArgument):
        return bool(root.owner.owner.operation.name == "func.func")
    return root.owner.operation.name in ("memref.alloc", "memref.alloca", "memref.get_global")


def set_location(function: ir.Operation, location: ir.Location) -> None:
    """Sets the location of a function and of every op in it."""
    for op in [function.operation, *nested_ops(function.operation)]:
        op.location = location
