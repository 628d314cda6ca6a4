"""Emits calls of eager: of ops that fall back to eager, and on the slow and error paths of compiled ops.

Each call is a call of an external function, which the runtime provides. The function's name says why eager is called:

- `eager_…`: the op falls back to eager.
- `slow_path_…`: the op is compiled, and eager computes its results on a condition.
- `error_path_…`: the op is compiled, and on a condition eager raises the op's error.

Scripts for buddy-mlir import this module as `func`, for its `ops_registry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import msgspec

from buddy.compiler.graph.node import GetItemOp, Op, nodes_in
from buddy.compiler.graph.serialization import to_plain
from buddy.compiler.graph.sizes import is_dynamic, plain_size, symbol, symbols_in
from buddy.compiler.graph.types import TensorMeta
from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.ops.sizes import RESULT_SIZES, index_value, record_shape, sizes_attribute, symbol_attributes
from buddy.compiler.ops.structured import empty
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, meta_type, value_of
from buddy.compiler.protocol.artifact import EagerCall, TensorSpec
from buddy.compiler.protocol.recipe import digest

# The attribute of an external function's declaration that has its `EagerCall` as JSON.
EAGER_CALL_ATTRIBUTE = "buddy.eager"

ops_registry = Registry()


@dataclass
class EagerPaths:
    """The conditions on which a compiled node calls eager: `slow` for its results, `error` for its error alone."""

    slow: list[str] = field(default_factory=list)
    error: list[str] = field(default_factory=list)

    @property
    def slow_path(self) -> str:
        """The conditions on which eager computes the results, joined by "or"; "" for none."""
        return " or ".join(dict.fromkeys(self.slow))

    @property
    def error_path(self) -> str:
        """The conditions on which eager raises the error, joined by "or"; "" for none."""
        return " or ".join(dict.fromkeys(self.error))


_paths: ContextVar[EagerPaths | None] = ContextVar("paths", default=None)


@contextmanager
def record_eager_paths() -> Iterator[EagerPaths]:
    """Records the slow and error paths of the code that is emitted in this context."""
    paths = EagerPaths()
    token = _paths.set(paths)
    try:
        yield paths
    finally:
        _paths.reset(token)


def _record_path(condition: str, has_results: bool) -> str:
    """Records a call that is made only on `condition`; records nothing if that is "".

    Returns the start of the name of the called function, as in the module's docstring.
    """
    if not condition:
        return "eager"
    paths = _paths.get()
    if paths is not None:
        (paths.slow if has_results else paths.error).append(condition)
    return "slow_path" if has_results else "error_path"


def eager_call(node: Op, symbol_table: SymbolTable, condition: str = "") -> list[ir.Value | None]:
    """Emits a call of the node's op on its tensor arguments. Equal ops on equal shapes share one declaration.

    `condition` says when the code of a compiled op makes the call; it is "" for an op that falls back to eager.
    Results that are not tensors, such as gradients that were not requested, are `None`. Raises `LoweringError` if
    another node reads such a result, if the results are unknown, or if the node has no torch op.
    """
    if "." not in node.target:
        raise LoweringError(f"{type(node).__name__} has no torch op, so eager cannot run it")
    if not node.metas:
        raise LoweringError(f"the results of {node.target} are unknown, so eager cannot run it")
    if any(node.metas[index] is None for index in _read_results(node)):
        raise LoweringError(f"{node.target} has a result that is not a tensor, and that other nodes read")
    metas = [meta for meta in node.metas if meta is not None]
    call = _describe_call(node, metas, _record_path(condition, has_results=bool(metas)))
    # Empty tensors have no memory, so they are neither passed nor returned.
    nonempty_metas = [meta for meta in metas if 0 not in meta.shape]
    results = _emit_call(call, _nonempty_operands(node, symbol_table), nonempty_metas)
    remaining_results = iter(results)
    return [_result_value(meta, remaining_results) for meta in node.metas]


@ops_registry.lowering("EagerOp")
def lower_eager_op(node: Op, symbol_table: SymbolTable) -> list[ir.Value | None]:
    return eager_call(node, symbol_table)


def call_eager_for_errors(node: Op, symbol_table: SymbolTable, condition: str) -> None:
    """Emits a call of the node's op in eager, which raises the error for invalid data; the results are not used.

    `condition` says when the call is made.
    """
    call = _describe_call(node, (), _record_path(condition, has_results=False))
    call = msgspec.structs.replace(call, for_error=True)
    _emit_call(call, _nonempty_operands(node, symbol_table), [])


def _emit_call(call: EagerCall, operands: list[ir.Value], result_metas: list[TensorMeta]) -> Sequence[ir.Value]:
    """Emits a call on tensors that are not empty, and declares its function. Returns the results."""
    _declare(call, [value.type for value in operands], result_metas)
    operands = [*operands, *map(_symbol_value, call.symbols)]
    results: Sequence[ir.Value] = func.CallOp(
        [meta_type(meta) for meta in result_metas], ir.FlatSymbolRefAttr.get(call.symbol), operands
    ).results
    return results


def _nonempty_operands(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the values of the node's tensor arguments, without empty tensors."""
    return [value_of(op, symbol_table) for op in _tensor_arguments(node) if 0 not in op.tensor_meta.shape]


