"""Which words of a command line are ours, and which the script's."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app import cli
from buddy.app.cli import arguments, run, workbench


@pytest.mark.parametrize(
    ("words", "json", "script"),
    [
        ("a.py", False, ()),
        ("a.py --json", True, ()),
        ("--json a.py", True, ()),
        ("a.py --tiny", False, ("--tiny",)),
        ("a.py --layers 4 out.txt", False, ("--layers", "4", "out.txt")),
        ("--json a.py --tiny", True, ("--tiny",)),
        ("a.py --json -- --tiny", True, ("--tiny",)),
        ("a.py -- --json", False, ("--json",)),
        ("a.py -- --tiny -- x", False, ("--tiny", "--", "x")),
        ("--repeats 3 a.py -x", False, ("-x",)),
    ],
)
def test_the_script_gets_what_we_do_not_know(words: str, json: bool, script: tuple[str, ...]) -> None:
    options, rest = arguments.parse_with_script_arguments(run.make_parser(), words.split())
    assert (options.source, options.json, rest) == ("a.py", json, script)


@pytest.mark.parametrize(
    "words",
    [
        "--jsn a.py",
        "a.py --jsn -- --tiny",
        "",
        "a.py --repeats 0",
        "a.py --dialect x",
        "a.py --threads 0",
        "a.py --threads 9999",
    ],
)
def test_words_that_make_no_sense_end_with_code_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parse_with_script_arguments(run.make_parser(), words.split())
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--disalbe cse", "--disable"),
        ("--disabel=cse", "--disable"),
        ("--jsno", "--json"),
        ("x --repaets 3", "--repeats"),
    ],
)
def test_a_misspelt_option_is_not_passed_to_the_script(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parse_with_script_arguments(run.make_parser(), ["a.py", *words.split()])
    assert ended.value.code == 2
    assert f"did you mean {meant}? (put options of the script after `--`)" in capsys.readouterr().err
    _, rest = arguments.parse_with_script_arguments(run.make_parser(), ["a.py", "--", *words.split()])
    assert rest == tuple(words.split())


def test_an_option_that_the_script_contains_is_passed_to_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('parser.add_argument("--batch")\n', encoding="utf-8")
    words = [f"{script}:model", "--batch", "4"]
    assert arguments.parse_with_script_arguments(workbench.make_parser(), words)[1] == ("--batch", "4")
    script.write_text("", encoding="utf-8")
    with pytest.raises(SystemExit):
        arguments.parse_with_script_arguments(workbench.make_parser(), words)


def test_the_workbench_takes_the_scripts_arguments_too() -> None:
    options, rest = arguments.parse_with_script_arguments(
        workbench.make_parser(), ["--theme", "dark", "samples/bert.py", "--tiny"]
    )
    assert (options.theme, options.source, rest) == ("dark", "samples/bert.py", ("--tiny",))


def test_a_mistyped_verb_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rnu", "samples/x.py"]) == 2
    assert "unknown verb or file 'rnu': did you mean run?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["runs.py", "./rnu", "package.module:run", "run:model", "zebra", "--version"])
def test_a_source_is_no_mistyped_verb(word: str) -> None:
    assert cli._similar_verb(word) == ""


def test_a_file_may_be_named_almost_like_a_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rnu").write_text("", encoding="utf-8")
    assert cli._similar_verb("rnu") == ""
