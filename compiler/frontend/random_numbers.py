"""Decomposes random ops of an ATen graph, including dropout, to counter-based random bits of compiled code.

Each graph has one seed, its last input, which each call draws from PyTorch's default generator, so `torch.manual_seed`
makes results reproducible. Each random node has a separate stream. Distributions are eager's; the numbers differ. Ops
without a rule in `distributions` run in eager with PyTorch's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.distributions import DISTRIBUTION_RULES, RandomBits
from buddy.compiler.frontend.node_emitter import NodeEmitter
from buddy.compiler.frontend.saved_tensors import copy_training_role
from buddy.compiler.frontend.strided_views import copy_graph

if TYPE_CHECKING:
    from buddy.compiler.frontend.strided_views import Runner


aten = torch.ops.aten

_RUN_AND_SAVE_STATE, _RUN_WITH_STATE = (
    torch.ops.higher_order.run_and_save_rng_state,
    torch.ops.higher_order.run_with_rng_state,
)

# The key in the meta of a graph's seed placeholder.
SEED = "buddy.seed"

# The bounds of a seed; the upper one is not included.
_SEED_RANGE = (-(1 << 63), (1 << 63) - 1)
# Keyword arguments that a rule does not get: the form of the result determines them; a generator is not supported.
_FORM_ARGUMENTS = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator"})


def new_seed() -> torch.Tensor:
    """Returns a seed for one call of a graph, a 0-d int64 tensor, from PyTorch's default generator."""
    return torch.randint(*_SEED_RANGE, ())


def with_seed(run: Runner) -> Runner:
    """Returns a function that calls `run` with a new seed as additional last argument."""
    return lambda *arguments: run(*arguments, new_seed())


def decompose_random_in_bodies(
    module: GraphModule, table: Mapping[torch._ops.OpOverload, Callable[..., object]]
) -> None:
    """Replaces random ops in branches and bodies of control flow by counter-based bits, with a seed for each body."""
    for body in module.modules():
        if isinstance(body, GraphModule) and body is not module:
            decompose_random(body, table, draws_seed=True)


def draws_seeds(module: GraphModule) -> bool:
    """True if a branch or body of control flow in a graph draws a seed."""
    bodies = (submodule for submodule in module.modules() if isinstance(submodule, GraphModule))
    return any(SEED in node.meta for body in bodies for node in body.graph.nodes if node.op == "call_function")


def take_seed_as_input(body: GraphModule) -> GraphModule | None:
    """Returns a copy of a body that takes the seed as its last input; None if the body draws no seed."""
    body = copy_graph(body)
    seed = next((node for node in body.graph.nodes if SEED in node.meta and node.op == "call_function"), None)
    if seed is None:
        return None
    with body.graph.inserting_before(next(node for node in body.graph.nodes if node.op != "placeholder")):
        seed_input = body.graph.placeholder("random_seed")
    seed_input.meta = dict(seed.meta)
    seed.replace_all_uses_with(seed_input)
    body.graph.erase_node(seed)
    body.recompile()
    return body


def decompose_random(
    module: GraphModule, table: Mapping[torch._ops.OpOverload, Callable[..., object]], *, draws_seed: bool = False
) -> GraphModule | None:
    """Replaces the random ops of an ATen graph in place by counter-based bits.

    The replacements are decomposed by `table`. The seed is a new last input; with `draws_seed`, the graph draws it
    itself, in its first node. Returns a copy of the original graph, or None if the graph needs no seed.
    """
    random_nodes = [
        node for node in module.graph.nodes if _random_op(node).op in DISTRIBUTION_RULES and SEED not in node.meta
    ]
    nodes = [parent for node in random_nodes for parent in (node, *node.all_input_nodes)]
    mode = detect_fake_mode([leaf for node in nodes for leaf in tree_leaves(node.meta.get("val"))])
    if mode is None:
        return None
    original = copy_graph(module)
    rewriter = _RandomRewriter(module, NodeEmitter(module.graph, mode, table), draws_seed)
    for node in random_nodes:
        rewriter.replace(node)
    return original if rewriter.finish() else None


@dataclass(frozen=True)
class _RandomOp:
    """The random op that a node calls, directly or through a higher-order op.

    `torch.utils.checkpoint` draws the same numbers twice: the first node also returns the generator's state
    (`saves_state`), and the second node starts from that `state`, a node; it is `None` for all others.
    """

    op: Any
    args: tuple[Any, ...]
    saves_state: bool = False
    state: Node | None = None


def _random_op(node: Node) -> _RandomOp:
    """Returns the op that `node` calls, which need not be random, without the higher-order op around it."""
    if node.target is _RUN_AND_SAVE_STATE:
        return _RandomOp(node.args[0], node.args[1:], saves_state=True)
    if node.target is _RUN_WITH_STATE:
        state, op, *args = node.args
        return _RandomOp(op, tuple(args), state=state)
    return _RandomOp(node.target, node.args)


def restores_states(module: GraphModule) -> bool:
    """True if a graph draws again from a saved state of the generator."""
    return any(node.target is _RUN_WITH_STATE for node in module.graph.nodes)


