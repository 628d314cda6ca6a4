"""Rewrites quantised tensors inside an ATen graph to tensors of integers with separate scale and zero point.

PyTorch traces a quantised tensor as float32, so only its producer shows that it is quantised. The result of
`torch.quantize_per_tensor` is rewritten if each of its users is data movement, `relu` or `dequantize`. Values are those
of the AVX2 kernels in aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp of PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from operator import getitem
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.names import node_title, python_line
from buddy.compiler.frontend.node_emitter import NodeEmitter
from buddy.compiler.frontend.strided_views import copy_graph
from buddy.compiler.protocol import Diagnostic

aten = torch.ops.aten

# Data movement: ops whose result has the scale and the zero point of their quantised operand.
_DATA_MOVEMENT = frozenset({
    "alias", "clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "select", "slice", "squeeze",
    "t", "transpose", "unflatten", "unsqueeze", "view", "_unsafe_view",
})  # fmt: skip
_RELU = "relu"
# Ops that read a quantised tensor and return plain values.
_TO_PLAIN = frozenset({"dequantize", "int_repr", "q_scale", "q_zero_point", "q_per_channel_scales"})
_DEQUANTIZE = "dequantize"
_QUANTIZERS = frozenset({"quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel"})
# The key in the meta of nodes that `mark_quantised` marks.
_QUANTISED_KEY = "buddy.quantised"
# The quantizers whose results are rewritten to integers.
_REWRITABLE_QUANTIZERS = (aten.quantize_per_tensor.default, aten.quantize_per_tensor.tensor_qparams)
_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
_ZERO_POINT_ERROR = "zero_point is out of the bounds of a quantised tensor"


@dataclass(frozen=True)
class Quantised:
    """A quantised tensor: the numbers (`integers` - `zero_point`) * `scale`.

    `scale` (float32) and `zero_point` (int32) have no dims.
    """

    integers: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor


@lru_cache(maxsize=1)
def _rounds_quotients() -> bool:
    """True if eager rounds the quotient; false if it rounds the sum of the quotient and the zero point.

    This depends on eager's build, so the op is called to find out: in a separate thread, because this thread decomposes
    graphs on fake tensors, and not at import, because the op starts threads, after which a process must not fork.
    """

    def probe() -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantised tensors are deprecated
            half = torch.quantize_per_tensor(torch.tensor([0.5]), 1.0, 1, torch.quint8)
        return bool(half.int_repr().item() == 1)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(probe).result()


def quantise(x: torch.Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Quantised:
    """Quantises `x`, which is float32; the parameters are numbers or tensors with one element.

    NaN becomes the highest integer of 8 bits, or the lowest of 32 bits. Ties round to even. A call raises an error for
    a zero point that eager rejects.
    """
    integer = _INTEGERS[dtype]
    low, high = torch.iinfo(integer).min, torch.iinfo(integer).max
    step, zero = _number(scale, torch.float32), _number(zero_point, torch.int64)
    aten._assert_async.msg((zero >= low) & (zero <= high), _ZERO_POINT_ERROR)
    inverse = step.reciprocal()
    if _rounds_quotients():
        steps = _add_zero_point(torch.round(x * inverse), zero, wraps=integer != torch.int32)
    elif integer == torch.int32:
        steps = x * inverse + zero.to(torch.float32)
    else:  # eager multiplies and adds with one rounding; in double precision the product is exact
        steps = (x.to(torch.float64) * inverse.to(torch.float64) + zero.to(torch.float64)).to(torch.float32)
    # Clamped in double precision, because float32 has no 2**31 - 1.
    clamped = torch.round(steps).to(torch.float64).clamp(low, high)
    clamped = torch.where(steps.isnan(), low if integer == torch.int32 else high, clamped)
    return Quantised(clamped.to(integer), step, zero.to(torch.int32))


def _add_zero_point(quotients: torch.Tensor, zero_point: torch.Tensor, wraps: bool) -> torch.Tensor:
    """Returns `quotients` + `zero_point`, in double precision.

    With `wraps`, it is the sum of 32-bit integers, as eager computes it for 8-bit types: quotients are clamped to the
    32-bit integers that float32 represents, NaN becomes the highest of these, and the sum wraps around.
    """
    if not wraps:
        return quotients.to(torch.float64) + zero_point.to(torch.float64)
    highest = 2.0**31 - 128  # the largest below 2**31 in float32
    bounded = torch.where(quotients.isnan(), highest, quotients.clamp(-(2.0**31), highest))
    sums = bounded.to(torch.int64) + zero_point
    return (torch.remainder(sums + 2**31, 2**32) - 2**31).to(torch.float64)


def _number(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns a number, or the element of a tensor that has one, as a tensor without dims."""
    if isinstance(value, torch.Tensor):
        return value.reshape([]).to(dtype)
    return torch.full([], value, dtype=dtype)


