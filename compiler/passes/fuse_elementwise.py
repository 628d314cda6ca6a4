"""`fuse-elementwise`: fuses element-wise ops into their readers, except into contractions.

`linalg-fuse-elementwise-ops` also fuses into contractions, which then match no kernel.

In the body of a fused op, the pass rounds the maximum of numbers instead of the numbers. Eager rounds each result to 16
bits, so that a ReLU after another op takes the maximum of a rounded number and zero, and rounds the maximum again.
Rounding is monotonic and does not change zero, so that the first rounding can be dropped. LLVM would otherwise compute
the maximum in 16 bits, for which processors have no instruction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir, linalg
from buddy.compiler.mlir.walk import clone_body, defining_op, nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import is_used, skip_unit_reshapes
from buddy.compiler.passes.kernels.contraction import indexing_maps, is_contraction

# ---- roundings before a maximum --------------------------------------------------------------------------------------


# Both are called maxima below.
_MAXIMA = frozenset({"arith.maximumf", "arith.minimumf"})
_NARROW = ("bf16", "f16")


def drop_early_roundings(block: ir.Block) -> None:
    """Drops the rounding of an f32 number to 16 bits before a maximum or minimum that is rounded to 16 bits again.

    Changes a maximum only if nothing else reads it, and if 16 bits represent each of its operands exactly.
    """
    for op in [inner.operation for inner in block.operations]:
        if op.name == "arith.truncf" and str(op.operands[0].type) == "f32" and str(op.results[0].type) in _NARROW:
            _drop_before(op.operands[0], op.results[0].type)


def _drop_before(value: ir.Value, narrow: ir.Type) -> None:
    """Drops the roundings to `narrow` of the operands of `value`, a maximum that is rounded to `narrow`."""
    maximum = defining_op(value)
    if maximum is None or maximum.name not in _MAXIMA or not _has_one_use(value):
        return
    if not all(_is_exact(operand, narrow) for operand in maximum.operands):
        return
    for number, operand in enumerate(maximum.operands):
        extension = defining_op(operand)
        if extension is None or extension.name in _MAXIMA:
            _drop_before(operand, narrow)
        elif extension.name == "arith.extf" and (rounding := _rounding_of(extension.operands[0])) is not None:
            maximum.operands[number] = rounding.operands[0]
            for op in (extension, rounding):
                if not is_used(op.results[0]):
                    op.erase()


def _is_exact(value: ir.Value, narrow: ir.Type) -> bool:
    """True if `narrow` represents the f32 `value` exactly, because of the op that computes it."""
    op = defining_op(value)
    if op is None:
        return False
    if op.name == "arith.constant":
        return represents(narrow, ir.FloatAttr(op.attributes["value"]).value)
    if op.name == "arith.extf":
        return bool(op.operands[0].type == narrow)
    return op.name in _MAXIMA and all(_is_exact(operand, narrow) for operand in op.operands)


def represents(narrow: ir.Type, number: float) -> bool:
    """True if the element type `narrow` represents `number` exactly."""
    if str(narrow) == "bf16":
        return not struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF
    try:
        return bool(struct.unpack("<e", struct.pack("<e", number))[0] == number)
    except OverflowError:
        return False


def _rounding_of(value: ir.Value) -> Any:
    """Returns the op that rounds a f32 to `value`, or `None`."""
    op = defining_op(value)
    is_rounding = op is not None and op.name == "arith.truncf" and str(op.operands[0].type) == "f32"
    return op if is_rounding else None


def _has_one_use(value: ir.Value) -> bool:
    return len(list(value.uses)) == 1


# ---- fusion ----------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class FuseElementwise(MlirPass):
    """Fuses a producer into its only reader, if the reader reads each of its elements once.

    If a number is rounded to 16 bits both before and after a maximum with a constant, as in a ReLU, the first rounding
    is dropped, which does not change the result.
    """

    name: ClassVar[str] = "fuse-elementwise"
    summary: ClassVar[str] = "fuse element-wise generics on tensors into the generic that reads each element once"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        # The list is complete before the first rewrite: ops in the body of an erased op are invalid.
        generics = [op for op in nested_ops(root) if op.name == "linalg.generic" and _works_on_tensors(op)]
        for op in generics:
            if not is_contraction(op):
                self._fuse_into(op, context)

    def _fuse_into(self, consumer: ir.Operation, context: PassContext) -> None:
        """Fuses producers into `consumer`, and theirs into the fused op, until none can be fused."""
        while (fusion := _find_fusion(consumer)) is not None:
            location = context.locations.union([consumer.location, fusion.producer.location])
            text = f"fused its producer ({len(fusion.producer.regions[0].blocks[0].operations) - 1} scalar ops)"
            consumer = fusion.apply(location)
            context.remark(self.name, location, text)
        for producer, reason in _unfused_producers(consumer):
            context.remark(self.name, producer.location, f"not fused into its reader: {reason}")


@dataclass(frozen=True)
class _Fusion:
    """`producer` computes operand `number` of `consumer`, which reads it by the indexing map `map_`.

    There may be reshapes between both ops that only add or drop unit dims; `map_` then reads the source of these, the
    producer's result.
    """

    consumer: Any
    number: int
    producer: Any
    map_: Any

    def apply(self, location: ir.Location) -> ir.Operation:
        """Replaces the consumer by the fused op and returns it."""
        consumer = self.consumer
        inputs, maps, consumer_numbers, producer_numbers = self._fused_inputs()
        outs = list(consumer.operands)[-len(consumer.results) :]
        maps += indexing_maps(consumer)[-len(outs) :]
        attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
        with ir.InsertionPoint(consumer), location:
            types = [result.type for result in consumer.results]
            fused = linalg.GenericOp(types, inputs, outs, attributes, consumer.attributes["iterator_types"])
            elements = [value.type.element_type for value in (*inputs, *outs)]
            block = fused.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
            with ir.InsertionPoint(block):
                self._emit_body(list(block.arguments), consumer_numbers, producer_numbers)
        drop_early_roundings(block)
        for old, new in zip(consumer.results, fused.results, strict=True):
            old.replace_all_uses_with(new)
        producer_result = consumer.operands[self.number]
        consumer.erase()
        _erase_unused(producer_result)
        return fused.operation

    def determines_all_sizes(self) -> bool:
        """True if each loop of the fused op indexes a dim of an operand alone, as MLIR requires to infer its size."""
        _, input_maps, _, _ = self._fused_inputs()
        maps = [*input_maps, *indexing_maps(self.consumer)[-len(self.consumer.results) :]]
        return bool(len(_single_loops(maps)) == self.map_.n_dims)

    def _fused_inputs(self) -> tuple[list[ir.Value], list[ir.AffineMap], list[int], list[int]]:
        """Returns the distinct inputs of the fused op, and their maps.

        Also returns the number in the fused op of each input of the consumer, and of each input of the producer; -1
        stands for the input that the producer computes.
        """
        inputs: list[Any] = []
        maps: list[Any] = []

        def number_of(value: ir.Value, map_: ir.AffineMap) -> int:
            """Returns the number of the fused op's input `value`, which is read by `map_`; adds it if it is new."""
            for i, pair in enumerate(zip(inputs, maps, strict=True)):
                if pair == (value, map_):
                    return i
            inputs.append(value)
            maps.append(map_)
            return len(inputs) - 1

        consumer_numbers = [
            -1 if i == self.number else number_of(value, map_)
            for i, (value, map_) in enumerate(_inputs_of(self.consumer))
        ]
        producer_numbers = [number_of(value, self._compose(map_)) for value, map_ in _inputs_of(self.producer)]
        return inputs, maps, consumer_numbers, producer_numbers

    def _compose(self, map_: ir.AffineMap) -> ir.AffineMap:
        """Converts `map_`, of the producer's loops, to a map of the consumer's loops."""
        result_map = indexing_maps(self.producer)[-1]
        dims = sorted(range(result_map.n_dims), key=lambda dim: result_map.results[dim].position)
        loops = ir.AffineMap.get(self.map_.n_dims, 0, [self.map_.results[dim] for dim in dims])
        return ir.AffineMap.get(self.map_.n_dims, 0, [e.compose(loops) for e in map_.results])

    def _emit_body(self, arguments: list[ir.Value], consumer_numbers: list[int], producer_numbers: list[int]) -> None:
        """Emits the producer's body and then the consumer's, on the `arguments` of the fused body."""
        producer_block = self.producer.regions[0].blocks[0]
        numbered = zip(producer_block.arguments, producer_numbers, strict=False)
        values = {argument: arguments[i] for argument, i in numbered}
        (produced,) = clone_body(producer_block, values)
        for op in _index_ops(producer_block):
            self._replace_index(values[op.results[0]].owner, _dim(op))
        consumer_block = self.consumer.regions[0].blocks[0]
        outs = len(self.consumer.results)
        numbered = zip(consumer_block.arguments, consumer_numbers, strict=False)
        values = {argument: produced if i < 0 else arguments[i] for argument, i in numbered}
        values |= dict(zip(list(consumer_block.arguments)[-outs:], arguments[-outs:], strict=True))
        with self.consumer.location:
            linalg.yield_(clone_body(consumer_block, values))

    def can_replace_indices(self) -> bool:
        """True if each producer loop whose index the body reads is a loop of the consumer or has size 1."""
        replaceable = (ir.AffineDimExpr, ir.AffineConstantExpr)
        indices = (self._expression(_dim(op)) for op in _index_ops(self.producer.regions[0].blocks[0]))
        return all(isinstance(expression, replaceable) for expression in indices)

    def _expression(self, loop: int) -> ir.AffineExpr:
        """Returns the index of the producer's `loop` as an expression of the consumer's loops."""
        result_map = indexing_maps(self.producer)[-1]
        pairs = zip(result_map.results, self.map_.results, strict=True)
        loop_expression: ir.AffineExpr = next(expression for result, expression in pairs if result.position == loop)
        return loop_expression

    def _replace_index(self, index: ir.OpView, loop: int) -> None:
        """Makes `index`, a cloned `linalg.index` of the producer's `loop`, an index of the fused op."""
        expression = self._expression(loop)
        if isinstance(expression, ir.AffineDimExpr):
            index.attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), expression.position)
            return
        with ir.InsertionPoint(index), index.location:
            zero = arith.constant(ir.IndexType.get(), 0)
        index.results[0].replace_all_uses_with(zero)
        index.erase()


