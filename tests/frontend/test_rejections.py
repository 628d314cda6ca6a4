"""What eager refuses is refused under torch.compile: by eager's exception type and words, with the op and its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

TABLE, NOTHING = torch.arange(12.0).reshape(4, 3), torch.empty(0, 3)
INSIDE, OUTSIDE, ONE = torch.tensor([1, 3, 0]), torch.tensor([1, 4, 0]), torch.tensor([0])
F32, F64, I64 = torch.ones(4, 4), torch.ones(4, 4, dtype=torch.float64), torch.ones(4, 4, dtype=torch.int64)
BYTES, GONE = torch.ones(4, dtype=torch.uint8), torch.empty(0)
PART, SQUARE = torch.tensor([0.25, 0.75]), torch.eye(3) + 1
PIVOTS = torch.tensor([2, 2, 3], dtype=torch.int32)
STACK, WIDE = torch.ones(2, 4, 4), torch.ones(2, 4, 4, dtype=torch.float64)

# Each with inputs that eager refuses for their shapes, their element types or the program's numbers.
# Products of stacks and convolutions of two types are not among them: TorchDynamo refuses those itself.
FORMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mm": (torch.mm, (F32, F64)),
    "matmul": (torch.matmul, (F32, F64)),
    "linear": (F.linear, (F32, F64)),
    "linear with bias": (F.linear, (F32, F32, F64[0])),
    "addmm": (torch.addmm, (F64, F32, F32)),
    "addbmm": (torch.addbmm, (F32, STACK, WIDE)),
    "mv": (torch.mv, (F32, F64[0])),
    "layer_norm": (lambda x, y: F.layer_norm(x, [4], y[0], y[0]), (F32, F64)),
    "group_norm": (lambda x, y: F.group_norm(x, 2, y[0], y[0]), (F32, F64)),
    "index_put of another type": (lambda x, y: x.index_put((x.new_zeros(1).long(),), y[0]), (F32, F64)),
    "index_add of another type": (lambda x, y, i: x.index_add(0, i, y[:1]), (F32, F64, ONE)),
    "index_add of wide rows": (lambda x, i: x.index_add(0, i, x[:1, :2]), (F32, ONE)),
    "index_copy of another type": (lambda x, y, i: x.index_copy(0, i, y[:1]), (F32, F64, ONE)),
    "index_reduce of a short source": (lambda x, i: x.index_reduce(0, i, x[:2], "prod"), (TABLE, INSIDE)),
    "put of another type": (lambda x, y, i: x.put(i, y[0, :1]), (F32, F64, ONE)),
    "index_put of a short source": (lambda x, i: x.index_put((i,), x[:2]), (TABLE, INSIDE)),
    "max of nothing": (lambda x: x.max(), (GONE,)),
    "min of nothing": (lambda x: x.min(), (GONE,)),
    "max of a dim of nothing": (lambda x: x.max(0), (GONE,)),
    "index of nothing": (lambda x, i: x[i], (NOTHING, ONE)),
    "index_select of nothing": (lambda x, i: x.index_select(0, i), (NOTHING, ONE)),
    "full of uint8": (lambda x: torch.full((2,), 300, dtype=torch.uint8) + x[:2], (BYTES,)),
    "full of infinity": (lambda x: torch.full((2,), torch.inf, dtype=torch.int32) + x[:2], (BYTES,)),
    "full of float32": (lambda x: torch.full((4,), 1e300) + x, (F32,)),
    "masked_fill of float16": (lambda x: x.masked_fill(x > 0, -1e9), (F32.half(),)),
    "clamp of uint8": (lambda x: x.clamp(0, 300), (BYTES,)),
    "a negative power of integers": (lambda x: x**-1, (I64,)),
    "silu of integers": (lambda x: F.silu(x), (I64,)),
    "argmax of bools": (lambda x: (x > 0).argmax(), (F32,)),
    "bucketize by planes": (torch.bucketize, (F32, F32)),
    "complex of two types": (torch.complex, (F32, F64)),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, x, beta=-1.0), (F32,)),
}

# Each with a value that eager refuses, and values that it takes.
VALUES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {
    "embedding": (lambda w, i: F.embedding(i, w), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "index": (lambda w, i: w[i], (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "take": (torch.take, (TABLE, OUTSIDE * 3), (TABLE, INSIDE)),
    "put": (lambda w, i: w.put(i * 3, w[:3, 0]), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "index_add": (lambda w, i: w.index_add(0, i, w[:3]), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "index_copy": (lambda w, i: w.index_copy(0, i, w[:3]), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "nll_loss": (lambda w, i: F.nll_loss(w.T.log_softmax(1), i), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "cross_entropy": (lambda w, i: F.cross_entropy(w.T, i), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "multi_margin_loss": (lambda w, i: F.multi_margin_loss(w.T, i), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "max_unpool2d": (
        lambda x, i: F.max_unpool2d(x, i, 2),
        (torch.ones(1, 1, 1, 2), torch.tensor([[[[0, 8]]]])),
        (torch.ones(1, 1, 1, 2), torch.tensor([[[[0, 7]]]])),
    ),
    "embedding_bag": (lambda w, i: F.embedding_bag(i[None], w), (TABLE, OUTSIDE), (TABLE, INSIDE)),
    "offsets of bags": (
        lambda w, i, o: F.embedding_bag(i, w, o),
        (TABLE, INSIDE, torch.tensor([0, 4])),
        (TABLE, INSIDE, torch.tensor([0, 2])),
    ),
    "first offset of bags": (
        lambda w, i, o: F.embedding_bag(i, w, o),
        (TABLE, INSIDE, torch.tensor([1, 2])),
        (TABLE, INSIDE, torch.tensor([0, 2])),
    ),
    "masked_scatter": (
        lambda x, y: x.masked_scatter(x > 8, y),
        (TABLE, torch.tensor([1.0, 2.0])),
        (TABLE, torch.tensor([1.0, 2.0, 3.0])),
    ),
    "a mask with fewer values": (
        lambda x, y: x.index_put((x > 8,), y),
        (TABLE, torch.tensor([1.0, 2.0])),
        (TABLE, torch.tensor([1.0, 2.0, 3.0])),
    ),
    "a mask with more values": (
        lambda x, y: x.index_put((x > 8,), y),
        (TABLE, torch.arange(4.0)),
        (TABLE, torch.arange(3.0)),
    ),
    "a mask of rows with fewer": (lambda x, y: x.index_put((x[:, 0] > 2,), y), (TABLE, TABLE[:2]), (TABLE, TABLE[:3])),
    "a mask and no values": (lambda x, y: x.index_put((x > 8,), y), (TABLE, GONE), (TABLE - 9, GONE)),
    "masked_scatter of nothing": (lambda x, y: x.masked_scatter(x > 8, y), (TABLE, GONE), (TABLE - 9, GONE)),
    "binary_cross_entropy": (F.binary_cross_entropy, (PART * 2, PART), (PART, PART)),
    "binary_cross_entropy of NaN": (F.binary_cross_entropy, (PART * torch.nan, PART), (PART, PART)),
    "target of binary_cross_entropy": (F.binary_cross_entropy, (PART, -PART), (PART, PART)),
    "histc of infinity": (lambda x: x.histc(3), (TABLE / 0,), (TABLE,)),
    "lu_solve": (torch.linalg.lu_solve, (SQUARE, PIVOTS + 1, SQUARE), (SQUARE, PIVOTS, SQUARE)),
    "lu_unpack": (lambda a, p: torch.lu_unpack(a, p)[0], (SQUARE, PIVOTS * 2), (SQUARE, PIVOTS)),
    "ldl_solve": (torch.linalg.ldl_solve, (SQUARE, PIVOTS - 7, SQUARE), (SQUARE, PIVOTS, SQUARE)),
    "a sorter": (
        lambda x, y, s: torch.searchsorted(x, y, sorter=s),
        (TABLE[0], TABLE[1], torch.tensor([0, 1, 3])),
        (TABLE[0], TABLE[1], torch.tensor([0, 1, 2])),
    ),
}


def error_of(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> Exception:
    with torch.no_grad(), pytest.raises(Exception) as told:  # noqa: PT011 (which one is what is asked)
        function(*arguments)
    return told.value


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    # A line of this file, as a script has: torch's own functions have none.
    return torch.compile(lambda *given: function(*given), backend="buddy", dynamic=False)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_eager_refuses_is_refused_in_its_words_at_every_call(name: str) -> None:
    function, given = FORMS[name]
    wanted, program = error_of(function, given), compiled(function)
    for _ in range(2):
        found = error_of(program, given)
        assert type(found) is type(wanted)
        assert str(wanted) in str(found)
        assert "called at" in str(found)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_eager_refuses_is_refused_in_its_words_and_the_next_call_is_right(name: str) -> None:
    function, wrong, right = VALUES[name]
    wanted, program = error_of(function, wrong), compiled(function)
    for _ in range(2):
        found = error_of(program, wrong)
        assert type(found) is type(wanted)
        assert str(wanted) in str(found)
        assert f"called at {__file__}" in str(found)
        with torch.no_grad():
            torch.testing.assert_close(program(*right), function(*right))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_offsets_of_bags_that_fall_are_refused_with_any_number_of_threads(mode: str, threads: int) -> None:
    """With one thread, eager reads memory outside of its arguments instead of raising."""

    def bags(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, table, offsets, mode=mode)

    falling, rising = torch.tensor([0, 2, 1]), torch.tensor([0, 1, 2])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        program = compiled(bags)
        found = error_of(program, (TABLE, INSIDE, falling))
        assert isinstance(found, RuntimeError)
        assert "Expected" in str(found)
        assert f"called at {__file__}" in str(found)
        with torch.no_grad():
            torch.testing.assert_close(program(TABLE, INSIDE, rising), bags(TABLE, INSIDE, rising))
    finally:
        torch.set_num_threads(before)


def test_eager_gives_the_results_where_it_takes_values_that_compiled_code_takes_for_wrong() -> None:
    """Eager's bags of maxima do not mind offsets that fall, and have a meaning of their own for them."""
    given = (TABLE, torch.tensor([1, 3, 0, 2]), torch.tensor([0, 3, 1]))

    def maxima(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, table, offsets, mode="max")

    with torch.no_grad():
        torch.testing.assert_close(compiled(maxima)(*given), maxima(*given))
