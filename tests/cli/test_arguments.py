"""Which words of a command line are ours, and which the script's."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from buddy.app import cli
from buddy.app.cli import arguments, run, tune, workbench
from buddy.app.cli.recipes import UsageError


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


BAD = {
    "missing": ("nope.py", "there is no file nope.py"),
    "folder": (".", ". is a folder"),
    "syntax": ("bad.py", "bad.py is not valid Python: invalid syntax"),
    "object": ("bad.py:model", "bad.py is not valid Python"),
    "text": ("notes.txt", "notes.txt is text, which contains no program"),
    "suffix": ("fake.pt", "fake.pt is text"),
    "coding": ("coding.py", "coding.py is not valid Python: unknown encoding"),
    "unreadable": ("secret.py", "secret.py cannot be read: Permission denied"),
}


@pytest.fixture
def bad_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n    pass\n")
    (tmp_path / "notes.txt").write_text("no program")
    (tmp_path / "fake.pt").write_text("no program")
    (tmp_path / "coding.py").write_text("# coding: no-such\nx = 1\n")
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "secret.py").write_text("x = 1\n")
    (tmp_path / "secret.py").chmod(0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("bad", BAD)
def test_a_source_that_cannot_be_opened_is_one_message(
    bad: str, bad_sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, message = BAD[bad]
    if bad == "unreadable" and os.access(source, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(SystemExit) as ended:
        arguments.parse_program(run.make_parser(), [source])
    assert ended.value.code == 2
    first, *more = capsys.readouterr().err.splitlines()
    assert message in first
    assert all(line.startswith(("  where", "  to do", "  |")) for line in more)


def test_a_source_on_another_machine_is_not_checked(bad_sources: Path) -> None:
    for words in (
        ["nope.py", "--remote", "host"],
        ["nope.py", "--engine", "engine"],
        ["package.module:f"],
        ["good.py"],
    ):
        options, _ = arguments.parse_program(run.make_parser(), words)
        assert options.source == words[0]


def test_an_error_in_the_options_is_one_line(bad_sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["good.py", "--disalbe", "cse"], ["good.py", "--dialect", "x"], ["--jsn", "good.py"], []):
        with pytest.raises(SystemExit) as ended:
            arguments.parse_program(run.make_parser(), words)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("buddy-tui run: error: ")


HEAVY = ("asyncio", "torch", "numpy", "textual", "rich", "ssl", "importlib.metadata", "buddy.app.session.client")
CHECK = """
import importlib, sys
from buddy.app import cli
code = None
try:
    code = cli.main({words!r})
except SystemExit as ended:
    code = ended.code
print(code, [name for name in {heavy!r} if name in sys.modules])
"""


def verbs_with_source() -> dict[str, list[str]]:
    """Each verb that opens a program, with words for its other required arguments."""
    parsers = {verb: getattr(import_module(f"buddy.app.cli.{verb}"), "make_parser", None) for verb in cli.VERBS}
    actions = {verb: make()._actions for verb, make in parsers.items() if make}
    required = {verb: [a for a in found if a.required or a.dest == "source"] for verb, found in actions.items()}
    words = {verb: [w for a in actions for w in (*a.option_strings[-1:], "a")] for verb, actions in required.items()}
    return {verb: words[verb][1:] for verb, actions in required.items() if actions and actions[0].dest == "source"}


def test_the_verbs_with_a_source() -> None:
    assert {"run", "explain", "why", "export", "bench"} <= set(verbs_with_source())


@pytest.mark.process
# `bench` takes several sources, and `reduce` a module for the user's own command, which alone says whether it is valid.
@pytest.mark.parametrize("verb", sorted({*verbs_with_source()} - {"bench", "reduce"}))
def test_nothing_heavy_is_imported_before_a_source_is_checked(
    verb: str, bad_sources: Path, run_python: Callable[..., Any]
) -> None:
    words = [verb, "bad.py", *verbs_with_source()[verb]]
    done = run_python("-c", CHECK.format(words=words, heavy=HEAVY), cwd=bad_sources)
    assert (done.stdout, "is not valid Python" in done.stderr) == ("2 []\n", True), done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--max-error abc", "--max-error: 'abc' is not a number"),
        ("--max-error inf", "--max-error: inf is not a finite number of at least 0"),
        ("--max-error -1", "--max-error: -1 is not a finite number of at least 0"),
        ("--each soon", "--each: 'soon' is not a number"),
        ("--each 0", "--each: must be more than 0 seconds"),
        ("--jobs 1.5", "--jobs: '1.5' is not a whole number"),
        ("--remote-wait x", "--remote-wait: 'x' is not a number"),
    ],
)
def test_a_word_that_is_not_a_number_is_named(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tune.make_parser().parse_args(["a.py", *words.split()])
    assert f"argument {problem} (" in capsys.readouterr().err


async def test_an_invalid_variation_ends_tune_before_the_program_is_captured() -> None:
    options = tune.make_parser().parse_args(["a.py", "--vary", "fuse-rows"])
    engine: Any = None
    with pytest.raises(UsageError, match="--vary: 'fuse-rows' is not of the form"):
        await tune._tune(engine, options, ())
