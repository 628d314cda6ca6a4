"""Random ops as compiled code: Philox, eager's distributions from a seed drawn at each call, and what reads them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.frontend.distributions import DISTRIBUTION_RULES
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.runtime.torch_ops import philox

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("error:a graph of")]

F = nn.functional
aten = torch.ops.aten
COUNT = 20_000
X = torch.linspace(0.05, 0.95, 24).reshape(4, 6)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Whole, and with no node in eager."""
    return torch.compile(function, backend="buddy", fullgraph=True, options={"fallback": "error", **options})


def from_seed(seed: int, function: Callable[..., Any], *args: torch.Tensor) -> Any:
    torch.manual_seed(seed)
    return function(*args)


# ---- the generator ---------------------------------------------------------------------------------------------------

# The known answers for philox4x32-10 of Random123 (examples/kat_vectors): counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_known_answers(counter: str, key: str, result: str) -> None:
    def words(text: str) -> list[torch.Tensor]:
        return [torch.tensor(int(word, 16)) for word in text.split()]

    assert list(philox(words(counter), words(key))) == words(result)


def test_compiled_bits_are_those_of_the_reference() -> None:
    """All words of all blocks, under seeds whose halves have a sign bit, and for elements and streams of any number."""

    def bits(seed: torch.Tensor) -> list[torch.Tensor]:
        of_words = [torch.ops.buddy.philox32(seed, 7, [3, 5, 7], word) for word in range(4)]
        return [*of_words, *(torch.ops.buddy.philox64(seed, 1 << 31, [67], pair) for pair in range(2))]

    run = compiled(bits)
    for number in (0, -1, 0x299F31D0A4093822, -(1 << 63), 0x80000000):
        seed = torch.tensor(number)
        torch.testing.assert_close(run(seed), bits(seed))
    first = [int(torch.ops.buddy.philox32(torch.tensor(0), 0, [1], word)) & 0xFFFFFFFF for word in range(4)]
    assert first == [int(word, 16) for word in KNOWN[0][2].split()]


# ---- distributions ---------------------------------------------------------------------------------------------------


def normal(x: torch.Tensor) -> torch.Tensor:
    return (1 + torch.erf(x / math.sqrt(2))) / 2


