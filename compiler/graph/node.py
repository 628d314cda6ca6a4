"""The nodes of the Buddy graph: `Op`, the base class of all op classes, and the classes of general nodes.

A node's metas are the shapes and element types of its results. A node only has the arguments that its call passed.
Conversion to the torch dialect (`ops.torch_mlir`) also needs each argument's type and default; `Schema` has these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import is_
from typing import Any, ClassVar
from weakref import WeakSet

import msgspec

from buddy.compiler.graph.sizes import Size
from buddy.compiler.graph.types import GraphError, NodeType, TensorDType, TensorMeta

_META_KEYS = ("shape", "dtype")


class NodeMeta(TensorMeta):
    """A live view of a node's metas: `.shape` and `.dtype` are those of the first result.

    `meta["shape"]` equals `meta.shape`, or is a list of shapes for a node with several results. `meta["shape"] = …`
    changes the node.
    """

    def __init__(self, node: Op) -> None:
        # `TensorMeta` is frozen, so normal assignment raises. `_draft` has the keys that a script has assigned to a
        # node without metas: the node gets metas once both keys are assigned.
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_draft", {})

    @property
    def _first_meta(self) -> TensorMeta:
        node: Op = self.__dict__["_node"]
        if not node.metas or node.metas[0] is None:
            raise ValueError(f"{node.name} ({node.target or type(node).__name__}) has no tensor result")
        return node.metas[0]

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._first_meta.shape

    @property
    def dtype(self) -> TensorDType:
        return self._first_meta.dtype

    def _content(self) -> dict[str, object]:
        """Returns the node's shape and dtype by key; for a node without metas, the keys in `_draft`."""
        node: Op = self.__dict__["_node"]
        if not node.metas:
            return dict(self.__dict__["_draft"])
        if node.multiple:
            return {key: [getattr(meta, key, None) for meta in node.metas] for key in _META_KEYS}
        return {key: getattr(self, key) for key in _META_KEYS}

    def __getitem__(self, key: str) -> Any:
        return self._content()[key]

    def __setitem__(self, key: str, value: object) -> None:
        if key not in _META_KEYS:
            raise KeyError(f"a tensor's meta has 'shape' and 'dtype', not {key!r}")
        content = {**self._content(), key: value}
        self.__dict__["_draft"].update(content)
        if len(content) == len(_META_KEYS):
            self.__dict__["_node"].tensor_meta = content

    def __contains__(self, key: object) -> bool:
        return key in self._content()

    def get(self, key: str, default: Any = None) -> Any:
        return self._content().get(key, default)


def metas_of(value: object) -> tuple[tuple[TensorMeta | None, ...], bool]:
    """Returns the metas in a `value` assigned to `tensor_meta`, and whether the node has several results.

    `value` is a `TensorMeta`, or a mapping with `shape` and `dtype`, each a list for several results. A mapping that
    lacks one of the two keys yields no metas. Raises `GraphError` for any other value.
    """
    if isinstance(value, NodeMeta):
        node: Op = value.__dict__["_node"]
        return node.metas, node.multiple
    if isinstance(value, TensorMeta):
        return (value,), False
    if not isinstance(value, Mapping) or not {*value} <= {*_META_KEYS}:
        raise GraphError(f"tensor_meta is {value!r}: assign a TensorMeta, or a dict with 'shape' and 'dtype'")
    if len(value) < len(_META_KEYS):
        return (), False
    shapes, dtypes = value["shape"], value["dtype"]
    if isinstance(dtypes, (list, tuple)):
        return tuple(_make_meta(*pair) for pair in zip(shapes, dtypes, strict=True)), True
    return (_make_meta(shapes, dtypes),), False


def _make_meta(shape: Any, dtype: Any) -> TensorMeta:
    """Returns the meta of a script's shape and element type. Raises `GraphError` if one of them is invalid."""
    try:
        return TensorMeta(tuple(size if isinstance(size, Size) else int(size) for size in shape), TensorDType(dtype))
    except (TypeError, ValueError) as error:
        raise GraphError(f"the shape {shape!r} or the element type {dtype!r} is invalid: {error}") from error


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of an op. `type` is spelled as in torch (`Tensor`, `Optional[int]`, `List[float]`, `number`)."""

    name: str
    type: str
    default: Any = None


class Schema(msgspec.Struct, frozen=True):
    """The schema of an op: its parameters in order, and the types of its results."""

    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]

    def arguments(self, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[Any, str]]:
        """Returns (value, type) for each parameter of a call; an omitted argument has its default value."""
        passed = dict(zip((parameter.name for parameter in self.parameters), args, strict=False)) | kwargs
        return [(passed.get(p.name, p.default), p.type) for p in self.parameters]


class OpType(Enum):
    """How an op accesses its operands; Buddy-MLIR's scripts select the ops to fuse by it."""

    BroadcastType = 0
    ElementwiseType = 1
    ReshapeType = 2
    ReduceType = 3
    ConcatType = 4
    PlaceholderType = 5
    GetItemType = 6
    ComplexType = 7
    OutputType = 8
    SliceLikeType = 9
    Unfusable = 10


