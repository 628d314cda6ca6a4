"""Rewrites a function of top-level IR to take its parameters in packs, one for each element type, like Buddy-MLIR."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import func, ir, tensor
from buddy.compiler.mlir.walk import symbol_of
from buddy.compiler.ops.sizes import RESULT_SIZES
from buddy.compiler.ops.structured import reshape
from buddy.compiler.ops.utils import tensor_type

# On an argument of a public function: the index of the placeholder or pack that a call passes for it.
_SOURCE = "buddy.source"

# An index and an element type. The index is that of a placeholder, or in `packed` that of a function's argument.
Parameter = tuple[int, TensorDType]


def pack_parameters(
    module: ir.Module, name: str, parameters: Sequence[Parameter], inputs: Sequence[int]
) -> tuple[TensorMeta, ...]:
    """Rewrites the public function `name` of a top-level module to take packs, then inputs. Returns the packs' metas.

    A pack contains all parameters of one element type, in the order of `parameters`, without gaps. Packs are sorted by
    the names of their types, as in Buddy-MLIR. `parameters` and `inputs` have the indices of placeholders, as in
    `buddy.source`; afterwards, `buddy.source` numbers the packs and then the inputs.
    """
    with module.context, ir.Location.unknown():
        old = next(op for op in module.body if op.operation.name == "func.func" and symbol_of(op) == name)
        attributes = [ir.DictAttr(attribute) for attribute in ir.ArrayAttr(old.arg_attrs)]
        position_of_source = {_source(entry): i for i, entry in enumerate(attributes) if _SOURCE in entry}
        packed = [(position_of_source[source], dtype) for source, dtype in parameters if source in position_of_source]
        dtypes = sorted({dtype for _, dtype in packed}, key=lambda dtype: dtype.name)
        packs = [TensorMeta((_pack_size(old, packed, dtype),), dtype) for dtype in dtypes]
        new_sources = {
            position_of_source[source]: len(packs) + i
            for i, source in enumerate(inputs)
            if source in position_of_source
        }
        # Symbolic sizes are arguments without a source, which remain the last ones.
        new_sources |= {i: -1 for i, entry in enumerate(attributes) if _SOURCE not in entry}
        new = _add_function_with_packs(old, [tensor_type(pack.shape, pack.dtype) for pack in packs], new_sources)
        values = list(new.entry_block.arguments)
        with ir.InsertionPoint(new.entry_block):
            for pack, value in zip(packs, values, strict=False):
                _unpack(old, [i for i, dtype in packed if dtype is pack.dtype], value, pack.dtype)
        for i, value in zip(new_sources, values[len(packs) :], strict=True):
            old.arguments[i].replace_all_uses_with(value)
        for op in list(old.entry_block.operations):
            op.operation.detach_from_parent()
            new.entry_block.append(op)
        old.operation.erase()
    return tuple(packs)


def _source(attributes: ir.Attribute) -> int:
    return ir.IntegerAttr(ir.DictAttr(attributes)[_SOURCE]).value


def _pack_size(function: ir.OpView, packed: Sequence[Parameter], dtype: TensorDType) -> int:
    """Returns the number of elements of the pack of `dtype`; `packed` has positions of arguments."""
    return sum(math.prod(function.arguments[i].type.shape) for i, other in packed if other is dtype)


def _add_function_with_packs(old: ir.OpView, pack_types: list[ir.Type], new_sources: Mapping[int, int]) -> ir.OpView:
    """Creates an empty function before `old` that takes packs, and then some arguments of `old`.

    `new_sources` has the positions of these arguments and their new `buddy.source`, or -1 for none.
    """
    attributes, location = ir.ArrayAttr(old.arg_attrs), old.operation.location
    input_types = [*pack_types, *(old.arguments[i].type for i in new_sources)]
    pack = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False), "buddy.parameter": ir.UnitAttr.get()})
    new_attributes = [_with_source(pack, source) for source in range(len(pack_types))]
    new_attributes += [
        attributes[i] if source < 0 else _with_source(attributes[i], source) for i, source in new_sources.items()
    ]
    with ir.InsertionPoint(old):
        new = func.FuncOp(symbol_of(old), ir.FunctionType.get(input_types, list(old.type.results)), loc=location)
    new.arg_attrs = ir.ArrayAttr.get(new_attributes)
    if RESULT_SIZES in old.attributes:
        new.attributes[RESULT_SIZES] = old.attributes[RESULT_SIZES]
    new.add_entry_block([location] * len(pack_types) + [old.arguments[i].location for i in new_sources])
    return new


def _with_source(attributes: ir.Attribute, source: int) -> ir.DictAttr:
    """Returns an argument's attributes with `buddy.source` set to `source`."""
    others = {entry.name: entry.attr for entry in ir.DictAttr(attributes)}
    return ir.DictAttr.get({**others, _SOURCE: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), source)})


def _unpack(function: ir.OpView, positions: Sequence[int], pack: ir.Value, dtype: TensorDType) -> None:
    """Replaces the arguments at `positions` by consecutive slices of `pack`."""
    offset = 0
    for position in positions:
        argument = function.arguments[position]
        count = math.prod(argument.type.shape)
        with argument.location:
            flat = ir.RankedTensorType.get([count], argument.type.element_type)
            piece = tensor.extract_slice(flat, pack, [], [], [], [offset], [count], [1])
            argument.replace_all_uses_with(reshape(piece, tuple(argument.type.shape), dtype))
        offset += count
