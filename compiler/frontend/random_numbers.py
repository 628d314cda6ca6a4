"""Decomposes random ops of an ATen graph, including dropout, to counter-based random bits of compiled code.

Each graph has one seed, its last input, which each call draws from PyTorch's default generator, so `torch.manual_seed`
makes results reproducible. Each random node has a separate stream. Distributions are eager's; the numbers differ. Ops
without a rule in `distributions` run in eager with PyTorch's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.complex_numbers.pair import ComplexEmitter
from buddy.compiler.frontend.distributions import RULES, RandomBits
from buddy.compiler.frontend.memory_formats import copy_graph

aten = torch.ops.aten

_KEEPING, _AGAIN = torch.ops.higher_order.run_and_save_rng_state, torch.ops.higher_order.run_with_rng_state

# The key in the meta of a graph's seed placeholder.
SEED = "buddy.seed"

_SEEDS = (-(1 << 63), (1 << 63) - 1)
# These arguments are determined by the result.
_OF_THE_RESULT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator"})


def new_seed() -> torch.Tensor:
    """A seed for one call of a graph, int64 without dims, from PyTorch's default generator."""
    return torch.randint(*_SEEDS, ())


def with_seed(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with a new seed as its last argument at each call."""
    return lambda *arguments: run(*arguments, new_seed())


def decompose_random_in_bodies(module: GraphModule, table: Mapping[Any, Callable[..., Any]]) -> None:
    """Replaces random ops in branches and bodies of control flow by counter-based bits, with a seed for each body."""
    for inner in module.modules():
        if isinstance(inner, GraphModule) and inner is not module:
            decompose_random(inner, table, draws_seed=True)


def draws_seeds(module: GraphModule) -> bool:
    """Whether a body in a graph draws a seed."""
    bodies = (inner for inner in module.modules() if isinstance(inner, GraphModule))
    return any(SEED in node.meta for body in bodies for node in body.graph.nodes if node.op == "call_function")


def take_seed_as_input(body: GraphModule) -> GraphModule | None:
    """A body that draws a seed, rewritten to take the seed as its last input; None if the body draws no seed."""
    body = copy_graph(body)
    seed = next((node for node in body.graph.nodes if SEED in node.meta and node.op == "call_function"), None)
    if seed is None:
        return None
    with body.graph.inserting_before(next(node for node in body.graph.nodes if node.op != "placeholder")):
        given = body.graph.placeholder("random_seed")
    given.meta = dict(seed.meta)
    seed.replace_all_uses_with(given)
    body.graph.erase_node(seed)
    body.recompile()
    return body


def decompose_random(
    module: GraphModule, table: Mapping[Any, Callable[..., Any]], *, draws_seed: bool = False
) -> GraphModule | None:
    """Replaces the random ops of an ATen graph in place by counter-based bits.

    The replacements are decomposed by `table`. The seed is the last input, or with `draws_seed` the graph's first node.
    Returns a copy of the graph as it was before, None if the graph needs no seed.
    """
    drawing = [node for node in module.graph.nodes if _random_op(node).op in RULES and SEED not in node.meta]
    read = [parent for node in drawing for parent in (node, *node.all_input_nodes)]
    mode = detect_fake_mode([leaf for node in read for leaf in tree_leaves(node.meta.get("val"))])
    if mode is None:
        return None
    before = copy_graph(module)
    rewriting = _Rewriting(module, ComplexEmitter(module.graph, mode, table), draws_seed)
    for node in drawing:
        rewriting.replace(node)
    return before if rewriting.finish() else None


@dataclass(frozen=True)
class _RandomOp:
    """The random op that a node calls.

    Recomputed values (`torch.utils.checkpoint`) are drawn twice: the first call, with `keeps`, returns the generator's
    state, which is the `state` of the second.
    """

    op: Any
    args: tuple[Any, ...]
    keeps: bool = False
    state: Node | None = None


def _random_op(node: Node) -> _RandomOp:
    if node.target is _KEEPING:
        return _RandomOp(node.args[0], node.args[1:], keeps=True)
    if node.target is _AGAIN:
        state, op, *args = node.args
        return _RandomOp(op, tuple(args), state=state)
    return _RandomOp(node.target, node.args)


def restores_states(module: GraphModule) -> bool:
    """Whether a graph draws again from a saved state of the generator."""
    return any(node.target is _AGAIN for node in module.graph.nodes)


class _Rewriting:
    def __init__(self, module: GraphModule, emitter: ComplexEmitter, draws_seed: bool) -> None:
        self._module, self._emitter = module, emitter
        graph = module.graph
        with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
            if draws_seed:
                self._seed = graph.call_function(aten.randint.low, (*_SEEDS, []), {"dtype": torch.int64})
            else:
                self._seed = graph.placeholder("random_seed")
        self._seed.meta = {"val": self._form(), SEED: True}
        self._streams = 0

    def _form(self) -> torch.Tensor:
        """A seed as PyTorch traces it, in separate memory."""
        with _disable_current_modes():
            return self._emitter.fake(torch.zeros((), dtype=torch.int64))

    def replace(self, node: Node) -> None:
        """Replaces `node` by its rule, if there is one; removes it if it is unused."""
        if not node.users:
            self._module.graph.erase_node(node)
            return
        drawn = _random_op(node)
        value = self._value(node, drawn)
        made = value[0] if isinstance(value, (list, tuple)) else value
        if not isinstance(made, torch.Tensor) or made.device.type != "cpu" or made.is_complex():
            return
        if node.kwargs.get("generator") is not None:
            return
        known = {key: item for key, item in node.kwargs.items() if key not in _OF_THE_RESULT}
        before = list(self._module.graph.nodes)
        with self._module.graph.inserting_before(node), self._emitter.at(node):
            args, named = map_arg((drawn.args, known), self._operand)
            seed = self._emitter.know(self._form(), drawn.state or self._seed)
            # Numbers that are drawn twice have a separate seed, which is derived from the graph's seed.
            kept = torch.ops.buddy.philox64.default(seed, self._streams, []) if drawn.keeps else None
            own = kept is not None or drawn.state is not None
            found = RULES[drawn.op](
                RandomBits(seed if kept is None else kept, 0 if own else self._streams, made), *args, **named
            )
        if found is NotImplemented:
            self._undo(before)
            return
        if drawn.state is None:
            self._streams += 1
        else:
            drawn.state.meta["val"] = self._form()
        if kept is None:
            self._replace_results(node, found)
            return
        for picked in node.users:
            if picked.args[1] == 0:  # originally the state of a generator
                picked.meta["val"] = self._form()
        self._replace_results(node, (kept, found))

    def _value(self, node: Node, drawn: _RandomOp) -> Any:
        """The result of the op: PyTorch records none for calls that save the generator's state."""
        if node.target is drawn.op:
            return node.meta["val"]
        args, named = map_arg((drawn.args, node.kwargs), lambda parent: parent.meta["val"])
        with _disable_current_modes(), self._emitter.fake_mode:
            return drawn.op(*args, **named)

    def _operand(self, node: Node) -> Any:
        value = node.meta.get("val")
        return self._emitter.know(value, node) if isinstance(value, torch.Tensor) else value

    def _undo(self, before: list[Node]) -> None:
        known = set(before)
        for node in reversed(self._module.graph.nodes):
            if node not in known:
                self._module.graph.erase_node(node)

    def _replace_results(self, node: Node, found: Any) -> None:
        if isinstance(found, torch.Tensor):
            self._replace(node, found)
            return
        for picked in list(node.users):
            assert picked.target is getitem
            self._replace(picked, found[picked.args[1]])
        self._module.graph.erase_node(node)

    def _replace(self, node: Node, found: torch.Tensor) -> None:
        new = self._emitter.node_of(found)
        new.meta["val"] = node.meta.get("val", new.meta["val"])
        node.replace_all_uses_with(new)
        self._module.graph.erase_node(node)
        if new.name.startswith(node.name):
            new.name = node.name

    def finish(self) -> bool:
        for name, constant in self._emitter.constants.items():
            setattr(self._module, name, constant)
        if not self._streams:
            self._module.graph.erase_node(self._seed)
        self._module.recompile()
        return bool(self._streams)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` with each element kept with probability 1 - `p` and then divided by that, and the mask of kept elements.

    Follows eager's `dropout` on a CPU: the noise has the form of `x` (its strides determine the order of drawing), is
    divided first, and none is drawn if nothing or everything is dropped.
    """
    if train is False or p == 0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    noise = _draw_mask(x, 1 - p)
    return x * (noise / (1 - p)), noise.to(torch.bool)


def _draw_mask(x: torch.Tensor, p: float) -> torch.Tensor:
    """Ones with probability `p`, else zeros, drawn in the memory order of a tensor like `x`."""
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    return torch.ops.aten.bernoulli.p(x.permute(order), p).permute([order.index(dim) for dim in range(x.dim())])


DECOMPOSITIONS = {torch.ops.aten.native_dropout.default: native_dropout}
