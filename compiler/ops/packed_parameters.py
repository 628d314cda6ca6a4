"""Packs parameters into one 1-D tensor per element type; the entry function slices and reshapes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import func, ir, tensor
from buddy.compiler.ops.sizes import RESULTS
from buddy.compiler.ops.structured import reshape
from buddy.compiler.ops.utils import tensor_type

_SOURCE = "buddy.source"


Parameter = tuple[int, TensorDType]


def pack_parameters(
    module: Any, name: str, parameters: Sequence[Parameter], inputs: Sequence[int]
) -> tuple[TensorMeta, ...]:
    """Rewrites public function `name` of a top-level module to take packs, then inputs. Returns the packs' types.

    `parameters` and `inputs` are numbers of the graph's placeholders, as in `buddy.source`; afterwards `buddy.source`
    numbers the packs and then the inputs. A pack contains the parameters of its element type in the order of
    `parameters`, without gaps; packs are in alphabetical order of their types' names, as in Buddy-MLIR.
    """
    with module.context, ir.Location.unknown():
        old = next(op for op in module.body if op.operation.name == "func.func" and _name(op) == name)
        flags = [ir.DictAttr(attributes) for attributes in ir.ArrayAttr(old.arg_attrs)]
        numbers = {_source(found): number for number, found in enumerate(flags) if _SOURCE in found}
        packed = [(numbers[source], dtype) for source, dtype in parameters if source in numbers]
        dtypes = sorted({dtype for _, dtype in packed}, key=lambda dtype: dtype.name)
        packs = [TensorMeta((_elements(old, packed, dtype),), dtype) for dtype in dtypes]
        kept = {numbers[source]: len(packs) + i for i, source in enumerate(inputs) if source in numbers}
        # Symbolic sizes are arguments without a source: they stay the last ones.
        kept |= {number: -1 for number, found in enumerate(flags) if _SOURCE not in found}
        new = _signature(old, [tensor_type(pack.shape, pack.dtype) for pack in packs], kept)
        values = list(new.entry_block.arguments)
        with ir.InsertionPoint(new.entry_block):
            for pack, value in zip(packs, values, strict=False):
                _unpack(old, [number for number, found in packed if found is pack.dtype], value, pack.dtype)
        for number, value in zip(kept, values[len(packs) :], strict=True):
            old.arguments[number].replace_all_uses_with(value)
        for op in list(old.entry_block.operations):
            op.operation.detach_from_parent()
            new.entry_block.append(op)
        old.operation.erase()
    return tuple(packs)


def _name(op: Any) -> str:
    return ir.StringAttr(op.operation.attributes["sym_name"]).value


def _source(attributes: Any) -> int:
    return ir.IntegerAttr(ir.DictAttr(attributes)[_SOURCE]).value


def _elements(function: Any, packed: Sequence[Parameter], dtype: TensorDType) -> int:
    return sum(math.prod(function.arguments[number].type.shape) for number, found in packed if found is dtype)


def _signature(old: Any, packs: list[Any], kept: Mapping[int, int]) -> Any:
    """Creates an empty function before `old` with `packs` and the `kept` arguments of `old`.

    `kept` gives the new source of each by its number, -1 for one without a source.
    """
    attributes, place = ir.ArrayAttr(old.arg_attrs), old.operation.location
    inputs = [*packs, *(old.arguments[number].type for number in kept)]
    pack = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False), "buddy.parameter": ir.UnitAttr.get()})
    flags = [_from(pack, source) for source in range(len(packs))]
    flags += [
        attributes[number] if source < 0 else _from(attributes[number], source) for number, source in kept.items()
    ]
    with ir.InsertionPoint(old):
        new = func.FuncOp(_name(old), ir.FunctionType.get(inputs, list(old.type.results)), loc=place)
    new.arg_attrs = ir.ArrayAttr.get(flags)
    if RESULTS in old.attributes:
        new.attributes[RESULTS] = old.attributes[RESULTS]
    new.add_entry_block([place] * len(packs) + [old.arguments[number].location for number in kept])
    return new


def _from(attributes: Any, source: int) -> Any:
    """Returns an argument's attributes with `buddy.source` set to `source`."""
    found = {entry.name: entry.attr for entry in ir.DictAttr(attributes)}
    return ir.DictAttr.get({**found, _SOURCE: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), source)})


def _unpack(function: Any, numbers: Sequence[int], pack: Any, dtype: TensorDType) -> None:
    """Replaces the used arguments `numbers` by consecutive slices of `pack`."""
    offset = 0
    for number in numbers:
        argument = function.arguments[number]
        count = math.prod(argument.type.shape)
        with argument.location:
            flat = ir.RankedTensorType.get([count], argument.type.element_type)
            part = tensor.extract_slice(flat, pack, [], [], [], [offset], [count], [1])
            argument.replace_all_uses_with(reshape(part, tuple(argument.type.shape), dtype))
        offset += count
