"""Computes the minimum work of nodes from their shapes: operations, and bytes to read and write.

A multiply-add counts as two operations, any other elementwise function as one, `exp` as well as `+`. So a node with
few operations may still be compute-bound. Data movement counts as none. Ops that are not in the table are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OpType, OutputOp, PlaceholderOp
from buddy.compiler.graph.sizes import Size, value_of
from buddy.compiler.graph.types import TensorMeta

Symbols = Mapping[str, int]
Shape = tuple[int, ...]

# Bits of an element in memory: an i1 is stored as a byte.
_BITS = {
    "i1": 8, "ui8": 8, "i8": 8, "ui16": 16, "i16": 16, "f16": 16, "bf16": 16, "ui32": 32, "i32": 32, "f32": 32,
    "ui64": 64, "i64": 64, "f64": 64, "complex<f32>": 64, "complex<f64>": 128,
}  # fmt: skip

# Softmax: maximum, difference, exp, sum, quotient. Norm: mean, differences, their squares and the sum of these, scale,
# shift.
_SOFTMAX, _NORM = 5, 7


def _matrices(node: Op, shape: Callable[[Op], Shape]) -> float:
    """For a matrix product: `2 m n k`, and an addition per element if something is added."""
    operands = [arg for arg in node.args if isinstance(arg, Op)]
    addend = len(operands) > 2
    left, result = shape(operands[1 if addend else 0]), shape(node)
    inner = left[-1] if left else 1
    return (2.0 * inner + addend) * prod(result)


def _products_of_batch(node: Op, shape: Callable[[Op], Shape]) -> float:
    """For a sum over a batch of matrix products [b, m, k] and [b, k, n]."""
    left, right = shape(node.args[1]), shape(node.args[2])
    return 2.0 * prod(left) * right[-1] + prod(shape(node))


def _convolution(node: Op, shape: Callable[[Op], Shape]) -> float:
    """For each element of the result (transposed: of the input), a multiply-add per element of one filter."""
    image, kernel = shape(node.args[0]), shape(node.args[1])
    positions = image if node.args[6] else shape(node)
    bias = prod(shape(node)) if isinstance(node.args[2], Op) else 0
    return 2.0 * prod(positions) * prod(kernel[1:]) + bias


def _convolution_gradients(node: Op, shape: Callable[[Op], Shape]) -> float:
    """For gradients: those of input and kernel cost as much as the convolution each, that of the bias a sum."""
    gradient, image, kernel = (shape(arg) for arg in node.args[:3])
    positions = image if node.args[7] else gradient
    output_mask = node.args[10]
    products = bool(output_mask[0]) + bool(output_mask[1])
    return 2.0 * prod(positions) * prod(kernel[1:]) * products + prod(gradient) * bool(output_mask[2])


def _attention(node: Op, shape: Callable[[Op], Shape]) -> float:
    """For attention: two products with the matrix of scores, and its softmax. The mask is not counted."""
    query, key, value = (shape(arg) for arg in node.args[:3])
    scores = prod(query[:-1]) * key[-2]
    return 2.0 * scores * (query[-1] + value[-1]) + _SOFTMAX * scores


def _per_input_element(times: float) -> Callable[[Op, Callable[[Op], Shape]], float]:
    """`times` operations for each element of the first operand."""
    return lambda node, shape: times * prod(shape(_first_tensor(node)))


def _per_result_element(node: Op, shape: Callable[[Op], Shape]) -> float:
    return float(prod(shape(node)))


def _no_operations(node: Op, shape: Callable[[Op], Shape]) -> float:
    return 0.0


def _first_tensor(node: Op) -> Op:
    """The first tensor that a node reads, which for `cat` and similar ops is in a list."""
    return next(arg for arg in node.parents)


def _window(node: Op, shape: Callable[[Op], Shape]) -> float:
    """For a pool: a window per element of the result."""
    size = node.args[1]
    dims = len(shape(_first_tensor(node))) - 2
    sizes = [size] * dims if isinstance(size, int) else list(size) * (dims if len(size) == 1 else 1)
    result = next(meta for meta in node.metas if meta is not None)
    return float(prod(result.shape) * prod(sizes))


_ATTENTIONS = (
    "ScaledDotProductFlashAttentionForCpuOp", "FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp",
    "MaskedSoftmaxAttentionOp",
)  # fmt: skip
_MOVES = (
    "EmbeddingOp", "GatherOp", "IndexOp", "IndexSelectOp", "IndexPutOp", "PutOp", "ScatterOp", "MaskedScatterOp",
    "TriuOp", "TrilOp", "FullOp", "ScalarTensorOp", "ArangeOp", "SliceScatterOp", "SelectScatterOp", "CatOp", "CopyOp",
    "DiagonalScatterOp", "AsStridedScatterOp", "ConstantPadNdOp", "EmptyOp", "ConvertElementTypeOp",
)  # fmt: skip
_REDUCTIONS = (
    "SumDimOp", "MeanOp", "AmaxOp", "AminOp", "ProdOp", "AnyOp", "MaxDimOp", "MinDimOp", "ArgmaxOp", "ArgminOp",
    "CumsumOp", "CumprodOp", "CummaxOp", "CumminOp",
)  # fmt: skip

_BY_CLASS: dict[str, Callable[[Op, Callable[[Op], Shape]], float]] = {
    **dict.fromkeys(("MatmulOp", "IntMatmulOp", "AddMMOp", "BatchMatmulOp", "BaddbmmOp", "TransposeMatmulFusedOp",
                     "MatVecOp", "AddMatVecOp"), _matrices),
    "TransposeAddMMFusedOp": lambda node, shape: (2.0 * shape(node.args[0])[-1] + 1) * prod(shape(node)),
    "AddBatchMatmulOp": _products_of_batch,
    "DotOp": _per_input_element(2),
    **dict.fromkeys(_ATTENTIONS, _attention),
    "Conv2dOp": _convolution,
    "ConvolutionBackwardOp": _convolution_gradients,
    **dict.fromkeys(_MOVES, _no_operations),
    **dict.fromkeys(_REDUCTIONS, _per_input_element(1)),
    **dict.fromkeys(("SoftmaxOp", "LogSoftmaxOp"), _per_input_element(_SOFTMAX)),
    **dict.fromkeys(("NativeLayerNormOp", "BatchNormOp"), _per_input_element(_NORM)),
    **dict.fromkeys(("VarOp", "VarMeanOp"), _per_input_element(4)),
    "VectorNormOp": _per_input_element(2),
    **dict.fromkeys(("MaxPool2dOp", "MaxPool2dWithIndicesOp", "MaxPool3dWithIndicesOp", "AvgPool2dOp", "AvgPool3dOp"),
                    _window),
    **dict.fromkeys(("ScatterAddOp", "ScatterReduceOp", "IndexReduceOp"),
                    lambda node, shape: float(prod(shape(node.args[3])))),
}  # fmt: skip


def operations_of(node: Op, symbols: Symbols) -> float | None:
    """The number of operations of a node, `None` if unknown; `symbols` are the values of sizes."""
    count = _counter_of(node)
    if count is None:
        return None
    try:
        return count(node, lambda op: _sizes(next(meta for meta in op.metas if meta is not None), symbols))
    except (IndexError, KeyError, TypeError, StopIteration):
        return None  # a malformed node, or a size without a known value


def _counter_of(node: Op) -> Callable[[Op, Callable[[Op], Shape]], float] | None:
    found = _BY_CLASS.get(type(node).__name__)
    if found is not None:
        return found
    if isinstance(node, (PlaceholderOp, OutputOp, GetItemOp)):
        return _no_operations
    if node.op_type in (OpType.ReshapeType, OpType.BroadcastType):
        return _no_operations
    return _per_result_element if node.op_type is OpType.ElementwiseType else None


def _sizes(meta: TensorMeta, symbols: Symbols) -> Shape:
    """Raises `KeyError` for a symbol with an unknown value."""
    return tuple(value_of(size, symbols) if isinstance(size, Size) else size for size in meta.shape)


class Traffic:
    """The memory traffic of nodes of a graph; `symbols` are the values of its sizes."""

    def __init__(self, graph: Graph, symbols: Symbols) -> None:
        self._nodes = {op.stable: op for op in graph.body}
        self._symbols = symbols
        self._readers: dict[Op, list[Op]] = {}
        for op in graph.body:
            for parent in op.parents:
                self._readers.setdefault(parent, []).append(op)

    def of(self, stable_names: Iterable[str]) -> int | None:
        """The minimum traffic of code for these nodes together, in bytes; `None` if a size is unknown.

        External tensors count once, and so do results that are read outside; fused intermediates are excluded. For a
        view, the smaller of view and base counts.
        """
        inside = {self._nodes[name] for name in stable_names if name in self._nodes}
        read = {parent for op in inside for parent in op.parents if parent not in inside}
        written = {op for op in inside if any(reader not in inside for reader in self._readers.get(op, ()))}
        try:
            return sum(map(self._bytes, (*read, *written)))
        except KeyError:
            return None

    def _bytes(self, node: Op) -> int:
        metas = [meta for meta in node.metas if meta is not None]
        own = sum(prod(_sizes(meta, self._symbols)) * _BITS[meta.dtype.value] // 8 for meta in metas)
        is_view = node.op_type in (OpType.ReshapeType, OpType.BroadcastType) and node.parents
        return min(own, self._bytes(node.parents[0])) if is_view else own
