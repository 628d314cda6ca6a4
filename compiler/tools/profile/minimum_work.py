"""Computes the minimum work of nodes from their shapes: operations, and bytes to read and write.

A multiply-add counts as two operations, each elementwise function as one, even `exp`. So a node with few operations may
still be compute-bound. Data movement counts as none. The operations of ops that are not in the table are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OpType, OutputOp, PlaceholderOp
from buddy.compiler.graph.sizes import Size, value_of
from buddy.compiler.graph.types import TensorMeta

# The values of symbolic sizes by name, and a shape without symbols.
Symbols = Mapping[str, int]
Sizes = tuple[int, ...]

# Operations per element. Softmax: maximum, difference, exp, sum, quotient. Norm: sum for the mean, difference, square
# and sum for the variance, quotient, scale, shift. Variance: sum for the mean, difference, square and sum.
_SOFTMAX, _NORM, _VARIANCE = 5, 7, 4


def _matrix_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of a matrix product: `2 m n k`, and an addition per element if something is added."""
    operands = [arg for arg in node.args if isinstance(arg, Op)]
    addend = len(operands) > 2
    left, result = shape(operands[1 if addend else 0]), shape(node)
    inner = left[-1] if left else 1
    return (2.0 * inner + addend) * prod(result)


def _batch_sum_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of a sum over a batch of matrix products [b, m, k] x [b, k, n]."""
    left, right = shape(node.args[1]), shape(node.args[2])
    return 2.0 * prod(left) * right[-1] + prod(shape(node))


def _convolution_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of a convolution.

    It has a multiply-add per element of one filter for each element of the result (if transposed, of the input).
    """
    image, kernel = shape(node.args[0]), shape(node.args[1])
    positions = image if node.args[6] else shape(node)
    bias = prod(shape(node)) if isinstance(node.args[2], Op) else 0
    return 2.0 * prod(positions) * prod(kernel[1:]) + bias


def _convolution_backward_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of a convolution's gradients.

    The gradients of input and kernel cost as much as the convolution each, that of the bias costs a sum.
    """
    gradient, image, kernel = (shape(arg) for arg in node.args[:3])
    positions = image if node.args[7] else gradient
    output_mask = node.args[10]
    products = bool(output_mask[0]) + bool(output_mask[1])
    return 2.0 * prod(positions) * prod(kernel[1:]) * products + prod(gradient) * bool(output_mask[2])


def _attention_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of attention: two matrix products, and the softmax of the scores, without the mask."""
    query, key, value = (shape(arg) for arg in node.args[:3])
    scores = prod(query[:-1]) * key[-2]
    return 2.0 * scores * (query[-1] + value[-1]) + _SOFTMAX * scores


def _per_input_element(count: float) -> Callable[[Op, Callable[[Op], Sizes]], float]:
    """Returns a function for ops with `count` operations for each element of the first operand."""
    return lambda node, shape: count * prod(shape(_first_tensor(node)))


def _per_result_element(node: Op, shape: Callable[[Op], Sizes]) -> float:
    return float(prod(shape(node)))


def _no_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    return 0.0


def _first_tensor(node: Op) -> Op:
    """Returns the first tensor that a node reads, even if it is in a list, as for `cat`."""
    return next(arg for arg in node.parents)


