"""Long types of a text: which there are, how often, and where first."""

from __future__ import annotations

import time

import pytest

from buddy.app.reports.text.abbreviations import abbreviate_types
from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.text.lines import MAX_TYPES, IndexedText, long_types

VIEW = "memref<128x768xf32, strided<[768, 1], offset: ?>>"
STRUCT = "!llvm.struct<(ptr, ptr, i64, array<2 x i64>, array<2 x i64>)>"
FUNCTION = "!llvm.func<i32 (ptr, ptr, i64, ptr) -> i32>"
MAPPED = "memref<4x4x4xf32, affine_map<(d0, d1, d2)[s0] -> (d0 * 16 + s0, d1, d2)>>"


def of(*lines: str) -> list[LongType]:
    return long_types(IndexedText("\n".join(lines) + "\n"))


def test_types_that_stand_more_than_once_are_listed_as_they_appear() -> None:
    found = of(
        "module {",
        f"  func.func @f(%a: {VIEW}, %b: {STRUCT}) {{",
        f"    %0 = llvm.extractvalue %b[1] : {STRUCT}",
        f"    memref.copy %a, %a : {VIEW} to {VIEW}",
        f"    %1 = llvm.mlir.addressof @g : {FUNCTION}",
    )
    assert found == [LongType(VIEW, 3, 1), LongType(STRUCT, 2, 1)]


@pytest.mark.parametrize("type_", [VIEW, STRUCT, FUNCTION, MAPPED])
def test_a_type_ends_where_its_brackets_do(type_: str) -> None:
    assert of(f"%0 = x : {type_} -> {type_}, f32") == [LongType(type_, 2, 0)]


def test_short_types_definitions_of_aliases_and_what_never_ends_are_none() -> None:
    assert of(*["%0 = x : tensor<1x128x768xf32>, vector<16xf32>"] * 3) == []
    assert of(f"!a = {VIEW}", f"!b = {VIEW}", f"%0 = x : {VIEW}") == []
    assert of(*[f"%0 = x : {VIEW[:-1]} to f32"] * 2) == []


@pytest.mark.parametrize(
    "line", ["tensor<a->" * 200, "tensor<" + "<a->" * 900, "array<a->" * 200, "array<" + "<a->" * 900]
)
def test_arrows_that_nothing_closes_are_read_once(line: str) -> None:
    """Each was once read in as many ways as there are arrows, with each of the others: a minute and more."""
    start = time.process_time()
    assert of(line, line) == []
    assert abbreviate_types(line, "…") == line
    assert time.process_time() - start < 5


def test_of_too_many_the_ones_that_stand_there_most_often_are_kept() -> None:
    lines = [f"%0 = x : {VIEW.replace('128', str(k))}" for k in range(MAX_TYPES + 50) for _ in range(2 + (k >= 50))]
    found = of(*lines)
    assert len(found) == MAX_TYPES
    assert {one.uses for one in found} == {3}
    assert [one.first for one in found] == sorted(one.first for one in found)
