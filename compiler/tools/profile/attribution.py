"""Adds the pass that counts time to a recipe, attributes the time of regions to nodes, and computes their minimum work.

The minimum work of a node is its operations, and the bytes that it reads and writes, both computed from shapes. A
multiply-add counts as two operations, each elementwise function as one, even `exp`: a node with few operations may
still be compute-bound. Data movement counts as none. The operations of ops that are not in the table are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from msgspec.structs import replace

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OpType, OutputOp, PlaceholderOp
from buddy.compiler.graph.sizes import Size, value_of
from buddy.compiler.graph.types import TensorMeta
from buddy.compiler.protocol.artifact import TimedRegion
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.profile import NodeTime, RegionTime
from buddy.compiler.protocol.recipe import PassStep, Recipe

# ---- minimum work ----------------------------------------------------------------------------------------------------


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
    has_bias, is_transposed = isinstance(node.args[2], Op), node.args[6]
    positions = image if is_transposed else shape(node)
    return 2.0 * prod(positions) * prod(kernel[1:]) + (prod(shape(node)) if has_bias else 0)


def _convolution_backward_operations(node: Op, shape: Callable[[Op], Sizes]) -> float:
    """Returns the operations of a convolution's gradients.

    The gradients of input and kernel cost as much as the convolution each, that of the bias costs a sum.
    """
    gradient, image, kernel = (shape(arg) for arg in node.args[:3])
    is_transposed = node.args[7]
    positions = image if is_transposed else gradient
    for_input, for_kernel, for_bias = (bool(node.args[10][i]) for i in range(3))  # the output mask
    return 2.0 * prod(positions) * prod(kernel[1:]) * (for_input + for_kernel) + prod(gradient) * for_bias


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
    spatial_dims = len(shape(_first_tensor(node))) - 2
    window = [node.args[1]] if isinstance(node.args[1], int) else list(node.args[1])
    if len(window) == 1:
        window *= spatial_dims
    return float(prod(shape(node)) * prod(window))


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
    # Its operands are: left, right, addend.
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
    # One for each element of the source, operand 3.
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
        intermediates do not count. A view counts as much as its base if the base is smaller.
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
        own_bytes = sum(prod(_sizes(meta, self._symbols)) * meta.dtype.bytes for meta in metas)
        is_view = node.op_type in (OpType.ReshapeType, OpType.BroadcastType) and node.parents
        return min(own_bytes, self._bytes(node.parents[0])) if is_view else own_bytes


# ---- times of nodes --------------------------------------------------------------------------------------------------


@dataclass
class _NodeGroup:
    """The regions in which one node, the leader, does most of the work: their total time and number, and all nodes."""

    seconds: float = 0.0
    regions: int = 0
    nodes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Attribution:
    """The times of nodes and regions.

    `inside` are the seconds attributed to nodes, `outside` those of call overhead and of regions without nodes.
    """

    nodes: tuple[NodeTime, ...]
    regions: tuple[RegionTime, ...]
    inside: float
    outside: float


def attribute_time(
    graph: Graph, regions: Sequence[TimedRegion], seconds: Sequence[float], symbols: Mapping[str, int]
) -> Attribution:
    """Attributes the times of `regions`, `seconds`, to the nodes of `graph`; the time of a call includes its callee's.

    The time of a region counts for the node in it that does most of the work. `symbols` are the values of symbolic
    sizes.
    """
    operations = {op.stable: operations_of(op, symbols) for op in graph.body}
    order = {name: index for index, name in enumerate(operations)}

    def work_key(name: str) -> tuple[float, int]:
        """Returns a key that is greatest for the node with most operations; of several, for the last one.

        A fused loop writes the result of its last node.
        """
        return (operations.get(name) or 0.0, order.get(name, -1))

    groups: dict[str, _NodeGroup] = {}
    outside = 0.0
    calls = {region.parent for region in regions}  # their time is the overhead of the call
    for number, (region, own_seconds) in enumerate(zip(regions, _exclusive_seconds(regions, seconds), strict=True)):
        if not region.nodes or number in calls:
            outside += own_seconds
            continue
        group = groups.setdefault(max(region.nodes, key=work_key), _NodeGroup())
        group.seconds += own_seconds
        group.regions += 1
        group.nodes |= dict.fromkeys(region.nodes)
    nodes = _node_times(graph, groups, operations, symbols)
    times = tuple(
        RegionTime(region.nodes, region.function, region.label, region_seconds, region.parent)
        for region, region_seconds in zip(regions, seconds, strict=True)
    )
    return Attribution(nodes, times, sum(group.seconds for group in groups.values()), outside)


def _exclusive_seconds(regions: Sequence[TimedRegion], seconds: Sequence[float]) -> list[float]:
    """Returns the seconds of each region without those of the regions in its callee."""
    exclusive = list(seconds)
    for number, region in enumerate(regions):
        if region.parent >= 0:
            exclusive[region.parent] -= seconds[number]
    return exclusive


def _node_times(
    graph: Graph, groups: Mapping[str, _NodeGroup], operations: Mapping[str, float | None], symbols: Mapping[str, int]
) -> tuple[NodeTime, ...]:
    """Returns the times of nodes that have one, and of nodes that are fused into these, in the order of the graph."""
    traffic = Traffic(graph, symbols)
    leaders = {name: leader for leader, group in groups.items() for name in group.nodes if name not in groups}
    times = []
    for name in operations:
        group = groups.get(name)
        if group is not None:
            # The other nodes of the regions, even if they have a time of their own for other regions.
            fused = tuple(other for other in group.nodes if other != name)
            counts = [operations.get(node) for node in (name, *fused)]
            known_counts = [count for count in counts if count is not None]
            total = sum(known_counts) if len(known_counts) == len(counts) else -1.0
            min_bytes = traffic.minimum_bytes((name, *fused))
            bytes_ = -1.0 if min_bytes is None else float(min_bytes)
            times.append(NodeTime(name, group.seconds, "", fused, total, bytes_, group.regions))
        elif name in leaders:
            times.append(NodeTime(name, into=leaders[name]))
    return tuple(times)


# The pass that adds a cycle counter to each region.
COUNTING_PASS = "count-cycles"


def with_counting(recipe: Recipe) -> Recipe:
    """Returns `recipe` with the counting pass enabled.

    If the recipe has no such step, inserts one after memory planning; without that, before loops are lowered.
    """
    steps = list(recipe.steps)
    for index, step in enumerate(steps):
        if step.name == COUNTING_PASS:
            return recipe if step.enabled else recipe.with_step(index, enabled=True)
    enabled = [(index, facts(step.name)) for index, step in enumerate(steps) if step.enabled]
    planning = [index for index, pass_facts in enabled if pass_facts.plans_memory]
    lowering = [index for index, pass_facts in enabled if pass_facts.lowers] or [len(steps)]
    index = planning[-1] + 1 if planning else lowering[0]
    phase = steps[index - 1].phase if index else ""
    return replace(recipe, steps=(*steps[:index], PassStep(COUNTING_PASS, phase=phase), *steps[index:]))


def without_counting(recipe: Recipe) -> Recipe:
    """Returns `recipe` with the counting pass disabled."""
    steps = (replace(step, enabled=False) if step.name == COUNTING_PASS else step for step in recipe.steps)
    return replace(recipe, steps=tuple(steps))
