"""`read-in-place`: which copies go, which stay, and that a slice of an argument is passed as a pointer into it."""

from __future__ import annotations

import msgspec
import pytest
import torch

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.passes.read_in_place import ReadInPlace
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from tests.support.mlir_jit import Compiled

KIND, STACK = "memref<1x8x16xf32>", "memref<3x8x16xf32>"
SLICE = "memref<1x8x16xf32, strided<[128, 16, 1], offset: 256>>"


def function(body: str, callee: str = "linalg.add ins(%a, %a : {0}, {0}) outs(%b : {0})") -> str:
    """An entry whose third slice of `%x` is copied to `%a`, of which `callee` makes `%b`; then `body` follows."""
    callee = callee.format(KIND)
    return f"""
    func.func private @layer(%a: {KIND}, %b: {KIND}) {{
      {callee}
      return
    }}
    func.func @f(%x: {STACK} {{buddy.source = 0}}, %y: {STACK} {{buddy.source = 1}}, %out: {KIND} {{buddy.result}}) {{
      %slice = memref.subview %x[2, 0, 0] [1, 8, 16] [1, 1, 1] : {STACK} to {SLICE}
      %a = memref.alloc() : {KIND}
      memref.copy %slice, %a : {SLICE} to {KIND}
      {body}
      return
    }}"""


CALL = f"call @layer(%a, %out) : ({KIND}, {KIND}) -> ()"


def test_a_dense_slice_of_an_argument_is_passed_by_a_pointer_into_it() -> None:
    compiled = Compiled(function(CALL), [ReadInPlace()])
    assert "memref.copy" not in compiled.text
    assert "memref.alloc" not in compiled.text
    assert "%c1024 = arith.constant 1024" in compiled.text
    assert "memref.view %arg0[%c1024][] : memref<1536xi8> to memref<1x8x16xf32>" in compiled.text
    assert compiled.remarks == ["no copy: its readers read the source"]


STAYS = {
    "the copy is written to": function(CALL, "linalg.fill ins(%c : f32) outs(%a : {0})".replace("%c", "%c0")),
    "its source is written to before it is read": function(f"memref.copy %a, %slice : {KIND} to {SLICE}\n{CALL}"),
    "another argument, which may be the same tensor, is written to": function(
        f"memref.copy %x, %y : {STACK} to {STACK}\n{CALL}"),
    "it is filled a second time": function(f"{CALL}\nmemref.copy %out, %a : {KIND} to {KIND}\n{CALL}"),
    "nobody knows what the callee does": function(CALL.replace("layer", "foreign"))
    + f"func.func private @foreign({KIND}, {KIND})",
}  # fmt: skip


@pytest.mark.parametrize("reason", STAYS)
def test_a_copy_stays_where(reason: str) -> None:
    text = STAYS[reason].replace("linalg.fill", "%c0 = arith.constant 0.0 : f32\n linalg.fill")
    compiled = Compiled(text, [ReadInPlace()])
    assert compiled.text.count(f"{SLICE} to {KIND}") == 1
    assert compiled.remarks
    assert all(remark.startswith("copied: its ") for remark in compiled.remarks)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        x = x + torch.softmax(self.mix(x) @ past.transpose(0, 1), dim=-1) @ past
        return torch.relu(self.mix(torch.tanh(self.mix(x)) * x))


class Stacked(torch.nn.Module):
    """Equal layers, each of which reads its own slice of one tensor; the main function reads the last slice too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer, past in zip(self.layers, cache, strict=True):
            x = layer(x, past)
        return x, cache[2] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_layers_read_their_slices_where_they_are(threads: int) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        (captured,) = capture(Stacked().eval(), (torch.randn(5, 16), torch.randn(3, 9, 16)))
    compilation = Compiler(captured.graph).compile(msgspec.structs.replace(default_recipe(), threads=threads))
    assert "no copy: its readers read the source" in [text for name, _, text in compilation.remarks]
    program = LoadedProgram(compilation.artifact)
    for found, expected in zip(program(captured.tensors), captured.eager(captured.tensors), strict=True):
        torch.testing.assert_close(found, expected)


CHAIN = f"""
    func.func @f(%x: memref<4x8x16xf32> {{buddy.source = 0}}, %out: {KIND} {{buddy.result}}) {{
      %half = memref.subview %x[2, 0, 0] [2, 8, 16] [1, 1, 1] : memref<4x8x16xf32>
        to memref<2x8x16xf32, strided<[128, 16, 1], offset: 256>>
      %a = memref.alloc() : memref<2x8x16xf32>
      memref.copy %half, %a : memref<2x8x16xf32, strided<[128, 16, 1], offset: 256>> to memref<2x8x16xf32>
      %slice = memref.subview %a[1, 0, 0] [1, 8, 16] [1, 1, 1] : memref<2x8x16xf32>
        to memref<1x8x16xf32, strided<[128, 16, 1], offset: 128>>
      %b = memref.alloc() : {KIND}
      memref.copy %slice, %b : memref<1x8x16xf32, strided<[128, 16, 1], offset: 128>> to {KIND}
      linalg.add ins(%b, %b : {KIND}, {KIND}) outs(%out : {KIND})
      return
    }}"""


def test_a_slice_of_a_slice_begins_where_both_offsets_say() -> None:
    compiled = Compiled(CHAIN, [ReadInPlace()])
    assert "memref.alloc" not in compiled.text
    assert "arith.constant 1536" in compiled.text, "2 + 1 of the first dim's 512 bytes"
    assert "memref.view %arg0[%c1536][] : memref<2048xi8> to memref<1x8x16xf32>" in compiled.text


def test_a_slice_of_an_argument_whose_size_only_a_call_tells_is_copied() -> None:
    compiled = Compiled(function(CALL).replace(STACK, "memref<?x8x16xf32>"), [ReadInPlace()])
    assert compiled.text.count(f"{SLICE} to {KIND}") == 1
