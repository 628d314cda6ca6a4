"""The user's settings file."""

from __future__ import annotations

from pathlib import Path

from buddy.app.settings import Settings, read_settings


def test_no_file_means_the_defaults(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.toml") == (Settings(), "")


def test_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('theme = "buddy-light"\nauto_run = true\n[keys]\n"graph.toggle" = "x"\n')
    assert read_settings(path) == (Settings("buddy-light", True, {"graph.toggle": "x"}), "")


def test_a_file_that_is_wrong_is_named_and_not_used(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for text in ("theme = 3", "theme = "):
        path.write_text(text)
        settings, problem = read_settings(path)
        assert settings == Settings()
        assert str(path) in problem
