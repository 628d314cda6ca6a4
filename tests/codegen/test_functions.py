"""Objects: one a function, kept on disk by the function's text; a cache that fails costs time, not the result."""

from __future__ import annotations

import multiprocessing
import platform
from pathlib import Path

import pytest
import torch

from buddy.compiler.codegen import functions
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe, digest
from buddy.compiler.support import disk_cache
from tests.models import stack
from tests.programs import Line, assert_same


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An object cache of the test's own."""
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    return tmp_path / "objects"


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every object that LLVM really makes."""
    count: list[int] = []
    make = functions.compile_objects
    monkeypatch.setattr(
        functions, "compile_objects", lambda code, level: count.extend([1] * len(code)) or make(code, level)
    )
    return count


def compiled() -> list[torch.Tensor]:
    """The results of the model after a compilation from nothing."""
    return Line(*stack(2)).run()


def expected() -> list[torch.Tensor]:
    model, x = stack(2)
    with torch.no_grad():
        return [model(x)]


def test_a_second_compilation_reads_its_objects_from_disk(cache: Path, emitted: list[int]) -> None:
    compiled()
    made = len(emitted)
    assert made == len(list(cache.iterdir())) > 1
    assert_same(compiled(), expected())
    assert len(emitted) == made


def test_another_optimisation_level_is_another_object(cache: Path, emitted: list[int]) -> None:
    compiled()
    made = len(emitted)
    Line(*stack(2)).compile(Recipe(steps=default_recipe().steps, opt_level=0))
    assert len(emitted) == 2 * made


@pytest.mark.parametrize("damage", [b"", b"no object at all", b"12\nhalf"])
def test_a_damaged_object_is_made_again(cache: Path, emitted: list[int], damage: bytes) -> None:
    compiled()
    made = len(emitted)
    for path in cache.iterdir():
        path.write_bytes(damage)
    assert_same(compiled(), expected())
    assert len(emitted) == 2 * made


def test_a_truncated_object_is_made_again(cache: Path, emitted: list[int]) -> None:
    compiled()
    made = len(emitted)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert_same(compiled(), expected())
    assert len(emitted) == 2 * made


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file where the cache's folder should be")
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "file"))
    assert_same(compiled(), expected())


def test_no_half_written_files_are_left_behind(cache: Path) -> None:
    compiled()
    assert {len(path.name) for path in cache.iterdir()} == {len(digest("any key"))}


def test_a_function_two_programs_share_is_one_object(cache: Path, emitted: list[int]) -> None:
    Line(*stack(2)).compile()
    made = len(emitted)
    Line(*stack(3)).compile()
    assert len(emitted) == made + 1, "only the main function, with one call more, is new"


def test_the_object_of_a_function_defines_it_alone(cache: Path) -> None:
    line = Line(*stack(2))
    artifact = line.compile().artifact
    names = [name for name in line.text("codegen").splitlines() if name.endswith(":") and not name.startswith(".L")]
    assert len(artifact.objects) == len(names)


def test_functions_get_objects_at_every_level() -> None:
    for level in range(4):
        assert_same(Line(*stack(2)).run(Recipe(steps=default_recipe().steps, opt_level=level)), expected())


# Elements of a vector, as the loop vectorizer makes them of a copy with a stride, for a processor with AVX512-BF16.
_STRIDED = """
llvm.func @strided(%source: !llvm.ptr, %target: !llvm.ptr) attributes {
    target_cpu = "cooperlake", target_features = #llvm.target_features<["+64bit"]>} {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %count = llvm.mlir.constant(16 : i64) : i64
  %stride = llvm.mlir.constant(9 : i64) : i64
  llvm.br ^head(%zero : i64)
^head(%i: i64):
  %more = llvm.icmp "slt" %i, %count : i64
  llvm.cond_br %more, ^body, ^end
^body:
  %from = llvm.getelementptr %source[%i] : (!llvm.ptr, i64) -> !llvm.ptr, bf16
  %x = llvm.load %from : !llvm.ptr -> bf16
  %place = llvm.mul %i, %stride : i64
  %to = llvm.getelementptr %target[%place] : (!llvm.ptr, i64) -> !llvm.ptr, bf16
  llvm.store %x, %to : bf16, !llvm.ptr
  %next = llvm.add %i, %one : i64
  llvm.br ^head(%next : i64)
^end:
  llvm.return
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code generator of x86-64")
def test_strided_stores_of_bfloat16_do_not_end_the_process(cache: Path) -> None:
    def compile_strided() -> None:
        with ir.Context(), ir.Location.unknown():
            functions.compile_functions(ir.Module.parse(_STRIDED).operation, LocationSets(), 2)

    compiling = multiprocessing.get_context("fork").Process(target=compile_strided)
    compiling.start()
    compiling.join()
    assert compiling.exitcode == 0


_ANNOTATED = """
llvm.func @f(%pointer: !llvm.ptr, %count: i64) {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  llvm.br ^head(%zero : i64)
^head(%i: i64):
  %more = llvm.icmp "slt" %i, %count : i64
  llvm.cond_br %more, ^body, ^exit
^body:
  %address = llvm.getelementptr %pointer[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store %i, %address : i64, !llvm.ptr
  %next = llvm.add %i, %one : i64
  llvm.br ^head(%next : i64) {llvm.loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}
^exit:
  llvm.return
}
"""


def test_the_annotation_of_a_loop_reaches_llvm() -> None:
    with ir.Context() as context, ir.Location.unknown():
        (function,) = functions.separate_functions(ir.Module.parse(_ANNOTATED).operation, LocationSets())
        text = functions.to_llvm_ir(ir.Module.parse(function.code, context).operation)
    assert "llvm.loop.unroll.disable" in text
