"""What a program makes of roundings decides whether its results are right: no false alarms, and faults are seen."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.frontend.verify import _difference
from buddy.compiler.protocol import OutputReport
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram, graph_interpreter
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.compare import compare
from buddy.compiler.runtime.measure import compare_results, measure_peak
from buddy.compiler.runtime.sensitivity import (
    MAX_FURTHER_RUNS,
    MIN_ELEMENTS,
    MULTIPLE,
    further_spreads,
    measure_spreads,
)
from tests.models import WIDTH, Amplifying


def inputs() -> torch.Tensor:
    return torch.linspace(-2, 2, 32 * WIDTH).reshape(32, WIDTH).cos() * 4


def judged(results: list[torch.Tensor], captured: CapturedGraph) -> OutputReport:
    assert captured.eager is not None
    with torch.no_grad():
        (report,) = compare_results(captured, results, captured.eager(captured.tensors), equal_nan=False)
    assert report.checks or report.dtype == "int64"
    assert all(check.ok for check in report.checks) is (report.verdict == "ok"), "the checks are the rule that decided"
    return report


@pytest.fixture(scope="module")
def deep() -> CapturedGraph:
    with torch.no_grad():
        return capture(Amplifying().eval(), (inputs(),))[0]


def test_a_right_program_whose_roundings_grow_is_right(deep: CapturedGraph) -> None:
    artifact = Compiler(deep.graph).compile(default_recipe()).artifact
    report = judged(LoadedProgram(artifact)(deep.tensors), deep)
    assert report.max_abs > 2e-4  # far beyond what is allowed of float32 as such
    assert report.verdict == "ok"
    assert 0 < report.max_abs <= MULTIPLE * report.spread
    assert report.tolerance.endswith(f", at least {MULTIPLE * report.spread:.2g}")
    largest, rms = report.checks[:2]
    assert (largest.metric, largest.error) == ("max abs error", report.max_abs)
    assert largest.rule == f"4 x spread {report.spread:.1e}"
    assert largest.allowed == MULTIPLE * report.spread
    assert (rms.metric, rms.error) == ("rms error", report.rms)


def test_another_order_of_sums_is_right(deep: CapturedGraph) -> None:
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(1))
    model = Amplifying().eval()
    with torch.no_grad():
        for layer in model.layers:  # the same products, added in another order
            layer.forward = lambda x, layer=layer: nn.functional.linear(x[:, order], layer.weight[:, order], layer.bias)
        assert judged([model(inputs())], deep).verdict == "ok"


def drop_channel(model: Amplifying) -> None:
    model.layers[-1].weight[:, 7] = 0


def lose_edge_of_tile(model: Amplifying) -> None:
    model.layers[-1].weight[WIDTH - 1] = model.layers[-1].weight[WIDTH - 2]


def other_epsilon(model: Amplifying) -> None:
    model.norm.eps = 1e-3


def lose_bias(model: Amplifying) -> None:
    model.layers[-2].bias[3] = 0


def round_to_half(model: Amplifying) -> None:
    model.layers[-1].weight.copy_(model.layers[-1].weight.bfloat16())


def fault_of_last_layer(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Amplifying], None]:
    def plant(model: Amplifying) -> None:
        last = model.layers[-1].forward
        model.layers[-1].forward = lambda x: change(last(x))

    return plant


FAULTS = {
    "a channel of a product is lost": drop_channel,
    "the edge of a tile is another row's": lose_edge_of_tile,
    "layer norm's epsilon is another": other_epsilon,
    "an element of a bias is lost": lose_bias,
    "weights are rounded to bfloat16": round_to_half,
    "one element is zero": fault_of_last_layer(lambda x: x.index_fill(1, torch.tensor([5]), 0.0)),
    "rows are exchanged": fault_of_last_layer(lambda x: x.roll(1, 0)),
    "a sign is flipped": fault_of_last_layer(lambda x: torch.cat([x[:, :1].neg(), x[:, 1:]], 1)),
    # Of 24; what the layers before make of their roundings is already as large as 11 bits.
    "truncated to 9 bits": fault_of_last_layer(lambda x: (x.view(torch.int32) & -(1 << 15)).view(torch.float32)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_deep_program_is_wrong(deep: CapturedGraph, name: str) -> None:
    model = Amplifying().eval()
    with torch.no_grad():
        FAULTS[name](model)
        report = judged([model(inputs())], deep)
    assert report.verdict == "mismatch"
    assert report.spread > 0


def test_a_program_is_run_in_double_precision_once_and_only_where_it_has_to_be() -> None:
    captured = capture(lambda x: x.sum(1), (torch.linspace(0, 1, 64).reshape(4, 16),))[0]
    assert captured.eager is not None
    right = captured.eager(captured.tensors)
    assert judged(right, captured).spread == -1
    assert captured.spreads is None
    assert judged([right[0] + 1], captured).verdict == "mismatch"
    assert captured.spreads is not None
    assert measure_spreads(captured, right) is captured.spreads


def test_what_is_no_float_has_to_be_equal_and_infinities_are_never_a_matter_of_rounding() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.argmax(1), x * 2

    captured = capture(two, (torch.linspace(0, 1, 64).reshape(4, 16),))[0]
    assert captured.eager is not None
    places, doubled = captured.eager(captured.tensors)
    infinite = doubled.clone()
    infinite[0, 0] = torch.inf
    told = compare_results(captured, [places + 1, infinite], [places, doubled], equal_nan=False)
    assert [report.verdict for report in told] == ["mismatch", "mismatch"]
    assert told[0].tolerance == "equal"


def test_a_program_that_is_not_the_same_twice_has_no_right_result(deep: CapturedGraph) -> None:
    calls = iter(range(100))

    @torch.library.custom_op("sensitivity::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        return x + next(calls)

    counted.register_fake(torch.empty_like)
    captured = capture(lambda x: torch.ops.sensitivity.counted(x), (torch.ones(3),))[0]
    assert captured.eager is not None
    results = captured.eager(captured.tensors)
    report = judged(results, captured)
    assert report.verdict == "mismatch"
    assert report.spread >= 1


def test_verifying_allows_the_same(deep: CapturedGraph) -> None:
    assert deep.eager is not None
    with torch.no_grad():
        expected = deep.eager(deep.tensors)
        further = (further_spreads(deep, seed)[0].rms for seed in range(MAX_FURTHER_RUNS))
        largest = max(measure_spreads(deep, expected)[0].rms, *further)
        for times, is_right in ((0.9, True), (1.1, False)):
            moved = [expected[0] + MULTIPLE * times * largest]
            assert _difference(moved, expected) is not None
            assert (_difference(moved, expected, deep) is None) is is_right


class Choosing(nn.Module):
    """Each number stands twice, the second time a rounding larger; `choose` takes positions among them."""

    def __init__(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.choose = Amplifying(), choose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return self.choose(torch.cat([y, y * (1 + 1e-6)], -1))


CHOOSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "argmax": lambda y: y.argmax(-1),
    "argmin": lambda y: y.argmin(-1, keepdim=True),
    "max": lambda y: y.max(-1)[1],
    "topk": lambda y: y.topk(3, -1)[1],
    "sort": lambda y: y.sort(-1)[1],
    "argmax of all": lambda y: y.argmax(),
}


@pytest.mark.parametrize("name", CHOOSE)
def test_of_two_numbers_that_roundings_tell_apart_either_may_be_chosen(name: str) -> None:
    with torch.no_grad():
        captured = capture(Choosing(CHOOSE[name]).eval(), (inputs(),))[0]
        assert captured.eager is not None
        (eager,) = captured.eager(captured.tensors)
    other = eager + torch.where(eager % (2 * WIDTH) < WIDTH, WIDTH, -WIDTH)
    assert judged([other], captured).verdict == "ok"
    assert judged([eager], captured).tolerance != judged([other], captured).tolerance
    far = other.clone()
    far.view(-1)[0] = (far.view(-1)[0] + 7) % WIDTH
    assert judged([far], captured).verdict == "mismatch"
    outside = other + 1000000
    assert judged([outside], captured).verdict == "mismatch"
    assert _difference([other], [eager], captured) is None
    assert _difference([far], [eager], captured) is not None
    if eager.dim() and eager.shape[-1] == 3:
        twice = other.clone()
        twice[:, 1] = twice[:, 0]
        assert judged([twice], captured).verdict == "mismatch"


def test_positions_of_numbers_without_roundings_are_exact() -> None:
    x = torch.tensor([1.0, 3.0, 3.0, 2.0])
    with torch.no_grad():
        captured = capture(lambda x: x.argmax(), (x,))[0]
    assert judged([torch.tensor(1)], captured).verdict == "ok"
    assert judged([torch.tensor(2)], captured).verdict == "mismatch"


def test_of_numbers_that_are_equal_in_any_precision_the_first_is_chosen() -> None:
    def twice(y: torch.Tensor) -> torch.Tensor:
        return torch.cat([y, y], -1).argmax(-1)

    with torch.no_grad():
        captured = capture(Choosing(lambda y: twice(y[:, :WIDTH])).eval(), (inputs(),))[0]
        assert captured.eager is not None
        (eager,) = captured.eager(captured.tensors)
    assert bool((eager < WIDTH).all())
    assert judged([eager + WIDTH], captured).verdict == "mismatch"


# ---- results within the tolerance of their element type --------------------------------------------------------------


@pytest.fixture(scope="module")
def shallow() -> CapturedGraph:
    """A layer whose errors are a hundredth of what float32 is allowed."""
    torch.manual_seed(0)
    with torch.no_grad():
        return capture(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()).eval(), (torch.randn(32, WIDTH),))[0]


def moved(captured: CapturedGraph, by: Callable[[torch.Tensor], torch.Tensor]) -> OutputReport:
    """The report on eager's result after a change that float32's own tolerance allows."""
    assert captured.eager is not None
    with torch.no_grad():
        (eager,) = captured.eager(captured.tensors)
    result = by(eager.double()).to(eager.dtype)
    assert compare("", result, eager).verdict == "ok"
    return judged([result], captured)


def test_a_fault_that_moves_all_elements_a_little_is_wrong(shallow: CapturedGraph) -> None:
    report = moved(shallow, lambda y: y * (1 + 6e-6))
    assert report.verdict == "mismatch"
    assert report.rms > MULTIPLE * report.spread_rms
    assert report.tolerance.startswith("4 x spread: ")
    assert report.where


def test_a_fault_of_one_channel_is_wrong_that_neither_all_elements_nor_the_worst_show(shallow: CapturedGraph) -> None:
    shift = torch.zeros(WIDTH, dtype=torch.float64)
    shift[5] = 3e-6
    report = moved(shallow, lambda y: y + shift)
    spread = report.spread_rms
    assert report.verdict == "mismatch"
    assert report.rms < MULTIPLE * spread < 3e-6
    (failed,) = [check for check in report.checks if not check.ok]
    assert failed.metric == "rms error of [:, 5]"
    assert failed.error == pytest.approx(3e-6, rel=0.1)


def test_a_few_roundings_are_right_without_a_run_in_double_precision(shallow: CapturedGraph) -> None:
    shallow.spreads = None
    report = moved(shallow, lambda y: y * (1 + 2e-7))
    assert report.verdict == "ok"
    assert shallow.spreads is None
    assert [check.rule.partition(" x ")[0] for check in report.checks] == ["1.1e-06", "1.1e-06"]


def test_results_of_few_numbers_are_judged_by_their_element_types_tolerance() -> None:
    with torch.no_grad():
        captured = capture(lambda x: x.sin().sum(1), (torch.randn(MIN_ELEMENTS - 1, 100),))[0]
    report = moved(captured, lambda y: y * (1 + 4e-6))
    assert report.verdict == "ok"
    (check,) = report.checks
    assert re.fullmatch(r"1e-05 x max\(1, rms \d\.\d+\) \+ 1\.3e-06 x \|eager\|", check.rule)
    assert re.fullmatch(r"abs error at \[\d+\]", check.metric)
    assert 0 < check.error <= report.max_abs


def test_the_greatest_relative_error_says_where_it_is(shallow: CapturedGraph) -> None:
    near_zero = {}

    def shift(y: torch.Tensor) -> torch.Tensor:
        place = int(torch.where(y.abs() > 1e-5, y.abs(), 1.0).argmin())
        near_zero.update(where=str([place // WIDTH, place % WIDTH]), size=float(y.abs().reshape(-1)[place]))
        y.reshape(-1)[place] += 2e-6
        return y

    report = moved(shallow, shift)
    assert report.verdict == "ok"
    assert (report.rel_where, report.rel_floor) == (near_zero["where"], 1e-5)
    assert report.rel_size == pytest.approx(near_zero["size"])
    assert report.max_rel == pytest.approx(2e-6 / near_zero["size"], rel=0.1)


def test_the_bits_that_a_program_reads_are_those_of_its_element_type() -> None:
    def to_twelve_bits(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().view(torch.int32) & -(1 << 12)).view(torch.float32) + 1

    with torch.no_grad():
        captured = capture(to_twelve_bits, (torch.randn(32, WIDTH),))[0]
        assert captured.eager is not None
        (spread,) = measure_spreads(captured, captured.eager(captured.tensors))
    assert spread.largest < 2**-10  # the last of twelve bits, where a sine is rounded to another number
    assert not spread.is_complete


def test_programs_with_an_op_without_double_precision_are_judged_by_it_too() -> None:
    @torch.library.custom_op("sensitivity::single_only", mutates_args=())
    def single_only(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("float32 only")
        return x.sin()

    single_only.register_fake(torch.empty_like)
    with torch.no_grad():
        captured = capture(lambda x: torch.ops.sensitivity.single_only(x) + 1, (torch.randn(32, WIDTH),))[0]
    report = moved(captured, lambda y: y * (1 + 4e-6))
    assert report.verdict == "ok"
    assert captured.spreads is not None
    assert not captured.spreads[0].is_complete


class Wide(nn.Module):
    """An embedding and a product, whose weights have 16 times the size of what is converted at once."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8192, 1024), nn.Linear(1024, 8100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x))


@pytest.fixture(scope="module")
def wide() -> CapturedGraph:
    with torch.no_grad():
        return capture(Wide().eval(), (torch.arange(8),))[0]


def test_large_weights_are_not_copied_to_double_precision_at_once(wide: CapturedGraph) -> None:
    assert wide.eager is not None
    expected = wide.eager(wide.tensors)
    for measured in (lambda: measure_spreads(wide, expected), lambda: further_spreads(wide, 0)):
        found, peak = measure_peak(measured)
        assert found
        assert peak <= 1.0 * sum(tensor.nbytes for tensor in wide.tensors)


def test_blocks_of_columns_have_the_result_of_the_whole_product(
    wide: CapturedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wide.eager is not None
    measure_spreads(wide, wide.eager(wide.tensors))
    monkeypatch.setattr(graph_interpreter, "_MAX_WIDE_BYTES", 1 << 40)
    whole = graph_interpreter.LockstepInterpreter(wide.graph, wide.tensors, {}, (), "float64").finish()
    torch.testing.assert_close(wide.exact_results, whole, rtol=1e-12, atol=1e-12)