Draw = Callable[[torch.Tensor], torch.Tensor]
# What is drawn in the form of a tensor, and the distribution function; the numbers lie from the first end on, and below
# the other one where that is finite.
CONTINUOUS: dict[str, tuple[Draw, Draw, float, float]] = {
    "rand": (torch.rand_like, lambda x: x, 0, 1),
    "uniform_": (lambda x: x.clone().uniform_(1, 3), lambda x: (x - 1) / 2, 1, 3),
    "randn": (torch.randn_like, normal, -math.inf, math.inf),
    "normal_": (lambda x: x.clone().normal_(1, 2), lambda x: normal((x - 1) / 2), -math.inf, math.inf),
    "normal": (lambda x: torch.normal(x, x + 2), lambda x: normal(x / 2), -math.inf, math.inf),
    "exponential_": (lambda x: x.clone().exponential_(2), lambda x: 1 - torch.exp(-2 * x), 0, math.inf),
    "cauchy_": (lambda x: x.clone().cauchy_(0, 2), lambda x: 0.5 + torch.atan(x / 2) / math.pi, -math.inf, math.inf),
    "log_normal_": (lambda x: x.clone().log_normal_(0, 0.5), lambda x: normal(x.log() * 2), 0, math.inf),
    "rrelu": (lambda x: -F.rrelu(x - 1, 0.25, 0.75, training=True), lambda x: (x - 0.25) * 2, 0.25, 0.75),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_continuous_distributions_are_eagers(dtype: torch.dtype) -> None:
    """By the test of Kolmogorov and Smirnov, which such a difference fails once in a thousand; all in one graph."""

    def draw(x: torch.Tensor) -> list[torch.Tensor]:
        return [draw(x) for draw, *_ in CONTINUOUS.values()]

    samples = from_seed(1, compiled(draw), torch.zeros(COUNT, dtype=dtype))
    # A number of few digits stands for all around it.
    bound = 1.95 / math.sqrt(COUNT) + torch.finfo(dtype).eps
    for (name, (_, distribution, low, high)), sample in zip(CONTINUOUS.items(), samples, strict=True):
        assert (sample.dtype, sample.shape) == (dtype, (COUNT,)), name
        assert low <= sample.min(), name
        assert sample.max() < high or high == math.inf, name
        if dtype != torch.float16:
            assert bool(sample.isfinite().all()), name
        assert largest_distance(sample.double(), distribution) < bound, name
    narrow = [sample.double() for name, sample in zip(CONTINUOUS, samples, strict=True) if name != "cauchy_"]
    found = torch.corrcoef(torch.stack(narrow))
    assert float((found - torch.eye(len(found))).abs().max()) < 4 / math.sqrt(COUNT)


def largest_distance(sample: torch.Tensor, distribution: Draw) -> float:
    """Between the share of a sample up to each of its numbers, half of those equal to it, and the distribution."""
    values, counts = sample.unique(return_counts=True)
    share = (counts.cumsum(0) - counts / 2) / len(sample)
    return float((share - distribution(values)).abs().max())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_the_parts_of_complex_numbers_are_drawn_from_eagers_distributions(dtype: torch.dtype) -> None:
    """As eager, normal parts have half the variance of the number. Both parts, and the order in memory, are checked."""
    draws: dict[str, tuple[Draw, Draw]] = {
        "rand": (torch.rand_like, lambda x: x),
        "uniform_": (lambda x: x.clone().uniform_(1, 3), lambda x: (x - 1) / 2),
        "randn": (torch.randn_like, lambda x: normal(x * math.sqrt(2))),
        "normal_": (lambda x: x.clone().normal_(0, 2), lambda x: normal(x / math.sqrt(2))),
    }

    def draw(x: torch.Tensor) -> list[torch.Tensor]:
        return [draw(x) for draw, _ in draws.values()] + [x.clone().normal_(5), torch.randn(3, dtype=dtype)]

    like = torch.zeros(2, COUNT // 2, dtype=dtype).T
    *samples, shifted, few = from_seed(1, compiled(draw), like)
    bound = 1.95 / math.sqrt(COUNT)
    for (name, (_, distribution)), sample in zip(draws.items(), samples, strict=True):
        assert (sample.dtype, sample.shape, sample.stride()) == (dtype, like.shape, like.stride()), name
        for part in (sample.real, sample.imag):
            assert largest_distance(part.double().flatten(), distribution) < bound, name
        both = torch.stack([sample.real.flatten(), sample.imag.flatten()])
        assert both.corrcoef()[0, 1].abs() < 4 / math.sqrt(COUNT), name
    assert abs(shifted.real.mean() - 5) < 0.1
    assert abs(shifted.imag.mean()) < 0.1
    assert (few.dtype, few.shape) == (dtype, (3,))


P = [0.1, 0.0, 0.4, 0.2, 0.3]
INTEGERS = (torch.int64, torch.int32, torch.uint8)
# What is drawn, and the chance of each number from 0 on.
DISCRETE: dict[str, tuple[Callable[[], torch.Tensor], list[float]]] = {
    "randint": (lambda: torch.randint(2, 5, (COUNT,)), [0, 0, 1 / 3, 1 / 3, 1 / 3]),
    "randint to a power of two": (lambda: torch.randint(8, (COUNT,)), [1 / 8] * 8),
    "randint of floats": (lambda: torch.randint(3, (COUNT,), dtype=torch.float16), [1 / 3] * 3),
    "randint_like": (lambda: torch.randint_like(torch.zeros(COUNT), 1, 3), [0, 1 / 2, 1 / 2]),
    "randint of some": (lambda: torch.randint(3 << 30, (COUNT,)) >> 30, [1 / 3] * 3),
    "randint of many": (lambda: torch.randint(3 << 40, (COUNT,)) >> 40, [1 / 3] * 3),
    "randint of many, negative": (lambda: torch.randint(-(3 << 60), 0, (COUNT,)) // (1 << 60) + 3, [1 / 3] * 3),
    "bernoulli of a number": (lambda: torch.zeros(COUNT).bernoulli_(0.3), [0.7, 0.3]),
    "bernoulli": (lambda: torch.bernoulli(torch.full((COUNT,), 0.3)), [0.7, 0.3]),
    "bernoulli of doubles": (lambda: torch.bernoulli(torch.full((COUNT,), 0.3, dtype=torch.float64)), [0.7, 0.3]),
    "bernoulli of halves": (lambda: torch.bernoulli(torch.full((COUNT,), 0.25, dtype=torch.bfloat16)), [0.75, 0.25]),
    "bernoulli_ of tensors": (lambda: torch.zeros(COUNT).int().bernoulli_(torch.full((COUNT,), 0.3)), [0.7, 0.3]),
    "dropout": (lambda: F.dropout(torch.ones(COUNT), 0.5) / 2, [0.5, 0.5]),
    "geometric_": (lambda: torch.zeros(COUNT).geometric_(0.5).clamp(max=4), [0, 1 / 2, 1 / 4, 1 / 8, 1 / 8]),
    "geometric_ of integers": (lambda: torch.zeros(COUNT).long().geometric_(0.9).clamp(max=3), [0, 0.9, 0.09, 0.01]),
    "multinomial": (lambda: torch.multinomial(torch.tensor(P).expand(COUNT // 50, 5), 50, replacement=True), P),
    "multinomial of a vector": (lambda: torch.multinomial(torch.tensor(P), COUNT, replacement=True), P),
    "first of a multinomial": (lambda: torch.multinomial(torch.tensor(P).expand(COUNT, 5), 2)[:, 0], P),
    "first of a permutation": (lambda: torch.stack([torch.randperm(4) for _ in range(4)]), [1 / 4] * 4),
    **{str(dtype): (lambda dtype=dtype: torch.randint(4, (COUNT,), dtype=dtype), [1 / 4] * 4) for dtype in INTEGERS},
}  # fmt: skip


@pytest.mark.slow
def test_discrete_distributions_are_eagers() -> None:
    """By Pearson's test: the sum's mean is the degrees of freedom, its variance twice that; all in one graph."""

    def draw(x: torch.Tensor) -> list[torch.Tensor]:
        return [draw() for draw, _ in DISCRETE.values()]

    for (name, (ours, chances)), sample in zip(DISCRETE.items(), from_seed(2, compiled(draw), X), strict=True):
        eagers = ours()
        assert (sample.dtype, sample.shape) == (eagers.dtype, eagers.shape), name
        numbers = sample.flatten().to(torch.int64)
        found = numbers.bincount(minlength=len(chances)).double()
        expected = torch.tensor(chances, dtype=torch.float64) * len(numbers)
        assert len(found) == len(chances), name
        assert not found[expected == 0].any(), name
        square = ((found - expected) ** 2 / expected)[expected > 0].sum()
        freedom = sum(chance > 0 for chance in chances) - 1
        assert float(square) < freedom + 4.5 * math.sqrt(2 * freedom), name


def test_ends_of_ranges_are_exact() -> None:
    def draw(x: torch.Tensor) -> list[torch.Tensor]:
        zeros, ones = torch.zeros(COUNT), torch.ones(COUNT)
        return [
            zeros.bernoulli_(0.0), ones.bernoulli_(1.0), torch.bernoulli(x[0, 0] * torch.zeros(COUNT)),
            torch.bernoulli(torch.ones(COUNT)), F.dropout(torch.ones(COUNT), 1.0), F.dropout(torch.ones(COUNT), 0.0),
            torch.ones(COUNT).uniform_(1, 1), torch.randint(5, 6, (COUNT,)), torch.randn(0, 3), torch.randperm(0),
        ]  # fmt: skip

    found = from_seed(0, compiled(draw), X)
    for index, value in enumerate((0, 1, 0, 1, 0, 1, 1, 5)):
        assert bool((found[index] == value).all()), index
    assert [list(value.shape) for value in found[8:]] == [[0, 3], [0]]


def test_a_permutation_has_each_number_once_and_a_choice_none_twice() -> None:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randperm(1000), torch.multinomial(x, 6)

    order, choice = from_seed(0, compiled(draw), X)
    assert torch.equal(order.sort()[0], torch.arange(1000))
    assert not torch.equal(order, torch.arange(1000))
    assert torch.equal(choice.sort(-1)[0], torch.arange(6).expand(4, 6))


REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "a chance above 1": (lambda x: torch.bernoulli(x * 2), "p_in"),
    "a negative deviation": (lambda x: torch.normal(x, -x), "std"),
    "a negative weight": (lambda x: torch.multinomial(-x, 2), "element < 0"),
    "no weight": (lambda x: torch.multinomial(x * 0, 2), "sum of probabilities <= 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_raises(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=message):
        function(X)
    with pytest.raises(RuntimeError, match=message):
        compiled(function)(X)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.randint(0, 300, (2,), dtype=torch.uint8) + x.sum(), "out of bounds for unsigned char"),
        (lambda x: torch.randint(-10, 10**6, (2,), dtype=torch.float16) + x.sum(), "out of bounds"),
        (lambda x: torch.multinomial(x, 0), "n_sample <= 0"),
        (lambda x: torch.multinomial(x, 0, replacement=True), "n_sample <= 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:a graph of")
def test_numbers_that_eager_refuses_are_left_to_it(function: Callable[..., torch.Tensor], message: str) -> None:
    for run in (function, torch.compile(function, backend="buddy")):
        with pytest.raises(RuntimeError, match=message):
            run(X)


# ---- seeds and streams -----------------------------------------------------------------------------------------------


_OF_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": torch.bernoulli,
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "normal": lambda x: torch.normal(x, 1.0),
    "normal with deviations": lambda x: torch.normal(0.0, x),
    "normal_": lambda x: x.clone().normal_(),
    "uniform_": lambda x: x.clone().uniform_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "geometric_": lambda x: x.clone().geometric_(0.5),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "random_": lambda x: x.clone().random_(0, 2),
    "multinomial": lambda x: torch.multinomial(x, 1),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 2),
    "randperm": lambda x: torch.randperm(300, dtype=x.dtype),
    "dropout": lambda x: nn.functional.dropout(x, 0.5),
    "rrelu": lambda x: nn.functional.rrelu(x, training=True),
}
_TYPES = [
    torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint8,
    torch.int8, torch.int64, torch.uint16,
]  # fmt: skip


@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_element_types_that_eager_refuses_are_refused_and_others_are_eagers(dtype: torch.dtype) -> None:
    x = torch.ones(2).to(dtype)
    for name, draw in _OF_TENSORS.items():
        if (name, dtype) == ("rrelu", torch.float16):
            continue  # eager has it on GPUs alone
        run = torch.compile(draw, backend="buddy")  # with graph breaks: Dynamo traces no `random_`
        try:
            expected = draw(x).dtype
        except RuntimeError:
            with pytest.raises(RuntimeError):
                print(f"{name} is computed: {run(x)}")
        else:
            assert run(x).dtype == expected, name


def noise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(500) + x[0, 0] * 0, torch.rand(500)


def test_a_seed_repeats_results_and_each_call_differs() -> None:
    run = compiled(noise)
    first, second = from_seed(5, run, X), run(X)
    torch.testing.assert_close(from_seed(5, run, X), first, rtol=0, atol=0)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], from_seed(6, run, X)[0])
    together = torch.stack([*first, *second])
    assert float((torch.corrcoef(together) - torch.eye(4)).abs().max()) < 4 / math.sqrt(500)


def test_a_call_draws_one_number_from_the_default_generator() -> None:
    run = compiled(noise)
    run(X)
    torch.manual_seed(0)
    run(X)
    ours = torch.rand(3)
    torch.manual_seed(0)
    torch.randint(-(1 << 63), (1 << 63) - 1, ())
    torch.testing.assert_close(ours, torch.rand(3), rtol=0, atol=0)


def test_no_random_op_is_left_and_every_node_has_a_stream() -> None:
    def several(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.exp(), 0.4).sin() + torch.rand_like(x) + torch.randn(4, 1)

    (captured,) = capture(several, (X,))
    assert not [a for a in Compiler(captured.graph).assignments(default_recipe()) if a.lowering == EAGER]
    assert captured.seed == 1
    assert captured.graph.placeholders[1].stable == "random_seed"
    streams = re.findall(r"philox32.default\(.*?, (\d+),", captured.code)
    assert sorted(set(streams)) == ["0", "1", "2"], captured.code
    assert captured.eager_to_time is not None
    assert captured.eager_to_time(captured.tensors)[0].shape == (4, 6)


def test_ops_with_a_rule_are_ops_that_draw() -> None:
    assert all(torch.Tag.nondeterministic_seeded in overload.tags for overload in DISTRIBUTION_RULES)


def test_numbers_lie_in_memory_as_eagers_do() -> None:
    def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x.t()), torch.bernoulli(x.t()), F.dropout(x.t(), 0.5)

    for ours, theirs in zip(compiled(turned)(X), turned(X), strict=True):
        assert ours.stride() == theirs.stride()


def test_of_any_size() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) * 0 + torch.rand(x.shape[1]) + torch.randint(x.shape[0], x.shape)

    run = torch.compile(noisy, backend="buddy", fullgraph=True, dynamic=True, options={"fallback": "error"})
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (40, 30, 61):
            whole, fraction = from_seed(1, run, torch.ones(rows, 1000)).aminmax()
            assert 0 <= whole < 0.01
            assert rows - 0.01 < fraction < rows


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.3, 0.75])
def test_gradients_go_through_what_was_kept(p: float) -> None:
    x = torch.ones(64, 64, requires_grad=True)
    result = from_seed(0, compiled(lambda x: F.dropout(x * 2, p) * 3), x)
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, result.detach())
    assert 0 < int((x.grad == 0).sum()) < x.numel()


