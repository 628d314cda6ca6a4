"""A complex tensor as two real ones, the registry of rules for complex ops, and the emitter that rules use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import getitem
from typing import Any, Union

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import CallMethodKey, rebind_unbacked
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from buddy.compiler.frontend.errors import UnsupportedGraphError

Part = Any  # a real tensor, or a number if all elements are equal
# What arithmetic takes: a pair, a real tensor or a number.
Operand = Union["ComplexPair", torch.Tensor, complex]
# Takes a tensor of the result's form (or several), then the op's own arguments with a `ComplexPair` for each complex
# tensor; returns the op's result, or `NotImplemented` if the op is to stay unchanged.
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


def rule(*ops: Callable[..., object]) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of the overloads `ops`."""

    def decorate(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return decorate


@dataclass(frozen=True, eq=False)
class ComplexPair:
    """Real and imaginary part, tensors of one shape and type; arithmetic also accepts numbers and real tensors.

    A real operand has the imaginary part 0, and computations use this 0 like eager: infinity times `2 + 0j` has the
    imaginary part NaN. `stacked` has the two parts along an additional last dim, if a tensor with this layout exists.
    """

    re: Part
    im: Part
    stacked: torch.Tensor | None = None

    def map(self, function: Callable[[Part], Part]) -> ComplexPair:
        return ComplexPair(function(self.re), function(self.im))

    def conj(self) -> ComplexPair:
        return ComplexPair(self.re, -self.im)

    def scaled(self, factor: Operand) -> ComplexPair:
        """The product with a real number or tensor, as two products."""
        return ComplexPair(self.re * factor, self.im * factor)

    def shifted(self, number: Operand) -> ComplexPair:
        """The sum with a real number; the imaginary part is unchanged, and so is the sign of a zero."""
        return ComplexPair(self.re + number, self.im)

    def swapped(self) -> ComplexPair:
        return ComplexPair(self.im, self.re)

    def turned(self) -> ComplexPair:
        """The product with the imaginary unit."""
        return ComplexPair(-self.im, self.re)

    def __neg__(self) -> ComplexPair:
        return ComplexPair(-self.re, -self.im)

    def __add__(self, other: Operand) -> ComplexPair:
        y = pair_of(other)
        return ComplexPair(self.re + y.re, self.im + y.im)

    def __sub__(self, other: Operand) -> ComplexPair:
        y = pair_of(other)
        return ComplexPair(self.re - y.re, self.im - y.im)

    def __mul__(self, other: Operand) -> ComplexPair:
        y = pair_of(other)
        return ComplexPair(self.re * y.re - self.im * y.im, self.re * y.im + self.im * y.re)

    def __truediv__(self, other: Operand) -> ComplexPair:
        """Divides like eager, by the algorithm of Robert L. Smith (1962).

        It first divides the smaller part of the divisor by the larger one, so that no square overflows. Each part is
        divided separately if the divisor is 0.
        """
        y = pair_of(other)
        c, d = y.re, y.im
        if not isinstance(c, torch.Tensor) and not isinstance(d, torch.Tensor):
            return self._over_number(float(c), float(d))
        is_re_larger = abs(c) >= abs(d)
        is_zero = (c == 0) & (d == 0)
        larger, smaller = torch.where(is_re_larger, c, d), torch.where(is_re_larger, d, c)
        ratio = smaller / larger
        scale = 1.0 / (larger + smaller * ratio)
        a, b = self.re, self.im
        re = torch.where(is_re_larger, a + b * ratio, a * ratio + b) * scale
        im = torch.where(is_re_larger, b - a * ratio, b * ratio - a) * scale
        return ComplexPair(torch.where(is_zero, a / abs(c), re), torch.where(is_zero, b / abs(c), im))

    def _over_number(self, c: float, d: float) -> ComplexPair:
        if c == d == 0:
            return self.map(lambda part: part / 0.0)
        if abs(c) >= abs(d):
            ratio = d / c
            scale = 1.0 / (c + d * ratio)
            return ComplexPair((self.re + self.im * ratio) * scale, (self.im - self.re * ratio) * scale)
        ratio = c / d
        scale = 1.0 / (d + c * ratio)
        return ComplexPair((self.re * ratio + self.im) * scale, (self.im * ratio - self.re) * scale)


@dataclass(frozen=True, eq=False)
class Interleaved:
    """A complex result whose two parts a rule has computed along an additional last dim."""

    stacked: torch.Tensor


def pair_of(value: Operand, dtype: torch.dtype | None = None) -> ComplexPair:
    """Converts a number, a real tensor or a pair to a pair, with tensors of type `dtype` if given."""
    if isinstance(value, complex):
        return ComplexPair(value.real, value.imag)
    pair = value if isinstance(value, ComplexPair) else ComplexPair(value, 0.0)
    if dtype is None:
        return pair
    return pair.map(lambda part: part.to(dtype) if isinstance(part, torch.Tensor) else part)


def part_type(dtype: torch.dtype) -> torch.dtype:
    """The type of the parts of a complex type; other types are returned unchanged."""
    return dtype.to_real() if dtype.is_complex else dtype


def to_pair_like(out: torch.Tensor, value: Operand) -> ComplexPair:
    """`value` with parts that are tensors of the shape and part type of `out`."""
    dtype = part_type(out.dtype)

    def tensor(part: Part) -> torch.Tensor:
        if not isinstance(part, torch.Tensor):
            return torch.full(out.shape, part, dtype=dtype)
        return part.to(dtype).expand(out.shape) if part.shape != out.shape else part.to(dtype)

    return pair_of(value).map(tensor)


# The keys of a node's meta that describe its origin.
_PROVENANCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag")


class ComplexEmitter(TorchDispatchMode):
    """While active, each ATen op on registered tensors becomes a node of `graph`, decomposed by `table`.

    Operands that are not fake tensors become constants: attributes of the graph's module, by name in `constants`.
    """

    def __init__(
        self, graph: Graph, fake_mode: FakeTensorMode, table: Mapping[torch._ops.OpOverload, Callable[..., object]]
    ) -> None:
        super().__init__()
        self.graph = graph
        self.constants: dict[str, torch.Tensor] = {}
        self.fake_mode = fake_mode
        self._table = table
        self._nodes: dict[int, tuple[torch.Tensor, Node]] = {}
        self._fake_constants: dict[int, torch.Tensor] = {}
        self._origin: Node | None = None
        self._emitted: list[Node] = []

    def node_of(self, tensor: torch.Tensor) -> Node:
        return self._nodes[id(tensor)][1]

    def register_value(self, tensor: torch.Tensor, node: Node) -> torch.Tensor:
        """Returns a fake tensor that stands for the value of `node` in calls of ops.

        It has the form of `tensor`, with lazy conjugation and negation resolved.
        """
        with _disable_current_modes(), self.fake_mode:
            view = torch.ops.aten.alias.default(tensor.resolve_conj().resolve_neg())
        self._nodes[id(view)] = (view, node)
        return view

    def to_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.fake_mode.from_tensor(tensor, static_shapes=True)

    @contextmanager
    def replacing(self, origin: Node) -> Iterator[None]:
        """Nodes emitted inside replace `origin`, and have its name and provenance."""
        self._origin = origin
        with torch.no_grad(), self.fake_mode, self:
            yield

    def drop_unused(self) -> None:
        """Removes emitted nodes without users, except for assertions."""
        for node in reversed(self._emitted):
            if not node.users and not node.is_impure():
                self.graph.erase_node(node)

    def emit(
        self, target: Operand, args: Sequence[object], kwargs: Mapping[str, object], value: Operand, name: str = ""
    ) -> Node:
        """Adds one node with the value `value`."""
        origin = self._origin
        assert origin is not None
        nodes = tree_map_only(torch.Tensor, self.node_of, (list(args), dict(kwargs)))
        nodes = tree_map_only(torch.SymInt, self._node_of_size, nodes)
        node = self.graph.create_node("call_function", target, tuple(nodes[0]), nodes[1], name or f"{origin.name}_part")
        node.meta = {key: origin.meta[key] for key in _PROVENANCE if key in origin.meta}
        node.meta["val"] = value
        self._emitted.append(node)
        return node

    def _node_of_size(self, size: torch.SymInt) -> Node | int:
        """The node of a size that varies, or its number. Raises `UnsupportedGraphError` before PyTorch 2.12."""
        materialize = getattr(self.graph, "materialize_symints", None)
        if materialize is None:
            raise UnsupportedGraphError(f"PyTorch {torch.__version__} adds no sizes that vary to a captured graph")
        return materialize([size])[0]

    def __torch_dispatch__(
        self,
        op: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if op.namespace == "prim":  # a query of a tensor's property, such as its device
            return op(*args, **kwargs)
        result: object = NotImplemented
        if op in self._table:
            with self:
                result = self._table[op](*args, **kwargs)
        elif torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels or op._can_decompose():
            with self:
                result = op.decompose(*args, **kwargs)
        return self._call(op, args, kwargs) if result is NotImplemented else result

    def _call(self, op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        args, kwargs = tree_map_only(torch.Tensor, self._to_registered_fake, (args, kwargs))
        value = op(*args, **kwargs)
        node = self.emit(op, args, kwargs, value)
        self._keep_sizes(node, value)
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
            return value
        for index, item in enumerate(tree_leaves(value) if value is not None else ()):
            item_node = self.graph.create_node("call_function", getitem, (node, index), name=f"{node.name}_{index}")
            item_node.meta = {**node.meta, "val": item}
            self._emitted.append(item_node)
            self._nodes[id(item)] = (item, item_node)
        return value

    def _keep_sizes(self, node: Node, value: object) -> None:
        """Equates the data-dependent sizes of a part, for which PyTorch makes new symbols, with those of the origin.

        Offsets differ: they count the elements of parts.
        """
        assert self._origin is not None
        bindings = self._origin.meta.get("unbacked_bindings") or {}
        if node.target is not self._origin.target or not isinstance(value, torch.Tensor):
            return
        sizes = {symbol: path for symbol, path in bindings.items() if path and path[0] == CallMethodKey("size")}
        if sizes:
            node.meta["unbacked_bindings"] = sizes
            rebind_unbacked(self.fake_mode.shape_env, node, value)

    def _to_registered_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a fake tensor unchanged; for a constant, adds a `get_attr` node and returns a fake tensor for it."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fake_constants:
            name = f"_part_constant{len(self.constants)}"
            fake_constant = self.to_fake(tensor)
            node = self.graph.create_node("get_attr", name, name=name)
            node.meta["val"] = fake_constant
            self._emitted.append(node)
            self.constants[name] = tensor
            self._fake_constants[id(tensor)], self._nodes[id(fake_constant)] = fake_constant, (fake_constant, node)
        return self._fake_constants[id(tensor)]
