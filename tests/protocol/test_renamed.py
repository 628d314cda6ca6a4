"""The names of version 0.1 that are still accepted, in every place where a user or a saved file may have them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from buddy.app.cli import arguments
from buddy.app.reports.searches import read_variation
from buddy.app.workspace.history import Edit, SavedHistory
from buddy.app.workspace.recipe_files import RecipeFile
from buddy.app.workspace.settings import load_settings
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import from_toml, to_toml

TOSA = default_recipe(dialect="tosa")


def old(data: bytes) -> bytes:
    """The same MessagePack or TOML with the field names of version 0.1."""
    return data.replace(b"dialect", b"flavour")  # as long, so that MessagePack's lengths hold


def test_a_recipe_of_version_0_1_loads_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="'flavour' is now 'dialect'"):
        assert from_toml(old(to_toml(TOSA).encode()).decode()) == TOSA


def test_a_recipe_with_both_names_is_rejected() -> None:
    with pytest.raises(ValueError, match="flavour"):
        from_toml('flavour = "linalg"\n' + to_toml(TOSA))


def test_a_saved_recipe_and_its_history_load_silently(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    linalg = default_recipe()
    path = tmp_path / "0.toml"
    path.write_bytes(old(to_toml(TOSA).encode()))
    edits = SavedHistory([Edit(linalg, "")], Edit(TOSA, "lowered by tosa"), [])
    path.with_suffix(".edits").write_bytes(old(msgspec.msgpack.encode(edits)))
    recipe, found, problem = RecipeFile(path, lambda recipe: recipe).read()
    assert (recipe, problem) == (TOSA, "")
    assert found is not None
    assert ([edit.recipe for edit in found.past], found.now.recipe) == ([linalg], TOSA)
    assert not [warning for warning in recwarn if warning.category is FutureWarning]


def test_the_option_of_torch_compile() -> None:
    with pytest.warns(FutureWarning, match="option 'flavour' is now 'dialect'"):
        assert BackendSettings.of({"flavour": "tosa"}).recipe().dialect == "tosa"


def test_the_option_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    parser = arguments.Parser("run", "")
    arguments.add_dialect_option(parser, ("linalg", "tosa"), default="linalg")
    assert parser.parse_args(["--flavour", "tosa"]).dialect == "tosa"
    assert "--flavour is now --dialect" in capsys.readouterr().err
    assert parser.parse_args([]).dialect == "linalg"
    assert "flavour" not in parser.format_help()


def test_the_parameter_of_a_search() -> None:
    with pytest.warns(FutureWarning, match="'dialect'"):
        assert read_variation("flavour=linalg,tosa").parameter == "dialect"


def test_the_key_of_a_renamed_action(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[keys]\n"passes.flavour" = "f9"\n')
    with pytest.warns(FutureWarning, match=r"passes\.dialect"):
        settings, problems = load_settings(path)
    assert (settings.keys, problems) == ({"passes.dialect": "f9"}, [])