class _RandomRewriter:
    """Replaces random ops of one graph, and adds its seed: an input, or with `draws_seed` a node that draws it.

    Each replaced op has a separate stream of the seed. PyTorch's checkpoints draw the same numbers twice from one state
    of the generator. In place of that state, the first op returns a separate seed, derived from the graph's seed; both
    ops draw stream 0 of it.
    """

    def __init__(self, module: GraphModule, emitter: NodeEmitter, draws_seed: bool) -> None:
        self._module, self._emitter = module, emitter
        graph = module.graph
        with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
            if draws_seed:
                self._seed = graph.call_function(aten.randint.low, (*_SEED_RANGE, []), {"dtype": torch.int64})
            else:
                self._seed = graph.placeholder("random_seed")
        self._seed.meta = {"val": self._fake_seed(), SEED: True}
        self._streams = 0

    def _fake_seed(self) -> torch.Tensor:
        """Returns a seed as PyTorch traces it, in separate memory."""
        with _disable_current_modes():
            return self._emitter.to_fake(torch.zeros((), dtype=torch.int64))

    def replace(self, node: Node) -> None:
        """Replaces `node` by the ops of its rule, if the rule supports it; removes it if it is unused."""
        if not node.users:
            self._module.graph.erase_node(node)
            return
        random_op = _random_op(node)
        value = self._value(node, random_op)
        result = value[0] if isinstance(value, (list, tuple)) else value
        if not isinstance(result, torch.Tensor) or result.device.type != "cpu":
            return
        if node.kwargs.get("generator") is not None:
            return
        nodes_before = set(self._module.graph.nodes)
        saved_seed, replacement = self._emit(node, random_op, result)
        if replacement is NotImplemented:
            self._remove_new_nodes(nodes_before)
            return
        if random_op.state is None:
            self._streams += 1
        else:
            random_op.state.meta["val"] = self._fake_seed()
        if saved_seed is None:
            self._replace_results(node, replacement)
            return
        for user in node.users:
            if user.args[1] == 0:  # originally the state of a generator
                user.meta["val"] = self._fake_seed()
        self._replace_results(node, (saved_seed, replacement))

    def _emit(self, node: Node, random_op: _RandomOp, result: torch.Tensor) -> tuple[torch.Tensor | None, Any]:
        """Emits the ops of the rule of `node`; `result` has the form of the random op's first result.

        Returns the seed that replaces the generator's state, `None` if `node` does not save it, and the result of the
        rule.
        """
        kwargs = {key: item for key, item in node.kwargs.items() if key not in _FORM_ARGUMENTS}
        with self._module.graph.inserting_before(node), self._emitter.replacing(node):
            args, rule_kwargs = map_arg((random_op.args, kwargs), self._operand)
            seed = self._emitter.register_value(self._fake_seed(), random_op.state or self._seed)
            saved_seed = torch.ops.buddy.philox64.default(seed, self._streams, []) if random_op.saves_state else None
            if saved_seed is not None:
                bits = RandomBits(saved_seed, 0, result)
            else:
                bits = RandomBits(seed, self._streams if random_op.state is None else 0, result)
            return saved_seed, DISTRIBUTION_RULES[random_op.op](bits, *args, **rule_kwargs)

    def _value(self, node: Node, random_op: _RandomOp) -> torch.Tensor | None:
        """Returns the fake result of the random op.

        It is computed here for an op inside a higher-order op, because PyTorch records no result for such an op.
        """
        if node.target is random_op.op:
            return node.meta["val"]
        args, kwargs = map_arg((random_op.args, node.kwargs), lambda parent: parent.meta["val"])
        with _disable_current_modes(), self._emitter.fake_mode:
            return random_op.op(*args, **kwargs)

    def _operand(self, node: Node) -> object:
        """Returns the value of `node` for a rule: a registered tensor, or a number."""
        value = node.meta.get("val")
        return self._emitter.register_value(value, node) if isinstance(value, torch.Tensor) else value

    def _remove_new_nodes(self, nodes_before: set[Node]) -> None:
        """Removes all nodes that are not in `nodes_before`."""
        for node in reversed(self._module.graph.nodes):
            if node not in nodes_before:
                self._module.graph.erase_node(node)

    def _replace_results(self, node: Node, replacement: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Replaces `node`, or each node that selects one of its results, by the node of its `replacement`."""
        if isinstance(replacement, torch.Tensor):
            self._replace(node, replacement)
            return
        for user in list(node.users):
            assert user.target is getitem
            self._replace(user, replacement[user.args[1]])
        self._module.graph.erase_node(node)

    def _replace(self, node: Node, replacement: torch.Tensor) -> None:
        """Replaces `node` by the node of `replacement`, which takes over its name, value and training role."""
        new = self._emitter.node_of(replacement)
        new.meta["val"] = node.meta.get("val", new.meta["val"])
        copy_training_role(node, new)
        node.replace_all_uses_with(new)
        self._module.graph.erase_node(node)
        if new.name.startswith(node.name):
            new.name = node.name

    def finish(self) -> bool:
        """Adds the constants, and removes the seed if no node reads it; returns whether the graph has a seed."""
        for name, constant in self._emitter.constants.items():
            setattr(self._module, name, constant)
        if not self._streams:
            self._module.graph.erase_node(self._seed)
        self._module.recompile()
        return bool(self._streams)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `x` / (1 - `p`) with each element set to 0 with probability `p`, and the mask of the other elements.

    Follows eager's `dropout` on a CPU: the mask is drawn in the memory order of `x`, and divided before it multiplies
    `x`. Nothing is drawn for a `p` of 0 or 1.
    """
    if train is False or p == 0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    noise = _draw_mask(x, 1 - p)
    return x * (noise / (1 - p)), noise.to(torch.bool)


def _draw_mask(x: torch.Tensor, p: float) -> torch.Tensor:
    """Returns ones with probability `p`, else zeros, drawn in the memory order of a tensor like `x`."""
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    return torch.ops.aten.bernoulli.p(x.permute(order), p).permute([order.index(dim) for dim in range(x.dim())])


DECOMPOSITIONS = {torch.ops.aten.native_dropout.default: native_dropout}
