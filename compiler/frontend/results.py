"""Maps the results of compiled code to the results of a graph: repeated results, views, inputs, numbers, strides.

Results that share memory in eager also share it in compiled code. If none of them covers that memory, the producer of
the memory is computed as an additional result, a base, and the results are views of the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from buddy.compiler.frontend.aten import AtenGraph, OpsMap
from buddy.compiler.frontend.complex_numbers.rewriting import STANDS_FOR
from buddy.compiler.frontend.convert import Conversion, to_buddy
from buddy.compiler.frontend.strided_views import base_of_views, storage_of
from buddy.compiler.frontend.symbolic_sizes import UnknownSymbolError
from buddy.compiler.graph.node import Op, PlaceholderOp
from buddy.compiler.graph.sizes import Dim, Size, product, value_of

# The strides of a result; `None` if they are those of a dense row-major tensor.
Strides = tuple[Dim, ...] | None


@dataclass(frozen=True)
class _Computed:
    """A result that is tensor number `index` of the compiled program's results."""

    index: int


@dataclass(frozen=True)
class _Input:
    """A result that is input number `index` of the call."""

    index: int


@dataclass(frozen=True)
class _View:
    """A result that is a view of an input or of a computed result, at `offset` elements from its start.

    `dtype` is the dtype of the view, whose elements are the unit of strides and offset. `conjugated` and `negated` are
    torch's lazy flags: readers of the memory apply them. If `detached`, autograd does not treat the result as a view.
    """

    base: _Input | _Computed
    dtype: torch.dtype
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    conjugated: bool
    negated: bool
    detached: bool

    def apply(self, base: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
        """Returns the view of `base`, for these values of the symbols."""
        if isinstance(self.base, _Input):
            return self._view_of(base, symbols)
        if self.detached:  # a view returned by an autograd function must not be written to
            return self._view_of(base, symbols).detach()
        # AOTAutograd calls this with gradients disabled; such a view must not be written to while they are enabled.
        with torch.enable_grad():
            return self._view_of(base, symbols)

    def _view_of(self, base: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
        shape, strides = _values(self.shape, symbols), _values(self.strides, symbols)
        typed = base if base.dtype == self.dtype else _as_type(base, self.dtype)
        view = typed.as_strided(shape, strides, typed.storage_offset() + value_of(self.offset, symbols))
        view = view.conj() if self.conjugated else view
        return torch._neg_view(view) if self.negated else view


def _as_type(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the memory of `base`, from its first element to its last, as a vector of another type."""
    length = 1 + sum((n - 1) * stride for n, stride in zip(base.shape, base.stride(), strict=True))
    length = length if base.numel() else 0
    data = base.as_strided((length,), (1,), base.storage_offset()).view(torch.uint8)
    return data[: data.numel() // dtype.itemsize * dtype.itemsize].view(dtype)


def convert_with_view_bases(aten: AtenGraph, ops_map: OpsMap | None = None) -> Conversion:
    """Like `to_buddy`, with more results: the last `Conversion.n_bases` are the bases of results that are views."""
    bases = _missing_bases(aten.module)
    if not bases:
        return to_buddy(aten, ops_map=ops_map)
    graph, copies = Graph(), dict[Node, Node]()
    returned = graph.graph_copy(aten.module.graph, copies)
    graph.output((*returned, *(copies[node] for node in bases)))
    # A manual copy of the output node lacks AOTAutograd's metadata.
    graph.output_node().meta = dict(aten.module.graph.output_node().meta)
    conversion = to_buddy(replace(aten, module=GraphModule(aten.module, graph)), ops_map=ops_map)
    conversion.n_bases = len(bases)
    return conversion


def _missing_bases(module: GraphModule) -> list[Node]:
    """Returns the nodes that allocate memory of which results are views, and that are not results themselves.

    A node with only one view is left out if the view is indistinguishable from a separate tensor: if it starts at the
    first element of the memory, and is not lazily conjugated or negated.
    """
    returned: list[Node] = []
    map_arg(module.graph.output_node().args, returned.append)
    views: dict[Node, list[Node]] = {}
    for node in dict.fromkeys(returned):
        root, _ = base_of_views(node)
        if root.op == "call_function" and storage_of(node.meta.get("val")) is not None:
            views.setdefault(root, []).append(node)
    return [
        root for root, nodes in views.items()
        if root not in nodes and (len(nodes) > 1 or _differs_from_copy(nodes[0].meta["val"]))
    ]  # fmt: skip


def _differs_from_copy(value: torch.Tensor) -> bool:
    """True if a view differs from a separate tensor in its start in memory, or in a lazy flag."""
    return value.is_conj() or value.is_neg() or not _has_zero_offset(value)


class GraphResults:
    """The results of a converted graph. Construction reduces `conversion.graph` to the results that must be computed.

    With `for_autograd`, an autograd function returns the results. Raises `UnsupportedGraphError` for strides, and
    offsets of views, that do not depend on inputs' sizes alone.
    """

    def __init__(self, conversion: Conversion, for_autograd: bool = False) -> None:
        graph, memory = conversion.graph, _Memory(conversion, for_autograd)
        computed = list(dict.fromkeys(op for op in graph.results if isinstance(op, Op) and memory.is_computed(op)))
        source_by_op = {op: _Input(i) for i, op in enumerate(graph.placeholders)} | {
            op: _Computed(i) for i, op in enumerate(computed)
        }
        # Where each result of a call comes from: a `_Computed`, `_Input` or `_View`, a number, a `Size` or `None`.
        self._plan = [
            (source_by_op.get(result) or memory.view(result, source_by_op)) if isinstance(result, Op) else result
            for result in graph.results[: len(graph.results) - conversion.n_bases]
        ]
        self._strides = [_strides_to_set(memory.strides(op), op.tensor_meta.shape) for op in computed]
        graph.output._arguments = [tuple(computed)]

    @property
    def are_computed(self) -> bool:
        """True if the results of a call are the tensors that compiled code returns, unchanged and in order."""
        in_order = self._plan == [_Computed(number) for number in range(len(self._strides))]
        return in_order and all(strides is None for strides in self._strides)

    @property
    def n_computed(self) -> int:
        """The number of tensors that compiled code returns."""
        return len(self._strides)

    def sources(self, n_inputs: int) -> tuple[int | None, ...] | None:
        """Returns the index of each result in the computed tensors followed by `n_inputs` inputs; `None` for no tensor.

        Returns `None` if a result is a view, a number or a constant, or has other strides than compiled code writes.
        """
        n_computed, indices = self.n_computed, list[int | None]()
        for source in self._plan:
            if source is None:
                indices.append(None)
            elif isinstance(source, _Computed) and self._strides[source.index] is None:
                indices.append(source.index)
            elif isinstance(source, _Input) and source.index < n_inputs:
                indices.append(n_computed + source.index)
            else:
                return None
        return tuple(indices)

    def of_call(
        self, computed: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], symbols: Mapping[str, int]
    ) -> list[torch.Tensor | int | None]:
        """Returns the results of a call of the graph on `inputs`, where compiled code returned `computed`."""
        laid_out = [_set_strides(t, strides, symbols) for t, strides in zip(computed, self._strides, strict=True)]
        return [_select_result(source, laid_out, inputs, symbols) for source in self._plan]


def _select_result(
    source: object, computed: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], symbols: Mapping[str, int]
) -> torch.Tensor | int | None:
    """Returns the value of a result that `source`, an entry of `GraphResults._plan`, describes.

    This is not a closure, because a recursive closure is a reference cycle and keeps tensors alive.
    """
    if isinstance(source, _View):
        return source.apply(_select_result(source.base, computed, inputs, symbols), symbols)
    if isinstance(source, Size):
        return value_of(source, symbols)
    if isinstance(source, _Computed):
        return computed[source.index]
    return inputs[source.index] if isinstance(source, _Input) else source


# ---- sharing of memory -----------------------------------------------------------------------------------------------


class _Memory:
    """Determines which results are views, and of which input or other result.

    A view is traced back through its ops, because inputs that share memory during tracing need not do so in another
    call.
    """

    def __init__(self, conversion: Conversion, for_autograd: bool) -> None:
        graph = conversion.graph
        self._conversion, self._for_autograd = conversion, for_autograd
        self._nodes = dict(zip(graph.body, conversion.fx_nodes, strict=True))
        self._bases: dict[object, Op] = {}
        inputs = graph.placeholders[: len(graph.placeholders) - len(conversion.constants)]
        for op in (*inputs, *(result for result in graph.results if isinstance(result, Op))):
            if isinstance(op, PlaceholderOp) or self._is_base(op):
                self._bases.setdefault(self._memory_key(op), op)

    def is_computed(self, op: Op) -> bool:
        """True if a result has to be computed: it is neither an input nor a view of an input or of another result."""
        return not isinstance(op, PlaceholderOp) and self._bases.get(self._memory_key(op), op) is op

    def view(self, op: Op, source_by_op: Mapping[Op, _Input | _Computed]) -> _View:
        """Returns how to make a result that is not computed: as a view of its base, found in `source_by_op`."""
        base, node = self._bases[self._memory_key(op)], self._nodes[op]
        value, base_value = node.meta["val"], self._nodes[base].meta["val"]
        offset = self._conversion.offset(node, value.storage_offset() - base_value.storage_offset())
        conjugated, negated = value.is_conj() != base_value.is_conj(), value.is_neg() != base_value.is_neg()
        return _View(
            source_by_op[base], value.dtype, op.tensor_meta.shape, self.strides(op), offset, conjugated, negated,
            self._for_autograd,
        )  # fmt: skip

    def strides(self, op: Op) -> tuple[Dim, ...]:
        """Returns eager's strides of the result of `op`."""
        return self._conversion.strides(self._nodes[op])

    def _memory_key(self, op: Op) -> object:
        """Returns a key that all views of the same memory with the same content share."""
        node = self._nodes[op]
        value = node.meta.get("val")
        if storage_of(value) is None:
            return op
        root = _root(node)
        # A computed base starts at its memory's start, and can be viewed with any dtype; an input need not.
        return root, value.dtype if root.op == "placeholder" else None

    def _is_base(self, op: Op) -> bool:
        """True if other results can be views of the result of `op`, which allocates its memory or covers all of it."""
        node = self._nodes[op]
        value = node.meta.get("val")
        if storage_of(value) is None or value.is_conj() or value.is_neg():
            return False  # compiled code writes the resolved values, which views without the flag do not have
        is_producer = _root(node) is node.meta.get(STANDS_FOR, node)
        return (is_producer and _has_zero_offset(value)) or self._fills_storage(op)

    def _fills_storage(self, op: Op) -> bool:
        """True if every element of the storage occurs exactly once in the tensor, in memory order, for all sizes."""
        value, size = self._nodes[op].meta.get("val"), self._conversion.symbols.size
        try:
            dims = [(size(stride), size(n)) for stride, n in zip(value.stride(), value.shape, strict=True)]
            n_bytes = size(value.untyped_storage().nbytes())
        except UnknownSymbolError:
            return False
        remaining, expected_stride = [dim for dim in dims if dim[1] != 1], value.element_size()  # stride in bytes
        # Removes the innermost of the remaining dims, whose stride is the size of all dims inside it.
        while inner := next((dim for dim in remaining if dim[0] * value.element_size() == expected_stride), None):
            remaining.remove(inner)
            expected_stride = expected_stride * inner[1]
        return not remaining and expected_stride == n_bytes


def _root(node: Node) -> Node:
    """Returns the input, or the op that allocates memory, of which the result of `node` is a view; else `node`."""
    node, _ = base_of_views(node.meta.get(STANDS_FOR, node))
    return _root(node) if STANDS_FOR in node.meta else node


def _has_zero_offset(value: torch.Tensor) -> bool:
    """True if a tensor starts at its memory's first element, for all sizes; checked without adding a guard."""
    offset = value.storage_offset()
    return isinstance(offset, int) and offset == 0


# ---- strides ---------------------------------------------------------------------------------------------------------


def _strides_to_set(strides: Sequence[Dim], shape: Sequence[Dim]) -> Strides:
    """Returns `strides`, or None if they are those of a dense row-major tensor, as compiled code returns it."""
    dims = [
        (stride, size, product(shape[i + 1 :])) for i, (stride, size) in enumerate(zip(strides, shape, strict=True))
    ]
    if 0 in shape or all(stride == dense_stride or size == 1 for stride, size, dense_stride in dims):
        return None
    return tuple(strides)


def _set_strides(tensor: torch.Tensor, strides: Strides, symbols: Mapping[str, int]) -> torch.Tensor:
    """Returns `tensor`, or a copy with `strides` if these differ from its own; `None` stands for row-major ones."""
    target_strides = None if strides is None else _values(strides, symbols)
    if target_strides is None or target_strides == tensor.stride():
        return tensor
    # All positions of an expanded dim are one element.
    unexpanded = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target_strides)]
    copied = torch.empty_strided(unexpanded.shape, target_strides, dtype=tensor.dtype, device=tensor.device)
    copied.copy_(unexpanded)
    # No `expand` to the same shape: it returns a view, and autograd forbids writes to a view from a compiled function.
    return copied if copied.shape == tensor.shape else copied.expand(tensor.shape)


def _values(sizes: Sequence[Dim], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(value_of(size, symbols) for size in sizes)