class Op:
    """A node. `args` and `kwargs` contain other nodes as objects, and `str(node)` is its name.

    A node equals its name, so that scripts can search for either among arguments, parents and children; two nodes are
    equal only if they are the same object. Only arguments define what a node reads: parents are derived from them. A
    script may write names of nodes in arguments; `Graph.link` replaces the names by nodes.

    `metas` has one entry per result, which is `None` for a result that is not a tensor. With `multiple`, the results
    are a tuple, from which a `GetItemOp` selects. `target` is the torch op that the node calls, as in `targets`.
    `stable` is a name that survives renumbering (module path, target, index), `module` the path of the `nn.Module` that
    created the node, `location` its Python line as `file:line`. `schema` is torch's schema of the op, if known.

    `_name`, `_parents` and `_tensor_meta` are Buddy-MLIR's names of `name`, `parents` and `tensor_meta`.
    """

    op_type: ClassVar[OpType] = OpType.ComplexType
    # The torch ops that become nodes of this class. ATen's ops omit the namespace: `"add.Tensor"`.
    targets: ClassVar[tuple[str, ...]] = ()
    # Whether the op has a side effect, so that a node without readers is not removed.
    has_effect: ClassVar[bool] = False
    # Whether the op's lowerings accept complex tensors, which are float tensors with a last dim of size 2.
    takes_complex: ClassVar[bool] = False
    # The reason why the op always runs in eager; "" if a dialect may lower it.
    only_eager: ClassVar[str] = ""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.target = ""
        self.stable = ""
        self.module = ""
        self.location = ""
        self.schema: Schema | None = None
        self.metas: tuple[TensorMeta | None, ...] = ()
        self.multiple = False
        self._op_type = type(self).op_type
        self._arguments: list[Any] = []
        self._keyword_arguments: dict[str, Any] = {}
        self._children: list[Op] = []
        # Parents, as nodes or names, that a script has declared by `add_parent`. `Graph.link` resolves and clears them.
        self._declared_parents: list[Any] = []
        # Whether parents may already have this node as a child. If not, adding it needs no search of their children.
        self._may_be_child = False
        # The value of `tensor_meta`, created on first access.
        self._meta_view: NodeMeta | None = None

    @property
    def _name(self) -> str:
        return self.name

    @_name.setter
    def _name(self, name: str) -> None:
        self.name = name

    @property
    def args(self) -> list[Any]:
        return self._arguments

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._keyword_arguments

    @property
    def parents(self) -> list[Op]:
        """Returns the nodes that this node reads, without duplicates, in order of first use; then declared parents."""
        read_nodes = list(dict.fromkeys(nodes_in((self._arguments, self._keyword_arguments))))
        if not self._declared_parents:
            return read_nodes
        return [*read_nodes, *(parent for parent in self._declared_parents if parent not in read_nodes)]

    @property
    def _parents(self) -> list[Op]:
        return self.parents

    @_parents.setter
    def _parents(self, parents: Iterable[Op | str]) -> None:
        self._declared_parents = list(parents)

    @property
    def tensor_meta(self) -> NodeMeta:
        """Shape and element type of the first result; see `NodeMeta` for several results. Can be assigned.

        Its `shape` and `dtype` raise `ValueError` if the node has no tensor result.
        """
        if self._meta_view is None:
            self._meta_view = NodeMeta(self)
        return self._meta_view

    @tensor_meta.setter
    def tensor_meta(self, value: object) -> None:
        self.metas, self.multiple = metas_of(value)

    _tensor_meta = tensor_meta

    def add_argument(self, argument: object, arg_index: int = 0) -> None:
        """Appends an argument: a node, a node's name, or a value.

        `arg_index` is the index of the result of `argument`. Raises `GraphError` if the index is not 0: any other
        result is read through a `GetItemOp`.
        """
        if arg_index:
            raise GraphError(f"argument {argument} of {self.name}, result {arg_index}: read it through a GetItemOp")
        self._arguments.append(argument)
        if isinstance(argument, str):
            self._declared_parents.append(argument)

    def add_parent(self, parent: Op | str) -> None:
        """Declares `parent`, a node or a node's name, to be a parent of this node. An argument must read the parent."""
        self._may_be_child = True
        if isinstance(parent, Op):
            parent.add_children(self)
        if parent not in self.parents:
            self._declared_parents.append(parent)

    def add_children(self, child: Op | str) -> None:
        """Adds one node to the children of this node, unless it is one already. The name is Buddy-MLIR's."""
        # Nodes are compared by identity, which is faster: a node may have thousands of readers.
        is_present = any(map(partial(is_, child), self._children)) if isinstance(child, Op) else child in self._children
        if not is_present:
            self._children.append(child)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and other == self.name)

    # Hashes by identity, since a name may change. A set or dict must therefore not mix nodes and names.
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        keywords = (f"{key}={_argument_text(value)}" for key, value in self.kwargs.items())
        arguments = [*map(_argument_text, self.args), *keywords]
        return f"{self.name} = {type(self).__name__}({', '.join(arguments)})"


