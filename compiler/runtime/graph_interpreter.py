"""Evaluates a graph node by node, in eager or in double precision, also in lockstep with a compiled program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import GetItemOp, Op, ReshapeFamilyOp
from buddy.compiler.graph.operations.effects import RandomOp
from buddy.compiler.graph.serialization import Opaque
from buddy.compiler.graph.sizes import Size, value_of
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.numerics import Reference
from buddy.compiler.runtime.callbacks import resolve_op
from buddy.compiler.runtime.precision import compute_in_precision
from buddy.compiler.runtime.torch_values import bind_symbols, from_opaque, to_torch_dtype

# The seed of random numbers, for both the compiled program and eager.
SEED = 0
# Ops on the bits of elements: in double precision, they would return other values and another number of elements.
_BIT_OPS = {"view.dtype", "view_copy.dtype"}

# The reduced precisions of nodes, by stable name; nodes that are left out compute as eager does.
Precisions = Mapping[str, str]
NO_PRECISIONS: Precisions = MappingProxyType({})


def symbol_values(graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[int] = ()) -> dict[str, int]:
    """Returns the values of symbolic sizes in a call of `graph` on `tensors` and `numbers`."""
    return bind_symbols(symbols_of(graph), tensors, numbers)


def compute_values(
    graph: Graph, tensors: Sequence[torch.Tensor], names: Collection[str], numbers: Sequence[int] = (),
    precisions: Precisions = NO_PRECISIONS,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Returns the values of the nodes in `names` when `graph` runs on `tensors`, one for each placeholder in order.

    Random ops draw from torch's own generator, in the program's order. Other values are released after their last
    reader, and nodes after the last one in `names` are not computed. Raises what an op raises.
    """
    symbols = symbol_values(graph, tensors, numbers)
    values: dict[str, Any] = {op.name: tensor for op, tensor in zip(graph.placeholders, tensors, strict=True)}
    readers = Counter(parent.name for op in graph.operations for parent in op.parents)
    missing = set(names) - values.keys()
    with torch.no_grad():
        for op in graph.operations:
            if not missing:
                break
            values[op.name] = compute_node(op, values, symbols, precisions)
            missing.discard(op.name)
            readers.subtract(parent.name for parent in op.parents)
            for node in (op, *op.parents):
                if readers[node.name] <= 0 and node.name not in names:
                    values.pop(node.name, None)
    return {name: values[name] for name in names}


def compute_results(
    graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[int] = (), precisions: Precisions = NO_PRECISIONS
) -> list[torch.Tensor]:
    """Returns the results of `graph` on `tensors` and `numbers`, in order."""
    values = compute_values(
        graph, tensors, {op.name for op in graph.results if isinstance(op, Op)}, numbers, precisions
    )
    return [values[op.name] if isinstance(op, Op) else op for op in graph.results]


def compute_node(
    op: Op, values: Mapping[str, torch.Tensor], symbols: Mapping[str, int], precisions: Precisions = NO_PRECISIONS
) -> torch.Tensor:
    """Returns the result of one node, with operands by name in `values`. Raises what its op raises."""
    arguments = [plain_to_torch(argument, values, symbols) for argument in op.args]
    keywords = {key: plain_to_torch(argument, values, symbols) for key, argument in op.kwargs.items()}
    if isinstance(op, GetItemOp):
        return arguments[0][arguments[1]]
    if op.stable in precisions:
        return compute_in_precision(precisions[op.stable], op, arguments, keywords)
    return resolve_op(op.target)(*arguments, **keywords)


def plain_to_torch(value: object, values: Mapping[str, torch.Tensor], symbols: Mapping[str, int]) -> torch.Tensor:
    """Converts an argument of a Buddy node to the argument of a call of its op.

    A node becomes its entry in `values`: a tensor, or an FX node if the call is added to an FX graph.
    """
    if isinstance(value, Op):
        return values[value.name]
    if isinstance(value, Size):
        return value_of(value, symbols)
    if isinstance(value, TensorDType):
        return to_torch_dtype(value)
    if isinstance(value, Opaque):
        return from_opaque(value.text)
    if isinstance(value, (list, tuple)):
        return [plain_to_torch(item, values, symbols) for item in value]
    return value


# The type in double precision for each narrower one.
_WIDER = {
    TensorDType.Float16: TensorDType.Float64,
    TensorDType.BFloat16: TensorDType.Float64,
    TensorDType.Float32: TensorDType.Float64,
    TensorDType.Complex64: TensorDType.Complex128,
}
# Called with a node and its value.
OnNode = Callable[[Op, Any], None]


