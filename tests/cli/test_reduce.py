"""`buddy-tui reduce`: the options for the failure, its files and its errors."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from buddy.app.cli import reduce

pytestmark = pytest.mark.process

MODULE = """
func.func @f(%x: tensor<8x16xf32>, %i: index) -> (tensor<8x16xf32>, i32) {
  %y = math.exp %x : tensor<8x16xf32>
  %z = math.tanh %y : tensor<8x16xf32>
  %n = arith.index_cast %i : index to i32
  return %z, %n : tensor<8x16xf32>, i32
}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.mlir"
    path.write_text(MODULE)
    return path


def test_the_smallest_module_and_its_script_are_written(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = module.with_name("crashes.sh")
    test.write_text('#!/bin/sh\ngrep -q math.tanh "$1"\n')
    test.chmod(0o755)
    assert reduce.main([str(module), "--test", "./crashes.sh", "-j", "2", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert (summary["original"], summary["reduced"], summary["minimal"]) == (5, 3, True)
    assert "the test exits with 0; 5 ops; MLIR, read by the bindings" in printed.err
    text = Path(summary["output"]).read_text()
    assert "math.tanh" in text
    assert "math.exp" not in text
    assert subprocess.run([summary["script"]], check=False, cwd="/").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--test", "false"], 1, "does not show the failure: the test exits with 0 is expected, but the command ended"),
        (["--test", "no-such-command"], 2, "no-such-command is neither a program on the path nor an executable file"),
        (["--contains", "x", "--command", "cat", "-o", "bad.mlir"], 2, "bad.mlir is the module itself"),
        (["--test", "true", "--", "-cse"], 2, "--test is the whole command"),
        (["--crash", "--command", ""], 2, "the command is empty"),
        (["--contains", "", "--command", "cat"], 2, "--contains needs a text"),
        (["--test", "true", "-o", "missing/small.mlir"], 2, "missing is not a folder"),
        (["--test", "true", "-o", "."], 2, "cannot write to .: it is a folder"),
        (["--crash", "--mlir-opt", "./absent"], 2, "./absent is neither a program on the path"),
    ],
)
def test_errors_say_what_to_do(
    words: list[str], code: int, error: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reduce.main([module.name, *words]) == code
    printed = capsys.readouterr().err
    assert error in printed
    assert "to do:" in printed


def test_the_example_of_a_hang_keeps_what_hangs(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = module.with_name("mlir-opt")
    tool.write_text('#!/bin/sh\nfor file; do :; done\nif grep -q math.tanh "$file"; then sleep 60; fi\n')
    tool.chmod(0o755)
    example = next(line for line in reduce.EPILOG.splitlines() if "--timeout-is-interesting" in line)
    words = example.replace("slow.mlir", module.name).replace("--timeout 5", "--timeout 0.3").split()[2:]
    monkeypatch.setenv("BUDDY_MLIR_OPT", str(tool))
    assert reduce.main(["-j", "2", *words]) == 0
    text = Path("hang.mlir").read_text()
    assert "math.tanh" in text
    assert "math.exp" not in text


def test_a_file_that_is_no_text_is_an_error(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.write_bytes(b"ML\xefR\x00\xff")
    assert reduce.main([module.name, "--test", "true"]) == 2
    assert "is not text in UTF-8 (byte 2)" in capsys.readouterr().err


MLIR_OPT = next((path for name in ("mlir-opt", "mlir-opt-19") if (path := shutil.which(name))), "")


@pytest.mark.skipif(not MLIR_OPT, reason="there is no mlir-opt on the path")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "flags", "kept"),
    [
        (["--verifier"], ["-one-shot-bufferize"], "math."),
        (["--contains", "tanh"], ["-one-shot-bufferize=allow-unknown-ops"], "math.tanh"),
        (["--crash"], ["-test-pass-crash"], ""),
    ],
)
def test_failures_of_a_real_tool(
    failure: list[str], flags: list[str], kept: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = reduce.main([module.name, *failure, "--mlir-opt", MLIR_OPT, "-j", "2", "--json", "--", *flags])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    summary = json.loads(printed.out)
    assert summary["reduced"] <= 3
    assert kept in Path(summary["output"]).read_text()
