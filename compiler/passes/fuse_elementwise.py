"""`fuse-elementwise`: fuses element-wise ops into their readers, except into contractions.

`linalg-fuse-elementwise-ops` also fuses into contractions, which then match no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir, linalg
from buddy.compiler.mlir.walk import clone_body, collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import through_unit_reshapes
from buddy.compiler.passes.kernels.contraction import indexing_maps, is_contraction


@register
@dataclass(frozen=True)
class FuseElementwise(MlirPass):
    """Fuses a producer that has no other reader and whose elements are read once each."""

    name: ClassVar[str] = "fuse-elementwise"
    summary: ClassVar[str] = "element-wise generics on tensors move into the generics that read them, once per element"

    def run(self, root: Any, context: PassContext) -> None:
        # Collect all before rewriting: ops in the body of an erased op are invalid.
        generics = [op for op in collect(root) if op.name == "linalg.generic" and _on_tensors(op)]
        for op in generics:
            if not is_contraction(op):
                self._fuse_into(op, context)

    def _fuse_into(self, consumer: Any, context: PassContext) -> None:
        while (fusion := _find_fusion(consumer)) is not None:
            location = context.locations.union([consumer.location, fusion.producer.location])
            text = f"fused its producer ({len(fusion.producer.regions[0].blocks[0].operations) - 1} scalar ops)"
            consumer = fusion.apply(location)
            context.remark(self.name, location, text)
        for producer, reason in _unfused_producers(consumer):
            context.remark(self.name, producer.location, f"not fused into its reader: {reason}")


@dataclass(frozen=True)
class _Fusion:
    """`producer` computes operand `number` of `consumer`, which reads it by `map_`."""

    consumer: Any
    number: int
    producer: Any
    map_: Any

    def apply(self, location: Any) -> Any:
        """Replaces the consumer by the fused op and returns it."""
        consumer = self.consumer
        inputs, maps, places = self._inputs()
        outs = list(consumer.operands)[-len(consumer.results) :]
        maps += indexing_maps(consumer)[-len(outs) :]
        attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
        with ir.InsertionPoint(consumer), location:
            types = [result.type for result in consumer.results]
            fused = linalg.GenericOp(types, inputs, outs, attributes, consumer.attributes["iterator_types"])
            elements = [value.type.element_type for value in (*inputs, *outs)]
            block = fused.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
            with ir.InsertionPoint(block):
                self._body(list(block.arguments), places)
        for old, new in zip(consumer.results, fused.results, strict=True):
            old.replace_all_uses_with(new)
        dead = consumer.operands[self.number]
        consumer.erase()
        _erase_unused(dead)
        return fused.operation

    def determines_all_sizes(self) -> bool:
        """True if operands of the fused op determine all loop sizes, which reads of windows or in reverse do not."""
        maps = [*self._inputs()[1], *indexing_maps(self.consumer)[-len(self.consumer.results) :]]
        return len(_single_loops(maps)) == self.map_.n_dims

    def _inputs(self) -> tuple[list[Any], list[Any], list[list[int]]]:
        """Returns the fused op's distinct inputs and maps, and the index in them of each input of both ops."""
        inputs: list[Any] = []
        maps: list[Any] = []

        def place(value: Any, map_: Any) -> int:
            for i, pair in enumerate(zip(inputs, maps, strict=True)):
                if pair == (value, map_):
                    return i
            inputs.append(value)
            maps.append(map_)
            return len(inputs) - 1

        of_consumer = [
            -1 if i == self.number else place(value, map_) for i, (value, map_) in enumerate(_inputs_of(self.consumer))
        ]
        of_producer = [place(value, self._compose(map_)) for value, map_ in _inputs_of(self.producer)]
        return inputs, maps, [of_consumer, of_producer]

    def _compose(self, map_: Any) -> Any:
        """Converts a map of the producer's loops to one of the consumer's loops."""
        written = indexing_maps(self.producer)[-1]
        places = sorted(range(written.n_dims), key=lambda i: written.results[i].position)
        loops = ir.AffineMap.get(self.map_.n_dims, 0, [self.map_.results[i] for i in places])
        return ir.AffineMap.get(self.map_.n_dims, 0, [e.compose(loops) for e in map_.results])

    def _body(self, arguments: list[Any], places: list[list[int]]) -> None:
        of_consumer, of_producer = places
        inner = self.producer.regions[0].blocks[0]
        known = {argument: arguments[i] for argument, i in zip(inner.arguments, of_producer, strict=False)}
        (made,) = clone_body(inner, known)
        for op in _indices(inner):
            self._reindex(known[op.results[0]].owner, _dim(op))
        outer = self.consumer.regions[0].blocks[0]
        outs = len(self.consumer.results)
        known = {a: made if i < 0 else arguments[i] for a, i in zip(outer.arguments, of_consumer, strict=False)}
        known |= dict(zip(list(outer.arguments)[-outs:], arguments[-outs:], strict=True))
        with self.consumer.location:
            linalg.yield_(clone_body(outer, known))

    def reads_positions(self) -> bool:
        """True if each producer loop whose index the body reads is a loop of the consumer or has size 1."""
        kinds = (ir.AffineDimExpr, ir.AffineConstantExpr)
        found = (self._expression(_dim(op)) for op in _indices(self.producer.regions[0].blocks[0]))
        return all(isinstance(expression, kinds) for expression in found)

    def _expression(self, loop: int) -> Any:
        """Returns the expression of the consumer's loops for a loop of the producer."""
        written = indexing_maps(self.producer)[-1]
        return next(e for w, e in zip(written.results, self.map_.results, strict=True) if w.position == loop)

    def _reindex(self, index: Any, loop: int) -> None:
        expression = self._expression(loop)
        if isinstance(expression, ir.AffineDimExpr):
            index.attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), expression.position)
            return
        with ir.InsertionPoint(index), index.location:
            zero = arith.constant(ir.IndexType.get(), 0)
        index.results[0].replace_all_uses_with(zero)
        index.erase()


