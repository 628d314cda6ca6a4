"""The nodes of the Buddy graph: one class per meaning, whatever number of ATen targets spell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, ClassVar

from buddy.compiler.graph.types import TensorMeta


class OpType(Enum):
    """What kind of access an op makes; fusion and partition read it."""

    BroadcastType = 0
    ElementwiseType = 1
    ReshapeType = 2
    ReduceType = 3
    ConcatType = 4
    PlaceholderType = 5
    GetItemType = 6
    ComplexType = 7
    OutputType = 8


class Op:
    """A node. `args` and `kwargs` hold other nodes as objects, and `str(node)` is its name.

    `metas` has one entry per result. `stable` is a name that survives renumbering (module path, target, index),
    `module` the path of the `nn.Module` it came from, `location` its Python line as `file:line`.
    """

    op_type: ClassVar[OpType] = OpType.ComplexType
    targets: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.name = ""
        self.target = ""
        self.stable = ""
        self.module = ""
        self.location = ""
        self.metas: tuple[TensorMeta | None, ...] = ()
        self.multiple = False
        self._op_type = type(self).op_type
        self._arguments: list[Any] = []
        self._keyword_arguments: dict[str, Any] = {}
        self._children: list[Op] = []

    @property
    def args(self) -> list[Any]:
        return self._arguments

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._keyword_arguments

    @property
    def parents(self) -> list[Op]:
        """The nodes this one reads, each once, in order of first use."""
        return list(dict.fromkeys(nodes_in((self._arguments, self._keyword_arguments))))

    _parents = parents

    @property
    def tensor_meta(self) -> TensorMeta:
        """Shape and element type of the first result.

        Raises `ValueError` when the node has no tensor result.
        """
        if not self.metas or self.metas[0] is None:
            raise ValueError(f"{self.name} ({self.target}) has no tensor result")
        return self.metas[0]

    def add_argument(self, argument: Any) -> None:
        self._arguments.append(argument)

    def add_parent(self, parent: Op) -> None:
        parent.add_children(self)

    def add_children(self, child: Op) -> None:
        if child not in self._children:
            self._children.append(child)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        arguments = [*map(_named, self.args), *(f"{key}={_named(value)}" for key, value in self.kwargs.items())]
        return f"{self.name} = {type(self).__name__}({', '.join(arguments)})"


def _named(value: Any) -> str:
    """An argument as text, nodes by their names at any depth."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_named, value))}]"
    return str(value)


def nodes_in(value: Any) -> Iterator[Op]:
    """The nodes in a nest of lists, tuples and dicts."""
    if isinstance(value, Op):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        yield from nodes_in(list(value.values()))


def map_nodes(value: Any, function: Any) -> Any:
    """The nest with every node replaced by `function(node)`; tuples stay tuples."""
    if isinstance(value, Op):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_nodes(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_nodes(item, function) for key, item in value.items()}
    return value


def _find_all(base: type[Op]) -> Iterator[type[Op]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _find_all(subclass)


def op_classes() -> dict[str, type[Op]]:
    """Every op class by name, those a user has defined included."""
    return {cls.__name__: cls for cls in _find_all(Op)}


def default_ops_map() -> dict[str, type[Op]]:
    """ATen target (`"add.Tensor"`) to op class, as the classes declare them."""
    return {target: cls for cls in _find_all(Op) for target in cls.targets}


class ElementwiseOp(Op):
    op_type = OpType.ElementwiseType


class ReshapeFamilyOp(Op):
    op_type = OpType.ReshapeType


class ReduceOp(Op):
    op_type = OpType.ReduceType


class PlaceholderOp(Op):
    op_type = OpType.PlaceholderType


class OutputOp(Op):
    op_type = OpType.OutputType


class GetItemOp(Op):
    op_type = OpType.GetItemType
    targets = ("getitem",)


class EagerOp(Op):
    """An op that has no class of its own: it runs in eager."""


def new_op(
    cls: type[Op], name: str, target: str, args: Sequence[Any] = (), metas: Sequence[TensorMeta | None] = ()
) -> Op:
    """A node of class `cls` that reads `args`."""
    op = cls()
    op.name, op.target, op.metas = name, target, tuple(metas)
    op.stable = op.stable or name
    op._arguments = list(args)
    for parent in op.parents:
        op.add_parent(parent)
    return op
