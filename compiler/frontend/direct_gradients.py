"""Calls graphs with gradients directly: AOTAutograd's runtime wrappers take longer than a small layer computes.

AOTAutograd compiles the backward graph at the first backward pass. From then on, an autograd function calls the native
functions of both graphs, if the wrappers would do no more than this: no input is written to, no result is a view or an
input, and all values are plain tensors of static sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from buddy.compiler.frontend.strided_views import Runner
from buddy.compiler.runtime.buffers import Lend, releases_saved_tensors
from buddy.compiler.runtime.native_calls import BuiltinCall

_DOUBLE_BACKWARD = "torch.compile does not support double backward: the gradients of a compiled graph have no gradients"


@dataclass(frozen=True)
class NativeGraph:
    """A compiled graph: its native function, which returns `n_computed` tensors, and the sources of its results.

    `sources` has for each result its index in the computed tensors followed by the inputs, or `None` for no tensor.
    `lend` lends the memory of saved tensors to a call of `function`; `None` if it writes no results to them.
    """

    function: BuiltinCall
    n_computed: int
    sources: tuple[int | None, ...]
    lend: Lend | None


@dataclass(frozen=True)
class _Forward:
    """The forward graph. The program's results come first, then the saved tensors, whose nodes are `saved_names`."""

    native: NativeGraph
    requires_gradient: tuple[bool, ...]  # by input
    is_differentiable: tuple[bool, ...]  # by result of the program
    saved_names: tuple[str, ...]


class DirectGradients:
    """The direct calls of one graph with gradients.

    Calls go through AOTAutograd's function until the forward and the backward graph have been added.
    """

    def __init__(self) -> None:
        self._forward: _Forward | None = None
        self._apply: Runner | None = None

    def calls(self, compiled: Runner) -> Runner:
        """Returns a function that calls `compiled`, AOTAutograd's function, until there is a direct one."""
        if self._forward is None:
            return compiled

        def call(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            apply = self._apply
            return compiled(*inputs) if apply is None else apply(*inputs)

        return call

    def add_forward(self, native: NativeGraph | None, module: GraphModule, metadata: Any) -> None:
        """Adds the forward graph, whose inputs are those of the Dynamo graph; `metadata` is AOTAutograd's.

        Calls stay with AOTAutograd's function in these cases:
        - A result is an input, or repeated: autograd makes views of those.
        - Hooks on saved tensors are active, which the function may have traced.
        - Compiled autograd is enabled, which can trace only AOTAutograd's functions.
        - The program's own autograd functions save tensors without a check that nothing writes to them.
        """
        n_unchecked_tensors = getattr(metadata, "num_tensors_saved_with_no_vc_check", 0)
        if _has_hooks() or torch._dynamo.config.compiled_autograd or n_unchecked_tensors:
            return
        if native is None or None in native.sources:
            return
        outputs = metadata.output_info
        returned = native.sources[: len(outputs)]
        if len(set(returned)) < len(returned) or any(
            source is None or source >= native.n_computed for source in returned
        ):
            return
        self._forward = _Forward(
            native,
            tuple(bool(info.requires_grad) for info in metadata.input_info),
            tuple(bool(info.requires_grad) for info in outputs),
            tuple(node.name for node in _results(module)[len(outputs) :]),
        )

    def add_backward(self, native: NativeGraph | None, module: GraphModule) -> None:
        """Adds the backward graph. Its inputs are the saved tensors and the gradients of the program's results."""
        forward = self._forward
        if native is None or forward is None or len(native.sources) != len(forward.requires_gradient):
            return
        names = tuple(node.name for node in module.graph.nodes if node.op == "placeholder")
        n_saved = len(forward.saved_names)
        if names[:n_saved] != forward.saved_names or len(names) - n_saved != sum(forward.is_differentiable):
            return
        # AOTAutograd's function does not pass on gradients that are `None`; an autograd function calls hooks with them.
        if any(
            source is None for source, needed in zip(native.sources, forward.requires_gradient, strict=True) if needed
        ):
            return
        apply = _autograd_function(forward, native).apply
        self._apply = (lambda *inputs: (apply(*inputs),)) if len(forward.is_differentiable) == 1 else apply


def _autograd_function(forward: _Forward, backward: NativeGraph) -> type[torch.autograd.Function]:
    """Returns an autograd function of the inputs of the forward graph.

    The function returns the results of the program; a single result is not in a tuple.
    """
    n_returned = len(forward.is_differentiable)
    run_forward, run_backward, lend = forward.native.function, backward.function, backward.lend
    returned, saved = forward.native.sources[:n_returned], forward.native.sources[n_returned:]
    non_differentiable = [
        number for number, is_differentiable in enumerate(forward.is_differentiable) if not is_differentiable
    ]

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
            values = (*run_forward(*inputs), *inputs)
            # A view that is saved would keep its graph alive.
            saved_values = [values[source] for source in saved]  # type: ignore[index]
            ctx.may_lend = lend is not None and not _has_hooks()
            ctx.save_for_backward(*[value.detach() if value._is_view() else value for value in saved_values])
            results = tuple([values[source] for source in returned])  # type: ignore[index]
            if non_differentiable:
                ctx.mark_non_differentiable(*[results[number] for number in non_differentiable])
                ctx._materialize_non_diff_grads = False
            return results[0] if n_returned == 1 else results

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            if non_differentiable:
                gradients = tuple(g for g, kept in zip(gradients, forward.is_differentiable, strict=True) if kept)
            inputs = (*ctx.saved_tensors, *gradients)
            lent = lend(inputs) if ctx.may_lend and lend is not None and releases_saved_tensors() else None
            if torch.is_grad_enabled():  # with `create_graph=True`
                computed = _OnceDifferentiable.apply(
                    run_backward, torch.empty(0, device="cpu", requires_grad=True), *inputs
                )
            elif lent is not None:
                with lent:
                    computed = run_backward(*inputs)
            else:
                computed = run_backward(*inputs)
            values = (*computed, *inputs)
            return tuple([None if source is None else values[source] for source in backward.sources])

    return CompiledFunction


class _OnceDifferentiable(torch.autograd.Function):
    """Gradients whose own gradients raise an error, instead of being zero.

    The second argument requires a gradient, so that the results do, even if no input does.
    """

    @staticmethod
    def forward(_: object, run: BuiltinCall, __: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(run(*inputs))

    @staticmethod
    def backward(_: object, *gradients: torch.Tensor) -> None:
        raise RuntimeError(_DOUBLE_BACKWARD)


def _results(module: GraphModule) -> list[Node]:
    nodes: list[Node] = []
    map_arg(module.graph.output_node().args, nodes.append)
    return nodes


def _has_hooks() -> bool:
    """True if hooks on saved tensors are active, or if this version of PyTorch does not report them."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None
