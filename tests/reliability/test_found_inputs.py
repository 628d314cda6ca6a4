"""Inputs found by a campaign: each caused a traceback or a hang, and is now rejected with a message."""

from __future__ import annotations

import base64
import io
import signal
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import msgspec
import pytest
import torch

from buddy.app.reports.searches import read_variation
from buddy.app.workspace.settings import read_settings
from buddy.compiler.engine.programs import resolve_plugins
from buddy.compiler.graph.sizes import BadSizeError, parse_size
from buddy.compiler.importers.mlir_files.read_request import ReadAnswer, ReadRequest
from buddy.compiler.importers.mlir_files.reading import UnreadableError, new_context, parse_modules
from buddy.compiler.importers.onnx_files.model import prepare_model
from buddy.compiler.importers.sources import exported_program
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.pickles import without_running_code
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.protocol import Variation
from buddy.compiler.protocol.recipe import PluginFile
from buddy.compiler.protocol.source_locations import SourceError, locate_source
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.themes.palette import read_theme

DEEP = "[" * 3000


def test_toml_that_is_nested_too_deeply_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"theme = {DEEP}")
    assert "nested too deeply" in read_settings(path)[1]
    with pytest.raises(ValueError, match="nested too deeply"):
        read_theme(path)


def test_a_number_of_a_variation_that_nothing_carries_stays_text() -> None:
    assert read_variation(f"tile.rows={'9' * 400},4") == Variation("tile.rows", ("9" * 400, 4))


@pytest.mark.parametrize("text", ["4 // 0", "s0 % 0", "-" * 5000 + "1", "s0\x00", "(" * 5000])
def test_what_is_no_size_is_told_so(text: str) -> None:
    with pytest.raises(BadSizeError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("path", ["a\0b.py", "/dev/zero", "x" * 300, "/nowhere/plugin.py"])
def test_a_plug_in_is_a_regular_file(path: str) -> None:
    with pytest.raises(JobFailed):
        resolve_plugins([PluginFile(path)], "")


@pytest.mark.parametrize("source", ["x" * 300, "x" * 5000 + "/a.py", "a\0b.py"])
def test_a_source_that_no_system_can_have_is_no_traceback(source: str) -> None:
    with pytest.raises(SourceError):
        locate_source(source)


def test_an_archive_with_names_that_are_no_text_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(_archive("models/é.json").replace("é".encode(), b"\xee\x80"))
    with pytest.raises(SourceError, match="damaged"):
        exported_program.load(Opening(path, title=path.name))


def test_an_error_that_is_its_own_cause_is_followed_once() -> None:
    """The chain of causes has no end: opening such a file never ended."""
    error, other = ValueError("one"), ValueError("other")
    error.__cause__, other.__cause__ = other, error
    assert exported_program._find_cause(error, KeyError) is None
    assert exported_program._find_cause(error, ValueError) is error
    with pytest.raises(RuntimeError) as raised, without_running_code():
        torch.load(io.BytesIO(_archive("data.pkl")[:-9]))
    assert raised.value.__cause__ is not raised.value


def test_names_of_an_onnx_model_are_text(tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx").helper
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="layer")], "small", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString().replace(b"layer", b"l\xff\xfeer"))
    with pytest.raises(SourceError, match="not valid UTF-8"):
        prepare_model(path)


def test_what_mlir_says_of_bytecode_in_no_text_is_refused_in_text() -> None:
    """MLIR's message quotes the producer of the file, and Python's bindings cannot convert such bytes to a string."""
    with new_context() as context:
        file = io.BytesIO()
        ir.Module.parse("func.func private @layer()", context).operation.write_bytecode(file)
        data = bytearray(file.getvalue())
        data[data.index(0, len(b"ML\xefR") + 1)] = 0xFF  # the end of the producer's name
        with pytest.raises(UnreadableError) as raised:
            parse_modules(bytes(data), "a.mlir", context)
    assert raised.value.diagnostic.todo


# Bytecode that MLIR reads forever: 430 bytes of a linalg program with a few mutations.
ENDLESS = (
    b"c-k#bO-sX25ZraMT_2A}2tk4bDWwMw()tNS5Cso{U_p8iJjN!~K=LZ>>!H6*{1N^D5B>swf^NluVHsu_X2y5l6F0uQot&HvkA_FjbpRY$WaE+@q"
    b">NZ{=5Akj|G>!M>4?sI2D?^LYtuB1(?2jhqLGp0TW`GA%@9?wULs{*IZl`}<TOJ`GBir7bjn!z#i9-`!&$KmZ4q8B{M=WUU~^93=O0MSq-oI?<2|"
    b"E9AB0TzmLz(oIA?JbgIsG5ww)b)Ms}Tyh$MN~6(S}h(XMV`M2I6IOdoQiHd-|XWUOdsFgIj17-{n&9PN?oY&3lKEF0^bv1zPuHhEgrO{hK0R(=Y91"
    b"0Ym>IbT3i`=WV<c3!TU3KmsZEj&!;ei;fMpeV~3lywVL`x@4;uB)bmS=}@n2L{j<8oGV#w5UTZWsnltG&Q>I3V#7D_eY5"
)


def test_reading_mlir_without_end_is_ended_by_the_processors_time() -> None:
    """Whether this version of MLIR rejects the file or reads on, its process ends, on a loaded machine too."""
    question = msgspec.msgpack.encode(ReadRequest(zlib.decompress(base64.b85decode(ENDLESS)), "a.mlirbc", "", ()))
    program = (
        "import sys; from buddy.compiler.importers.mlir_files import entry_points as reader; "
        "from buddy.compiler.support.processes.__main__ import answer_call; "
        "reader.CPU_SECONDS = 1; answer_call(reader.read_entry_points_in_time)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=question, capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGXCPU, -signal.SIGKILL)


def test_mlir_is_read_where_the_processors_time_is_limited_already() -> None:
    """A lower limit than the reader's own cannot be raised."""
    question = msgspec.msgpack.encode(
        ReadRequest(b"func.func @f(%a: i32) -> i32 { return %a : i32 }", "a.mlir", "", ())
    )
    program = (
        "import resource, sys; from buddy.compiler.importers.mlir_files import entry_points as reader; "
        "most = reader.CPU_SECONDS - 1; from buddy.compiler.support.processes.__main__ import answer_call; "
        "resource.setrlimit(resource.RLIMIT_CPU, (most, most)); "
        "answer_call(reader.read_entry_points_in_time)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=question, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert msgspec.msgpack.decode(done.stdout, type=ReadAnswer).problem is None


def _archive(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "{}")
    return file.getvalue()