def dequantise(q: Quantised) -> torch.Tensor:
    """Returns the float32 numbers that `q` represents, in a dense tensor, as in eager."""
    numbers = (q.integers.to(torch.int32) - q.zero_point).to(torch.float32) * q.scale
    return numbers.contiguous(memory_format=suggest_memory_format(q.integers))


def _op_name(target: Any) -> str:
    """Returns the name of the callee of an FX node, for ATen ops without namespace and overload."""
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.removeprefix("aten::")
    return str(getattr(target, "__name__", target)).split(".")[0]


# ---- Dynamo graphs ---------------------------------------------------------------------------------------------------


def check_quantised(module: GraphModule) -> None:
    """Raises `UnsupportedGraphError` for a Dynamo graph that uses a quantised tensor in an unsupported way.

    Such a graph must not be traced: decompositions would compute with the floats that tracing shows.
    """
    quantised_nodes: set[Node] = set()
    for node in module.graph.nodes:
        reads = any(parent in quantised_nodes for parent in node.all_input_nodes)
        name = _op_name(node.target) if node.op.startswith("call_") else ""
        if reads and name not in _DATA_MOVEMENT | {_RELU, _DEQUANTIZE} and not _is_plain_subscript(node):
            raise _unsupported(node if name else next(n for n in node.all_input_nodes if n in quantised_nodes), name)
        if name in _QUANTIZERS and not _is_per_tensor(node):
            raise _unsupported(node, name)
        if name in _QUANTIZERS or (reads and name != _DEQUANTIZE):
            quantised_nodes.add(node)


def _is_plain_subscript(node: Node) -> bool:
    """True if a node subscripts its only tensor by numbers, slices and new dims."""
    return node.target is getitem and len(node.all_input_nodes) == 1


def _is_per_tensor(node: Node) -> bool:
    """True for `quantize_per_tensor` of one tensor; it also accepts a list of tensors."""
    return _op_name(node.target) == "quantize_per_tensor" and isinstance(node.meta.get("example_value"), torch.Tensor)


def _unsupported(node: Node, name: str) -> UnsupportedGraphError:
    return UnsupportedGraphError(
        Diagnostic(
            what=f"{node_title(node)} ({name or _op_name(node.target)}) uses a quantised tensor in a way that compiled "
            "code does not support",
            where=python_line(node),
            todo="dequantize it in the same graph, or let the graph stay in eager (fallback='eager')",
            node=node.name,
        )
    )


# ---- ATen graphs -----------------------------------------------------------------------------------------------------


def mark_quantised(nodes: Iterable[Node]) -> None:
    """Marks the nodes that return quantised tensors, for which PyTorch traces plain float tensors."""
    for node in nodes:
        name = _op_name(node.target)
        reads = any(is_marked(parent) for parent in node.all_input_nodes)
        if name in _QUANTIZERS or (reads and name not in _TO_PLAIN):
            node.meta[_QUANTISED_KEY] = True


def is_marked(node: Any) -> bool:
    """True if `mark_quantised` has marked a node as returning a quantised tensor."""
    return isinstance(node, Node) and bool(node.meta.get(_QUANTISED_KEY))


def decompose_quantised(module: GraphModule, table: Mapping[Any, Callable[..., Any]]) -> GraphModule:
    """Returns `module` with integers in place of quantised tensors; `module` itself if none can be rewritten.

    The new ops are decomposed by `table`. Other nodes keep their names and metas.
    """
    if not any(_is_plain_dequantize(node) or _rewritable_group(node) for node in module.graph.nodes):
        return module
    module = copy_graph(module)
    nodes = list(module.graph.nodes)
    mode = detect_fake_mode([leaf for node in nodes for leaf in tree_leaves(node.meta.get("val"))])
    if mode is None:
        return module
    emitter = NodeEmitter(module.graph, mode, table)
    for node in nodes:
        if group := _rewritable_group(node):
            _rewrite(module, emitter, group)
    _convert_plain_tensors(module, emitter)
    emitter.drop_unused()
    for name, constant in emitter.constants.items():
        setattr(module, name, constant)
    module.recompile()
    return module