def _pool_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of a pool: one per element of each window, with a window per element of the result."""
    size = node.args[1]
    dims = len(shape(_first_tensor(node))) - 2
    sizes = [size] * dims if isinstance(size, int) else list(size) * (dims if len(size) == 1 else 1)
    result = next(meta for meta in node.metas if meta is not None)
    return float(prod(result.shape) * prod(sizes))


# Op classes with the same count.
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

# The function that counts the operations of a node, by op class; it also takes a function from a node to its shape.
_OPERATION_COUNTS: dict[str, Callable[[Op, Callable[[Op], Sizes]], float]] = {
    **dict.fromkeys(("MatmulOp", "IntMatmulOp", "AddMMOp", "BatchMatmulOp", "BaddbmmOp", "TransposeMatmulFusedOp",
                     "MatVecOp", "AddMatVecOp"), _matrix_operations),
    "TransposeAddMMFusedOp": lambda node, shape: (2.0 * shape(node.args[0])[-1] + 1) * prod(shape(node)),
    "AddBatchMatmulOp": _batch_sum_operations,
    "DotOp": _per_input_element(2),
    **dict.fromkeys(_ATTENTIONS, _attention_operations),
    "Conv2dOp": _convolution_operations,
    "ConvolutionBackwardOp": _convolution_backward_operations,
    **dict.fromkeys(_MOVES, _no_operations),
    **dict.fromkeys(_REDUCTIONS, _per_input_element(1)),
    **dict.fromkeys(("SoftmaxOp", "LogSoftmaxOp"), _per_input_element(_SOFTMAX)),
    **dict.fromkeys(("NativeLayerNormOp", "BatchNormOp"), _per_input_element(_NORM)),
    **dict.fromkeys(("VarOp", "VarMeanOp"), _per_input_element(_VARIANCE)),
    "VectorNormOp": _per_input_element(2),
    **dict.fromkeys(("MaxPool2dOp", "MaxPool2dWithIndicesOp", "MaxPool3dWithIndicesOp", "AvgPool2dOp", "AvgPool3dOp"),
                    _pool_operations),
    **dict.fromkeys(("ScatterAddOp", "ScatterReduceOp", "IndexReduceOp"),
                    lambda node, shape: float(prod(shape(node.args[3])))),
}  # fmt: skip


def operations_of(node: Op, symbols: Symbols) -> float | None:
    """Returns the number of operations of a node, `None` if it is unknown; `symbols` are the values of sizes."""
    count = _count_function(node)
    if count is None:
        return None
    try:
        return count(node, lambda op: _sizes(next(meta for meta in op.metas if meta is not None), symbols))
    except (IndexError, KeyError, TypeError, StopIteration):
        return None  # a malformed node, or a size without a known value


def _count_function(node: Op) -> Callable[[Op, Callable[[Op], Sizes]], float] | None:
    function = _OPERATION_COUNTS.get(type(node).__name__)
    if function is not None:
        return function
    if isinstance(node, (PlaceholderOp, OutputOp, GetItemOp)):
        return _no_operations
    if node.op_type in (OpType.ReshapeType, OpType.BroadcastType):
        return _no_operations
    return _per_result_element if node.op_type is OpType.ElementwiseType else None


def _sizes(meta: TensorMeta, symbols: Symbols) -> Sizes:
    """Returns the sizes of a tensor. Raises `KeyError` for a symbol with an unknown value."""
    return tuple(value_of(size, symbols) if isinstance(size, Size) else size for size in meta.shape)


class Traffic:
    """Computes the memory traffic of nodes of a graph; `symbols` are the values of its sizes."""

    def __init__(self, graph: Graph, symbols: Symbols) -> None:
        self._nodes = {op.stable: op for op in graph.body}
        self._symbols = symbols
        self._readers: dict[Op, list[Op]] = {}
        for op in graph.body:
            for parent in op.parents:
                self._readers.setdefault(parent, []).append(op)

    def minimum_bytes(self, stable_names: Iterable[str]) -> int | None:
        """Returns the minimum traffic in bytes of code that computes these nodes together; `None` if a size is unknown.

        Each tensor that the code reads from outside counts once, and each result that is used outside; fused
        intermediates do not count. A view counts as much as its base if that is smaller.
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
        own = sum(prod(_sizes(meta, self._symbols)) * meta.dtype.bytes for meta in metas)
        is_view = node.op_type in (OpType.ReshapeType, OpType.BroadcastType) and node.parents
        return min(own, self._bytes(node.parents[0])) if is_view else own
