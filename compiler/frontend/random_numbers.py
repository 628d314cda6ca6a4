"""Random ops of an ATen graph in terms of random bits that compiled code makes by a counter (`runner.philox`).

Each graph has one seed, an input behind all others, which is drawn from PyTorch's default generator at each call, and
each random node a stream of its own, so `torch.manual_seed` makes results repeatable. Distributions are eager's, the
numbers are others. What has no rule here draws from PyTorch's generator, in eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.complex_numbers.emitter import Emitter
from buddy.compiler.runner import philox  # noqa: F401  (defines the ops)

aten = torch.ops.aten

_KEEPING, _AGAIN = torch.ops.higher_order.run_and_save_rng_state, torch.ops.higher_order.run_with_rng_state

# In the meta of the placeholder that is a graph's seed.
SEED = "buddy.seed"
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}

# The bits of a random fraction: as many as eager's has, the digits of the element type.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
_NARROW = (torch.float16, torch.bfloat16)
# Up to this, the product of a range and a fraction of 43 bits fits into 63.
_SHORT = 1 << 20
_GREATEST = (1 << 63) - 1
_SEEDS = (-(1 << 63), _GREATEST)


def new_seed() -> torch.Tensor:
    """A seed for one call of a graph, int64 without dims, from PyTorch's default generator."""
    return torch.randint(*_SEEDS, ())