def _find_fusion(consumer: Any) -> _Fusion | None:
    loops = _nontrivial_loops(consumer)
    for number, (value, map_) in enumerate(_inputs_of(consumer)):
        source, read = through_unit_reshapes(value, map_)
        if not _is_elementwise(source) or not _read_once(value, source):
            continue
        if loops <= _single_loops([read]):
            fusion = _Fusion(consumer, number, source.owner.operation, read)
            if fusion.determines_all_sizes() and fusion.reads_positions():
                return fusion
    return None


def _unfused_producers(consumer: Any) -> Iterator[tuple[Any, str]]:
    """Yields the element-wise producers that are not fused into `consumer`, each with the reason."""
    loops = _nontrivial_loops(consumer)
    for value, map_ in _inputs_of(consumer):
        source, read = through_unit_reshapes(value, map_)
        if not _is_elementwise(source):
            continue
        if not _read_once(value, source):
            yield source.owner.operation, "it is read more than once"
        elif not loops <= _single_loops([read]):
            yield source.owner.operation, "each of its elements would be computed more than once"
        else:
            yield source.owner.operation, "the operands would not determine all loop sizes"


def _single_loops(maps: Iterable[Any]) -> set[int]:
    """Returns the loops that are a result of a map by themselves, so that an operand determines their size."""
    return {e.position for map_ in maps for e in map_.results if isinstance(e, ir.AffineDimExpr)}


def _is_elementwise(value: Any) -> bool:
    """True if `value` comes from a generic with one result whose elements are computed independently."""
    if not isinstance(value, ir.OpResult) or value.owner.name != "linalg.generic":
        return False
    op = value.owner
    block = op.regions[0].blocks[0]
    return (
        len(op.results) == 1
        and all("parallel" in str(kind) for kind in op.attributes["iterator_types"])
        and indexing_maps(op)[-1].is_permutation
        and not any(True for _ in block.arguments[len(block.arguments) - 1].uses)
        and all(_is_scalar_arithmetic(inner.operation.name) for inner in block.operations)
    )


def _is_scalar_arithmetic(name: str) -> bool:
    return name.startswith(("arith.", "math.")) or name in ("linalg.yield", "linalg.index")


def _indices(block: Any) -> list[Any]:
    return [op.operation for op in block.operations if op.operation.name == "linalg.index"]


def _dim(index: Any) -> int:
    return int(ir.IntegerAttr(index.attributes["dim"]).value)


def _read_once(value: Any, source: Any) -> bool:
    """True if `source`, and every reshape between it and `value`, has a single use."""
    while True:
        if len(list(value.uses)) != 1:
            return False
        if value == source:
            return True
        value = value.owner.operands[0]


def _nontrivial_loops(op: Any) -> set[int]:
    """Returns the loops of `op` that have more than one iteration."""
    found = set()
    for value, map_ in zip(op.operands, indexing_maps(op), strict=True):
        for expression, size in zip(map_.results, value.type.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr) and size != 1:
                found.add(expression.position)
    return found


def _inputs_of(op: Any) -> Sequence[tuple[Any, Any]]:
    count = len(op.operands) - len(op.results)
    return list(zip(list(op.operands)[:count], indexing_maps(op)[:count], strict=True))


def _erase_unused(value: Any) -> None:
    while isinstance(value, ir.OpResult) and not list(value.uses):
        owner = value.owner
        value = owner.operands[0] if owner.name.startswith("tensor.") else None
        owner.erase()


def _on_tensors(op: Any) -> bool:
    return len(op.results) > 0 and all(isinstance(value.type, ir.RankedTensorType) for value in op.operands)
