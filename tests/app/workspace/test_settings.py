"""The user's settings file: its fields, keys of actions, and error messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from buddy.app.actions import ACTIONS, BY_ID, replace_keys
from buddy.app.actions.key_map import Keymap, describe_clashes
from buddy.app.cli import main
from buddy.app.cli.config import settings_template
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import FIELD_SUMMARIES, Settings, load_settings, read_settings
from tests.app.picturing import passed_on


@pytest.fixture(autouse=True)
def own_keys() -> Iterator[None]:
    """Restore the default keys of all actions after the test."""
    yield
    replace_keys({})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_without_a_file_the_defaults_apply(path: Path) -> None:
    assert read_settings(path) == (Settings(), "")


def test_settings_are_read(path: Path) -> None:
    path.write_text('theme = "buddy-light"\nauto_run = true\n[keys]\n"graph.toggle" = "x"\n')
    assert read_settings(path) == (Settings("buddy-light", True, {"graph.toggle": "x"}), "")


def test_every_field_is_explained_and_in_the_template(path: Path) -> None:
    assert set(FIELD_SUMMARIES) == set(Settings.__struct_fields__)
    path.write_text(settings_template())
    found, problem = read_settings(path)
    assert problem == ""
    assert (found.auto_run, found.keys) == (False, {})
    assert all(name in settings_template() for name in FIELD_SUMMARIES)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("theme = 3", 1, "theme"),
        ("auto_run = true\ntheme = ", 2, ""),
        ('auto_run = true\nthem = "x"\n', 2, "them"),
        ('[keys]\n\n"graph.toggle" = 3\n', 3, "graph.toggle"),
        ('[keys]\n"graph.togle" = "x"\n', 2, "config --keys"),
        ('[keys]\nrun = ["x", "ctrl+"]\n', 2, "not a key"),
        ('[keys]\nrun = "g d e"\n', 2, "not a key"),
        ('[keys]\n"phase.number" = "x"\n', 2, "cannot be changed"),
    ],
)
def test_an_invalid_file_is_reported_with_its_line_and_ignored(path: Path, text: str, line: int, what: str) -> None:
    path.write_text(text)
    settings, problem = read_settings(path)
    assert settings == Settings()
    assert f"{path}, line {line}: " in problem
    assert what in problem


def test_a_wrong_element_in_a_list_of_keys_is_reported_with_its_action(path: Path) -> None:
    path.write_text('[keys]\nquit = "q"\nrun = ["r", 1]\n')
    settings, problem = read_settings(path)
    assert settings == Settings()
    assert problem.startswith(f"{path}, line 3: keys.run: expected `str`, got `int`")


def test_the_timeout_must_be_positive(path: Path) -> None:
    path.write_text("timeout = 2.5\n")
    assert read_settings(path) == (Settings(timeout=2.5), "")
    path.write_text("timeout = 0\n")
    settings, problem = read_settings(path)
    assert settings.timeout == 120.0
    assert "timeout: expected `float` > 0" in problem


def test_a_binary_file_is_rejected(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    settings, problem = read_settings(path)
    assert settings == Settings()
    assert str(path) in problem


def test_unknown_and_invalid_themes_are_reported(path: Path) -> None:
    path.write_text('theme = "mine"')
    (path.parent / "themes").mkdir()
    (path.parent / "themes" / "mine.toml").write_text('base = "buddy-dark"\n[roles]\ntext = "no colour"\n')
    _, problems = load_settings(path)
    assert len(problems) == 2
    assert "mine.toml, line 3" in problems[0]
    assert "the default is used" in problems[1]


def test_help_shows_remapped_keys_and_clashes_are_reported() -> None:
    keymap = Keymap({"graph.toggle": ["x", "ctrl+g"], "quit": ""})
    assert BY_ID["graph.toggle"].keys == ("x", "ctrl+g")
    assert keymap.action_for("x", "graph") is BY_ID["graph.toggle"]
    assert keymap.action_for("x", "passes") is None
    assert keymap.is_unassigned("space", "graph")
    assert not keymap.is_unassigned("space", "passes")
    assert keymap.is_unassigned("q", "ir")
    taken = [action for action in ACTIONS if action.pane == "graph" and "x" in action.default_keys]
    assert len([clash for clash in describe_clashes() if clash.startswith("x: ")]) == len(taken)


def test_config_prints_its_path_and_the_values(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUDDY_TUI_CONFIG", str(path))
    assert main(["config"]) == 0
    assert f"{path} (not found" in capsys.readouterr().out
    path.write_text('theme = "buddy-light"\n[keys]\nrun = "f5"\n')
    assert main(["config"]) == 0
    told = capsys.readouterr().out
    assert "buddy-light" in told
    assert "f5" in told
    assert main(["config", "--keys"]) == 0
    listed = capsys.readouterr().out
    assert all(action.id in listed for action in ACTIONS)
    path.write_text("theme = 3\n")
    assert main(["config"]) == 1
    assert "line 1" in capsys.readouterr().out


@pytest.mark.slow
async def test_remapped_keys_work_and_the_default_keys_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The hint names the second keys until they are listed.
    monkeypatch.setattr("buddy.app.workbench.dispatch.WHICH_KEY_SECONDS", 600.0)
    source = Path(__file__).resolve().parents[3] / "samples" / "arith_add.py"
    keys: dict[str, str | list[str]] = {"next-pane": "ctrl+g", "zoom": "X w", "ir.definition": "f5", "move.down": "j"}
    app = Workbench(str(source), store=tmp_path, settings=Settings(keys=keys))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("ctrl+g")
        await passed_on(pilot)
        assert app.pane.pane_id == "passes"
        await pilot.press("tab")
        await passed_on(pilot)
        assert app.pane.pane_id == "passes"
        await pilot.press("X")
        await passed_on(pilot)
        assert "zoom" in app.key_sequences.hint
        await pilot.press("w")
        await passed_on(pilot)
        assert app.context.layout.shows_one_pane
        await pilot.press("plus")
        await passed_on(pilot)
        assert app.context.layout.shows_one_pane
        await pilot.press("down")
        await pilot.press("f1")
        await passed_on(pilot)
        text = "\n".join("".join(part for part, _ in line) for line in app.screen._lines)  # type: ignore[attr-defined]
        assert "ctrl+g" in text
