"""The top-level IR that programs become, as FileCheck expectations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.ops.lowering import lower_top_level
from tests.programs import captured
from tests.support.filecheck_text import filecheck


def top_level(dialect: Any, function: Any, *shapes: tuple[int, ...]) -> str:
    return str(lower_top_level(captured(function, *map(torch.ones, shapes)).graph, dialect))


def test_arith_add_in_linalg() -> None:
    filecheck(
        top_level("linalg", lambda x, y: x + y, (10,), (10,)),
        """
        CHECK: #[[MAP:.*]] = affine_map<(d0) -> (d0)>
        CHECK-LABEL: func.func @forward
        CHECK-SAME: (%[[X:.*]]: tensor<10xf32> {{{.*}}}, %[[Y:.*]]: tensor<10xf32> {{{.*}}}) -> tensor<10xf32>
        CHECK-NEXT: %[[EMPTY:.*]] = tensor.empty() : tensor<10xf32>
        CHECK-NEXT: %[[SUM:.*]] = linalg.generic
        CHECK-SAME: indexing_maps = [#[[MAP]], #[[MAP]], #[[MAP]]], iterator_types = ["parallel"]
        CHECK-SAME: ins(%[[X]], %[[Y]] : tensor<10xf32>, tensor<10xf32>) outs(%[[EMPTY]] : tensor<10xf32>)
        CHECK: %[[S:.*]] = arith.addf %{{.*}}, %{{.*}} : f32
        CHECK-NEXT: linalg.yield %[[S]] : f32
        CHECK: return %[[SUM]] : tensor<10xf32>
        """,
    )


def test_arith_add_in_tosa() -> None:
    filecheck(
        top_level("tosa", lambda x, y: x + y, (10,), (10,)),
        """
        CHECK-LABEL: func.func @forward
        CHECK-SAME: (%[[X:.*]]: tensor<10xf32> {{{.*}}}, %[[Y:.*]]: tensor<10xf32> {{{.*}}}) -> tensor<10xf32>
        CHECK-NEXT: %[[SUM:.*]] = tosa.add %[[X]], %[[Y]] : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
        CHECK-NEXT: return %[[SUM]] : tensor<10xf32>
        """,
    )


def test_arguments_are_not_writable_and_know_their_input() -> None:
    filecheck(
        top_level("linalg", lambda x, y: x + y, (10,), (10,)),
        """
        CHECK: func.func @forward
        CHECK-SAME: {buddy.source = 0 : i64, bufferization.writable = false}
        CHECK-SAME: {buddy.source = 1 : i64, bufferization.writable = false}
        """,
    )


def test_weights_are_arguments_marked_as_parameters() -> None:
    text = str(lower_top_level(captured(torch.nn.Linear(3, 2), torch.ones(4, 3)).graph))
    filecheck(
        text,
        """
        CHECK: func.func @forward
        CHECK-SAME: tensor<2x3xf32> {buddy.parameter
        CHECK-NOT: dense<
        """,
    )


def test_addmm_is_a_contraction_with_the_addend_after_it() -> None:
    filecheck(
        top_level("linalg", torch.addmm, (6,), (4, 5), (5, 6)),
        """
        CHECK-LABEL: func.func @forward
        CHECK: %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
        CHECK: %[[INIT:.*]] = linalg.fill ins(%[[ZERO]] : f32) outs(%{{.*}} : tensor<4x6xf32>) -> tensor<4x6xf32>
        CHECK-NEXT: %[[PRODUCT:.*]] = linalg.contract
        CHECK-SAME: ins(%{{.*}}, %{{.*}} : tensor<4x5xf32>, tensor<5x6xf32>) outs(%[[INIT]] : tensor<4x6xf32>)
        CHECK: linalg.generic
        CHECK-SAME: ins(%[[PRODUCT]], %{{.*}} : tensor<4x6xf32>, tensor<6xf32>)
        CHECK: arith.addf
        """,
    )


def test_addmm_in_tosa_is_a_product_of_rank_three() -> None:
    filecheck(
        top_level("tosa", torch.addmm, (6,), (4, 5), (5, 6)),
        """
        CHECK-LABEL: func.func @forward
        CHECK: tosa.matmul {{.*}} : (tensor<1x4x5xf32>, tensor<1x5x6xf32>, {{.*}}) -> tensor<1x4x6xf32>
        CHECK: tosa.reshape {{.*}} -> tensor<4x6xf32>
        CHECK: tosa.add {{.*}} : (tensor<4x6xf32>, tensor<1x6xf32>) -> tensor<4x6xf32>
        """,
    )


def test_gelu_is_one_generic_whose_body_is_its_formula() -> None:
    text = top_level("linalg", F.gelu, (3, 4))
    assert text.count("linalg.generic") == 1
    filecheck(
        text,
        """
        CHECK: linalg.generic
        CHECK: arith.mulf %{{.*}}, %{{.*}} : f32
        CHECK: %[[ERF:.*]] = math.erf
        CHECK: arith.addf %{{.*}}, %[[ERF]] : f32
        CHECK: %[[GELU:.*]] = arith.mulf
        CHECK-NEXT: linalg.yield %[[GELU]] : f32
        """,
    )


def test_softmax_subtracts_the_maximum_before_exp() -> None:
    filecheck(
        top_level("linalg", lambda x: torch.softmax(x, -1), (3, 4)),
        """
        CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "reduction"]
        CHECK: arith.maximumf
        CHECK: %[[OFF:.*]] = arith.subf
        CHECK-NEXT: math.exp %[[OFF]]
        CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "reduction"]
        CHECK: arith.addf
        CHECK: arith.divf
        CHECK: arith.mulf
        """,
    )


def test_a_broadcast_operand_is_read_through_its_map() -> None:
    text = top_level("linalg", lambda x, y: x * y, (3, 4), (4,))
    assert "tensor.expand_shape" not in text
    filecheck(text, "CHECK: affine_map<(d0, d1) -> (d1)>")


def test_a_clone_is_the_very_value() -> None:
    text = top_level("linalg", lambda x: x.clone(), (3, 4))
    filecheck(
        text,
        """
        CHECK: func.func @forward(%[[X:[a-z0-9]+]]:
        CHECK-NEXT: return %[[X]]
        """,
    )