def _symbol_value(name: str) -> ir.Value:
    """Returns the value of a symbol of the function that is being lowered."""
    return index_value(symbol(name))


def _read_results(node: Op) -> list[int]:
    """Returns the indices of the results that other nodes read."""
    if not node.multiple:
        return [0] if node._children else []
    return [user.args[1] for user in node._children if isinstance(user, GetItemOp)]


def _result_value(meta: TensorMeta | None, values: Iterator[ir.Value]) -> ir.Value | None:
    """Returns a result: the next of the call's `values`; a new tensor if it has no elements; `None` for no tensor."""
    if meta is None:
        return None
    stored = meta.stored
    return empty(stored.shape, stored.dtype) if 0 in stored.shape else record_shape(next(values), stored.shape)


def _tensor_arguments(node: Op) -> list[Op]:
    return list(nodes_in((node.args, node.kwargs)))


def _describe_call(node: Op, result_metas: Sequence[TensorMeta], kind: str) -> EagerCall:
    """Returns the call of the node's op with results `result_metas`.

    The name of its function (`symbol`) starts with `kind`, as in the module's docstring, and contains a hash, so that
    equal calls share one declaration.
    """
    tensor_numbers = iter(range(len(_tensor_arguments(node))))
    arguments = tuple(_number_tensors(to_plain(arg), tensor_numbers) for arg in node.args)
    keywords = {key: _number_tensors(to_plain(arg), tensor_numbers) for key, arg in node.kwargs.items()}
    inputs = tuple(_spec(op.tensor_meta) for op in _tensor_arguments(node))
    results = tuple(map(_spec, result_metas))
    shapes = [meta.shape for op in (node, *_tensor_arguments(node)) for meta in op.metas if meta is not None]
    symbols = tuple(sorted({*symbols_in((node.args, node.kwargs, shapes))}, key=lambda name: (len(name), name)))
    call_hash = digest(node.target, arguments, keywords, inputs, results)[:8]
    name = "".join(c if c.isalnum() else "_" for c in node.target)
    return EagerCall(f"{kind}_{name}_{call_hash}", node.target, arguments, keywords, inputs, results, symbols)


def _spec(meta: TensorMeta) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, meta.shape)), meta.dtype.value)


def _number_tensors(value: Any, numbers: Iterator[int]) -> Any:
    """Returns an argument in plain form for JSON: a node, which has the key "n", becomes `{"t": next(numbers)}`.

    Infinities and NaN, which JSON cannot express, become `{"f": text}`.
    """
    if isinstance(value, dict) and "n" in value:
        return {"t": next(numbers)}
    if isinstance(value, float) and not isfinite(value):
        return {"f": repr(value)}
    return [_number_tensors(item, numbers) for item in value] if isinstance(value, list) else value


def _declare(call: EagerCall, input_types: list[ir.Type], results: list[TensorMeta]) -> None:
    """Declares the function of `call` in the current module, unless it is declared already."""
    module = _module_of(ir.InsertionPoint.current.block)
    if any(_symbol_name(op) == call.symbol for op in module.regions[0].blocks[0]):
        return
    with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
        types = [*input_types, *[ir.IndexType.get()] * len(call.symbols)]
        function_type = ir.FunctionType.get(types, list(map(meta_type, results)))
        declaration = func.FuncOp(call.symbol, function_type, visibility="private")
    # Without this attribute, bufferization copies every operand, since the callee might write to it.
    read_only = ir.DictAttr.get({"bufferization.access": ir.StringAttr.get("read")})
    declaration.arg_attrs = ir.ArrayAttr.get(
        [read_only] * len(input_types) + list(map(symbol_attributes, call.symbols))
    )
    if any(is_dynamic(meta.shape) for meta in results):
        sizes = [sizes_attribute(meta.stored.shape) for meta in results]
        declaration.attributes[RESULT_SIZES] = ir.ArrayAttr.get(sizes)
    declaration.attributes[EAGER_CALL_ATTRIBUTE] = ir.StringAttr.get(msgspec.json.encode(call).decode())


def _symbol_name(op: ir.Operation) -> str:
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


def _module_of(block: ir.Block) -> ir.Operation:
    op = block.owner
    while op.operation.name != "builtin.module":
        op = op.operation.parent
    return op.operation


def eager_calls(module: ir.Operation) -> tuple[EagerCall, ...]:
    """Returns the eager calls that `module`, an operation, declares."""
    declared = (op.operation.attributes for op in module.regions[0].blocks[0])
    texts = [
        ir.StringAttr(attributes[EAGER_CALL_ATTRIBUTE]).value
        for attributes in declared
        if EAGER_CALL_ATTRIBUTE in attributes
    ]
    return tuple(msgspec.json.decode(text, type=EagerCall) for text in texts)
