"""Files of MLIR as programs: what their functions take and give, the phase they are at, and what is wrong with them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.importers.sources import CapturedProgram, SourceError, load_program
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.protocol import Diagnostic, RunReport
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.captured import CapturedGraph

PROGRAMS = """
func.func private @twice(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %c = arith.constant dense<2.0> : tensor<4x8xf32>
  %0 = arith.mulf %x, %c : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
func.func @product(%a: tensor<4x16xf32>, %b: tensor<16x8xf32>) -> tensor<4x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %m = linalg.matmul ins(%a, %b : tensor<4x16xf32>, tensor<16x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
  %h = func.call @twice(%m) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %h : tensor<4x8xf32>
}
// -----
memref.global "private" constant @w : memref<8xf32> = dense<3.0>
func.func @axpy(%a: f32, %x: memref<8xf32>, %y: memref<8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %w = memref.get_global @w : memref<8xf32>
  scf.for %i = %c0 to %c8 step %c1 {
    %u = memref.load %x[%i] : memref<8xf32>
    %v = memref.load %y[%i] : memref<8xf32>
    %g = memref.load %w[%i] : memref<8xf32>
    %p = arith.mulf %a, %u : f32
    %q = arith.addf %p, %v : f32
    %r = arith.addf %q, %g : f32
    memref.store %r, %y[%i] : memref<8xf32>
  }
  return
}
// -----
func.func @numbers(%n: i64, %x: f32, %i: index) -> (i64, f32, index) {
  %c1 = arith.constant 1 : i64
  %r = arith.addi %n, %c1 : i64
  %y = math.absf %x : f32
  %j = arith.addi %i, %i : index
  return %r, %y, %j : i64, f32, index
}
// -----
func.func @open(%a: tensor<?x?xf32>, %b: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %d = tensor.dim %a, %c0 : tensor<?x?xf32>
  %e = tensor.empty(%d) : tensor<?x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  %m = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x8xf32>) outs(%f : tensor<?x8xf32>) -> tensor<?x8xf32>
  return %m : tensor<?x8xf32>
}
// -----
llvm.func @scale(%p: !llvm.ptr, %s: f32) -> f32 {
  %0 = llvm.load %p : !llvm.ptr -> f32
  %1 = llvm.fmul %0, %s : f32
  llvm.store %1, %p : f32, !llvm.ptr
  llvm.return %1 : f32
}
// -----
func.func @hlo(%a: tensor<4x16xf32>, %b: tensor<16x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.negate %0 : tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
// -----
func.func @tosa(%a: tensor<1x4x8xf32>) -> tensor<1x4x8xf32> {
  %0 = tosa.abs %a : (tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  return %0 : tensor<1x4x8xf32>
}
// -----
func.func @torch(%a: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %0 = torch.aten.relu %a : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
  return %0 : !torch.vtensor<[4,8],f32>
}
"""
Eager = Callable[..., list[torch.Tensor]]
# The phase of each function, and the same in PyTorch.
EXPECTED: dict[str, tuple[str, Eager]] = {
    "product": ("toplevel", lambda a, b: [2 * (a @ b)]),
    "axpy": ("loops", lambda a, x, y: [a * x + y + 3]),
    "numbers": ("loops", lambda n, x, i: [n + 1, x.abs(), 2 * i]),
    "open": ("toplevel", lambda a, b: [a @ b]),
    "scale": ("llvm", lambda p, s: [p[0] * s, torch.cat([p[:1] * s, p[1:]])]),
    "hlo": ("toplevel", lambda a, b: [-(a @ b)]),
    "tosa": ("toplevel", lambda a: [a.abs()]),
    "torch": ("toplevel", lambda a: [a.relu()]),
}


def named(program: CapturedProgram) -> dict[str, CapturedGraph]:
    """The graphs by the names of their functions, without the part of the file that they are in."""
    return {graph.info.name.partition(" ")[0]: graph for graph in program.graphs}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlir") / "programs.txt"
    path.write_text(PROGRAMS)
    return path


@pytest.fixture(scope="module")
def graphs(file: Path) -> dict[str, CapturedGraph]:
    pointer = load_program(f"{file}:scale", shapes=("arg0=6",))
    return {**named(load_program(str(file))), **named(pointer)}


def report_of(captured: CapturedGraph) -> RunReport:
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    compiled = Compiler(captured.graph).compile(recipe)
    return run_and_compare(
        captured, compiled.artifact, repeats=1, threads=1, nodes=NodeCounts(0, 0), compile_seconds=0.0
    )


def refused(source: object, *shapes: str) -> Diagnostic:
    with pytest.raises(SourceError) as caught:
        load_program(str(source), shapes=shapes)
    return caught.value.diagnostic


@pytest.mark.parametrize("name", EXPECTED)
def test_a_function_enters_at_its_phase_and_gives_what_pytorch_does(
    graphs: dict[str, CapturedGraph], name: str
) -> None:
    entry_phase, eager = EXPECTED[name]
    captured = graphs[name]
    assert captured.info.entry_phase == entry_phase
    report = report_of(replace(captured, eager=lambda tensors: eager(*tensors)))
    assert report.ok, report.outputs


def test_without_a_reference_nothing_is_called_right(graphs: dict[str, CapturedGraph]) -> None:
    assert graphs["product"].eager is None
    report = report_of(graphs["product"])
    assert [output.verdict for output in report.outputs] == ["unchecked"]
    assert report.outputs[0].deviation > 0
    assert (report.ok, report.wrong, report.compared) == (False, False, False)
    assert report.eager.runs == 0


def test_rows_are_the_ops_of_every_function_and_where_they_stand(graphs: dict[str, CapturedGraph], file: Path) -> None:
    rows = {row.name: row for row in graphs["product"].info.rows}
    assert (rows["matmul"].target, rows["matmul"].module, rows["matmul"].shape) == ("linalg.matmul", "product", "4x8")
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "linalg.matmul" in text)
    assert rows["matmul"].location == f"{file}:{line}"
    assert rows["mulf"].module == "twice"
    assert rows["call"].inputs == (rows["matmul"].index,)


def test_instructions_lead_to_the_ops_of_the_file(graphs: dict[str, CapturedGraph]) -> None:
    captured = graphs["axpy"]
    texts = []
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    Compiler(captured.graph).compile(recipe, lambda _stage, text: texts.append(text))
    assert any("axpy.scf.for" in names for names in texts[-1].sets)


def test_bytecode_is_the_same_program(graphs: dict[str, CapturedGraph], tmp_path: Path) -> None:
    text = graphs["product"].code
    module = ir.Module.parse(text, ir.Context())
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    path = tmp_path / "program"
    path.write_bytes(data.getvalue())
    captured = load_program(str(path)).graphs[0]
    assert [row.target for row in captured.info.rows] == [row.target for row in graphs["product"].info.rows]
    expected = EXPECTED["product"][1]
    assert report_of(replace(captured, eager=lambda tensors: expected(*tensors))).ok


def test_a_pointer_needs_a_shape_and_is_opened_all_the_same(file: Path) -> None:
    program = load_program(f"{file}:scale")
    assert any("give its shape, as --shape arg0=4x4xf32" in note for note in program.notes)
    assert "llvm.fmul" in [row.target for row in program.graphs[0].info.rows]


def test_a_tensor_without_elements_is_no_input(tmp_path: Path) -> None:
    path = tmp_path / "none.mlir"
    path.write_text("func.func @f(%x: tensor<0x4xf32>) -> tensor<0x4xf32> { return %x : tensor<0x4xf32> }")
    assert any("@f cannot be run: arg0 has no elements" in note for note in load_program(str(path)).notes)


def test_what_is_written_under_another_name_is_a_result(tmp_path: Path) -> None:
    path = tmp_path / "aligned.mlir"
    path.write_text("""func.func @f(%x: memref<8xf32>, %y: f32) {
  %aligned = memref.assume_alignment %x, 16 : memref<8xf32>
  %c0 = arith.constant 0 : index
  memref.store %y, %aligned[%c0] : memref<8xf32>
  return
}
""")
    (captured,) = load_program(str(path)).graphs
    assert [str(result) for result in captured.graph.results] == ["arg0_written"]
    report = report_of(replace(captured, eager=lambda tensors: [torch.cat([tensors[1][None], tensors[0][1:]])]))
    assert report.ok, report.outputs


def test_a_loop_reads_what_its_body_reads(graphs: dict[str, CapturedGraph]) -> None:
    loop = next(op for op in graphs["axpy"].graph.body if op.target == "scf.for")
    assert {parent.name for parent in loop.parents} >= {"arg0", "arg1", "arg2", "get_global"}


def test_a_result_that_is_an_argument_of_a_later_block_shifts_no_other(tmp_path: Path) -> None:
    path = tmp_path / "blocks.mlir"
    path.write_text("""func.func @f(%x: f32) -> (f32, f32) {
  %y = arith.addf %x, %x : f32
  cf.br ^next(%y : f32)
^next(%z: f32):
  %n = arith.negf %x : f32
  return %z, %n : f32, f32
}
""")
    (captured,) = load_program(str(path)).graphs
    assert [[parent.name for parent in result.parents] for result in captured.graph.results] == [[], ["negf"]]


RETURNS = """func.func @f(%c: i1, %x: f32) -> f32 {{
  cf.cond_br %c, ^bb1, ^bb2
^bb1:
  %a = arith.addf %x, %x : f32
  {first}
^bb2:
  %m = arith.mulf %x, %x : f32
  {second}
}}
"""


@pytest.mark.parametrize(
    ("first", "second", "parents"),
    [
        ("return %a : f32", "return %m : f32", ["addf", "mulf"]),
        ("return %a : f32", "cf.br ^bb1", ["addf"]),
        ("cf.br ^bb2", "return %x : f32", ["arg1"]),
        ("return %x : f32", "return %x : f32", ["arg1"]),
    ],
)
def test_a_result_has_the_values_of_every_return_as_parents(
    first: str, second: str, parents: list[str], tmp_path: Path
) -> None:
    (tmp_path / "returns.mlir").write_text(RETURNS.format(first=first, second=second))
    (captured,) = load_program(str(tmp_path / "returns.mlir")).graphs
    (result,) = captured.graph.results
    assert [parent.name for parent in result.parents] == parents


def test_open_sizes_are_said(file: Path) -> None:
    program = load_program(f"{file}:open", shapes=("arg0=3x5", "arg1=5x8"))
    assert [tuple(tensor.shape) for tensor in program.graphs[0].tensors] == [(3, 5), (5, 8)]
    chosen = load_program(f"{file}:open")
    assert any("are set to 4; choose other sizes with" in note for note in chosen.notes)


def test_inputs_are_random_and_always_the_same(file: Path) -> None:
    first, second = (load_program(f"{file}:product") for _ in range(2))
    assert any("random numbers (seed 0)" in note for note in first.notes)
    for one, other in zip(first.graphs[0].tensors, second.graphs[0].tensors, strict=True):
        assert one.equal(other)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def mlir(tmp_path: Path, text: str | bytes, name: str = "bad.mlir") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


STRANGERS = {
    "generic": '%0 = "flow.tensor.thing"(%a) : (tensor<4xf32>) -> tensor<4xf32>',
    "custom": "%0 = flow.thing %a : tensor<4xf32>",
}


@pytest.mark.parametrize("op", STRANGERS.values(), ids=STRANGERS)
def test_an_unregistered_dialect_is_named(tmp_path: Path, op: str) -> None:
    text = f"func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {{\n  {op}\n  return %0 : tensor<4xf32>\n}}\n"
    diagnostic = refused(mlir(tmp_path, text))
    assert "uses the dialect flow" in diagnostic.what
    assert "bad.mlir:2" in diagnostic.where
    assert "BUDDY_MLIR_PACKAGE" in diagnostic.todo


def test_text_and_bytecode_that_are_cut_off(tmp_path: Path) -> None:
    assert "not a module that MLIR can read" in refused(mlir(tmp_path, PROGRAMS[:300])).what
    data = io.BytesIO()
    ir.Module.parse("func.func @f() { return }", ir.Context()).operation.write_bytecode(data)
    assert "not a module that MLIR can read" in refused(mlir(tmp_path, data.getvalue()[:60])).what


def test_bytecode_of_a_newer_version(tmp_path: Path) -> None:
    data = io.BytesIO()
    ir.Module.parse("func.func @f() { return }", ir.Context()).operation.write_bytecode(data)
    newer = data.getvalue()[:4] + bytes([2 * 98 + 1]) + data.getvalue()[5:]
    diagnostic = refused(mlir(tmp_path, newer))
    assert "has another version than the bindings" in diagnostic.what
    assert "bytecode version 98 is newer" in diagnostic.what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("// nothing here\n", "contains no IR"),
        ('memref.global "private" @w : memref<8xf32>\n', "no function with a body"),
        ("func.func private @f() { return }\n", "none of the functions"),
        ("func.func @f() {\n  %0 = arith.addf %x, %x : f32\n  return\n}\n", "not a module that MLIR can read"),
        (b"\xff\xfe\x00f", "a binary file of unknown kind"),
    ],
)
def test_a_file_without_a_program(tmp_path: Path, text: str | bytes, what: str) -> None:
    assert what in refused(mlir(tmp_path, text)).what


def test_an_entry_or_a_shape_that_is_not_there(file: Path) -> None:
    assert "has no function nothing" in refused(f"{file}:nothing").what
    assert "'arg0=' is not a shape" in refused(f"{file}:open", "arg0=").what
    wrong = load_program(f"{file}:product", shapes=("arg0=3x3",))
    assert any("arg0 is 4x16, so it cannot be 3x3" in note for note in wrong.notes)
    assert "unknown input arg2; the inputs are arg0, arg1" in refused(f"{file}:product", "arg2=3x3").what
