"""Quantised tensors inside an ATen graph as tensors of integers, each with its scale and zero point.

PyTorch traces a quantised tensor as float32, so its scale and zero point are those of the op that produced it. Results
of `torch.quantize_per_tensor` are rewritten if all their readers move elements, take the positive part or dequantise.
Values are those of the AVX2 kernels in aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.complex_numbers.pair import ComplexEmitter
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.memory_formats import copied
from buddy.compiler.frontend.names import python_line
from buddy.compiler.protocol import Diagnostic

aten = torch.ops.aten

# What reads a quantised tensor and gives one with the same scale and zero point, each element one of the first's.
_MOVES = frozenset({
    "alias", "clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "select", "slice", "squeeze",
    "t", "transpose", "unflatten", "unsqueeze", "view", "_unsafe_view",
})  # fmt: skip
_RELU = "relu"
_READS = frozenset({"dequantize", "int_repr", "q_scale", "q_zero_point", "q_per_channel_scales"})
_CONVERTS = "dequantize"
_MAKERS = frozenset({"quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel"})
_QUANTISED = "buddy.quantised"
_MAKES = (aten.quantize_per_tensor.default, aten.quantize_per_tensor.tensor_qparams)
_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
_REFUSED = "zero_point is out of the bounds of a quantised tensor"


@dataclass(frozen=True)
class Quantised:
    """`integers`, and a scale (float32) and a zero point (int32) without dims."""

    integers: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor


def quantised(x: torch.Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Quantised:
    """`x`, float32, in steps of `scale`; the parameters are numbers or tensors with one element.

    NaN is the highest integer of 8 bits and the lowest of 32. The sum of quotient and zero point is rounded, halves to
    even. What eager refuses is refused at the call.
    """
    integer = _INTEGERS[dtype]
    low, high = torch.iinfo(integer).min, torch.iinfo(integer).max
    step, zero = _number(scale, torch.float32), _number(zero_point, torch.int64)
    aten._assert_async.msg((zero >= low) & (zero <= high), _REFUSED)
    inverse = step.reciprocal()
    if integer == torch.int32:
        steps = x * inverse + zero.to(torch.float32)
    else:  # eager multiplies and adds with one rounding; in double precision the product is exact
        steps = (x.to(torch.float64) * inverse.to(torch.float64) + zero.to(torch.float64)).to(torch.float32)
    # Clamped in double precision, because float32 has no 2**31 - 1.
    kept = torch.round(steps).to(torch.float64).clamp(low, high)
    kept = torch.where(steps.isnan(), low if integer == torch.int32 else high, kept)
    return Quantised(kept.to(integer), step, zero.to(torch.int32))


def _number(value: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.reshape([]).to(dtype)
    return torch.full([], value, dtype=dtype)


def dequantised(q: Quantised) -> torch.Tensor:
    """The numbers, float32; as in eager, dense in memory."""
    numbers = (q.integers.to(torch.int32) - q.zero_point).to(torch.float32) * q.scale
    return numbers.contiguous(memory_format=suggest_memory_format(q.integers))


def _name(target: Any) -> str:
    """What a node of a Dynamo graph or of an ATen graph calls; an op of ATen's without namespace and overload."""
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.removeprefix("aten::")
    return str(getattr(target, "__name__", target)).split(".")[0]


# ---- Dynamo graphs ---------------------------------------------------------------------------------------------------


def check_quantised(module: GraphModule) -> None:
    """Raises `UnsupportedGraphError` for a Dynamo graph that reads or returns a quantised tensor in a way unknown here.

    Such a graph must not be traced: decompositions would compute with the floats that PyTorch takes the tensor for.
    """
    made: set[Node] = set()
    for node in module.graph.nodes:
        reads = any(parent in made for parent in node.all_input_nodes)
        name = _name(node.target) if node.op.startswith("call_") else ""
        if reads and name not in _MOVES | {_RELU, _CONVERTS} and not _is_plain_subscript(node):
            raise _unsupported(node if name else next(n for n in node.all_input_nodes if n in made), name)
        if name in _MAKERS and not _is_per_tensor(node):
            raise _unsupported(node, name)
        if name in _MAKERS or (reads and name != _CONVERTS):
            made.add(node)


def _is_plain_subscript(node: Node) -> bool:
    """Whether a node reads a part of its only tensor by numbers, slices and new dims."""
    return node.target is getitem and len(node.all_input_nodes) == 1


def _is_per_tensor(node: Node) -> bool:
    return _name(node.target) == "quantize_per_tensor" and isinstance(node.meta.get("example_value"), torch.Tensor)


