"""What graph passes make of graphs, as text, and what they leave, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import PlaceholderOp
from buddy.compiler.graph.operations import TransposeMatmulFusedOp
from buddy.compiler.graph.transform import (
    TransformError,
    apply_classic_fusion,
    eliminate_matmul_transpose_reshape,
    eliminate_transpose,
    flash_attention_prefill,
    gqa_attention_fusion,
    maxpool2d_simplify,
    replace_matmul_with_onednn,
    replace_matmul_with_onednn_selective,
    run_transform,
    simply_fuse,
    slice_parts,
    transforms,
)
from buddy.compiler.graph.types import DeviceType
from buddy.compiler.passes.catalogue import catalogue
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import OWN_FRONTENDS
from tests.programs import captured

Q, KV = torch.ones(1, 6, 5, 8), torch.ones(1, 2, 5, 8)


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    return captured(function, *inputs).graph


def ops(graph: Graph) -> list[str]:
    """The nodes as text, without their types."""
    return [repr(op).partition(" = ")[2] for op in graph.operations]


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def sliced(*ranges: tuple[int, int, int]) -> Callable[..., Any]:
    """Slices (dim, start, end) of tensors side by side."""

    def function(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.cat(parts, 1)
        return tuple(torch.narrow(whole, dim, start, end - start) * 2 for dim, start, end in ranges)

    return function


def test_a_slice_within_a_part_reads_that_part_or_is_it() -> None:
    parts = (torch.ones(2, 3), torch.ones(2, 4), torch.ones(2, 1))
    graph = graph_of(sliced((1, 7, 8), (1, 4, 6), (1, 0, 3)), *parts)
    graph.perform([slice_parts])
    assert [text.partition("(")[0] for text in ops(graph)] == ["MulOp", "SliceOp", "MulOp", "MulOp"]
    assert "1, 1, 3" in ops(graph)[1]
    crossing = graph_of(sliced((1, 2, 5), (0, 0, 1), (1, 6, 8)), *parts)
    before = ops(crossing)
    crossing.perform([slice_parts])
    assert ops(crossing) == before


def test_simply_fuse_makes_one_group_of_all_ops() -> None:
    graph = graph_of(lambda x: torch.relu(x @ x) + 1, torch.ones(3, 3))
    before = ops(graph)
    graph.fuse_ops([simply_fuse])
    assert list(graph.op_groups) == ["subgraph0"]
    assert graph.op_groups["subgraph0"] == [op for op in graph.body if not isinstance(op, PlaceholderOp)]
    assert graph.group_map_device == {"subgraph0": DeviceType.CPU}
    assert ops(graph) == before


def test_classic_fusion_takes_a_transpose_into_the_product_that_reads_it() -> None:
    graph = graph_of(lambda a, w, b: (a @ w.t(), F.linear(a, w, b)), torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    graph.fuse_ops([apply_classic_fusion])
    assert ops(graph) == ["TransposeMatmulFusedOp(arg1_1, arg0_1)", "TransposeAddMMFusedOp(arg1_1, arg0_1, arg2_1)"]
    assert list(graph.op_groups) == ["subgraph0"]
    assert isinstance(graph.op_groups["subgraph0"][0], TransposeMatmulFusedOp)


def test_classic_fusion_leaves_a_transpose_to_its_other_readers() -> None:
    graph = graph_of(lambda a, w: (a @ w.t(), w.t() + 1), torch.ones(2, 3), torch.ones(4, 3))
    apply_classic_fusion(graph)
    kinds = [type(op).__name__ for op in graph.operations]
    assert kinds.count("TransposeMatmulFusedOp") == 1
    assert "AddOp" in kinds
    assert len(kinds) == 3


def test_classic_fusion_leaves_what_is_no_linear() -> None:
    graph = graph_of(
        lambda c, a, w: torch.addmm(c, a, w.t(), beta=2), torch.ones(4), torch.ones(2, 3), torch.ones(4, 3)
    )
    (note,) = apply_classic_fusion(graph)
    assert note.text == "left: it scales its operands"


def test_a_max_pool_whose_indices_nobody_reads_gives_its_values_alone() -> None:
    graph = graph_of(lambda x: F.max_pool2d(x, 2), torch.ones(1, 2, 4, 4))
    graph.perform([maxpool2d_simplify])
    assert ops(graph) == ["MaxPool2dOp(arg0_1, [2, 2])"]


def test_a_max_pool_whose_indices_are_read_stays() -> None:
    graph = graph_of(lambda x: F.max_pool2d(x, 2, return_indices=True), torch.ones(1, 2, 4, 4))
    before = ops(graph)
    (note,) = maxpool2d_simplify(graph)
    assert (ops(graph), note.text) == (before, "left: its indices are read")


def test_transposes_that_cancel_go_and_others_become_one() -> None:
    graph = graph_of(lambda x: (x.permute(1, 2, 0).permute(2, 0, 1) + 1, x.transpose(0, 1).permute(2, 1, 0) + 2), Q[0])
    graph.perform([eliminate_transpose])
    assert ops(graph) == ["AddOp(arg0_1, 1)", "PermuteOp(arg0_1, [2, 0, 1])", "AddOp(permute_2, 2)"]


def test_a_transpose_that_is_returned_stays() -> None:
    graph = graph_of(lambda x: x.t().t(), torch.ones(2, 3))
    eliminate_transpose(graph)
    assert graph.results[0].tensor_meta.shape == (2, 3)
    assert graph.results[0] is not graph.placeholders[0]


def test_a_transpose_of_unit_dims_becomes_a_view_and_views_one_view() -> None:
    graph = graph_of(lambda x: x.view(3, 1, 4).transpose(0, 1).reshape(12) + 1, torch.ones(3, 4))
    graph.perform([eliminate_matmul_transpose_reshape])
    assert ops(graph) == ["ViewOp(arg0_1, [12])", "AddOp(view_1, 1)"]


def test_a_transpose_that_moves_elements_is_no_view() -> None:
    graph = graph_of(lambda x: x.t().reshape(12) + 1, torch.ones(3, 4))
    notes = eliminate_matmul_transpose_reshape(graph)
    assert notes[0].text == "left: it changes the order of the elements"
    assert any("TOp" in op or "PermuteOp" in op or "TransposeOp" in op for op in ops(graph))


def test_attention_becomes_one_op_with_its_mask_scale_and_causality() -> None:
    def attend(q: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        masked = F.scaled_dot_product_attention(q, q, q, attn_mask=m, scale=0.5)
        return masked, F.scaled_dot_product_attention(q, q, q, is_causal=True)

    graph = graph_of(attend, Q, torch.ones(5, 5))
    graph.perform([flash_attention_prefill])
    kind = "FlashAttentionForCpuPrefillOp"
    assert ops(graph) == [
        f"{kind}(arg0_1, arg0_1, arg0_1, arg1_1, 0.0, False, scale=0.5)",
        f"{kind}(arg0_1, arg0_1, arg0_1, None, 0.0, True)",
    ]


def test_attention_whose_sums_are_read_stays() -> None:
    graph = graph_of(lambda q: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q), Q)
    (note,) = flash_attention_prefill(graph)
    assert note.text == "left: its log-sum-exp is read"


def spelled_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / 8**0.5
    return torch.softmax(scores + mask[0] if mask else scores, -1) @ v


def test_attention_spelled_out_is_found_with_the_tensors_that_it_started_from() -> None:
    graph = graph_of(spelled_out, Q, Q + 1, Q + 2)
    graph.perform([flash_attention_prefill])
    (fused,) = [op for op in ops(graph) if "Attention" in op]
    assert fused.startswith("MaskedSoftmaxAttentionOp(arg1_1, arg0_1, arg2_1, None, 0.0, False, scale=0.35355")
    assert not any(op.startswith(("SoftmaxOp", "BatchMatmul", "Transpose")) for op in ops(graph))


def test_attention_spelled_out_with_a_mask_keeps_the_meaning_of_softmax() -> None:
    graph = graph_of(spelled_out, Q, Q + 1, Q + 2, torch.ones(5, 5))
    flash_attention_prefill(graph)
    assert any(op.startswith("MaskedSoftmaxAttentionOp(arg1_1, arg0_1, arg3_1, arg2_1,") for op in ops(graph))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda q: torch.softmax(q, -1), "its reader output is not a batched matrix product"),
        (lambda q: (s := torch.softmax(q @ q.transpose(-1, -2), -1)) @ q + s.sum(), "has 2 readers, not one"),
        (lambda q: q.transpose(-1, -2) @ torch.softmax(q @ q.transpose(-1, -2), -1), "it is not the lhs operand"),
        (lambda q: torch.softmax(torch.relu(q @ q.transpose(-1, -2)), -1) @ q, "not by a batched matrix product"),
        (lambda q: torch.softmax(q @ q.transpose(-1, -2), -2) @ q, "it is not over the columns"),
    ],
)
def test_what_only_looks_like_attention_stays(function: Callable[..., Any], reason: str) -> None:
    graph = graph_of(function, Q)
    before = ops(graph)
    (note,) = flash_attention_prefill(graph)
    assert reason in note.text
    assert ops(graph) == before


def test_repeated_heads_are_read_where_they_are() -> None:
    graph = graph_of(lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3)), Q, KV, KV + 1)
    (note,) = gqa_attention_fusion(graph)
    assert note.text == "6 heads read 2 heads of keys and values"
    assert ops(graph) == ["GQAAttentionFusedOp(arg2_1, arg0_1, arg1_1, None, 0.0, False, enable_gqa=True)"]


def test_heads_repeated_in_turn_or_on_one_side_only_stay_repeated() -> None:
    graph = graph_of(lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), repeated(v, 3)), Q, KV, KV)
    before = ops(graph)
    (note,) = gqa_attention_fusion(graph)
    assert note.text.startswith("left: keys and values are not both repeated")
    assert ops(graph) == before


def test_products_become_calls_from_a_size_on() -> None:
    def products(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ a, torch.addmm(b[0], a, b)

    graph = graph_of(products, torch.ones(2, 2), torch.ones(2, 9))
    graph.perform([lambda g: replace_matmul_with_onednn_selective(g, min_size=5)])
    assert [op for op in ops(graph) if "MM" in op or "Mat" in op or "Call" in op] == [
        "MatmulOp(arg0_1, arg0_1)",
        "CallExternalOp(select, arg0_1, arg1_1)",
    ]
    graph.perform([replace_matmul_with_onednn])
    assert sum("CallExternalOp" in op for op in ops(graph)) == 2


def test_rewritten_graphs_cross_processes_whole() -> None:
    graph = graph_of(spelled_out, Q, Q, Q)
    graph.perform([flash_attention_prefill, replace_matmul_with_onednn])
    again = serialization.from_bytes(serialization.to_bytes(graph))
    assert str(again) == str(graph)


def test_every_graph_pass_is_in_the_catalogue_and_in_each_preset() -> None:
    known = {info.name: info for info in catalogue() if info.level == "graph"}
    assert set(known) == set(transforms())
    assert all(info.summary for info in known.values())
    # To show values is for whoever looks into a program, not for a pipeline to have.
    rewriting = [name for name in transforms() if name != "observe"]
    for preset in presets().values():
        # What another frontend has imported is IR already: there is no graph left to rewrite.
        wanted = rewriting if preset.recipe.frontend in OWN_FRONTENDS else []
        assert [step.name for step in preset.recipe.steps if step.level == "graph"] == wanted


def test_options_are_checked() -> None:
    graph = graph_of(lambda a: a @ a, torch.ones(2, 2))
    with pytest.raises(TransformError, match="no option 'size'; it has min-size"):
        run_transform(graph, "replace-matmul-with-onednn-selective", {"size": 3})
    with pytest.raises(TransformError, match="unknown graph pass"):
        run_transform(graph, "unknown", {})
    (note,) = run_transform(graph, "replace-matmul-with-onednn-selective", {"min-size": 5})
    assert note.text == "left: a result matrix has 4 elements, fewer than 5"
