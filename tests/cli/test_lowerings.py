"""What `run` and `dump` tell of the registries that lower the nodes, and of nodes that none does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
Verb = Callable[..., Any]

DOUBLES = """
import torch

def f(x, y):
    return torch.relu(x @ y).float().cumsum(0)

with torch.no_grad():
    torch.compile(f, backend="buddy")(torch.ones(4, 4, dtype=torch.float64), torch.ones(4, 4, dtype=torch.float64))
"""
FACTORED = """
import torch

f = torch.compile(lambda x: torch.histogram(x * 2, 3)[0], backend="buddy", options={"fallback": "FALLBACK"})
f(torch.eye(4))
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_run_tells_which_registry_lowers_what_and_why_not_the_first(cli: Verb, tmp_path: Path) -> None:
    path = script(tmp_path, DOUBLES)
    (graph,) = json.loads(cli("run", path, "--json", "--repeats", "1", "--dialect", "tosa").stdout)["graphs"]
    assert graph["lowered_by"] == {"linalg": 4}
    assert graph["other_registry"][0] == {"node": "mm.0", "by": "linalg", "reason": "tosa: no f64 matmul"}
    assert graph["other_registry"][-1] == {"node": "cumsum.0", "by": "linalg", "reason": "tosa: no cumulative sum"}
    text = cli("run", path, "--repeats", "1", "--dialect", "tosa").stdout
    assert "not lowered by the first registry: mm.0: tosa: no f64 matmul" in text
    assert "not lowered by the first registry" not in cli("run", path, "--repeats", "1").stdout


def test_dump_prints_the_table_of_nodes(cli: Verb, tmp_path: Path) -> None:
    done = cli("dump", script(tmp_path, DOUBLES), "--nodes", "--dialect", "tosa")
    assert done.returncode == 0
    heading, *rows = done.stdout.splitlines()
    assert heading.split() == ["node", "target", "lowering", "function", "reason"]
    (row,) = [row for row in rows if row.strip().startswith("mm.0")]
    assert row.split(maxsplit=4) == ["mm.0", "aten.mm.default", "linalg", "forward", "tosa: no f64 matmul"]


def test_the_table_of_nodes_is_no_stage(cli: Verb) -> None:
    done = cli("dump", "samples/arith_add.py", "--nodes", "--stage", "fx")
    assert done.returncode == 2
    assert "--nodes prints a table to stdout" in done.stderr


def test_choices_of_a_recipe_that_cannot_be_followed_are_told_of(cli: Verb, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[[choices]]\nnode = "add.0"\nlowering = "math"\n[[choices]]\nnode = "ad.0"\nlowering = "eager"\n'
        '[[choices]]\nnode = "mul.0"\nlowering = "toza"\n'
    )
    path = script(tmp_path, "import torch\nmodel = lambda x: x * x + 1\nexample_inputs = (torch.ones(3),)\n")
    done = cli("run", path, "--recipe", str(recipe), "--repeats", "1")
    assert done.returncode == 0
    assert "the recipe lowers add.0 by math, but linalg lowers it: math: no lowering of AddOp" in done.stderr
    assert "the recipe lowers ad.0 by eager, but no compiled node has that name; did you mean add.0?" in done.stderr
    assert "the recipe lowers mul.0 by toza, but linalg lowers it: toza: unknown registry" in done.stderr


def test_a_node_in_eager_ends_a_script_that_allows_none_with_code_1(cli: Verb, tmp_path: Path) -> None:
    path = script(tmp_path, FACTORED.replace("FALLBACK", "error"))
    done = cli("run", path, "--json", "--repeats", "1")
    assert done.returncode == 1
    (graph,) = json.loads(done.stdout)["graphs"]
    assert not graph["ok"]
    assert graph["error"]["what"] == "the script sets fallback='error', but 1 of 3 nodes fall back to eager"
    assert "histogram.0: histogram.bin_ct has no op class" in graph["error"]["detail"]
    assert "'histogram.bin_ct' to `_ops_map`" in graph["error"]["detail"]
    assert "fallback='error'" in done.stderr


def test_a_node_in_eager_is_told_of_where_it_is_allowed(cli: Verb, tmp_path: Path) -> None:
    done = cli("run", script(tmp_path, FACTORED.replace("FALLBACK", "eager")), "--repeats", "1")
    assert done.returncode == 0
    assert "in eager: histogram.0: histogram.bin_ct has no op class" in done.stdout
    assert "docs/how-to/adding-an-operator.md" in done.stdout
