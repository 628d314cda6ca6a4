"""`profile`: which node a run spends its time in, as a table, as JSON, and as stacks of modules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.support.timing import cycle_counter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cycle_counter() is None, reason="no known cycle counter on this machine"),
]
Verb = Callable[..., Any]


def test_a_profile_names_nodes_their_work_and_what_is_fused(cli: Verb, tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    done = cli("profile", "samples/mlp.py", "--repeats", "2", "--json", "--folded", str(stacks))
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    nodes = {node["name"]: node for node in graph["nodes"]}
    product = nodes["addmm"]
    rows, inner, columns = 128, 256, 1024
    assert product["operations"] == 2 * rows * inner * columns + 2 * rows * columns  # with gelu's, one an element
    assert product["bytes"] == 4 * (rows * inner + inner * columns + columns + rows * columns)
    assert product["seconds"] > 0
    assert product["operations_per_second"] == pytest.approx(product["operations"] / product["seconds"])
    assert nodes["gelu"] == {
        "node": nodes["gelu"]["node"], "name": "gelu", "seconds": None, "fused_into": product["node"],
    }  # fmt: skip
    assert graph["same_results"]
    assert graph["peak"]["gflops"] > 0
    assert graph["in_nodes"] + graph["in_calls"] <= graph["whole"]
    lines = stacks.read_text().splitlines()
    assert any(line.startswith("MLP;up;addmm.0 ") for line in lines)
    told = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    assert told["MLP;up;addmm.0"] == pytest.approx(product["seconds"] * 1e9, abs=1)


def test_a_profile_reads_as_sentences_a_table_and_a_tree(cli: Verb) -> None:
    done = cli("profile", "samples/mlp.py", "--repeats", "2", "--top", "1", "--plain")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "counters cost" in text
    assert "GFLOP/s" in text
    assert "and 2 more (--top, --json)" in text
    assert text.count("aten.addmm") == 1
    assert any(line.split()[-1] == "up" for line in text.splitlines() if line)


def test_a_recipe_that_cannot_be_compiled_is_told_of(cli: Verb) -> None:
    done = cli("profile", "samples/addmm.py", "--json", "--disable", "one-shot-bufferize")
    assert done.returncode == 1
    (graph,) = json.loads(done.stdout)["graphs"]
    assert graph["error"]["what"]


def test_a_compilation_is_told_by_phase_and_pass(cli: Verb, tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    done = cli("profile", "samples/addmm.py", "--compile", "--json", "--folded", str(stacks))
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    passes = {found["pass"]: found for found in graph["passes"]}
    assert passes["one-shot-bufferize"]["phase"] == "buffers"
    assert {"canonicalize", "canonicalize#2", "translate", "codegen"} <= set(passes)
    by_phase = {found["phase"]: found["seconds"] for found in graph["phases"]}
    inside = sum(found["seconds"] for found in graph["passes"] if found["phase"] == "llvm")
    assert by_phase["llvm"] == pytest.approx(inside)
    assert sum(by_phase.values()) <= graph["seconds"]
    assert any(line.split(";")[1:2] == ["buffers"] for line in stacks.read_text().splitlines())


def test_stacks_that_cannot_be_written_are_told_of(cli: Verb, tmp_path: Path) -> None:
    done = cli("profile", "samples/addmm.py", "--repeats", "1", "--folded", str(tmp_path / "none" / "stacks"))
    assert done.returncode == 2
    assert "cannot write to" in done.stderr