def _find_fusion(consumer: ir.Operation) -> _Fusion | None:
    """Returns the fusion of the first producer that can be fused into `consumer`, or `None`."""
    loops = _nontrivial_loops(consumer)
    for number, (value, map_) in enumerate(_inputs_of(consumer)):
        source, source_map = skip_unit_reshapes(value, map_)
        if not _is_elementwise(source) or not _has_single_use(value, source):
            continue
        if loops <= _single_loops([source_map]):
            fusion = _Fusion(consumer, number, source.owner.operation, source_map)
            if fusion.determines_all_sizes() and fusion.can_replace_indices():
                return fusion
    return None


def _unfused_producers(consumer: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """Yields the element-wise producers that are not fused into `consumer`, each with the reason."""
    loops = _nontrivial_loops(consumer)
    for value, map_ in _inputs_of(consumer):
        source, source_map = skip_unit_reshapes(value, map_)
        if not _is_elementwise(source):
            continue
        if not _has_single_use(value, source):
            yield source.owner.operation, "it is read more than once"
        elif not loops <= _single_loops([source_map]):
            yield source.owner.operation, "each of its elements would be computed more than once"
        else:
            yield source.owner.operation, "the operands would not determine all loop sizes"


def _single_loops(maps: Iterable[ir.AffineMap]) -> set[int]:
    """Returns the loops that are a result of one of `maps` by themselves: the operand's shape determines their size."""
    return {e.position for map_ in maps for e in map_.results if isinstance(e, ir.AffineDimExpr)}


def _is_elementwise(value: ir.Value) -> bool:
    """True if `value` comes from a generic with one result whose elements are computed independently."""
    if not isinstance(value, ir.OpResult) or value.owner.name != "linalg.generic":
        return False
    op = value.owner
    block = op.regions[0].blocks[0]
    return (
        len(op.results) == 1
        and all("parallel" in str(kind) for kind in op.attributes["iterator_types"])
        and indexing_maps(op)[-1].is_permutation
        and not is_used(block.arguments[len(block.arguments) - 1])
        and all(_is_scalar_arithmetic(inner.operation.name) for inner in block.operations)
    )


def _is_scalar_arithmetic(name: str) -> bool:
    return name.startswith(("arith.", "math.")) or name in ("linalg.yield", "linalg.index")


def _index_ops(block: ir.Block) -> list[ir.Operation]:
    return [op.operation for op in block.operations if op.operation.name == "linalg.index"]


def _dim(index: ir.Operation) -> int:
    return int(ir.IntegerAttr(index.attributes["dim"]).value)


def _has_single_use(value: ir.Value, source: ir.Value) -> bool:
    """True if `source`, and every reshape between it and `value`, has a single use."""
    while True:
        if len(list(value.uses)) != 1:
            return False
        if value == source:
            return True
        value = value.owner.operands[0]


def _nontrivial_loops(op: ir.Operation) -> set[int]:
    """Returns the loops of `op` that have more than one iteration."""
    loops = set()
    for value, map_ in zip(op.operands, indexing_maps(op), strict=True):
        for expression, size in zip(map_.results, value.type.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr) and size != 1:
                loops.add(expression.position)
    return loops


def _inputs_of(op: ir.Operation) -> Sequence[tuple[ir.Value, ir.AffineMap]]:
    """Returns the inputs of a generic, each with its indexing map."""
    count = len(op.operands) - len(op.results)
    return list(zip(list(op.operands)[:count], indexing_maps(op)[:count], strict=True))


def _erase_unused(value: ir.Value | None) -> None:
    """Erases the op that defines `value`, if it has no uses, and the reshapes and the generic that only it used."""
    while isinstance(value, ir.OpResult) and not is_used(value):
        owner = value.owner
        value = owner.operands[0] if owner.name.startswith("tensor.") else None
        owner.erase()


def _works_on_tensors(op: ir.Operation) -> bool:
    return len(op.results) > 0 and all(isinstance(value.type, ir.RankedTensorType) for value in op.operands)
