"""Rejects graphs with unsupported inputs, and makes compiled code raise eager's errors for calls that eager rejects.

Two checks find calls that eager may reject. While AOTAutograd traces a graph, each ATen op on small tensors is called
once in eager on plain values (zeros and ones) of the same shapes and dtypes; if an op raises, the graph is suspected.
Compiled code checks indices and other values at each call. In both cases the Dynamo graph runs in eager on the values
of the call, which raises or returns the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tag
from torch._guards import Guard, TracingContext
from torch.autograd import forward_ad
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.names import node_title, python_line
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.runtime.callbacks import is_rejection
from buddy.compiler.runtime.packed_weights import restore_among
from buddy.compiler.support.dynamo_internals import GlobalStateSource, GuardBuilder

if TYPE_CHECKING:
    from buddy.compiler.frontend.strided_views import Runner


# ---- inputs that compiled code does not support ----------------------------------------------------------------------


def check_inputs(module: GraphModule, inputs: Sequence[object]) -> None:
    """Raises `UnsupportedGraphError` for a Dynamo graph with inputs that compiled code does not read.

    These are jagged nested tensors, tensors of a layout other than strided, and tensors that may have tangents.
    `inputs` are the real inputs, because PyTorch traces a tensor of the layout MKLDNN as a strided one.
    """
    _check_tangents()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        if _is_ragged(node.meta.get("example_value")):
            raise UnsupportedGraphError(Diagnostic(f"{node.name} is a jagged nested tensor, or a ragged dim of one"))
    for node, value in zip(placeholders, inputs, strict=False):
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            raise _unsupported(node, value.layout)


def _is_ragged(value: object) -> bool:
    """True if a value is a jagged nested tensor, or a ragged dim of one."""
    if isinstance(value, torch.Tensor):
        return value.is_nested
    return isinstance(value, torch.SymInt) and bool(value.node.is_nested_int())


def _unsupported(node: Node, layout: torch.layout) -> UnsupportedGraphError:
    name = str(layout).removeprefix("torch.")
    return UnsupportedGraphError(
        Diagnostic(
            what=f"{node_title(node)} has the layout {name}, which compiled code cannot represent",
            todo="pass its to_dense(), or let the graph stay in eager (fallback='eager')",
            node=node.name,
        )
    )


def _check_tangents() -> None:
    """Raises `UnsupportedGraphError` inside `forward_ad.dual_level()`, where inputs may have tangents.

    Compiled code would drop tangents: neither the graph nor the dispatch keys of a tensor show them, and TorchDynamo
    does not compile again for them. The guard makes TorchDynamo compile again when the level changes.
    """
    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL))
    if forward_ad._current_level >= 0:
        raise UnsupportedGraphError(
            Diagnostic(
                what="the call is inside forward_ad.dual_level(), and compiled code does not compute tangents",
                todo="use torch.func.jvp inside the compiled function, or let the graph stay in eager "
                "(fallback='eager')",
            )
        )


# ---- calls that eager rejects ----------------------------------------------------------------------------------------


# Decompositions by overload.
Table = Mapping[Any, Callable[..., Any]]

# Maximum number of elements of arguments and results for a trial call; larger calls would take time.
MAX_TRIAL_ELEMENTS = 1 << 16
# The errors of these ops depend on values, which the plain values of a trial call do not represent.
_VALUE_DEPENDENT_OPS = {
    "_assert_async", "_assert_scalar", "_local_scalar_dense", "sym_constrain_range", "sym_constrain_range_for_size",
    "segment_reduce", "repeat_interleave", "lu_unpack", "linalg_lu_solve", "linalg_ldl_solve", "_linalg_check_errors",
}  # fmt: skip
# Some kernels of these ops in eager read beyond the end of tensors whose widths are not multiples of a block.
_UNSAFE_OPS = {"_weight_int8pack_mm"}
# Integer operands of these ops are divisors; those of other ops are positions or sizes.
_DIVISION_OPS = ("div", "floor_divide", "remainder", "fmod", "true_divide")
_BAG_OPS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)
_MAX_MODE = 2  # the value of the argument `mode` for which a bag returns its maximum
# Whether eager rejects a call, by the op and the forms of its arguments; at most `_MAX_CACHED_CALLS` calls.
_rejected_by_call: dict[str, bool] = {}
_MAX_CACHED_CALLS = 4096
# `_active_rules.depth` is the number of decompositions on the call stack of this thread.
_active_rules = threading.local()


class SuspectedError(BuddyError):
    """Eager seems to reject an op of a graph for the form of its arguments: their shapes and dtypes."""


def with_form_checks(table: Table) -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """Returns `table` with rules that raise `SuspectedError` for calls with a form that eager rejects."""
    return {op: _add_form_check(op, rule) for op, rule in table.items()}


def _add_form_check(op: torch._ops.OpOverload, rule: Callable[..., object]) -> Callable[..., object]:
    """Returns `rule`, the decomposition of `op`, which then raises `SuspectedError` for a call that eager rejects."""

    @wraps(rule)
    def check_call(*args: object, **kwargs: object) -> object:
        depth = getattr(_active_rules, "depth", 0)
        _active_rules.depth = depth + 1
        try:
            result = rule(*args, **kwargs)
        finally:
            _active_rules.depth = depth
        # Calls inside the rule and backward formulas are not checked.
        if not depth and result is not NotImplemented and torch._C._current_autograd_node() is None:
            check_form(op, args, kwargs, result)
        return result

    return check_call


def check_graph(module: GraphModule) -> None:
    """Raises `SuspectedError` if eager rejects an op of an ATen graph; skips ops that a decomposition made."""
    for node in module.graph.nodes:
        # `original_aten` is the op that was decomposed. It may be a wrapper of the op, so names are compared.
        if node.op == "call_function" and str(node.meta.get("original_aten") or node.target) == str(node.target):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
            check_form(node.target, args, kwargs, node.meta.get("val"))


def check_form(op: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], result: object) -> None:
    """Raises `SuspectedError` if eager rejects `op` on plain values of the form of these fake arguments."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op._schema.is_mutable:
        return
    name = op._schema.name.removeprefix("aten::")
    if (
        name in _VALUE_DEPENDENT_OPS | _UNSAFE_OPS
        or Tag.nondeterministic_seeded in op.tags
        or _has_mask_subscript(name, args)
    ):
        return
    leaves = tree_leaves((list(args), dict(kwargs), result))
    if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves):
        return  # the sizes are known only at the call
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not all(map(_is_plain, tensors)) or sum(map(torch.Tensor.numel, tensors)) > MAX_TRIAL_ELEMENTS:
        return
    key = f"{op} {tree_map(_form, (list(args), dict(kwargs)))}"
    if key not in _rejected_by_call:
        if len(_rejected_by_call) >= _MAX_CACHED_CALLS:
            _rejected_by_call.clear()
        _rejected_by_call[key] = _is_rejected(op, args, kwargs, 1 if name in _DIVISION_OPS else 0)
    if _rejected_by_call[key]:
        raise SuspectedError(str(op))