def _argument_text(value: object) -> str:
    """Returns an argument as text, with names for nodes at any depth."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_argument_text, value))}]"
    return str(value)


def nodes_in(value: object) -> Iterator[Op]:
    """Yields the nodes in nested lists, tuples and dicts."""
    if isinstance(value, Op):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        yield from nodes_in(list(value.values()))


def map_nodes(value: object, function: Callable[[Op], Any]) -> Any:
    """Returns a copy of nested lists, tuples and dicts with every node replaced by `function(node)`."""
    if isinstance(value, Op):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_nodes(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_nodes(item, function) for key, item in value.items()}
    return value


# Op classes of plug-ins with the name of another class; they are not found by name or target.
_hidden_classes: WeakSet[type[Op]] = WeakSet()


def hide_op_class(cls: type[Op]) -> None:
    """Makes `op_classes` and `default_ops_map` leave out an op class. A class cannot be removed from its base."""
    _hidden_classes.add(cls)


def _subclasses(base: type[Op]) -> Iterator[type[Op]]:
    """Yields all direct and indirect subclasses but the hidden ones."""
    for subclass in base.__subclasses__():
        if subclass not in _hidden_classes:
            yield subclass
        yield from _subclasses(subclass)


def op_classes() -> dict[str, type[Op]]:
    """Returns every op class by name, including user-defined ones."""
    return {cls.__name__: cls for cls in _subclasses(Op)}


def list_op_classes() -> list[type[Op]]:
    """Returns every op class. Several may have the same name: one of this package, and others of users."""
    return list(_subclasses(Op))


def default_ops_map() -> dict[str, type[Op]]:
    """Returns op classes by the targets that they declare, such as `"add.Tensor"`."""
    return {target: cls for cls in _subclasses(Op) for target in cls.targets}


class ElementwiseOp(Op):
    """An op whose every result element comes from the elements at the same position."""

    op_type = OpType.ElementwiseType


class ReshapeFamilyOp(Op):
    """An op that moves or views elements and computes none."""

    op_type = OpType.ReshapeType


class ReduceOp(Op):
    """An op that combines the elements along dims."""

    op_type = OpType.ReduceType


class PlaceholderOp(Op):
    """A value from outside the graph: an input, or a parameter or buffer of the model, by `kind`.

    `is_zero` says that its elements are integers, and were all 0 when the graph was captured. They may have changed.
    `is_saved` says that the graph is a backward graph, and the value is one that the forward graph has computed.
    """

    op_type = OpType.PlaceholderType
    is_zero = False
    is_saved = False

    def __init__(self, name: str = "", kind: NodeType = NodeType.InputNode) -> None:
        super().__init__(name)
        self.kind = kind


class OutputOp(Op):
    """The last node of a graph; its arguments are the graph's results."""

    op_type = OpType.OutputType


class GetItemOp(Op):
    """Selects one result of a node with several: its arguments are that node and the index of the result."""

    op_type = OpType.GetItemType
    targets = ("getitem",)


class EagerOp(Op):
    """An op without a specific class; its nodes fall back to eager."""


def new_op(
    cls: type[Op], name: str, target: str, args: Sequence[object] = (), metas: Sequence[TensorMeta | None] = ()
) -> Op:
    """Creates a node of class `cls` with arguments `args`, and adds it to the children of the nodes in `args`.

    The node is not added to a graph. Its stable name is `name`.
    """
    op = cls()
    op.name, op.target, op.metas = name, target, tuple(metas)
    op.stable = op.stable or name
    op._arguments = list(args)
    op._may_be_child = True
    for parent in op.parents:
        parent._children.append(op)
    return op


def argument(node: Op, position: int, name: str, default: Any = None) -> Any:
    """Returns an argument of `node` that was passed by position or by name; `default` if it was not passed."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


def is_only_result_read(node: Op, index: int) -> bool:
    """True if only result `index` of a node with several results is read, by `GetItemOp`s."""
    return all(isinstance(reader, GetItemOp) and reader.args[1] == index for reader in node._children)


def normalize_dim(dim: int, rank: int) -> int:
    """Returns `dim` counted from the front; a negative `dim` counts from the end. Rank 0 counts as 1, as in PyTorch."""
    return dim + max(rank, 1) if dim < 0 else dim


def permutation_of(node: Op) -> list[int]:
    """Returns, for each result dim of a `t`, `permute` or `transpose` node, the operand's dim that becomes it."""
    rank = len(node.tensor_meta.shape)
    if len(node.args) == 1:  # t(operand)
        return list(range(rank))[::-1]
    if len(node.args) == 2:  # permute(operand, dims)
        return [normalize_dim(dim, rank) for dim in node.args[1]]
    # transpose(operand, first, second)
    order = list(range(rank))
    first, second = normalize_dim(node.args[1], rank), normalize_dim(node.args[2], rank)
    if rank:
        order[first], order[second] = order[second], order[first]
    return order
