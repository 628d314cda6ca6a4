"""Inputs that a campaign has found: each was a traceback or a hang once, and is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.settings import read_settings
from buddy.app.tuning import read_variation
from buddy.compiler.engine.jobs import JobFailed
from buddy.compiler.engine.plugin_files import as_they_are
from buddy.compiler.graph.sizes import BadSizeError, parsed
from buddy.compiler.protocol import Variation
from buddy.compiler.recipe import PluginFile
from buddy.compiler.sources.locate import locate
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