def _unsupported(node: Node, name: str) -> UnsupportedGraphError:
    what = f"{name or _name(node.target)} reads or makes a quantised tensor that is more than an intermediate value"
    return UnsupportedGraphError(
        Diagnostic(
            what=f"{what}: {node.name}, which compiled code cannot represent",
            where=python_line(node),
            todo="dequantize it in the same graph, or let the graph stay in eager (fallback='eager')",
            node=node.name,
        )
    )


# ---- ATen graphs -----------------------------------------------------------------------------------------------------


def mark_quantised(nodes: Iterable[Node]) -> None:
    """Marks the nodes that return quantized tensors: while tracing, PyTorch reports that they hold plain floats."""
    for node in nodes:
        name = _name(node.target)
        reads = any(is_marked(parent) for parent in node.all_input_nodes)
        if name in _MAKERS or (reads and name not in _READS):
            node.meta[_QUANTISED] = True


def is_marked(node: Any) -> bool:
    """Whether `mark_quantised` found that a node gives a quantised tensor."""
    return isinstance(node, Node) and bool(node.meta.get(_QUANTISED))


def by_integers(module: GraphModule, table: Mapping[Any, Callable[..., Any]]) -> GraphModule:
    """`module` with integers in the place of quantised tensors; itself where it has none that can be rewritten.

    What the ops become is decomposed by `table`. Other nodes keep their names and metas.
    """
    if not any(_is_plain(node) or _group(node) for node in module.graph.nodes):
        return module
    module = copied(module)
    nodes = list(module.graph.nodes)
    mode = detect_fake_mode([leaf for node in nodes for leaf in tree_leaves(node.meta.get("val"))])
    if mode is None:
        return module
    emitter = ComplexEmitter(module.graph, mode, table)
    for node in nodes:
        if group := _group(node):
            _rewrite(module, emitter, group)
    _convert_plain(module, emitter)
    emitter.drop_unused()
    for name, constant in emitter.constants.items():
        setattr(module, name, constant)
    module.recompile()
    return module


def _group(maker: Node) -> list[Node]:
    """`maker` and all that reads the quantised tensor it makes, in order; nothing where that cannot be rewritten."""
    if maker.target not in _MAKES or maker.args[3] not in _INTEGERS:
        return []
    made, reading = {maker}, []
    for node in _after(maker):
        if not any(parent in made for parent in node.all_input_nodes):
            continue
        name = _name(node.target) if node.op == "call_function" else ""
        if name not in _MOVES | {_RELU, _CONVERTS}:
            return []
        reading.append(node)
        if name != _CONVERTS:
            made.add(node)
    return [maker, *reading]


def _after(node: Node) -> Iterator[Node]:
    while (node := node.next).op != "root":
        yield node


def _rewrite(module: GraphModule, emitter: ComplexEmitter, group: list[Node]) -> None:
    maker, *readers = group
    with module.graph.inserting_before(maker), emitter.at(maker):
        x, scale, zero_point, dtype = (_operand(emitter, argument) for argument in maker.args)
        found = {maker: quantised(x, scale, zero_point, dtype)}
    for node in readers:
        of, name = found[node.args[0]], _name(node.target)
        with module.graph.inserting_before(node), emitter.at(node):
            if name == _CONVERTS:
                _put(emitter, node, dequantised(of))
            else:
                moved = _moved(emitter, node, of)
                found[node] = Quantised(moved, of.scale, of.zero_point)
    for node in reversed(group):
        if not node.users:
            module.graph.erase_node(node)


def _moved(emitter: ComplexEmitter, node: Node, of: Quantised) -> torch.Tensor:
    if _name(node.target) == _RELU:
        return torch.maximum(of.integers, of.zero_point.to(of.integers.dtype))
    rest = [_operand(emitter, argument) for argument in node.args[1:]]
    return node.target(of.integers, *rest, **node.kwargs)


def _operand(emitter: ComplexEmitter, argument: Any) -> Any:
    if isinstance(argument, Node):
        value = argument.meta["val"]
        return emitter.know(value, argument) if isinstance(value, torch.Tensor) else value
    return list(argument) if isinstance(argument, (list, tuple)) else argument


def _put(emitter: ComplexEmitter, node: Node, result: torch.Tensor) -> None:
    new = emitter.node_of(result)
    node.replace_all_uses_with(new)
    if new.name.startswith(f"{node.name}_part"):
        name, node.name = node.name, f"{node.name}_traced"
        new.name = name


def _is_plain(node: Node) -> bool:
    """Whether a node asks for the floats of what has never been quantised."""
    return node.target is aten.dequantize.self and not is_marked(node.args[0])


def _convert_plain(module: GraphModule, emitter: ComplexEmitter) -> None:
    for node in list(module.graph.nodes):
        if _is_plain(node):
            with module.graph.inserting_before(node), emitter.at(node):
                _put(emitter, node, _operand(emitter, node.args[0]).to(torch.float32, copy=True))
            module.graph.erase_node(node)
