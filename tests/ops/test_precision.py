"""Products in a reduced precision equal the same arithmetic in plain PyTorch; weights are rounded before the calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from buddy.compiler.driver.compilation import Compilation
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Precision, Recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.executable import LoadedProgram
from tests.programs import Line, without

Products = Callable[..., torch.Tensor]


def bfloat16(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`x` [m, k] times the transpose of `w` [n, k]."""
    return x.bfloat16().float() @ w.bfloat16().float().t()


def pairs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (x_high, x_low), (w_high, w_low) = split(x), split(w)
    return x_high @ w_high.t() + (x_high @ w_low.t() + x_low @ w_high.t())


def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` as the sum of two bfloat16."""
    high = x.bfloat16().float()
    return high, (x - high).bfloat16().float()


def to_integers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers by row, and the scale of each row."""
    scale = (x.abs().amax(1) if x.shape[1] else torch.zeros(x.shape[0])) / 127
    steps = torch.round(x / scale[:, None])
    return torch.where(steps.isnan(), 0.0, steps.clamp(-127, 127)).to(torch.int8), scale


def dynamic_integers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (x_steps, x_scale), (w_steps, w_scale) = to_integers(x), to_integers(w)
    sums = x_steps.to(torch.int32) @ w_steps.to(torch.int32).t()
    return sums.float() * x_scale[:, None] * w_scale


def integer_weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    steps, scale = to_integers(w)
    return (x @ steps.float().t()) * scale


def grouped_weights(x: torch.Tensor, w: torch.Tensor, group_size: int = 128) -> torch.Tensor:
    groups = w.unflatten(1, (-1, group_size))
    scale = groups.abs().amax(2, keepdim=True) / 7
    return x @ (torch.round(groups / scale).nan_to_num().clamp(-7, 7) * scale).flatten(1).t()


REFERENCES: dict[Precision, Products] = {
    "bf16x3": pairs, "bf16": bfloat16, "int8-dynamic": dynamic_integers, "int8-weights": integer_weights,
}  # fmt: skip
PRECISIONS = list(REFERENCES)


def in_precision(precision: Precision, recipe: Recipe | None = None) -> Recipe:
    return replace(recipe or default_recipe(), precision=precision)


def results(line: Line, compilation: Compilation) -> list[torch.Tensor]:
    return LoadedProgram(compilation.artifact, frozen=True)(line.program.tensors, line.program.numbers)


def computed(function: Callable[..., Any], *inputs: torch.Tensor, precision: Precision) -> torch.Tensor:
    """The one result of a program whose products are all computed in `precision`."""
    line = Line(function, *inputs)
    compilation = line.compile(in_precision(precision))
    products = [a for a in compilation.assignments if a.multiplies]
    assert {a.precision for a in products} == {precision}
    (result,) = results(line, compilation)
    return result


def assert_equal(ours: torch.Tensor, reference: torch.Tensor, precision: Precision) -> None:
    """Integers and their scales have the same bits; sums in f32 differ by their order."""
    if precision == "int8-dynamic":
        assert torch.equal(ours.isnan(), reference.isnan())
        assert torch.equal(ours.nan_to_num(), reference.nan_to_num())
    else:
        torch.testing.assert_close(ours, reference, equal_nan=True)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("m", "k", "n"), [(128, 768, 96), (1, 70, 33), (7, 1, 5), (3, 129, 1), (0, 8, 4)])
def test_linear_layers(m: int, k: int, n: int, precision: Precision) -> None:
    layer, x = nn.Linear(k, n, bias=False).eval(), torch.randn(m, k)
    if precision == "bf16x3" and min(m, n) <= 4:
        (text,) = notes(Line(layer, x).compile(in_precision(precision)))
        assert text.endswith("stays in f32: its time is that of reading an operand, which is faster in f32")
        return
    assert_equal(computed(layer, x, precision=precision), REFERENCES[precision](x, layer.weight.detach()), precision)


@pytest.mark.parametrize(("group_size", "k"), [(128, 768), (128, 128), (64, 192), (32, 96)])
@pytest.mark.parametrize(("m", "n"), [(1, 96), (1, 33), (2, 200), (3, 7), (4, 64), (9, 40), (64, 96)])
def test_linear_layers_with_4_bit_weights(m: int, n: int, group_size: int, k: int) -> None:
    precision: Precision = {128: "int4-weights", 64: "int4-weights-64", 32: "int4-weights-32"}[group_size]
    layer, x = nn.Linear(k, n, bias=False).eval(), torch.randn(m, k)
    reference = grouped_weights(x, layer.weight.detach(), group_size)
    torch.testing.assert_close(computed(layer, x, precision=precision), reference)


def test_4_bit_weights_on_the_left_or_stored_by_columns() -> None:
    weights, x = nn.Parameter(torch.randn(12, 128)), torch.randn(128, 2)
    ours = computed(lambda x: weights @ x, x, precision="int4-weights")
    torch.testing.assert_close(ours, grouped_weights(x.t(), weights.detach()).t())
    columns = nn.Parameter(weights.detach().t().contiguous())
    ours = computed(lambda x: x.t() @ columns, x, precision="int4-weights")
    torch.testing.assert_close(ours, grouped_weights(x.t(), weights.detach()))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_special_rows(precision: Precision) -> None:
    """A row of zeros is exact; rows with NaN or infinity have no finite result that is wrong."""
    layer, x = nn.Linear(40, 24, bias=False).eval(), torch.randn(6, 40)
    x[1], x[2, 3], x[3, 5], x[4, 7] = 0, float("nan"), float("inf"), 1e38
    ours = computed(layer, x, precision=precision)
    assert_equal(ours, REFERENCES[precision](x, layer.weight.detach()), precision)
    assert torch.equal(ours[1], torch.zeros(24))
    assert ours[2].isnan().all()
    assert not ours[3].isfinite().any()
    assert ours[[0, 5]].isfinite().all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bias_and_activation_stay_in_f32(precision: Precision) -> None:
    layer, x = nn.Linear(96, 64).eval(), torch.randn(2, 9, 96)
    ours = computed(lambda x: torch.relu(layer(x)), x, precision=precision)
    rows = REFERENCES[precision](x.reshape(-1, 96), layer.weight.detach()) + layer.bias.detach()
    torch.testing.assert_close(ours, torch.relu(rows).reshape(2, 9, 64))


@pytest.mark.parametrize("precision", ["bf16", "int8-dynamic"])
def test_batches_of_activations(precision: Precision) -> None:
    a, b = torch.randn(3, 10, 20), torch.randn(3, 20, 15)
    ours = computed(torch.bmm, a, b, precision=precision)
    reference = torch.stack([REFERENCES[precision](x, y.t()) for x, y in zip(a, b, strict=True)])
    assert_equal(ours, reference, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scaled_sums(precision: Precision) -> None:
    """`addmm` scales the product and the addend."""
    weights, x, addend = nn.Parameter(torch.randn(12, 30)), torch.randn(8, 30), torch.randn(8, 12)

    def program(x: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
        return torch.addmm(addend, x, weights.t(), beta=0.5, alpha=3)

    ours = computed(program, x, addend, precision=precision)
    reference = REFERENCES[precision](x, weights.detach()) * 3 + addend * 0.5
    torch.testing.assert_close(ours, reference)


def test_the_parameter_may_be_the_left_operand() -> None:
    weights, x = nn.Parameter(torch.randn(12, 30)), torch.randn(30, 7)
    ours = computed(lambda x: weights @ x, x, precision="int8-weights")
    torch.testing.assert_close(ours, integer_weights(x.t(), weights.detach()).t())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_convolutions_in_bfloat16(groups: int, transposed: bool) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer, x = kind(8, 16, 3, padding=1, groups=groups).eval(), torch.randn(2, 8, 13, 11)
    ours = computed(layer, x, precision="bf16")
    reference = copy.deepcopy(layer)
    reference.weight.data = layer.weight.data.bfloat16().float()
    torch.testing.assert_close(ours, reference(x.bfloat16().float()).detach(), rtol=1e-4, atol=1e-5)


def test_attention_in_bfloat16() -> None:
    """With one block of keys: scores are scaled in f32, and the exponentials are rounded."""
    q, k, v = (torch.randn(2, 3, 20, 24) for _ in range(3))
    ours = computed(torch.nn.functional.scaled_dot_product_attention, q, k, v, precision="bf16")
    q, k, v = (x.bfloat16().float() for x in (q, k, v))
    scores = (q @ k.transpose(-1, -2)) * 24**-0.5
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    reference = exponentials.bfloat16().float() @ v / exponentials.sum(-1, keepdim=True)
    torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-4)  # a rounding in the other direction
    assert (ours - reference).abs().mean() < 1e-6


@pytest.mark.parametrize(("rows", "causal", "groups"), [(150, False, 4), (150, True, 4), (300, False, 2)])
def test_attention_is_compared_with_the_same_blocks(rows: int, causal: bool, groups: int) -> None:
    q, k, v = torch.randn(1, rows, 4, 32), *(torch.randn(1, groups, rows, 32) for _ in range(2))

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, is_causal=causal, enable_gqa=groups < 4
        )
        return y.transpose(1, 2).view(1, rows, 128)  # as in models: needs the strides of eager's result

    line = Line(program, q, k, v)
    compilation = line.compile(in_precision("bf16"))
    counts = NodeCounts.of(compilation.assignments)
    assert [precision for _, precision in counts.precisions] == ["bf16"]
    report = run_and_compare(
        line.program, compilation.artifact, repeats=0, threads=1, nodes=counts, compile_seconds=0.0
    )
    (output,) = report.outputs
    assert output.verdict == "ok"
    assert output.rms < output.precision_error / 20  # the rms of eager is about 1 / 10


def test_attention_of_one_row_is_refused() -> None:
    q, k = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 9, 16)
    line = Line(torch.nn.functional.scaled_dot_product_attention, q, k, k)
    (text,) = notes(line.compile(in_precision("bf16")))
    assert "rounding keys and values for one row of queries takes longer than it saves" in text


def test_attention_from_separate_products_is_refused() -> None:
    """Its rounding would be another one than that of the products that the recipe names."""

    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ k

    line = Line(program, torch.randn(2, 8, 16), torch.randn(2, 8, 16))
    (text,) = notes(line.compile(in_precision("bf16")))
    assert "disable flash-attention-prefill to compute these" in text
    separate = line.compile(without(in_precision("bf16"), "flash-attention-prefill"))
    assert [a.precision for a in separate.assignments if a.multiplies] == ["bf16", "bf16"]


@pytest.mark.parametrize(
    ("precision", "name"),
    [("int8-dynamic", "8-bit integers"), ("bf16x3", "pairs of bfloat16"), ("int4-weights-64", "4-bit integers")],
)
def test_convolutions_in_other_precisions_are_refused(precision: Precision, name: str) -> None:
    line = Line(nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 8, 8))
    (text,) = notes(line.compile(in_precision(precision)))
    assert text.endswith(f"convolution.0 stays in f32: a convolution in {name} is not supported")


def test_pairs_of_bfloat16_are_nearly_as_exact_as_f32() -> None:
    """The relative error of a product: 2**-17 at most for a number, less for sums of many."""
    layer, x = nn.Linear(768, 96, bias=False).eval(), torch.randn(128, 768)
    exact = x.double() @ layer.weight.detach().double().t()
    errors = {
        precision: float((computed(layer, x, precision=precision) - exact).norm() / exact.norm())
        for precision in ("bf16x3", "bf16")
    }
    assert errors["bf16x3"] < 1e-5 < 1e-3 < errors["bf16"]


def test_products_of_the_same_operand_share_its_parts() -> None:
    q, k = (nn.Parameter(torch.randn(32, 48)) for _ in range(2))
    line = Line(lambda x: (x @ q, x @ k), torch.randn(16, 32))
    line.compile(replace(in_precision("bf16x3"), partition="whole"))
    (stage,) = [text.content for stage, text in line.stages if stage.name == "hoist-parameters"]
    (entry,) = [part for part in stage.split("func.func ") if part.startswith("@forward")]
    assert entry.count("buddy.rounding") == 1


# ---- weights ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


def stack() -> nn.Module:
    return nn.Sequential(*[Block() for _ in range(3)]).eval()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_are_rounded_before_the_calls(precision: Precision) -> None:
    """Also those that repeated layers pass to a function; one packing function is called for rounding and packing."""
    line = Line(stack(), torch.randn(16, 32))
    compilation = line.compile(in_precision(precision))
    weights = [a for a in compilation.artifact.arguments if a.pack.startswith("prepare_")]
    assert len({a.source for a in weights}) == 6
    assert {a.spec.dtype for a in weights} == {
        "bf16x3": {"bf16"}, "bf16": {"bf16"}, "int8-dynamic": {"i8", "f32"}, "int8-weights": {"i8", "f32"}
    }[precision]  # fmt: skip
    (stage,) = [text.content for stage, text in line.stages if stage.name == "hoist-parameters"]
    called = [part for part in stage.split("func.func ") if not part.startswith("@prepare_")]
    activations = 0 if precision == "int8-weights" else 2
    assert "".join(called).count("buddy.rounding") == activations  # in the one function of all layers
    for kept in (compilation, line.compile(without(in_precision(precision), "hoist-parameters"))):
        assert_equal_results(results(line, kept), results(line, compilation))


def assert_equal_results(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_packing_that_is_not_chained_is_an_error() -> None:
    line = Line(stack(), torch.randn(16, 32))
    failure = line.fail(without(in_precision("bf16"), "chain-packings"))
    assert "both transformed by hoist-parameters and packed" in failure.diagnostic.what


def test_what_depends_on_one_weight_alone_moves_in_any_program() -> None:
    weights, other = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * (weights.abs() + 1), x + (weights * other), (x @ weights.t().bfloat16().float())

    line = Line(program, torch.randn(8, 8))
    compilation = line.compile()
    prepared = [a for a in compilation.artifact.arguments if a.pack.startswith("prepare_")]
    assert len({a.source for a in prepared}) == 1  # `weights * other` depends on two
    expected = line.program.eager(line.program.tensors)
    for ours, theirs in zip(results(line, compilation), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


# ---- what cannot be had ----------------------------------------------------------------------------------------------


def notes(compilation: Compilation) -> list[str]:
    return [text for source, _node, text in compilation.remarks if source == "recipe"]


def test_a_product_of_activations_has_no_weights() -> None:
    line = Line(lambda a, b: (a @ b, b @ a), torch.randn(4, 4), torch.randn(4, 4))
    compilation = line.compile(in_precision("int8-weights"))
    assert notes(compilation) == [
        "the recipe computes products in int8-weights, but mm.0 and 1 more stay in f32: neither of its operands is a "
        "parameter"
    ]
    assert {a.precision for a in compilation.assignments} == {""}


def test_other_element_types_and_ops_are_named() -> None:
    line = Line(lambda a: (a @ a, a.sin()), torch.randn(4, 4, dtype=torch.float64))
    recipe = default_recipe().with_precision("mm.0", "bf16").with_precision("sin.0", "bf16")
    reasons = {a.node: a.precision_reason for a in line.compile(recipe.with_precision("sun.0", "bf16")).assignments}
    assert reasons == {
        "mm.0": "it multiplies f64, and precisions apply to f32", "sin.0": "it multiplies no matrices"
    }  # fmt: skip
    assert [text for text in notes(line.compile(recipe.with_precision("sun.0", "bf16"))) if "sun.0" in text] == [
        "the recipe computes sun.0 in bf16, but no compiled node has that name; did you mean sin.0?"
    ]


def test_unknown_nodes_are_named_in_the_order_of_the_recipe() -> None:
    """In every process: the order does not depend on the hashes of the names."""
    line, recipe = Line(lambda a: a @ a, torch.randn(4, 4)), default_recipe()
    for digit in range(8):
        recipe = recipe.with_precision(f"unknown.{digit}", "bf16")
    texts = notes(line.compile(recipe))
    assert [text.split()[3] for text in texts] == [choice.node for choice in recipe.precisions]


def test_sums_that_could_overflow_stay_in_f32() -> None:
    terms = (2**31 - 1) // 127**2 + 1
    line = Line(lambda a, b: a @ b, torch.full((1, terms), -1.0), torch.full((terms, 1), -1.0))
    (text,) = notes(compilation := line.compile(in_precision("int8-dynamic")))
    assert "may overflow 32 bits" in text
    (result,) = results(line, compilation)
    assert result.item() == terms


def test_eager_and_other_dialects() -> None:
    line = Line(lambda a: a @ a, torch.randn(4, 4))
    recipe = in_precision("bf16", replace(default_recipe(), dialect="tosa"))
    (assignment,) = line.compile(recipe).assignments
    assert (assignment.lowering, assignment.precision) == ("linalg", "bf16")
    for lowering, reason in (("tosa", "tosa lowers mm.default in the program's"), ("eager", "it runs in eager")):
        (assignment,) = line.compile(recipe.with_choice("mm.0", lowering)).assignments
        assert (assignment.lowering, assignment.precision) == (lowering, "")
        assert assignment.precision_reason.startswith(reason)


def test_one_node_has_its_own_precision() -> None:
    """In a layer that occurs several times, too: its call site gets a separate function."""
    line = Line(stack(), torch.randn(16, 32))
    node = next(op.stable for op in line.program.graph.operations if op.module == "1.up" and "addmm" in op.target)
    recipe = in_precision("bf16").with_precision(node, "f32")
    precisions = {a.node: a.precision for a in line.compile(recipe).assignments if a.multiplies}
    assert precisions.pop(node) == ""
    assert set(precisions.values()) == {"bf16"}
    assert len(precisions) == 5
