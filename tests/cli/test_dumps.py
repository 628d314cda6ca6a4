"""The verbs that read stages, on dumps of other compilers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dumps import mlir_opt, unpack, write_log

Verb = Callable[..., "subprocess.CompletedProcess[str]"]


def test_stages_lists_those_of_each_function(cli: Verb, tmp_path: Path) -> None:
    path = unpack("mlir", tmp_path) / "threads.log"
    done = cli("stages", path)
    assert done.returncode == 0, done.stderr
    assert "graph 0: all" in done.stdout
    assert "graph 1: @" in done.stdout
    assert "changed nothing" in done.stdout
    (graph,) = json.loads(cli("stages", path, "--graph", "module", "--json").stdout)["graphs"]
    assert [stage["name"] for stage in graph["stages"]] == ["inline", "one-shot-bufferize", "convert-scf-to-cf"]
    assert {stage["anchor"] for stage in graph["stages"]} == {"module"}


def test_dump_writes_the_text_of_a_stage(cli: Verb, tmp_path: Path) -> None:
    folder = unpack("triton", tmp_path) / "kernels"
    (ttgir,) = folder.rglob("*.ttgir")
    done = cli("dump", folder, "--stage", "ttgir")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ttgir.read_text()
    assert "no IR of a stage: add_kernel.cubin" in done.stderr
    done = cli("dump", folder, "--all", "-o", tmp_path / "written")
    assert sorted(path.suffix for path in (tmp_path / "written").iterdir()) == [".ll", ".mlir", ".mlir", ".ptx", ".s"]


def test_diff_compares_two_stages(cli: Verb, tmp_path: Path) -> None:
    folder = unpack("iree", tmp_path) / "phases"
    done = cli("diff", folder, "flow", "stream", "--structural")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--- flow\n+++ stream\n")
    assert "+  stream.executable private" in done.stdout
    assert cli("diff", folder, "--stage", "flow", "--stage", "stream", "--structural").stdout == done.stdout
    same = cli("diff", unpack("xla", tmp_path) / "hlo", "0", "0")
    assert same.stdout.strip() == "no change"


@pytest.mark.parametrize("verb", ["run", "profile", "numerics"])
def test_verbs_that_need_a_pipeline_say_so(verb: str, cli: Verb, tmp_path: Path) -> None:
    done = cli(verb, unpack("triton", tmp_path) / "kernels")
    assert done.returncode != 0
    assert "dump of another compiler" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_dump_is_an_error(cli: Verb, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    done = cli("stages", tmp_path)
    assert done.returncode == 2
    assert "is a folder that contains no dump of a known format" in done.stderr


def test_steps_are_turned_off_by_name(cli: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDDY_MLIR_OPT", mlir_opt())
    path = write_log(tmp_path / "a.log")
    done = cli("stages", path, "--graph", "all", "--disable", "canonicalize#2", "--json")
    assert done.returncode == 0, done.stderr
    assert "steps run again by torch-mlir-opt" in done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    assert {stage["name"] for stage in graph["stages"] if stage.get("state") == "skipped"} == {"canonicalize"}
    done = cli("stages", path, "--graph", "all", "--disable", "no-such-pass")
    assert done.returncode == 2
    assert "the dump has no step 'no-such-pass'" in done.stderr
