"""Converts the host code of a module with GPU kernels to steps as plain data: launches and copies of buffers, in order.

After the kernels are outlined, the host code of programs with static sizes is straight-line code of allocations, views,
launches and copies. It is interpreted once instead of compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

from buddy.compiler.codegen.calling_convention import entry_of
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import has_identity_layout
from buddy.compiler.protocol.artifact import Buffer, Copy, KernelArgument, KernelScalar, Launch, Pointer
from buddy.compiler.protocol.errors import BuddyError

GPU_MODULE = "gpu.module"
# Indices of the operand groups of `gpu.launch_func`: async dependencies, the grid's three sizes, the block's three,
# three of clusters, shared memory, the kernel's arguments, the async object. A group may be empty.
_GRID, _BLOCK, _SHARED, _ARGUMENTS = slice(1, 4), slice(4, 7), 10, 11
# The kernel has the offset of a view in the view's type, so the address of the base buffer is passed.
_VIEW_OPS = ("memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.reinterpret_cast", "memref.subview")
# Element types whose size follows from their name; an `index` has 64 bits.
_ELEMENT_TYPE = re.compile(r"index|(?:i|f|bf)(?P<bits>\d+)")
_IGNORED_OPS = ("memref.dealloc", "func.return", "gpu.wait")


class HostCodeError(BuddyError):
    """The host code has an op that is not a launch or copy of known buffers; `location` is the op's location."""

    def __init__(self, text: str, location: ir.Location) -> None:
        super().__init__(text)
        self.location = location


def kernel_modules(module: ir.Operation) -> list[ir.Operation]:
    """Returns the ops that contain kernels, in order; empty for a CPU program."""
    return [op.operation for op in module.regions[0].blocks[0] if op.operation.name == GPU_MODULE]


def host_steps(module: ir.Operation) -> tuple[tuple[Buffer, ...], tuple[Launch | Copy, ...]]:
    """Returns the buffers that the entry function of `module` allocates, and its launches and copies in order.

    Raises `HostCodeError` if `module` has no entry function, or if its code is not straight-line code of static sizes.
    """
    entry = entry_of(module)
    if entry is None:
        raise HostCodeError("no entry function was found", module.location)
    interpreter = _Interpreter(_initial_values(module))
    block = entry.regions[0].blocks[0]
    for argument in block.arguments:
        interpreter.add_argument(argument)
    for op in block.operations:
        interpreter.run(op.operation)
    return tuple(interpreter.buffers), tuple(interpreter.steps)


