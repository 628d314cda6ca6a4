"""Fallback lowering: an op that no registry lowers is lowered to linalg on tensors by torch-mlir's pipeline.

The node is written as an op of the torch dialect, from its target, arguments and schema, in a separate module.
torch-mlir's passes lower that to linalg, in a separate process that may crash, and the result is moved to the node's
insertion point. torch-mlir's importer of FX graphs is not used: it needs torch and FX nodes, and the compiling process
has neither. The graph carries the schemas, so any node can be lowered this way, also by hand.
"""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import CallExternalOp
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.ops.registry import Lowering, Registry
from buddy.compiler.ops.torch_mlir.importing import written
from buddy.compiler.ops.torch_mlir.pipeline import moved_here, to_linalg, unread
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of


def refusal(node: Op) -> str:
    """Returns the reason why `node` must not be lowered by torch-mlir; "" if there is none."""
    if isinstance(node, CallExternalOp):
        return "a graph pass replaced it by a call"
    return node.only_eager or ("it has an effect besides its results" if node.has_effect else "")


def lower_by_torch_mlir(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the results of `node` as lowered by torch-mlir.

    Raises `LoweringError` if torch-mlir does not know the op, or leaves ops that are not compiled here.
    """
    if refusal(node):
        raise LoweringError(refusal(node))
    metas = [meta for op in (node, *node.parents) for meta in op.metas if meta is not None]
    if any(is_dynamic(meta.shape) for meta in metas):
        raise LoweringError("it needs static sizes")
    module, inputs = written(node)
    found = to_linalg(module)
    ignored = [inputs[number].name for number in unread(found)]
    if ignored and not _reads_forms(node):
        raise LoweringError(f"its lowering ignores {', '.join(ignored)}")
    return moved_here(found, [value_of(op, symbol_table) for op in inputs])


def _reads_forms(node: Op) -> bool:
    """True if `node` may read only the sizes of a tensor, which are known.

    For other ops a lowering that ignores a tensor is wrong: torch-mlir's lowering of `_embedding_bag` ignores
    `per_sample_weights`.
    """
    name = node.target.split(".")[0]
    return name.endswith(("_like", "_as")) or name.startswith(("new_", "empty"))


class _AnyOp(Registry):
    """A registry with the same lowering for every op."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Lowering:
        return lower_by_torch_mlir


ops_registry = _AnyOp()
