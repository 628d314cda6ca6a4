"""Regions and symbols read off the indentation of printed IR."""

from __future__ import annotations

import pytest

from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.structure import TextSymbol, region_at, symbols

MLIR = """#map = affine_map<(d0) -> (d0)>
module {
  memref.global "private" constant @weights : memref<4xf32> = dense<1.0>
  func.func private @extern(f32)
  func.func @main(%arg0: f32) -> f32 {
    %0 = scf.if %c -> (f32) {
      scf.yield %arg0 : f32
    } else {
      %1 = arith.addf %arg0, %arg0 : f32
      scf.yield %1 : f32
    }
    linalg.generic {indexing_maps = [#map]} ins(%a : tensor<4xf32>) {
    ^bb0(%in: f32):
      linalg.yield %in : f32
    } -> tensor<4xf32>
    return %0 : f32
  }
}
"""
GENERIC = """"builtin.module"() ({
  "func.func"() <{function_type = (f32) -> f32, sym_name = "main"}> ({
  ^bb0(%arg0: f32):
    "func.return"(%arg0) : (f32) -> ()
  }) : () -> ()
}) : () -> ()
"""
LLVM = """define void @main(ptr %0) {
  br label %2

2:
  ret void
}

declare float @expf(float)
"""
PTX = """.version 6.3
.target sm_75

.visible .entry first(
        .param .u64 .ptr .align 1 first_param_0
)
.maxntid 32, 8, 1
{
$L__BB0_2:
        ret;
}

.visible .entry second()
{
        ret;
}
"""
ASM = "main:\n  0  push rbp\n.L4:\n  4  ret\n\nother:\n  0  ret\n"


def test_symbols_of_mlir_have_the_lines_of_their_bodies() -> None:
    found = symbols(IndexedText(MLIR), "mlir")
    assert found == [
        TextSymbol("weights", "global", 2, 2),
        TextSymbol("extern", "function", 3, 3),
        TextSymbol("main", "function", 4, 16),
    ]


@pytest.mark.parametrize(
    ("text", "language", "found"),
    [
        (GENERIC, "mlir", [("main", 1, 4)]),
        (LLVM, "llvm", [("main", 0, 5), ("expf", 7, 7)]),
        (ASM, "asm", [("main", 0, 4), ("other", 5, 6)]),
        ("graph Net {\n  x = PlaceholderOp() : 4xf32\n}\n", "buddy", [("Net", 0, 2)]),
        ("opcode  name\n", "fx", []),
        (PTX, "ptx", [("first", 3, 11), ("second", 12, 15)]),
        ("", "asm", []),
    ],
)
def test_symbols_of_other_texts(text: str, language: str, found: list[tuple[str, int, int]]) -> None:
    assert [(symbol.name, symbol.first, symbol.last) for symbol in symbols(IndexedText(text), language)] == found


@pytest.mark.parametrize(
    ("line", "region"),
    [
        (1, (1, 17)),
        (4, (4, 16)),
        (5, (5, 7)),  # the first branch ends where the second begins
        (6, (5, 7)),
        (7, (7, 10)),
        (9, (7, 10)),
        (12, (11, 14)),  # a block's label stands no deeper than the op
        (13, (11, 14)),
        (14, (11, 14)),
        (15, (4, 16)),
        (2, (1, 17)),
        (0, None),
        (99, None),
    ],
)
def test_the_region_that_a_line_opens_or_is_in(line: int, region: tuple[int, int] | None) -> None:
    assert region_at(IndexedText(MLIR), line) == region


LLVM = """declare void @g()

define void @f(ptr %0) {
entry:
  br label %1

1:  ; preds = %entry
  switch i32 0, label %2 [
  ]

2:
  ret void
}

define void @h() {
  ret void
}
"""


@pytest.mark.parametrize(
    ("line", "region"),
    [
        (3, (2, 12)),  # a block's label stands where the function's header does
        (5, (2, 12)),  # so does a blank line between two blocks
        (6, (2, 12)),
        (8, (2, 12)),
        (12, (2, 12)),
        (13, None),  # between two functions
        (1, None),
        (15, (14, 16)),
    ],
)
def test_the_region_at_a_label_or_a_blank_line_of_llvm_ir(line: int, region: tuple[int, int] | None) -> None:
    assert region_at(IndexedText(LLVM), line) == region


def test_labels_of_ptx_are_in_their_function() -> None:
    text = ".entry first(\n)\n{\n\tmov.u32 %r1;\n\n$L__BB0_2:\n\tret;\n}\n"
    assert [region_at(IndexedText(text), line) for line in (4, 5)] == [(2, 7)] * 2


@pytest.mark.parametrize("header", ["gpu.module @k {", '"gpu.module"() ({ // sym_name = "k"', "module @k {"])
def test_named_modules_are_symbols(header: str) -> None:
    (symbol,) = symbols(IndexedText(f"{header}\n  op\n}}\n"), "mlir")
    assert (symbol.name, symbol.kind) == ("k", "module")