def test_gradients_of_other_draws() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(x) * x + torch.normal(x, 1.0) * 0 + F.rrelu(-x, training=True)

    x = torch.ones(64, requires_grad=True)
    result = compiled(noisy)(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, result.detach())  # it is linear in x > 0


def test_a_checkpointed_part_is_computed_with_the_same_mask_again() -> None:
    layer = nn.Linear(32, 32, bias=False)

    def part(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(layer(x).relu(), 0.5)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sum()

    x = torch.randn(16, 32, requires_grad=True)
    result = from_seed(0, compiled(whole), x)
    result.backward()
    assert x.grad is not None
    torch.testing.assert_close((x.grad * x).sum(), result)  # linear, where the mask stays and no sign changes


# ---- eager's own stream, and scripts ---------------------------------------------------------------------------------


def test_fallback_random_gives_eagers_numbers() -> None:
    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand(3, 4) + x[0, 0], F.dropout(x, 0.5), torch.randperm(7)

    run = torch.compile(several, backend="buddy", options={"fallback_random": True})
    for ours, theirs in zip(from_seed(3, run, X), from_seed(3, several, X), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    with pytest.raises(Exception, match="fallback_random is 'yes'; it may be True"):
        compiled(several, fallback_random="yes")(X)


def test_a_generator_of_ones_own_is_eagers() -> None:
    generator = torch.Generator()

    def own(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(3, generator=generator) + x.sum()

    generator.manual_seed(1)
    expected = own(X)
    generator.manual_seed(1)
    torch.testing.assert_close(torch.compile(own, backend="buddy")(X), expected)


@pytest.mark.parametrize("by", ["importer", "importer_by_export"])
def test_an_imported_graph_has_a_seed_that_a_script_may_give(by: str) -> None:
    compiler = DynamoCompiler()
    (graph,) = getattr(compiler, by)(lambda x: F.dropout(x + 1, 0.5), X)
    assert len(graph.inputs) == 2
    run = compiler.dynamo_run()
    (first,), (second,) = run(X), run(X)
    assert not torch.equal(first, second)
    (one,), (other,) = run(X, torch.tensor(4)), run(X, torch.tensor(4))
    assert torch.equal(one, other)


def branching(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5) + torch.rand(64), lambda x: x * 2, (x,))


def repeated(x: torch.Tensor) -> torch.Tensor:
    def more(count: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return count + 1, torch.cat([x[1:], torch.rand(1)])

    return torch._higher_order_ops.while_loop(lambda count, _: count < 6, more, (torch.tensor(0), x))[1]


@pytest.mark.parametrize("function", [branching, repeated], ids=lambda f: f.__name__)
def test_branches_and_bodies_draw_a_seed_each_time(function: Callable[..., Any]) -> None:
    run, x = compiled(function, verify=True), torch.ones(64)
    first, second = from_seed(4, run, x), run(x)
    assert not torch.equal(first, second)
    torch.testing.assert_close(from_seed(4, run, x), first, rtol=0, atol=0)
    assert len(first[-6:].unique()) == 6