@dataclass
class _Interpreter:
    """Interprets straight-line code, in which every value is a buffer or a known number.

    `contents` has the initial values of the module's globals, and `argument_count` counts the entry's arguments.
    Buffers are numbered: first the arguments, then `buffers`. `_values` maps the values of the IR to what is known.
    """

    contents: dict[str, Any]
    argument_count: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    steps: list[Launch | Copy] = field(default_factory=list)
    _values: dict[Any, KernelArgument] = field(default_factory=dict)

    def add_argument(self, value: ir.Value) -> None:
        """Adds an argument of the entry. Raises `HostCodeError` if it is not a memref."""
        if not isinstance(value.type, ir.MemRefType):
            raise HostCodeError("the program has dynamic sizes, and launches need static sizes", value.location)
        self._values[value] = Pointer(self.argument_count)
        self.argument_count += 1

    def run(self, op: ir.Operation) -> None:
        """Interprets one op of the host. Raises `HostCodeError` if the op computes something."""
        handlers: dict[str, Callable[[Any], None]] = {
            "arith.constant": self._constant,
            "memref.alloc": lambda op: self._add_buffer(op, b""),
            "memref.alloca": lambda op: self._add_buffer(op, b""),
            "memref.get_global": self._global,
            "memref.copy": self._copy,
            "gpu.launch_func": self._launch,
            **dict.fromkeys(_VIEW_OPS, self._view),
            **dict.fromkeys(_IGNORED_OPS, lambda op: None),
        }
        if op.name not in handlers:
            raise HostCodeError(f"{op.name} is left on the host, which only launches kernels", op.location)
        handlers[op.name](op)

    def _constant(self, op: ir.Operation) -> None:
        value = op.attributes["value"]
        result_type = str(op.results[0].type)
        type_ = "i64" if result_type == "index" else result_type
        number = ir.FloatAttr(value).value if type_.startswith("f") else ir.IntegerAttr(value).value
        self._values[op.results[0]] = KernelScalar(cast(Any, type_), number)

    def _add_buffer(self, op: ir.Operation, content: bytes) -> None:
        self._values[op.results[0]] = Pointer(self.argument_count + len(self.buffers))
        self.buffers.append(Buffer(_buffer_bytes(op.results[0].type, op), content))

    def _global(self, op: ir.Operation) -> None:
        name = ir.FlatSymbolRefAttr(op.attributes["name"]).value
        content = self.contents[name]
        if content is None:
            raise HostCodeError(f"the constant @{name} is not plain data", op.location)
        self._add_buffer(op, content)

    def _view(self, op: ir.Operation) -> None:
        if len(op.operands) > 1:
            raise HostCodeError(f"{op.name} at a dynamic offset", op.location)
        self._values[op.results[0]] = self._values[op.operands[0]]

    def _copy(self, op: ir.Operation) -> None:
        source, target = (self._pointer(operand, op) for operand in op.operands)
        if not all(has_identity_layout(value.type) for value in op.operands):
            raise HostCodeError("memref.copy of a strided buffer is left on the host", op.location)
        self.steps.append(Copy(source.buffer, target.buffer, _buffer_bytes(op.operands[0].type, op)))

    def _launch(self, op: ir.Operation) -> None:
        groups = _operand_groups(op)
        grid, block = ([self._number(group[0], op) for group in groups[dims]] for dims in (_GRID, _BLOCK))
        shared_bytes = self._number(groups[_SHARED][0], op) if groups[_SHARED] else 0
        arguments = tuple(self._kernel_argument(value, op) for value in groups[_ARGUMENTS])
        # `@MODULE::@KERNEL`: each module has one kernel, which is named like the module when it is translated.
        kernel = str(op.attributes["kernel"]).partition("::")[0].lstrip("@")
        self.steps.append(Launch(kernel, cast(Any, tuple(grid)), cast(Any, tuple(block)), arguments, shared_bytes))

    def _kernel_argument(self, value: ir.Value, op: ir.Operation) -> KernelArgument:
        """Returns an operand of `op`. Raises `HostCodeError` if the value is not known."""
        if value not in self._values:
            raise HostCodeError(f"an operand of {op.name} would have to be computed on the host", op.location)
        return self._values[value]

    def _pointer(self, value: ir.Value, op: ir.Operation) -> Pointer:
        argument = self._kernel_argument(value, op)
        assert isinstance(argument, Pointer)
        return argument

    def _number(self, value: ir.Value, op: ir.Operation) -> int:
        argument = self._kernel_argument(value, op)
        assert isinstance(argument, KernelScalar)
        return int(argument.value)


def _operand_groups(op: ir.Operation) -> list[list[ir.Value]]:
    """Returns the operands of a launch, group by group."""
    sizes, operands = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])), list(op.operands)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [operands[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _initial_values(module: ir.Operation) -> dict[str, bytes | None]:
    """Returns the initial value of each global of the module, by name; `None` for one that is not plain bytes."""
    contents: dict[str, bytes | None] = {}
    for op in module.regions[0].blocks[0]:
        if op.operation.name == "memref.global":
            attributes = op.operation.attributes
            content = _bytes_of_attribute(attributes["initial_value"]) if "initial_value" in attributes else None
            contents[ir.StringAttr(attributes["sym_name"]).value] = content
    return contents


def _bytes_of_attribute(value: ir.Attribute) -> bytes | None:
    """Returns the bytes of a dense attribute, `None` for other attributes."""
    try:
        return memoryview(ir.DenseElementsAttr(value)).tobytes()
    except (TypeError, ValueError):
        return None


def _buffer_bytes(type_: ir.Type, op: ir.Operation) -> int:
    """Returns the size in bytes of a buffer that `op` uses.

    Raises `HostCodeError` if it is dynamic or the element type is not supported.
    """
    memref = ir.MemRefType(type_)
    if not memref.has_static_shape:
        raise HostCodeError("the size of a buffer is dynamic", op.location)
    element = _ELEMENT_TYPE.fullmatch(str(memref.element_type))
    if element is None:
        raise HostCodeError(f"a buffer has elements of type {memref.element_type}", op.location)
    return prod(memref.shape) * max(1, int(element["bits"] or 64) // 8)
