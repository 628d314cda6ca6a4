"""Rewritten graphs, compiled, compute what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.graph.transform import transforms
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER, Recipe
from tests.ops.one_op import NOT_CAPTURED
from tests.programs import Line, assert_same
from tests.support.tiers import sampled

_random = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_random, dtype=dtype)


def attend(**options: Any) -> Callable[..., torch.Tensor]:
    """Attention of q, k, v, and of a mask where one more tensor is given."""
    return lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **options)


def qkv(rows: int, keys: int, heads: int = 2, groups: int = 2, dtype: torch.dtype = torch.float32) -> Any:
    kv = (2, groups, keys, 24)
    return normal(2, heads, rows, 24, dtype=dtype), normal(*kv, dtype=dtype), normal(*kv, dtype=dtype)


def spelled_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / 24**0.5
    return torch.softmax(scores + mask[0] if mask else scores, -1) @ v


def by_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As models write it: heads are split from the width, and joined again behind."""
    split = [x.view(2, -1, 3, 8).transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*split).transpose(1, 2).reshape(2, -1, 24)


def decoded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *new: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A row that meets a cache and what it adds to it, and that again; a last tensor is a mask."""
    k, v = torch.cat([k, new[0]], -2), torch.cat([v, new[1]], 2)
    mask = new[2] if len(new) > 2 else None
    out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])
    return out, k[:, :, -1:] * 2, v[:, :, -1:] * 2


HIDDEN_ROW = torch.zeros(150, 150).index_fill(0, torch.tensor([3, 140]), float("-inf"))
PASSES = ("gqa-attention-fusion", "flash-attention-prefill")
SDPA, GQA = "FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp"
# By name: the op class that the passes make, the function, its inputs.
ATTENTION: dict[str, tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "one block": (SDPA, attend(), qkv(7, 9)),
    "several blocks and a rest": (SDPA, attend(), qkv(150, 300)),
    "causal": (SDPA, attend(is_causal=True), qkv(200, 200)),
    "causal, more keys than rows": (SDPA, attend(is_causal=True), qkv(70, 150)),
    "causal, more rows than keys": (SDPA, attend(is_causal=True), qkv(200, 70)),
    "a negative scale": (SDPA, attend(scale=-0.3), qkv(9, 9)),
    "a mask of one row": (SDPA, attend(), (*qkv(150, 300), normal(1, 1, 1, 300))),
    "rows masked whole": (SDPA, attend(), (*qkv(150, 150), HIDDEN_ROW)),
    "a mask of bools": (SDPA, attend(), (*qkv(150, 150), (normal(2, 1, 150, 150) > 0) & (HIDDEN_ROW == 0))),
    "a mask of the least number": (SDPA, attend(), (*qkv(9, 150), torch.full((9, 150), torch.finfo().min))),
    "f64": (SDPA, attend(), qkv(130, 130, dtype=torch.float64)),
    "read through transposes": (SDPA, by_heads, (normal(2, 150, 24), normal(2, 150, 24), normal(2, 150, 24))),
    "one row": (SDPA, attend(), qkv(1, 700)),
    "a cache and a new key": (SDPA, decoded, (*qkv(1, 70), normal(2, 2, 1, 24), normal(2, 2, 1, 24))),
    "a cache and three keys, shared heads, a mask": (
        GQA,
        decoded,
        (*qkv(1, 70, 6, 2), normal(2, 2, 3, 24), normal(2, 2, 3, 24), normal(1, 1, 1, 73)),
    ),
    "a cache of more than a block, what is new hidden": (
        SDPA,
        decoded,
        (*qkv(1, 17000, 1, 1), normal(2, 1, 9, 24), normal(2, 1, 9, 24), (torch.arange(17009) < 17000)[None]),
    ),
    "spelled out": ("MaskedSoftmaxAttentionOp", spelled_out, qkv(9, 9)),
    "spelled out, rows masked whole": ("MaskedSoftmaxAttentionOp", spelled_out, (*qkv(150, 150), HIDDEN_ROW)),
    "shared heads": (GQA, attend(enable_gqa=True, is_causal=True), qkv(150, 150, 6, 2)),
    "shared heads of one row": (GQA, attend(enable_gqa=True), (*qkv(1, 700, 6, 2), normal(1, 1, 1, 700))),
}


# Also in 16 bits: scores and sums are in f32.
HALVES: dict[str, tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "bf16": (SDPA, attend(), qkv(150, 300, dtype=torch.bfloat16)),
    "bf16, a scale that is not a power of two": (SDPA, attend(scale=0.3), qkv(9, 9, dtype=torch.bfloat16)),
    "bf16, causal, shared heads": (GQA, attend(enable_gqa=True, is_causal=True), qkv(150, 150, 6, 2, torch.bfloat16)),
    "f16": (SDPA, attend(), qkv(130, 130, dtype=torch.float16)),
}


def recipe_with(*names: str) -> Recipe:
    recipe = default_recipe()
    for i, step in enumerate(recipe.steps):
        if step.level == "graph":
            recipe = recipe.with_step(i, enabled=step.name in names)
    return recipe


def expected(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        found = function(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", sampled(ATTENTION, list(ATTENTION)[::3], "masks, shapes and scales like each third"))
@pytest.mark.slow
def test_fused_attention_agrees_with_eager(name: str) -> None:
    cls, function, inputs = ATTENTION[name]
    line = Line(function, *inputs)
    found = line.run(recipe_with(*PASSES))
    assert f"{cls}(" in line.text("flash-attention-prefill")
    assert_same(found, expected(function, inputs))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.slow
def test_fused_attention_of_16_bits_is_as_close_to_double_precision_as_eager(name: str) -> None:
    cls, function, inputs = HALVES[name]
    line = Line(function, *inputs)
    (ours,) = line.run(recipe_with(*PASSES))
    assert f"{cls}(" in line.text("flash-attention-prefill")
    (eager,), (exact,) = expected(function, inputs), expected(function, tuple(x.double() for x in inputs))
    assert ours.dtype == eager.dtype
    error, error_of_eager = ((x.double() - exact).norm() for x in (ours, eager))
    assert error <= 1.1 * error_of_eager


@pytest.mark.slow
def test_fused_attention_holds_no_matrix_of_scores() -> None:
    line = Line(attend(), *qkv(1024, 1024))
    line.compile(recipe_with(*PASSES))
    assert "1024x1024" not in line.text("one-shot-bufferize")
    assert "128x128xf32" in line.text("one-shot-bufferize")
    line.compile(recipe_with())
    assert "1024x1024" in line.text("one-shot-bufferize")


def test_no_block_above_the_diagonal_is_made() -> None:
    """The block on the diagonal is made for each block of rows, those before it in a loop that ends there."""
    line = Line(attend(is_causal=True), *qkv(256, 256))
    line.compile(recipe_with(*PASSES))
    text = line.text("lower")
    assert text.count("linalg.contract") == 4
    assert "scf.for" in text
    assert "scf.forall" in text


def test_a_cache_is_read_where_it_is() -> None:
    _, function, inputs = ATTENTION["a cache and a new key"]
    line = Line(function, *inputs)
    assert_same(line.run(recipe_with("slice-parts", *PASSES)), expected(function, inputs))
    assert "71x24" in line.text("graph").replace(", ", "x")
    assert "71x24" not in line.text("one-shot-bufferize")


def test_heads_may_be_shared_by_threads() -> None:
    line = Line(attend(), *qkv(9, 9))
    line.compile(recipe_with(*PASSES))
    assert "scf.parallel" in line.text("scf-forall-to-parallel")


def test_of_transposed_factors_and_results_only_keys_are_moved_block_by_block() -> None:
    _, function, inputs = ATTENTION["read through transposes"]
    line = Line(function, *inputs)
    line.compile(recipe_with(*PASSES))
    moved = [row for row in line.text("scf-forall-to-parallel").splitlines() if "linalg.transpose" in row]
    assert [("permutation = [0, 2, 1]" in row, "1x8x128xf32" in row) for row in moved] == [(True, True)]


OTHERS: dict[str, tuple[str, str, Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "matmul": ("apply-classic-fusion", "TransposeMatmulFusedOp", lambda a, w: a @ w.t(), (normal(5, 7), normal(9, 7))),
    "linear": (
        "apply-classic-fusion", "TransposeAddMMFusedOp", F.linear, (normal(5, 7), normal(9, 7), normal(9)),
    ),
    "pool": ("maxpool2d-simplify", "MaxPool2dOp", lambda x: F.max_pool2d(x, 3, 2, 1), (normal(2, 3, 9, 8),)),
    "transposes": (
        "eliminate-transpose", "PermuteOp", lambda x: x.transpose(0, 1).permute(2, 1, 0) + 1, (normal(3, 4, 5),),
    ),
    "views": (
        "eliminate-matmul-transpose-reshape", "ViewOp", lambda x: x.view(3, 1, 4).transpose(0, 1).reshape(12) + 1,
        (normal(3, 4),),
    ),
    "calls": (
        "replace-matmul-with-onednn", "CallExternalOp", lambda a, b: torch.relu(a @ b), (normal(5, 7), normal(7, 9)),
    ),
    "one group": ("simply-fuse", "AddOp", lambda x: torch.relu(x) + 1, (normal(5),)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_each_other_pass_agrees_with_eager(name: str) -> None:
    graph_pass, cls, function, inputs = OTHERS[name]
    line = Line(function, *inputs)
    found = line.run(recipe_with(graph_pass))
    assert f"{cls}(" in line.text(graph_pass)
    assert_same(found, expected(function, inputs))


def test_all_passes_together_agree_with_eager() -> None:
    function, inputs = by_heads, ATTENTION["read through transposes"][2]
    assert_same(Line(function, *inputs).run(recipe_with(*transforms())), expected(function, inputs))


def test_a_product_made_a_call_is_told_to_run_in_eager_and_why() -> None:
    _, _, function, inputs = OTHERS["calls"]
    compilation = Line(function, *inputs).compile(recipe_with("replace-matmul-with-onednn"))
    (call,) = [a for a in compilation.assignments if a.lowering == EAGER]
    assert (call.node, call.reason) == ("mm.0", "a graph pass replaced the node by a call of torch's mm.default")


def test_passes_tell_of_each_node_what_they_did() -> None:
    _, function, inputs = ATTENTION["one block"]
    remarks = Line(function, *inputs).compile(recipe_with(*PASSES)).remarks
    node = "_scaled_dot_product_flash_attention_for_cpu.0"
    assert ("flash-attention-prefill", node, "processes its keys in blocks") in remarks


def test_a_fused_node_may_run_in_eager() -> None:
    _, function, inputs = ATTENTION["shared heads"]
    recipe = recipe_with(*PASSES).with_choice("_scaled_dot_product_flash_attention_for_cpu.0", EAGER)
    assert_same(Line(function, *inputs).run(recipe), expected(function, inputs))


def test_every_op_that_graph_passes_make_is_tried_above() -> None:
    made = {cls for cls, _, _ in ATTENTION.values()} | {cls for _, cls, _, _ in OTHERS.values()}
    assert NOT_CAPTURED - {"SquareOp", "ReshapeOp"} <= made
