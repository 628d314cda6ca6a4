"""Environment variables: misspelt ones are refused with the nearest name, those of other programs are left alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.protocol.environment import VARIABLES, EnvironmentVariableError, check_variables, torch_warning

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BUDDY_CACH", "BUDDY_CACHE"),
        ("BUDDY_CACHE_DIR", "BUDDY_CACHE"),
        ("BUDDY_MEM", "BUDDY_MEMORY"),
        ("BUDDY_VERIFI", "BUDDY_VERIFY"),
        ("buddy_verify", "BUDDY_VERIFY"),
        ("BUDDY_MLIROPT", "BUDDY_MLIR_OPT"),
        ("BUDDY_TUI_CONF", "BUDDY_TUI_CONFIG"),
        ("BUDDY_TUI_HOME", "BUDDY_TUI_"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(name: str, meant: str) -> None:
    with pytest.raises(EnvironmentVariableError, match=rf"^{name} .*did you mean {meant}"):
        check_variables({name: "1", "PATH": "/bin"})


def test_two_misspelt_variables_are_both_named() -> None:
    with pytest.raises(EnvironmentVariableError, match=r"BUDDY_BLASS, BUDDY_CACH in the environment are not variables"):
        check_variables({"BUDDY_CACH": "1", "BUDDY_BLASS": "none"})


@pytest.mark.parametrize("name", [*VARIABLES, "BUDDY_MLIR_BUILD_DIR", "BUDDY_MLIR_ROOT", "BUDDY_BUILD_DIR", "BUDDY"])
def test_valid_variables_and_those_of_other_programs_are_accepted(name: str) -> None:
    check_variables({name: "1"})


def test_every_variable_that_the_code_names_is_known_and_documented() -> None:
    named = set()
    for folder in ("app", "compiler", "api"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r'"(BUDDY_[A-Z_]+[A-Z])"', path.read_text("utf-8")))
    assert named == set(VARIABLES)
    page = (ROOT / "docs/reference/recipes.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(BUDDY_[A-Z_]+)` \|", page, re.MULTILINE)) == set(VARIABLES)


def test_torch_compile_refuses_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDDY_VERIFI", "1")
    with pytest.raises(ValueError, match="did you mean BUDDY_VERIFY"):
        BackendSettings.of({})


@pytest.mark.parametrize(
    ("version", "warning"),
    [
        ("2.11.0", ""),
        ("2.15.3+cu130", ""),
        ("2.10.1", "too old: tested are 2.11 to 2.15; update it"),
        ("2.16.0a0+git1234", "newer than those that are tested, 2.11 to 2.15: set verify"),
        ("3.0", "newer"),
        ("", "no version number"),
    ],
)
def test_versions_of_pytorch_that_were_never_tested_are_warned_of(version: str, warning: str) -> None:
    assert warning in torch_warning(version)
    assert bool(warning) == bool(torch_warning(version))


@pytest.mark.parametrize(("verb", "code"), [("passes", 2), ("completion", 0)])
def test_the_command_line_refuses_a_misspelt_variable(verb: str, code: int) -> None:
    words = [sys.executable, "-m", "buddy.app.cli", verb, *(["bash"] if verb == "completion" else [])]
    environment = {**os.environ, "BUDDY_CACH": "/nowhere"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == code
    assert ("did you mean BUDDY_CACHE?" in done.stderr) == (code == 2)
