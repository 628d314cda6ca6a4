"""The second road: an op that no dialect's registry lowers becomes linalg on tensors by torch-mlir's own pipeline.

The node is written as an op of the torch dialect, from its target, arguments and schema, in a module of its own.
torch-mlir's passes turn that into linalg, in a process that may die of it, and what they leave moves to where the node
stands. torch-mlir's importer of FX
graphs is not used: it needs torch and FX nodes, and the process that compiles has neither. What it would look up in
torch travels with the graph, so any node can be sent this way, by hand too.
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
    """Why `node` must not go this way, whatever torch-mlir can do; "" where nothing speaks against it."""
    if isinstance(node, CallExternalOp):
        return "a graph pass made it a call"
    return node.only_eager or ("it does something besides giving results" if node.has_effect else "")


def lower_by_torch_mlir(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """The results of `node` by torch-mlir's lowering.

    Raises `LoweringError` when torch-mlir does not know the op, or leaves what is not compiled here.
    """
    if refusal(node):
        raise LoweringError(refusal(node))
    metas = [meta for op in (node, *node.parents) for meta in op.metas if meta is not None]
    if any(is_dynamic(meta.shape) for meta in metas):
        raise LoweringError("its sizes have to be known when compiling")
    module, inputs = written(node)
    found = to_linalg(module)
    ignored = [inputs[number].name for number in unread(found)]
    if ignored and not _reads_forms(node):
        raise LoweringError(f"its lowering does not read {', '.join(ignored)}")
    return moved_here(found, [value_of(op, symbol_table) for op in inputs])


def _reads_forms(node: Op) -> bool:
    """Whether `node` may need no more of a tensor than its sizes, which are known.

    Of other ops a lowering that does not look at a tensor computes something else, as torch-mlir's of
    `_embedding_bag` does without the weights of its samples.
    """
    name = node.target.split(".")[0]
    return name.endswith(("_like", "_as")) or name.startswith(("new_", "empty"))


class _AnyOp(Registry):
    """A registry that has the one lowering for whatever op it is asked for."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Lowering:
        return lower_by_torch_mlir


ops_registry = _AnyOp()