def _rewritable_group(quantizer: Node) -> list[Node]:
    """Returns `quantizer` and all nodes that read its quantised tensor, in order; empty if they cannot be rewritten."""
    if quantizer.target not in _REWRITABLE_QUANTIZERS or quantizer.args[3] not in _INTEGERS:
        return []
    quantised_nodes, readers = {quantizer}, []
    for node in _following_nodes(quantizer):
        if not any(parent in quantised_nodes for parent in node.all_input_nodes):
            continue
        name = _op_name(node.target) if node.op == "call_function" else ""
        if name not in _DATA_MOVEMENT | {_RELU, _DEQUANTIZE}:
            return []
        readers.append(node)
        if name != _DEQUANTIZE:
            quantised_nodes.add(node)
    return [quantizer, *readers]


def _following_nodes(node: Node) -> Iterator[Node]:
    """Yields the nodes after `node`, in the order of the graph."""
    while (node := node.next).op != "root":
        yield node


def _rewrite(module: GraphModule, emitter: NodeEmitter, group: list[Node]) -> None:
    """Replaces `group`, a result of `_rewritable_group`, by ops on integers."""
    quantizer, *readers = group
    with module.graph.inserting_before(quantizer), emitter.replacing(quantizer):
        x, scale, zero_point, dtype = (_operand(emitter, argument) for argument in quantizer.args)
        quantised_values = {quantizer: quantise(x, scale, zero_point, dtype)}
    for node in readers:
        source, name = quantised_values[node.args[0]], _op_name(node.target)
        with module.graph.inserting_before(node), emitter.replacing(node):
            if name == _DEQUANTIZE:
                _replace_node(emitter, node, dequantise(source))
            else:
                integers = _apply_to_integers(emitter, node, source)
                quantised_values[node] = Quantised(integers, source.scale, source.zero_point)
    for node in reversed(group):
        if not node.users:
            module.graph.erase_node(node)


def _apply_to_integers(emitter: NodeEmitter, node: Node, source: Quantised) -> torch.Tensor:
    """Returns the integers of the result of `relu` or a data movement of `source`."""
    if _op_name(node.target) == _RELU:
        return torch.maximum(source.integers, source.zero_point.to(source.integers.dtype))
    rest = [_operand(emitter, argument) for argument in node.args[1:]]
    return node.target(source.integers, *rest, **node.kwargs)


def _operand(emitter: NodeEmitter, argument: Any) -> Any:
    """Returns an argument of a node for a call of an op: nodes become registered fake tensors."""
    if isinstance(argument, Node):
        value = argument.meta["val"]
        return emitter.register_value(value, argument) if isinstance(value, torch.Tensor) else value
    return list(argument) if isinstance(argument, (list, tuple)) else argument


def _replace_node(emitter: NodeEmitter, node: Node, result: torch.Tensor) -> None:
    """Makes the users of `node` read `result`, whose node takes over the name of `node`."""
    new = emitter.node_of(result)
    node.replace_all_uses_with(new)
    if new.name.startswith(f"{node.name}_part"):
        name, node.name = node.name, f"{node.name}_traced"
        new.name = name


def _is_plain_dequantize(node: Node) -> bool:
    """True if a node dequantises a tensor that is not quantised, which converts it to float32."""
    return node.target is aten.dequantize.self and not is_marked(node.args[0])


def _convert_plain_tensors(module: GraphModule, emitter: NodeEmitter) -> None:
    """Replaces each `dequantize` of a plain tensor by a conversion to float32."""
    for node in list(module.graph.nodes):
        if _is_plain_dequantize(node):
            with module.graph.inserting_before(node), emitter.replacing(node):
                _replace_node(emitter, node, _operand(emitter, node.args[0]).to(torch.float32, copy=True))
            module.graph.erase_node(node)
