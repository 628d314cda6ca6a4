"""Tests how a source is split into a path or a module, and the name of an object."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.compiler.protocol.source_locations import SourceError, locate_source, split_source


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a:b", "w.onnx:d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").touch()
    for name in ("m.py", "m:x", "net.mlir"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("source", "target", "name", "is_module", "runs_python"),
    [
        ("m.py", "m.py", "", False, True),
        ("m.py:net", "m.py", "net", False, True),
        ("a:b/m.py", "a:b/m.py", "", False, True),
        ("a:b/m.py:net", "a:b/m.py", "net", False, True),
        ("w.onnx:d/m.py", "w.onnx:d/m.py", "", False, True),
        ("m:x", "m:x", "", False, True),  # a file of this name
        ("package.module:net", "package.module", "net", True, True),
        ("net.mlir:a.b", "net.mlir", "a.b", False, False),
        # Not a module `absent`, which would run code, but a missing file.
        ("absent.mlir:main", "absent.mlir", "main", False, False),
        ("absent.onnx", "absent.onnx", "", False, False),
    ],
)
def test_a_source_is_split_at_the_colon_before_a_name(
    source: str, target: str, name: str, is_module: bool, runs_python: bool
) -> None:
    parts = split_source(source)
    assert (*parts, parts.runs_python) == (target, name, is_module, runs_python)
    assert parts.with_target(parts.target) == source


@pytest.mark.parametrize("source", ["a:b/m.py:net", "w.onnx:d/m.py", "m:x", "m.py:net", "os.path:join"])
def test_the_engine_opens_the_target(source: str) -> None:
    location, parts = locate_source(source), split_source(source)
    assert (location.module or str(location.path), location.name) == (parts.target, parts.name)


def test_a_missing_model_file_is_not_taken_for_a_module() -> None:
    with pytest.raises(SourceError, match=r"there is no file absent\.mlir"):
        locate_source("absent.mlir:main")
