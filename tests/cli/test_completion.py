"""Completion of command lines in real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from buddy.app.cli import VERBS
from buddy.app.cli.completion import bash_script, fish_script, main, read_options, zsh_script

# Completes the words that are its arguments, the last of which is the one at the cursor.
DRIVER = """
COMP_WORDS=(buddy-tui "$@"); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=()
_buddy_tui 2> /dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script() -> str:
    return bash_script(read_options())


def complete(script: str, folder: Path, *words: str) -> list[str]:
    command = ["bash", "--norc", "-c", script + DRIVER, "bash", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_bash_completes_verbs_options_choices_and_files(script: str, tmp_path: Path) -> None:
    (tmp_path / "model one.py").touch()
    (tmp_path / "folder").mkdir()
    assert complete(script, tmp_path, "num") == ["numerics"]
    assert complete(script, tmp_path, "run", "--dia") == ["--dialect"]
    assert complete(script, tmp_path, "run", "model.py", "--dialect", "t") == ["tosa"]
    assert complete(script, tmp_path, "run", "--dialect", "=", "to") == ["tosa"], "bash splits at the sign"
    assert complete(script, tmp_path, "mod") == ["model one.py"]
    assert complete(script, tmp_path, "run", "mod") == ["model one.py"]
    assert complete(script, tmp_path, "model.py", "--frontend", "") == ["dynamo", "export", "torch-mlir"]
    assert complete(script, tmp_path, "export", "-o", "") == ["folder"]
    assert complete(script, tmp_path, "run", "--recipe", "f") == ["folder"]
    assert complete(script, tmp_path, "run", "--threads", "") == []
    assert complete(script, tmp_path, "completion", "") == ["bash", "zsh", "fish"]
    assert complete(script, tmp_path, "run", "x.py", "--", "--dia") == [], "an option of the script"


def test_bash_completes_every_option_of_every_verb(script: str, tmp_path: Path) -> None:
    for verb in ("run", "tune", "engine", "config", "ops"):
        names = {name for option in read_options()[verb] for name in option.names}
        assert set(complete(script, tmp_path, verb, "-")) == names
    assert set(complete(script, tmp_path, "")) == {*VERBS, "folder"} - {"engine", "folder"}


@pytest.mark.parametrize(("shell", "write"), [("zsh", zsh_script), ("fish", fish_script)])
def test_the_scripts_of_other_shells_parse_and_have_every_option(shell: str, write, tmp_path: Path) -> None:
    table = read_options()
    text = write(table)
    for options in table.values():
        for option in options:
            for name in option.names:
                in_fish = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} "
                assert (name if shell == "zsh" else in_fish) in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(text)
    subprocess.run([shell, "-n", str(path)], check=True)


def test_the_verb_prints_the_script(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bash"]) == 0
    assert capsys.readouterr().out == script