class LockstepInterpreter:
    """Computes the nodes of `graph` one after another on `tensors`, one for each placeholder in order.

    A value is released after its last reader. The values of the nodes in `held` (stable names) are stored until
    `release`. `on_node` is called with each node and its value, while its operands are still available. `reads` maps
    the stable name of a node to the names of further nodes whose values `on_node` needs.

    With the `reference` "float64", nodes are computed in double precision, except `narrow_nodes`, whose ops cannot.
    Nodes in `precisions` compute their products in the given precision. Random ops draw from a copy of torch's
    generator, so that the compiled program, which draws from the generator itself, gets the same numbers.
    """

    def __init__(
        self, graph: Graph, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], held: Iterable[str],
        reference: Reference = "eager", on_node: OnNode = lambda _op, _value: None,
        reads: Mapping[str, Sequence[str]] | None = None, precisions: Precisions = NO_PRECISIONS,
    ) -> None:  # fmt: skip
        self._precisions = precisions
        self._pending = iter(graph.operations)
        self._symbols, self._on_node, self._wide = symbols, on_node, reference == "float64"
        self._nodes = {op.stable: op for op in graph.operations}
        extra_reads = reads or {}
        self._reads = {
            op.name: (*(parent.name for parent in op.parents), *extra_reads.get(op.stable, ()))
            for op in graph.operations
        }
        self._readers = Counter(name for names in self._reads.values() for name in names)
        self._readers.update(op.name for op in graph.results if isinstance(op, Op))
        self._readers.update(self._nodes[name].name for name in held if name in self._nodes)
        self._results = graph.results
        self._random = torch.get_rng_state()
        self._values: dict[str, Any] = {op.name: t for op, t in zip(graph.placeholders, tensors, strict=True)}
        self.narrow_nodes: set[str] = set()

    def value(self, name: str) -> torch.Tensor:
        """Returns the value of the node or placeholder of that name. Raises `KeyError` after it is released."""
        return self._values[name]

    def reach(self, stable: str) -> torch.Tensor:
        """Computes all nodes up to node `stable`; returns its value. Raises `KeyError` for a node not in `held`."""
        op = self._nodes[stable]
        while op.name not in self._values:
            if self._next() is None:
                raise KeyError(f"the value of {stable} was not held")
        return self._values[op.name]

    def finish(self) -> list[torch.Tensor]:
        """Computes the remaining nodes; returns the results of the graph, in order."""
        for _op in iter(self._next, None):
            pass
        return [self._values[op.name] if isinstance(op, Op) else op for op in self._results]

    def release(self, stable: str) -> None:
        """Releases a held value."""
        self._release_read(self._nodes[stable].name)

    def _next(self) -> Op | None:
        """Computes the next node, and releases values that no later node reads; `None` if no node is left."""
        op = next(self._pending, None)
        if op is None:
            return None
        self._values[op.name] = self._compute(op)
        self._on_node(op, self._values[op.name])
        for name in self._reads[op.name]:
            self._release_read(name)
        if not self._readers[op.name]:
            del self._values[op.name]
        return op

    def _release_read(self, name: str) -> None:
        """Counts one reader of a value as done; releases the value after the last one."""
        self._readers[name] -= 1
        if not self._readers[name]:
            self._values.pop(name, None)

    def _compute(self, op: Op) -> torch.Tensor:
        """Returns the value of a node; a random op draws from this run's copy of the generator."""
        if not isinstance(op, RandomOp):
            return self.compute_alone(op, self._values)
        state = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            return widen(self._compute_narrow(op, self._values)) if self._wide else self._run(op, self._values)
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(state)

    def compute_alone(self, op: Op, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the result of a node on `values`, by name, in the precision of the reference."""
        if not self._wide:
            return self._run(op, values)
        if op.target in _BIT_OPS:
            self.narrow_nodes.add(op.stable)
            return widen(self._compute_narrow(op, values))
        if _moves_a_large_operand(op, values):
            return self._run(op, values)
        try:
            return self._run_wide(op, values)
        except (RuntimeError, NotImplementedError):
            # Some of torch's ops do not support double precision: these use the program's types.
            self.narrow_nodes.add(op.stable)
            return widen(self._compute_narrow(op, values))

    def _run_wide(self, op: Op, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Computes a node in double precision, if its op supports that."""
        if op.target in _ROW_SELECTIONS:
            return widen(self._run(op, values))
        if op.target in SECOND_FACTOR_POSITIONS and op.stable not in self._precisions:
            return product_in_double(op, values, self._symbols)
        return widen(self._run(_widen_node(op), {p.name: widen(values[p.name]) for p in op.parents}))

    def _compute_narrow(self, op: Op, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Computes a node in the program's types, on rounded values."""
        return self._run(op, {parent.name: narrow(values[parent.name], parent) for parent in op.parents})

    def _run(self, op: Op, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return compute_node(op, values, self._symbols, self._precisions)


# ---- large operands in double precision ------------------------------------------------------------------------------

# By target, the position of the second factor of a product of matrices; its last dim is that of the result.
SECOND_FACTOR_POSITIONS = {"mm.default": 1, "addmm.default": 2}
# Ops that select rows of their first operand: their result is exact in its element type.
_ROW_SELECTIONS = {"embedding.default", "index_select.default"}
# The maximum size in bytes of an operand in double precision that is converted as a whole: such a copy takes two or
# four times the memory of the operand.
_MAX_WIDE_BYTES = 16 << 20


def _moves_a_large_operand(op: Op, values: Mapping[str, torch.Tensor]) -> bool:
    """True if `op` only moves elements of a large operand: its result is exact without conversion."""
    if not isinstance(op, ReshapeFamilyOp) or len(op.parents) != 1:
        return False
    value = values[op.parents[0].name]
    return isinstance(value, torch.Tensor) and _is_large(value)


def _is_large(value: torch.Tensor) -> bool:
    is_narrow = value.is_floating_point() and value.dtype != torch.float64
    return is_narrow and value.numel() * torch.float64.itemsize > _MAX_WIDE_BYTES


def product_in_double(
    op: Op,
    values: Mapping[str, torch.Tensor],
    symbols: Mapping[str, int],
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Returns the result of a product, a node in `SECOND_FACTOR_POSITIONS`, with operands in double precision.

    `convert`, by default `widen`, converts an operand. A large second factor is converted a few columns at a time, so
    that its copy in double precision is small.
    """
    convert, wide_node = convert or widen, _widen_node(op)
    factor_position = SECOND_FACTOR_POSITIONS[op.target]
    factor = op.args[factor_position]
    operands = {parent.name: convert(values[parent.name]) for parent in op.parents if parent is not factor}
    whole = values[factor.name]
    is_read_twice = any(argument is factor for argument in op.args[:factor_position])
    if not _is_large(whole) or is_read_twice:
        return widen(compute_node(wide_node, {**operands, factor.name: convert(whole)}, symbols))
    columns = max(1, _MAX_WIDE_BYTES // torch.float64.itemsize // max(1, whole.shape[0]))
    parts = []
    for start in range(0, whole.shape[1], columns):
        part = {factor.name: convert(whole[:, start : start + columns])}
        if op.target == "addmm.default":
            bias = op.args[0].name
            addend = operands[bias]
            is_per_column = addend.dim() > 0 and addend.shape[-1] > 1
            part[bias] = addend[..., start : start + columns] if is_per_column else addend
        parts.append(compute_node(wide_node, {**operands, **part}, symbols))
    return torch.cat(parts, 1)


def widen(value: torch.Tensor) -> torch.Tensor:
    """Converts floats to double precision; returns anything else unchanged."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(widen, value)) if type(value) in (list, tuple) else tuple(map(widen, value))
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def narrow(value: torch.Tensor, op: Op, index: int = 0) -> torch.Tensor:
    """Converts a value of the reference to the element type of result `index` of `op` in the graph."""
    if isinstance(value, (list, tuple)):
        return [narrow(item, op, number) for number, item in enumerate(value)]
    meta = op.metas[index] if index < len(op.metas) else None
    if not isinstance(value, torch.Tensor) or meta is None:
        return value
    return value.to(to_torch_dtype(meta.dtype))


def _widen_node(op: Op) -> Op:
    """Returns the node with the element types among its arguments widened."""
    widened = type(op)()
    widened.name, widened.target, widened.metas, widened.multiple = op.name, op.target, op.metas, op.multiple
    widened.stable = op.stable
    widened._arguments = _widen_dtypes(op.args)
    widened._keyword_arguments = _widen_dtypes(op.kwargs)
    return widened


def _widen_dtypes(value: Any) -> Any:
    """Replaces element types in nested arguments by wider ones."""
    if isinstance(value, TensorDType):
        return _WIDER.get(value, value)
    if isinstance(value, dict):
        return {key: _widen_dtypes(item) for key, item in value.items()}
    return [_widen_dtypes(item) for item in value] if isinstance(value, (list, tuple)) else value