def with_seed(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, which gets a new seed as its last argument at each call."""
    return lambda *arguments: run(*arguments, new_seed())


def in_bodies(module: GraphModule, table: Mapping[Any, Callable[..., Any]]) -> None:
    """Make random ops in branches and bodies of control flow bits by a counter, each body of a seed that it draws."""
    for inner in module.modules():
        if isinstance(inner, GraphModule) and inner is not module:
            by_counter(inner, table, draws_seed=True)


def draws_seeds(module: GraphModule) -> bool:
    """Whether a body in a graph draws a seed."""
    bodies = (inner for inner in module.modules() if isinstance(inner, GraphModule))
    return any(SEED in node.meta for body in bodies for node in body.graph.nodes if node.op == "call_function")


def seed_as_input(body: GraphModule) -> GraphModule | None:
    """A body that draws a seed, with the seed as its last input instead; None for another."""
    body = _copied(body)
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


def by_counter(
    module: GraphModule, table: Mapping[Any, Callable[..., Any]], *, draws_seed: bool = False
) -> GraphModule | None:
    """Put bits by a counter in the place of the random ops of an ATen graph; what it was, if it needs a seed now.

    What they are made into is decomposed by `table`. The seed is the last input, or where the graph `draws_seed` its
    first node.
    """
    drawing = [node for node in module.graph.nodes if _drawn(node).op in RULES and SEED not in node.meta]
    read = [parent for node in drawing for parent in (node, *node.all_input_nodes)]
    mode = detect_fake_mode([leaf for node in read for leaf in tree_leaves(node.meta.get("val"))])
    if mode is None:
        return None
    before = _copied(module)
    rewriting = _Rewriting(module, Emitter(module.graph, mode, table), draws_seed)
    for node in drawing:
        rewriting.replace(node)
    return before if rewriting.finish() else None


@dataclass(frozen=True)
class _Drawn:
    """The random op that a node calls.

    What is computed twice (`torch.utils.checkpoint`) is drawn twice: the first time the state of the generator is kept,
    which is the second one's `state`.
    """

    op: Any
    args: tuple[Any, ...]
    keeps: bool = False
    state: Node | None = None


def _drawn(node: Node) -> _Drawn:
    if node.target is _KEEPING:
        return _Drawn(node.args[0], node.args[1:], keeps=True)
    if node.target is _AGAIN:
        state, op, *args = node.args
        return _Drawn(op, tuple(args), state=state)
    return _Drawn(node.target, node.args)


def restores_states(module: GraphModule) -> bool:
    """Whether a graph draws again what was drawn from a state of the generator that it is given."""
    return any(node.target is _AGAIN for node in module.graph.nodes)


def _copied(module: GraphModule) -> GraphModule:
    graph, output = Graph(), module.graph.output_node()
    graph.output(graph.graph_copy(module.graph, {})).meta = dict(output.meta)
    return GraphModule(module, graph)


class _Rewriting:
    def __init__(self, module: GraphModule, emitter: Emitter, draws_seed: bool) -> None:
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
        """A seed as PyTorch traces it, in memory of its own."""
        with _disable_current_modes():
            return self._emitter.fake(torch.zeros((), dtype=torch.int64))

    def replace(self, node: Node) -> None:
        """Put what the rule of `node` says in its place, if it says anything; nothing where nobody reads it."""
        if not node.users:
            self._module.graph.erase_node(node)
            return
        drawn = _drawn(node)
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
            # What is drawn twice has a seed of its own, which is made of the graph's.
            kept = torch.ops.buddy.philox64.default(seed, self._streams, []) if drawn.keeps else None
            own = kept is not None or drawn.state is not None
            found = RULES[drawn.op](
                Bits(seed if kept is None else kept, 0 if own else self._streams, made), *args, **named
            )
        if found is NotImplemented:
            self._undo(before)
            return
        if drawn.state is None:
            self._streams += 1
        else:
            drawn.state.meta["val"] = self._form()
        if kept is None:
            self._put(node, found)
            return
        for picked in node.users:
            if picked.args[1] == 0:  # was the whole state of a generator
                picked.meta["val"] = self._form()
        self._put(node, (kept, found))

    def _value(self, node: Node, drawn: _Drawn) -> Any:
        """What the op gives: PyTorch notes nothing of what it keeps the generator's state for."""
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

    def _put(self, node: Node, found: Any) -> None:
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


# What these arguments ask for, the result says.
_OF_THE_RESULT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator"})


class Bits:
    """The random numbers of one node, whose result has the form of `made`, in the order of its memory."""

    def __init__(self, seed: torch.Tensor, stream: int, made: torch.Tensor) -> None:
        self._seed, self._stream, self.made, self.dtype = seed, stream, made, made.dtype

    def of_form(self, made: torch.Tensor) -> Bits:
        """As many numbers as `made` has elements."""
        return Bits(self._seed, self._stream, made)

    def words(self, word: int = 0) -> torch.Tensor:
        """Every int32 is as likely as every other. There are 4 words for each element, from 0."""
        return self._in_memory(lambda shape: torch.ops.buddy.philox32.default(self._seed, self._stream, shape, word))

    def doubles(self, pair: int = 0) -> torch.Tensor:
        """Every int64 is as likely as every other. There are 2 for each element, from 0, made of its 4 words."""
        return self._in_memory(lambda shape: torch.ops.buddy.philox64.default(self._seed, self._stream, shape, pair))

    def all(self, value: float) -> torch.Tensor:
        """The same number for each element."""
        return self._in_memory(lambda shape: torch.full(shape, value, dtype=self.dtype))

    def _in_memory(self, make: Callable[[list[Any]], torch.Tensor]) -> torch.Tensor:
        made = self.made
        if made.is_contiguous():
            return make(list(made.shape))
        strides = made.stride()
        order = sorted(range(made.dim()), key=lambda dim: -strides[dim])
        return make([made.shape[dim] for dim in order]).permute([order.index(dim) for dim in range(made.dim())])

    def fractions(self, number: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Multiples of a power of two from 0 on, below 1: as many as `dtype` has between 1/2 and 1, and as many again.

        In float32 at least. `number` tells those that are drawn for one element apart.
        """
        dtype = dtype or self.dtype
        digits = _DIGITS.get(dtype, 24)
        bits = self.doubles(number) if dtype == torch.float64 else self.words(number)
        return (bits & ((1 << digits) - 1)).to(_wide(dtype)) * 2.0**-digits

    def positive(self, number: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Above 0, and up to 1, in float32 at least and with all of its digits."""
        return 1 - self.fractions(number, _wide(dtype or self.dtype))

    def normal(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normally distributed, of mean 0 and deviation 1, in float32 at least (Box and Muller 1958)."""
        dtype = _wide(dtype or self.dtype)
        radius = (self.positive(0, dtype).log() * -2).sqrt()
        return radius * (self.fractions(1, dtype) * (2 * math.pi)).cos()

    def exponential(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Exponentially distributed, of mean 1, in float32 at least."""
        return -self.positive(0, dtype).log()

    def uniform(self, low: float, high: float) -> torch.Tensor:
        """From `low` on and below `high`, of the node's element type; `low` itself where there is nothing between."""
        found = self.fractions() * (high - low) + low
        if low == 0 and high == 1:
            return found
        with _disable_current_modes():
            last = torch.tensor(high, dtype=self.dtype).nextafter(torch.tensor(low, dtype=self.dtype)).item()
        return found.to(self.dtype).clamp_max(last)

    def below(self, count: Any) -> torch.Tensor:
        """Whole numbers from 0 on and below `count`, as int64: of it a fraction of 63 bits, or of 43 where it is small.

        So they are spread evenly; remainders would prefer the small ones where there are very many.
        """
        if isinstance(count, int) and count & (count - 1) == 0:
            bits = self.words().to(torch.int64) if count <= 1 << 32 else self.doubles()
            return bits & (count - 1)
        if isinstance(count, int) and count <= _SHORT:
            return ((self.doubles() & ((1 << 43) - 1)) * count) >> 43
        if not isinstance(count, int):
            return (self.doubles() & _GREATEST) % count  # a size, which is small beside 2**63
        return _times_fraction(self.doubles() & _GREATEST, count)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What is computed in where eager rounds once: whole numbers, and halves, are no exception."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _times_fraction(bits: torch.Tensor, count: int) -> torch.Tensor:
    """`bits * count >> 63` of numbers below 2**63: products of halves, whose sums wrap, but fit without a sign."""
    half = (1 << 32) - 1
    (high, low), (upper, lower) = (bits >> 32, bits & half), (count >> 32, count & half)
    middle = high * lower + low * upper + (((low * lower) >> 32) & half)
    return high * (2 * upper) + ((middle >> 31) & ((1 << 33) - 1))


def rule(*overloads: Any) -> Callable[[Rule], Rule]:
    """Have a function say what these ops are: it takes the node's `Bits`, then the arguments but those of the form."""

    def registered(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(overloads, function))
        return function

    return registered


# ---- floats ----------------------------------------------------------------------------------------------------------


@rule(aten.rand.default, aten.rand_like.default)
def rand(bits: Bits, _form: Any) -> torch.Tensor:
    return bits.fractions().to(bits.dtype)


@rule(aten.randn.default, aten.randn_like.default)
def randn(bits: Bits, _form: Any) -> torch.Tensor:
    return bits.normal().to(bits.dtype)


@rule(aten.uniform.default)
def uniform(bits: Bits, _like: Any, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return bits.uniform(low, high).to(bits.dtype) if low <= high and math.isfinite(high - low) else NotImplemented


@rule(aten.normal_functional.default)
def normal(bits: Bits, _like: Any, mean: float = 0.0, deviation: float = 1.0) -> torch.Tensor:
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.normal.float_float)
def normal_of_numbers(bits: Bits, mean: float, deviation: float, _size: Any) -> torch.Tensor:
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def normal_of_tensors(bits: Bits, mean: Any, deviation: Any = 1.0) -> torch.Tensor:
    if isinstance(deviation, torch.Tensor):
        _demand((deviation >= 0).all(), "normal expects all elements of std >= 0.0")
    mean, deviation = (v.to(_wide(v.dtype)) if isinstance(v, torch.Tensor) else v for v in (mean, deviation))
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.log_normal.default)
def log_normal(bits: Bits, _like: Any, mean: float = 1.0, deviation: float = 2.0) -> torch.Tensor:
    return (bits.normal() * deviation + mean).exp().to(bits.dtype)


@rule(aten.exponential.default)
def exponential(bits: Bits, _like: Any, rate: float = 1.0) -> torch.Tensor:
    return (bits.exponential() / rate).to(bits.dtype)


@rule(aten.cauchy.default)
def cauchy(bits: Bits, _like: Any, median: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    """By the cotangent, whose pole is at 0, where floats are finest; odd multiples of half a step never meet it."""
    wide = _wide(bits.dtype)
    digits = _DIGITS[wide] - 1
    drawn = bits.doubles() if wide == torch.float64 else bits.words()
    odd = ((drawn & ((1 << digits) - 1)) * 2 + (1 - (1 << digits))).to(wide)
    angle = odd * (math.pi / (1 << (digits + 1)))
    return (angle.cos() / angle.sin() * scale + median).to(bits.dtype)


@rule(aten.geometric.default)
def geometric(bits: Bits, _like: Any, p: float) -> torch.Tensor:
    """In double precision, so that no rounding of a logarithm makes another whole number of it."""
    if not 0 < p < 1:
        return NotImplemented
    fractions = ((bits.doubles() & ((1 << 52) - 1)).to(torch.float64) + 0.5) * 2.0**-52
    return (fractions.log() / math.log1p(-p)).ceil().to(bits.dtype)


@rule(aten.rrelu_with_noise_functional.default)
def rrelu(
    bits: Bits, x: torch.Tensor, noise: torch.Tensor, low: float = 1 / 8, high: float = 1 / 3, training: bool = False,
    _generator: Any = None,
) -> Any:  # fmt: skip
    if _generator is not None:
        return NotImplemented
    if not training:
        return aten.leaky_relu.default(x, (low + high) / 2), noise.clone()
    slopes = torch.where(x <= 0, bits.uniform(low, high).to(x.dtype), 1)
    return x * slopes, slopes


# ---- whole numbers and choices ---------------------------------------------------------------------------------------


@rule(aten.bernoulli.p)
def bernoulli_of_a_number(bits: Bits, _like: Any, p: float = 0.5) -> torch.Tensor:
    """Ones with probability `p`, to 32 bits."""
    if not 0 <= p <= 1:
        return NotImplemented
    ones = round(p * (1 << 32))
    if ones in (0, 1 << 32):
        return bits.all(float(ones != 0))
    return (bits.words() <= ones - 1 - (1 << 31)).to(bits.dtype)


@rule(aten.bernoulli.default)
def bernoulli(bits: Bits, p: torch.Tensor) -> torch.Tensor:
    return _bernoulli(bits, p)


@rule(aten.bernoulli.Tensor)
def bernoulli_like(bits: Bits, _like: Any, p: torch.Tensor) -> torch.Tensor:
    return _bernoulli(bits, p)


def _bernoulli(bits: Bits, p: torch.Tensor) -> torch.Tensor:
    _demand(((p >= 0) & (p <= 1)).all(), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    wide = _wide(p.dtype)
    return (bits.fractions(0, wide) < p.to(wide)).to(bits.dtype)


@rule(aten.randint.default)
def randint(bits: Bits, high: Any, _size: Any) -> torch.Tensor:
    return _between(bits, 0, high)


@rule(aten.randint.low)
def randint_from(bits: Bits, low: Any, high: Any, _size: Any) -> torch.Tensor:
    return _between(bits, low, high)


@rule(aten.randint_like.default)
def randint_like(bits: Bits, _like: Any, high: Any) -> torch.Tensor:
    return _between(bits, 0, high)


@rule(aten.randint_like.low_dtype, getattr(aten.random, "from"))
def randint_like_from(bits: Bits, _like: Any, low: Any, high: Any) -> torch.Tensor:
    return NotImplemented if high is None else _between(bits, low, high)


@rule(aten.random.to)
def random_to(bits: Bits, _like: Any, high: int) -> torch.Tensor:
    return _between(bits, 0, high)


@rule(aten.random.default)
def random(bits: Bits, _like: Any) -> torch.Tensor:
    """All whole numbers that the element type has from 0 on; of a float, those that it has all of."""
    greatest = 1 if bits.dtype == torch.bool else 1 << _DIGITS.get(bits.dtype, 0)
    if not bits.dtype.is_floating_point and bits.dtype != torch.bool:
        greatest = min(torch.iinfo(bits.dtype).max, _GREATEST)
    return _between(bits, 0, greatest + 1)


def _between(bits: Bits, low: Any, high: Any) -> torch.Tensor:
    count = high - low
    if isinstance(count, int) and not 0 < count <= 1 << 63:
        return NotImplemented
    found = bits.below(count)
    return (found + low if not isinstance(low, int) or low else found).to(bits.dtype)


@rule(aten.randperm.default)
def randperm(bits: Bits, _count: Any) -> torch.Tensor:
    """The order of as many random numbers: two of 64 bits are hardly ever equal."""
    return bits.doubles().sort()[1].to(bits.dtype)


@rule(aten.multinomial.default)
def multinomial(bits: Bits, weights: torch.Tensor, count: Any, replacement: bool = False) -> torch.Tensor:
    """In double precision, so that no rounding of a sum or of a quotient makes another choice of it.

    Without replacement by the least of exponential variables, as eager does it: what is first is drawn first.
    """
    message = "probability tensor contains either `inf`, `nan` or element < 0"
    _demand(((weights >= 0) & (weights < math.inf)).all(), message)
    _demand((weights.sum(-1) > 0).all(), "invalid multinomial distribution (sum of probabilities <= 0)")
    wide = weights.to(torch.float64)
    if replacement:
        sums = wide.cumsum(-1)
        places = bits.fractions(0, torch.float64) * sums[..., -1:]
        return torch.searchsorted(sums.contiguous(), places.contiguous(), right=True)
    chances = wide / bits.of_form(weights).exponential(torch.float64)
    return chances.topk(count, -1)[1]


def _demand(holds: torch.Tensor, message: str) -> None:
    aten._assert_async.msg(holds, message)
