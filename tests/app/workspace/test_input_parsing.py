"""Typed paths and seeds: accepted or rejected with a reason, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from buddy.app.cli.arguments import Parser, add_engine_options, add_input_options
from buddy.app.panes.jobs import Status
from buddy.app.screens.picker import ChoiceList, PickerChoice
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.inputs import parse_path, parse_seconds, parse_seed, read_file, relative_to_working_directory
from buddy.app.workspace.settings import Settings

NOBODY = "~nobodyofthatname/x.toml"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages of a workbench that is not running."""
    told: list[str] = []
    monkeypatch.setattr(Status, "say", lambda status, message: told.append(message))
    return told


@pytest.fixture
def app(tmp_path: Path) -> Workbench:
    return Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_an_invalid_time_is_rejected(text: str) -> None:
    assert parse_seconds(" 2.5 ") == 2.5
    with pytest.raises(ValueError, match="is not a time limit: give a number of seconds above 0"):
        parse_seconds(text)


def test_a_path_may_start_with_a_tilde() -> None:
    assert parse_path(" ~/x ") == Path.home() / "x"
    for text in (NOBODY, "a\0b"):
        with pytest.raises(ValueError, match=r"unknown home|null character"):
            parse_path(text)


@pytest.mark.parametrize(
    "ask",
    [
        lambda app: app.context.files.write(NOBODY, "text"),
        lambda app: app.run_commands._use_file(NOBODY),
        lambda app: app.session_commands.write_reproducer(NOBODY),
        lambda app: app.compare_commands._compare_with_file(NOBODY),
    ],
    ids=["write", "inputs", "reproducer", "recipe"],
)
def test_an_unknown_home_folder_is_reported(app: Workbench, said: list[str], ask: Callable[[Workbench], None]) -> None:
    ask(app)
    assert len(said) == 1
    assert "unknown home" in said[0]


def test_a_seed_has_64_bits() -> None:
    assert [parse_seed(text) for text in ("7", " -3 ", str(2**63 - 1))] == [7, -3, 2**63 - 1]
    for text in ("", "x", "1.5", "9" * 23, "9" * 5000, str(2**63)):
        with pytest.raises(ValueError, match="not a seed"):
            parse_seed(text)


def test_a_huge_seed_is_rejected_in_the_workbench_and_on_the_command_line(
    app: Workbench, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    app.run_commands._use_seed("9" * 23)
    assert "is not a seed" in said[0]
    parser = Parser("run", "")
    add_input_options(parser)
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--seed", "9" * 23])
    assert left.value.code == 2
    assert "is not a seed" in capsys.readouterr().err


def test_a_picker_survives_a_terminal_of_width_0() -> None:
    entries = ChoiceList([PickerChoice("name", "what it is, in more words than fit", 1)])
    assert all(entries.foot(width) for width in range(-2, 12))


def test_a_command_with_an_unclosed_quote_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("run", "")
    add_engine_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--engine", "ssh 'host"])
    assert "No closing quotation" in capsys.readouterr().err
    assert parser.parse_args(["--engine", "ssh host"]).engine == "ssh host"


def test_paths_in_the_current_folder_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert relative_to_working_directory(f"{tmp_path}/samples/bert.py:7") == "samples/bert.py:7"
    assert relative_to_working_directory(f"{tmp_path}2/bert.py:7") == f"{tmp_path}2/bert.py:7"
    assert relative_to_working_directory("<string>:3") == "<string>:3"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert relative_to_working_directory("/a.py:3") == "/a.py:3"
    monkeypatch.chdir(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbfthreads = 1\r\n")
    assert read_file(path) == "threads = 1\n"
