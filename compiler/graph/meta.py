"""The type of `node.tensor_meta`: the metas of a node's results, which scripts read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from buddy.compiler.graph.sizes import Size
from buddy.compiler.graph.types import GraphError, TensorDType, TensorMeta

if TYPE_CHECKING:
    from buddy.compiler.graph.operation import Op

_KEYS = ("shape", "dtype")


class NodeMeta(TensorMeta):
    """A live view: `.shape` and `.dtype` are those of the first result.

    `meta["shape"]` is the same, or a list for a node with several results; `meta["shape"] = …` changes the node.
    """

    def __init__(self, node: Op) -> None:
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_draft", {})

    @property
    def _first(self) -> TensorMeta:
        node: Op = self.__dict__["_node"]
        if not node.metas or node.metas[0] is None:
            raise ValueError(f"{node.name} ({node.target or type(node).__name__}) has no tensor result")
        return node.metas[0]

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._first.shape

    @property
    def dtype(self) -> TensorDType:
        return self._first.dtype

    def _content(self) -> dict[str, Any]:
        """Returns the node's shape and dtype by key; while a script has assigned only one of them, that one."""
        node: Op = self.__dict__["_node"]
        if not node.metas:
            return dict(self.__dict__["_draft"])
        if node.multiple:
            return {key: [getattr(meta, key, None) for meta in node.metas] for key in _KEYS}
        return {key: getattr(self, key) for key in _KEYS}

    def __getitem__(self, key: str) -> Any:
        return self._content()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in _KEYS:
            raise KeyError(f"a tensor's meta has 'shape' and 'dtype', not {key!r}")
        content = {**self._content(), key: value}
        self.__dict__["_draft"].update(content)
        if len(content) == len(_KEYS):
            self.__dict__["_node"].tensor_meta = content

    def __contains__(self, key: object) -> bool:
        return key in self._content()

    def get(self, key: str, default: Any = None) -> Any:
        return self._content().get(key, default)


def metas_of(value: Any) -> tuple[tuple[TensorMeta | None, ...], bool]:
    """Returns the metas in `value`, as assigned to `tensor_meta`, and whether the node has several results.

    `value` is a `TensorMeta`, or a mapping with `shape` and `dtype`, each a list for several results. Raises
    `GraphError` for any other value.
    """
    if isinstance(value, NodeMeta):
        node: Op = value.__dict__["_node"]
        return node.metas, node.multiple
    if isinstance(value, TensorMeta):
        return (value,), False
    if not isinstance(value, Mapping) or not {*value} <= {*_KEYS}:
        raise GraphError(f"tensor_meta is {value!r}: assign a TensorMeta, or a dict with 'shape' and 'dtype'")
    if len(value) < len(_KEYS):
        return (), False
    shapes, dtypes = value["shape"], value["dtype"]
    if isinstance(dtypes, (list, tuple)):
        return tuple(_meta(*pair) for pair in zip(shapes, dtypes, strict=True)), True
    return (_meta(shapes, dtypes),), False


def _meta(shape: Any, dtype: Any) -> TensorMeta:
    try:
        return TensorMeta(tuple(size if isinstance(size, Size) else int(size) for size in shape), TensorDType(dtype))
    except (TypeError, ValueError) as error:
        raise GraphError(f"the shape {shape!r} or the element type {dtype!r} is invalid: {error}") from error
