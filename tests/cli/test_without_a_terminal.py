"""The workbench where there is no terminal, words that name nothing, and readers that leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import buddy_tui
from buddy.app import cli
from buddy.app.cli import workbench

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = "samples/arith_add.py"


class Stream:
    """A standard stream, of which only one thing is asked."""

    def __init__(self, terminal: bool) -> None:
        self.isatty = lambda: terminal


def streams(monkeypatch: pytest.MonkeyPatch, pipes: str = "") -> None:
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, f"__{name}__", Stream(name not in pipes.split()))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that a workbench was opened on."""
    import buddy.app.workbench.launch

    found: list[str] = []
    monkeypatch.setattr(workbench.gc, "disable", lambda: None)
    monkeypatch.setattr(buddy.app.workbench.launch, "run_workbench", lambda source, *_, **__: found.append(source) or 0)
    return found


@pytest.mark.parametrize("pipes", ["stdin", "stdout", "stderr", "stdin stdout stderr"])
def test_the_workbench_needs_a_terminal(
    pipes: str, opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams(monkeypatch, pipes)
    assert cli.main([SAMPLE, "--ascii"]) == cli.USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs a terminal" in line
    assert f"`buddy-tui run {SAMPLE}`" in line
    assert not opened


def test_the_first_screen_needs_a_terminal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams(monkeypatch, "stdin")
    assert cli.main([]) == cli.USAGE_ERROR
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert "needs a terminal" in line
    assert "`buddy-tui run SOURCE`" in line
    assert not told.out


def test_options_of_the_terminal_apply_to_the_first_screen_and_to_the_program_that_it_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import buddy.app.workbench.launch
    from buddy.app.workbench import start
    from buddy.app.workbench.start import Program

    streams(monkeypatch)
    looks: list[dict[str, object]] = []
    monkeypatch.setattr(workbench.gc, "disable", lambda: None)
    monkeypatch.setattr(start, "choose_program", lambda **given: looks.append(given) or Program(SAMPLE, ("--one",)))
    monkeypatch.setattr(buddy.app.workbench.launch, "run_workbench", lambda *_, **given: looks.append(given) or 0)
    assert cli.main(["--no-mouse", "--ascii"]) == 0
    first, opened = looks
    assert first == {"ascii_mode": True, "mouse": False}
    assert (opened["ascii_mode"], opened["mouse"]) == (True, False)


def test_a_misspelt_path_names_a_similar_file(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams(monkeypatch)
    (tmp_path / "model.py").touch()
    monkeypatch.chdir(tmp_path)
    for word, near in (("modle.py", "model.py"), (f"{tmp_path}/modle.py:net", f"{tmp_path}/model.py")):
        assert cli.main([word]) == cli.USAGE_ERROR
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f": did you mean {near}?")
    assert cli.main(["quite_another.py"]) == cli.USAGE_ERROR
    assert "did you mean" not in capsys.readouterr().err
    assert not opened


def test_it_opens_on_a_terminal_and_on_a_driver_of_its_own(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    streams(monkeypatch)
    assert cli.main([SAMPLE]) == 0
    streams(monkeypatch, "stdin stdout stderr")
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")
    assert cli.main([SAMPLE]) == 0
    assert opened == [SAMPLE, SAMPLE]


@pytest.mark.parametrize("words", ["complete bash", "--ascii complete", "no-such --web", "complete"])
def test_a_word_that_is_neither_a_verb_nor_a_file(
    words: str, opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams(monkeypatch)
    assert cli.main(words.split()) == cli.USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown verb or file" in line
    assert not opened


@pytest.mark.parametrize(
    "word", ["missing.py", "missing.py:model", "missing/model", "missing/model.mlir:main", "no.such"]
)
def test_a_path_without_a_file(
    word: str, opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams(monkeypatch)
    for words in ([word], ["--ascii", word]):
        assert cli.main(words) == cli.USAGE_ERROR
        (line,) = capsys.readouterr().err.splitlines()
        assert f"there is no file {word.rpartition(':')[0] or word}" in line
    assert cli.main([word, "--remote", "host"]) == 0
    assert cli.main(["package.module:model"]) == 0
    assert opened == [word, "package.module:model"]


def test_an_unknown_word_is_reported_before_options_are_imported() -> None:
    code = (
        "import sys; from buddy.app.cli import main; code = main(['complete', 'bash']); "
        "print(code, *sorted({'argparse', 'msgspec', 'textual', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr.count("\n")) == ("2\n", 1)


@pytest.mark.parametrize("option", ["--keep", "--back", "--end"])
def test_an_engine_with_an_id_rejects_a_log_file_that_it_would_ignore(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["engine", option, "0123abcd", "--log", "engine.log"])
    assert caught.value.code == cli.USAGE_ERROR
    assert "--log applies only without --keep, --back and --end" in " ".join(capsys.readouterr().err.split())


def test_a_word_may_be_a_file_or_one_of_another_machine(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streams(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").write_text("module {}\n")
    assert cli.main(["model"]) == 0
    assert cli.main(["zoo", "--engine", "ssh host buddy-tui engine"]) == 0
    assert opened == ["model", "zoo"]


@pytest.mark.parametrize("words", [["--help"], ["passes"]])
@pytest.mark.skipif(os.name != "posix", reason="pipes of another kind")
def test_a_reader_that_has_left_ends_it_quietly(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "buddy.app.cli", *words]
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.stderr == ""
    assert done.returncode in (0, cli.FAILURE)  # argparse takes no notice of a reader that has left


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_one_message() -> None:
    command = [sys.executable, "-m", "buddy.app.cli", "config", "--keys"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == cli.FAILURE
    assert done.stderr.splitlines() == [
        "error: the output cannot be written: No space left on device",
        "  to do: free space there, or write to another place",
    ]


def test_an_interruption_while_modules_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "buddy.app.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "buddy.app.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert buddy_tui.main() == cli.INTERRUPTED
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


@pytest.mark.skipif(os.name != "posix", reason="a shell of another kind")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_files(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -m buddy.app.cli config --json {closed}', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert (" >&-" in f" {closed}") == (done.stdout == "")
