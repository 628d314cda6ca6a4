"""Inputs that a campaign has found: each was a traceback or a hang once, and is refused in words."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from buddy.app.settings import read_settings
from buddy.app.tuning import read_variation
from buddy.compiler.bindings import ir
from buddy.compiler.engine.jobs import JobFailed
from buddy.compiler.engine.plugin_files import as_they_are
from buddy.compiler.graph.sizes import BadSizeError, parsed
from buddy.compiler.ir_files.reading import UnreadableError, new_context, parts_of
from buddy.compiler.onnx_files.model import prepared
from buddy.compiler.protocol import Variation
from buddy.compiler.recipe import PluginFile
from buddy.compiler.sources import exported_program
from buddy.compiler.sources.locate import locate
from buddy.compiler.sources.opening import Opening
from buddy.compiler.sources.pickles import nothing_runs
from buddy.compiler.sources.program import SourceError
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
    with pytest.raises(BadSizeError, match="is no size"):
        parsed(text)


@pytest.mark.parametrize("path", ["a\0b.py", "/dev/zero", "x" * 300, "/nowhere/plugin.py"])
def test_a_plug_in_is_a_regular_file(path: str) -> None:
    with pytest.raises(JobFailed):
        as_they_are([PluginFile(path)], "")


@pytest.mark.parametrize("source", ["x" * 300, "x" * 5000 + "/a.py", "a\0b.py"])
def test_a_source_that_no_system_can_have_is_no_traceback(source: str) -> None:
    with pytest.raises(SourceError):
        locate(source)


def test_an_archive_with_names_that_are_no_text_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(_archive("models/é.json").replace("é".encode(), b"\xee\x80"))
    with pytest.raises(SourceError, match="damaged"):
        exported_program.load(Opening(path, title=path.name))


def test_an_error_that_is_its_own_cause_is_followed_once() -> None:
    """Nobody may wait for the end of a chain that has none: opening such a file never ended."""
    error, other = ValueError("one"), ValueError("other")
    error.__cause__, other.__cause__ = other, error
    assert exported_program._cause(error, KeyError) is None
    assert exported_program._cause(error, ValueError) is error
    with pytest.raises(RuntimeError) as raised, nothing_runs():
        torch.load(io.BytesIO(_archive("data.pkl")[:-9]))
    assert raised.value.__cause__ is not raised.value


def test_names_of_an_onnx_model_are_text(tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx").helper
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="layer")], "small", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString().replace(b"layer", b"l\xff\xfeer"))
    with pytest.raises(SourceError, match="no text"):
        prepared(path)


def test_what_mlir_says_of_bytecode_in_no_text_is_refused_in_text() -> None:
    """MLIR quotes who wrote a file that it does not take, and Python's bindings make no string of such bytes."""
    with new_context() as context:
        file = io.BytesIO()
        ir.Module.parse("func.func private @layer()", context).operation.write_bytecode(file)
        data = bytearray(file.getvalue())
        data[data.index(0, len(b"ML\xefR") + 1)] = 0xFF  # the end of the producer's name
        with pytest.raises(UnreadableError) as raised:
            parts_of(bytes(data), "a.mlir", context)
    assert raised.value.diagnostic.todo


def _archive(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "{}")
    return file.getvalue()
