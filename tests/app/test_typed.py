"""What the user types for a path or a seed: read, or refused with a reason, and never the end of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.cli.arguments import Parser, add_engine_options, add_input_options
from buddy.app.commands.compare import Versus
from buddy.app.commands.recipe_edits import Editing
from buddy.app.commands.run import Running
from buddy.app.commands.sessions import Sessions
from buddy.app.screens.picker import Choice, ChoiceList
from buddy.app.workspace.input_parsing import from_here, typed_path, typed_seconds, typed_seed

NOBODY = "~nobodyofthatname/x.toml"


class Told:
    """Holds what is said to the user."""

    def __init__(self) -> None:
        self.said = ""

    def say(self, text: str) -> None:
        self.said = text


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert typed_seconds(" 2.5 ") == 2.5
    with pytest.raises(ValueError, match="is not a time: give a number of seconds"):
        typed_seconds(text)


def test_a_path_may_begin_at_home() -> None:
    assert typed_path(" ~/x ") == Path.home() / "x"
    for text in (NOBODY, "a\0b"):
        with pytest.raises(ValueError, match=r"unknown home|null character"):
            typed_path(text)


@pytest.mark.parametrize(
    "ask",
    [
        lambda bench: Editing(bench).write_file(NOBODY, "text"),
        lambda bench: Running(bench)._use_file(NOBODY),
        lambda bench: Sessions(bench).write_reproducer(NOBODY),
        lambda bench: Versus(bench)._read(NOBODY),
    ],
    ids=["write", "inputs", "reproducer", "recipe"],
)
def test_a_home_that_there_is_not_is_said(ask: object) -> None:
    bench = Told()
    ask(bench)  # type: ignore[operator]
    assert "unknown home" in bench.said


def test_a_seed_has_64_bits() -> None:
    assert [typed_seed(text) for text in ("7", " -3 ", str(2**63 - 1))] == [7, -3, 2**63 - 1]
    for text in ("", "x", "1.5", "9" * 23, "9" * 5000, str(2**63)):
        with pytest.raises(ValueError, match="not a seed"):
            typed_seed(text)


def test_a_huge_seed_is_said_in_the_workbench_and_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Told()
    Running(bench)._use_seed("9" * 23)  # type: ignore[arg-type]
    assert "is not a seed" in bench.said
    parser = Parser("run", "")
    add_input_options(parser)
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--seed", "9" * 23])
    assert left.value.code == 2
    assert "is not a seed" in capsys.readouterr().err


def test_a_list_to_choose_from_outlives_a_terminal_of_no_width() -> None:
    entries = ChoiceList([Choice("name", "what it is, in more words than fit", 1)])
    assert all(entries.foot(width) for width in range(-2, 12))


def test_a_command_whose_quotation_is_open_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("run", "")
    add_engine_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--engine", "ssh 'host"])
    assert "No closing quotation" in capsys.readouterr().err
    assert parser.parse_args(["--engine", "ssh host"]).engine == "ssh host"


def test_places_in_this_folder_are_called_by_what_is_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_here(f"{tmp_path}/samples/bert.py:7") == "samples/bert.py:7"
    assert from_here(f"{tmp_path}2/bert.py:7") == f"{tmp_path}2/bert.py:7"
    assert from_here("<string>:3") == "<string>:3"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert from_here("/a.py:3") == "/a.py:3"
    monkeypatch.chdir(tmp_path)
