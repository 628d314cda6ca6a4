"""The torch-mlir registry: lowers ops that no other registry lowers to linalg on tensors, by torch-mlir's pipeline.

The node becomes an op of the torch dialect, made from its target, arguments and schema, in a separate module.
torch-mlir's passes lower that module in a separate process, because they may crash. The result is inlined at the
insertion point. torch-mlir's importer of FX graphs is not used, because it needs torch and FX nodes, which the
compiling process does not have.
"""

from __future__ import annotations

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations import CallExternalOp
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.torch_mlir.pipeline import inline_body, to_linalg, to_torch_dialect, unused_arguments
from buddy.compiler.ops.utils import Lowering, LoweringError, Registry, SymbolTable, value_of


def unsupported_reason(node: Op) -> str:
    """Returns the reason why torch-mlir must not lower `node`; "" if it may."""
    if isinstance(node, CallExternalOp):
        return "a graph pass replaced the node by a call"
    return node.only_eager or ("it has a side effect" if node.has_effect else "")


def lower_with_torch_mlir(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Lowers `node` by torch-mlir's passes; returns its results.

    Raises `LoweringError` if torch-mlir does not lower the op, or its IR has ops that the later passes do not accept.
    """
    if unsupported_reason(node):
        raise LoweringError(unsupported_reason(node))
    metas = [meta for op in (node, *node.parents) for meta in op.metas if meta is not None]
    if any(is_dynamic(meta.shape) for meta in metas):
        raise LoweringError("it needs static shapes")
    module, inputs = to_torch_dialect(node)
    lowered = to_linalg(module)
    ignored_inputs = [inputs[index].name for index in unused_arguments(lowered)]
    if ignored_inputs and not _may_read_sizes_only(node):
        raise LoweringError(f"the lowering ignores {', '.join(ignored_inputs)}")
    return inline_body(lowered, [value_of(op, symbol_table) for op in inputs])


def _may_read_sizes_only(node: Op) -> bool:
    """True if `node` may read only the sizes of a tensor, which are static.

    For any other op, a lowering that ignores a tensor is wrong. An example is torch-mlir's lowering of
    `_embedding_bag`, which ignores `per_sample_weights`.
    """
    name = node.target.split(".")[0]
    return name.endswith(("_like", "_as")) or name.startswith(("new_", "empty"))


class _RegistryOfAllOps(Registry):
    """A registry that has the same lowering, `lower_with_torch_mlir`, for every op class."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Lowering:
        return lower_with_torch_mlir


ops_registry = _RegistryOfAllOps()