def _has_mask_subscript(name: str, args: Sequence[object]) -> bool:
    """True if a mask determines how many elements are read or written."""
    if name not in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        return False
    subscripts: Any = args[1]
    return any(item is not None and item.dtype in (torch.bool, torch.uint8) for item in subscripts)


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if the tensor is an unquantised, strided CPU tensor with static sizes."""
    is_static = all(type(size) is int for size in tensor.shape)
    return is_static and tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized


def _form(value: object) -> object:
    """Returns the shape and dtype of a tensor; other values are returned unchanged."""
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


def _is_rejected(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], integer_fill: int
) -> bool:
    """True if eager raises for `op` on plain values of the form of its arguments.

    The elements are 1 in floats, `integer_fill` in integers, and false in masks.
    """

    def to_plain(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        fill = integer_fill
        if value.dtype.is_floating_point or value.dtype.is_complex:
            fill = 1
        elif value.dtype is torch.bool:
            fill = 0
        return torch.full(value.shape, fill, dtype=value.dtype, device="cpu")

    with torch._C._DisableTorchDispatch(), _disable_current_modes(), torch.no_grad():
        try:
            op(*tree_map(to_plain, list(args)), **tree_map(to_plain, dict(kwargs)))
        except Exception:
            return True
    return False


# ---- at a call -------------------------------------------------------------------------------------------------------


class _LocatingInterpreter(Interpreter):
    """Runs a Dynamo graph node by node, so that an error names its op and the calling line."""

    def run_node(self, n: Node) -> object:
        try:
            with _OrderedBags() if "embedding_bag" in str(n.target) else nullcontext():
                return super().run_node(n)
        except Exception as error:
            _add_location(error, n)
            raise


def _add_location(error: Exception, node: Node) -> None:
    """Adds the op and its Python line to the message of `error`, and keeps its type."""
    line = python_line(node)
    if line and error.args and isinstance(error.args[0], str):
        name = getattr(node.target, "__name__", str(node.target))
        error.args = (f"{error.args[0]}\n  in {name}, called at {line}", *error.args[1:])


class _OrderedBags(TorchDispatchMode):
    """Raises for sums and means of bags whose offsets decrease.

    Eager only rejects such bags with several threads. With one thread, it reads memory outside of the tensors.
    """

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        results = func(*args, **(kwargs or {}))
        if func in _BAG_OPS:
            offsets, mode = args[2], args[4] if len(args) > 4 else (kwargs or {}).get("mode", 0)
            if mode != _MAX_MODE and bool((offsets[1:] < offsets[:-1]).any()):
                raise RuntimeError("Expected offsets of bags that do not decrease")
        return results


def run_in_eager(module: GraphModule, args: Sequence[object]) -> Sequence[torch.Tensor]:
    """Returns the results of a Dynamo graph in eager. Raises what eager raises, with the op and its line."""
    restore_among(args)
    interpreter = _LocatingInterpreter(module)
    interpreter.extra_traceback = False
    with torch.fx.traceback.preserve_node_meta(False):
        return interpreter.run(*args)


def with_eager_errors(module: GraphModule, compiled: Runner) -> Runner:
    """Returns a function that calls `compiled`, and runs eager if `compiled` rejects a value.

    Eager then raises an error or returns the result. A built-in function is returned unchanged: it calls `eager_after`
    itself.
    """
    if isinstance(compiled, BuiltinFunctionType):
        return compiled

    def run(*args: object) -> Sequence[torch.Tensor]:
        try:
            return compiled(*args)
        except Exception as error:
            if not is_rejection(error):
                raise
        return run_in_eager(module, args)

    return run


def eager_after(module: GraphModule, error: Exception, args: Sequence[object]) -> Sequence[torch.Tensor]:
    """Returns the results of eager if compiled code has rejected a value with `error`; raises all other errors."""
    if not is_rejection(error):
        raise error
    return run_in_eager(module, args)


class SuspectedGraph:
    """A graph with a form that eager seems to reject.

    Calls run in eager until one succeeds; later calls are compiled. `make_compiled` returns the compiled graph, or
    raises the error of its compilation, which the user sees only after eager has succeeded.
    """

    def __init__(self, module: GraphModule, make_compiled: Callable[[], Runner]) -> None:
        self._module, self._make_compiled = module, make_compiled
        self._run: Runner | None = None
        self._has_succeeded = False

    def __call__(self, *args: object) -> Sequence[torch.Tensor]:
        if not self._has_succeeded:
            results = run_in_eager(self._module, args)
            self._has_succeeded = True
            return results
        if self._run is None:
            self._run = self._make_compiled()
        return self._run(*args)
