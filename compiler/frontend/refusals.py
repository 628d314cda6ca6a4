"""Rejects what eager rejects, with eager's own error, by running suspected graphs in eager.

A graph is suspected in two cases: while AOTAutograd traces a small graph, each ATen op is called once in eager on plain
values of the same shapes and dtypes, and one raises; or compiled code finds an index or another value out of range. The
Dynamo graph then runs in eager on the values of the call, and its error or result is the right one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tag
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from buddy.compiler.frontend.names import python_line
from buddy.compiler.runtime.callbacks import is_refusal

Table = Mapping[Any, Callable[..., Any]]

# Maximum number of elements of arguments and results for a trial call; larger calls would take time.
MOST_ELEMENTS = 1 << 16
# What these reject depends on values, which plain ones do not represent.
_BY_VALUE = {
    "_assert_async", "_assert_scalar", "_local_scalar_dense", "sym_constrain_range", "sym_constrain_range_for_size",
    "segment_reduce", "repeat_interleave", "lu_unpack", "linalg_lu_solve", "linalg_ldl_solve", "_linalg_check_errors",
}  # fmt: skip
# Some of eager's kernels for these read beyond the end of tensors whose widths are not multiples of a block.
_UNSAFE = {"_weight_int8pack_mm"}
# Integers are divisors in these, and positions or sizes elsewhere.
_DIVIDE = ("div", "floor_divide", "remainder", "fmod", "true_divide")
_BAGS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)
_GREATEST = 2  # the mode of bags for maxima
_known: dict[str, bool] = {}
_MOST_KNOWN = 4096
_inside = threading.local()


class SuspectedError(Exception):
    """An op of a graph has a form that eager seems to reject."""


def with_form_checks(table: Table) -> dict[Any, Callable[..., Any]]:
    """The decompositions of `table`, which raise `SuspectedError` for calls with a form that eager rejects."""
    return {op: _watched(op, rule) for op, rule in table.items()}


def _watched(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(rule)
    def watched(*args: Any, **kwargs: Any) -> Any:
        depth = getattr(_inside, "depth", 0)
        _inside.depth = depth + 1
        try:
            result = rule(*args, **kwargs)
        finally:
            _inside.depth = depth
        # Calls inside the rule are not checked, and neither are backward formulas.
        if not depth and result is not NotImplemented and torch._C._current_autograd_node() is None:
            check_form(op, args, kwargs, result)
        return result

    return watched


def check_graph(module: GraphModule) -> None:
    """Raises `SuspectedError` for an op of an ATen graph, not one made by a decomposition, that eager rejects."""
    for node in module.graph.nodes:
        # The recorded op may have been wrapped, so names are compared.
        if node.op == "call_function" and str(node.meta.get("original_aten") or node.target) == str(node.target):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            check_form(node.target, args, kwargs, node.meta.get("val"))


def check_form(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Raises `SuspectedError` if eager rejects `op` on plain values of the form of these fake arguments."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op._schema.is_mutable:
        return
    name = op._schema.name.removeprefix("aten::")
    if name in _BY_VALUE | _UNSAFE or Tag.nondeterministic_seeded in op.tags or _by_mask(name, args):
        return
    leaves = tree_leaves((list(args), dict(kwargs), result))
    if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves):
        return  # known only at the call
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not all(map(_is_plain, tensors)) or sum(map(torch.Tensor.numel, tensors)) > MOST_ELEMENTS:
        return
    key = f"{op} {tree_map(_form, (list(args), dict(kwargs)))}"
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = _is_refused(op, args, kwargs, 1 if name in _DIVIDE else 0)
    if _known[key]:
        raise SuspectedError(str(op))


def _by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether a mask determines how many elements are read or written."""
    if name not in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        return False
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a dense CPU tensor with static sizes can represent it."""
    sizes_known = all(type(size) is int for size in tensor.shape)
    return sizes_known and tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized


def _form(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


def _is_refused(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], whole: int) -> bool:
    def plain(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kind = value.dtype.is_floating_point or value.dtype.is_complex
        fill = 1 if kind else whole if value.dtype is not torch.bool else 0
        return torch.full(value.shape, fill, dtype=value.dtype, device="cpu")

    with torch._C._DisableTorchDispatch(), _disable_current_modes(), torch.no_grad():
        try:
            op(*tree_map(plain, list(args)), **tree_map(plain, dict(kwargs)))
        except Exception:
            return True
    return False


# ---- at a call -------------------------------------------------------------------------------------------------------


class _Told(Interpreter):
    """Runs a Dynamo graph node by node, so that an error names its op and the calling line."""

    def run_node(self, n: Node) -> Any:
        try:
            with _OrderedBags() if "embedding_bag" in str(n.target) else nullcontext():
                return super().run_node(n)
        except Exception as error:
            _tell(error, n)
            raise


def _tell(error: Exception, node: Node) -> None:
    """Adds the op and its Python line to the message of `error`, and keeps its type."""
    line = python_line(node)
    if line and error.args and isinstance(error.args[0], str):
        name = getattr(node.target, "__name__", str(node.target))
        error.args = (f"{error.args[0]}\n  in {name}, called at {line}", *error.args[1:])


class _OrderedBags(TorchDispatchMode):
    """Raises for sums and means of bags whose offsets decrease.

    Eager rejects these with several threads only. With one thread, it reads memory outside of the tensors.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if func in _BAGS:
            offsets, mode = args[2], args[4] if len(args) > 4 else (kwargs or {}).get("mode", 0)
            if mode != _GREATEST and bool((offsets[1:] < offsets[:-1]).any()):
                raise RuntimeError("Expected offsets of bags that do not decrease")
        return results


def in_eager(module: GraphModule, args: Sequence[Any]) -> Any:
    """The results of a Dynamo graph in eager. Raises what eager raises, with the op and its line."""
    interpreter = _Told(module)
    interpreter.extra_traceback = False
    with torch.fx.traceback.preserve_node_meta(False):
        return interpreter.run(*args)


def with_eager_refusals(module: GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, but if it rejects a value, eager runs instead: it raises, or returns the result."""

    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except Exception as error:
            if not is_refusal(error):
                raise
        return in_eager(module, args)

    return run


class SuspectedGraph:
    """A graph with a form that eager seems to reject: it runs in eager until a call succeeds, then in compiled code.

    `compiled` may raise: the user sees a compile error only after eager has succeeded.
    """

    def __init__(self, module: GraphModule, compiled: Callable[[], Callable[..., Any]]) -> None:
        self._module, self._compiled = module, compiled
        self._run: Callable[..., Any] | None = None
        self._answered = False

    def __call__(self, *args: Any) -> Any:
        if not self._answered:
            results = in_eager(self._module, args)
            self._answered = True
            return results
        if self._run is None:
            self._run = self._compiled()
        return self._run(*args)
