"""The first stage of a dump that shows a failure, by commands of the user and a real `mlir-opt`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buddy.compiler.mlir import mlir_tool
from buddy.compiler.tools.dumps.bisecting import (
    BisectionError,
    FirstFailure,
    StageBisection,
    read_dump,
    stages_to_test,
)
from buddy.compiler.tools.reduce.failure import Failure, resolved_command
from tests.support.dumps import mlir_opt, unpack, write_log

Verb = Callable[..., "subprocess.CompletedProcess[str]"]
AFTER = "--mlir-print-ir-after-all"


def has(text: str) -> Failure:
    """A test that a text is in the module."""
    return Failure("test", resolved_command(["grep", "-q", "--", text, "{}"]), "/")


def bisect(path: Path, failure: Failure, graph: str = "") -> FirstFailure:
    dump = read_dump(path, lambda _text: None)
    return StageBisection(dump, failure, lambda _text: None).run(stages_to_test(dump, graph))


def test_the_pass_is_found_by_the_texts_of_the_dump(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", AFTER, "--mlir-print-ir-module-scope")
    found = bisect(path, has("linalg.generic"))
    assert found.passes == ("stablehlo-legalize-to-linalg",)
    assert found.last_good is not None
    assert found.last_good.stage.title == "loop-invariant-code-motion"
    assert "linalg.generic" in found.first.text
    assert "linalg.generic" not in found.last_good.text
    assert found.tests <= 6
    assert found.notes == ()
    assert found.lines()[0].startswith("stablehlo-legalize-to-linalg: the test exits with 0 from ")


def test_passes_between_texts_of_the_module_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`canonicalize` folds the constants of a function, whose text is not that of the module."""
    path = write_log(tmp_path / "a.log", AFTER)
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, mlir_opt())
    found = bisect(path, has("%c2 = arith.constant 2"))
    assert found.passes == ("canonicalize",)
    assert found.first.number is None
    assert found.first.stage.ran_on == "@sum"
    assert "were run again" in found.notes[0]
    harmless = path.read_text()
    path.write_text(harmless.replace("CSEPass: cse ", "CSEPass: cse{dump-file=x} "))
    found = bisect(path, has("%c2 = arith.constant 2"))
    assert found.passes == ("canonicalize", "cse", "inline")
    assert "options of cse name files, so these passes are not run again" in found.notes[0]
    path.write_text(harmless)
    monkeypatch.delenv(mlir_tool.TOOL_VARIABLE)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    found = bisect(path, Failure("test", ("/bin/grep", "-q", "%c2 = arith.constant 2", "{}"), "/"))
    assert found.passes == ("canonicalize", "cse", "inline")
    assert "no mlir-opt was found to run them again" in found.notes[0]


def test_the_stages_of_one_function_and_other_languages_are_searched(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log")
    assert bisect(path, has("linalg.generic"), "@square").first.stage.title == "memref-expand"
    llvm = unpack("llvm", tmp_path) / "after_all.log"
    assert "phi" in bisect(llvm, has(" phi "), "@sum").first.text


def test_a_failure_of_a_command_is_kept_by_its_message(tmp_path: Path) -> None:
    """The tool rejects what it cannot lower, with the same message from one pass on."""
    path = write_log(tmp_path / "a.log", AFTER, "--mlir-print-ir-module-scope")
    verify = "builtin.module(torch-verify-stablehlo-backend-contract)"
    failure = Failure("verifier", (mlir_opt(), f"--pass-pipeline={verify}", "{}"), "/")
    found = bisect(path, failure)
    assert found.passes == ("stablehlo-legalize-to-linalg",)
    assert "linalg" in found.failure.text


def test_what_cannot_be_searched_is_an_error(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log")
    with pytest.raises(
        BisectionError, match="the last text does not show the failure: the command ended with exit code 1"
    ):
        bisect(path, has("no such text"))
    found = bisect(path, has("func.func"))
    assert found.last_good is None
    assert "shows it already" in found.lines()[0]
    with pytest.raises(BisectionError, match=r"unknown graph 'main' .*--graph: module, @scale, @square, @sum"):
        bisect(path, has("func.func"), "main")
    with pytest.raises(BisectionError, match="is not a dump"):
        read_dump(tmp_path / "a.mlir", lambda _text: None)


def test_the_command_line_names_the_pass_and_writes_both_texts(cli: Verb, tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", AFTER, "--mlir-print-ir-module-scope")
    folder = tmp_path / "found"
    done = cli("bisect", path, "--test", "grep -q linalg.generic {}", "-o", folder, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["passes"] == ["stablehlo-legalize-to-linalg"]
    assert answer["last_good_stage"] == answer["stage"] - 1
    assert "linalg.generic" in (folder / "after.mlir").read_text()
    assert "linalg.generic" not in (folder / "before.mlir").read_text()
    done = cli("bisect", path, "--contains", "linalg.generic", "--command", "cat {}")
    assert done.stdout.startswith("stablehlo-legalize-to-linalg: the output contains 'linalg.generic' from ")
    done = cli("bisect", path)
    assert done.returncode == 2
    assert "say what the failure is: --test COMMAND, --crash, --verifier or --contains TEXT" in done.stderr
    done = cli("bisect", path, "--test", "/no/such/test {}")
    assert done.returncode == 2
    assert "neither a program on the path nor an executable file" in done.stderr
    script = tmp_path / "model.py"
    script.write_text("")
    done = cli("bisect", script, "--crash")
    assert done.returncode == 2
    assert "is not a dump: its failure is given by --criterion" in done.stderr
