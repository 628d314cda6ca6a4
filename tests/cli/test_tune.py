"""`tune`: the fastest recipe that is right, whatever others do: crash, differ, or belong to a worker that is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
Verb = Callable[..., Any]
PLANTS = Path(__file__).parent.parent / "tools" / "bisect" / "plants"
ROWS = "contractions-to-kernels.rows"
SMALL = "--vary", f"{ROWS}=1,8", "--within", "200"  # three recipes, and then it ends
PROGRAM = """
import torch


class Product(torch.nn.Module):
    def forward(self, a, b):
        c = a @ b - a
        return c + c.abs().sqrt()


torch.manual_seed(0)
model, example_inputs = Product(), (torch.randn(96, 96), torch.randn(96, 96))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_bad_start_is_left_behind_and_the_recipe_is_kept(cli: Verb, program: str, tmp_path: Path) -> None:
    """One row and one vector of C at a time is several times as slow as a block of them."""
    bad, best = tmp_path / "bad.toml", tmp_path / "best.toml"
    text = cli("recipe", program).stdout
    name = 'name = "contractions-to-kernels"'
    before, after = text.split(name)
    bad.write_text(before + name + after.replace("options = []", 'options = [["rows", 1], ["vectors", 1]]', 1))
    words = "--recipe", str(bad), "--vary", f"{ROWS}=8", "--vary", "contractions-to-kernels.vectors=2"
    done = cli("tune", program, *words, "--within", "200", "--json", "-o", str(best))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["size"] == 4
    assert found["tries"][0]["choices"] == [f"{ROWS}=1", "contractions-to-kernels.vectors=1"]
    assert found["choices"] != found["tries"][0]["choices"]
    assert found["gain"]["low"] > 1
    again = cli("run", program, "--recipe", str(best), "--json")
    assert again.returncode == 0, again.stderr


def test_recipes_that_crash_or_differ_are_named_and_never_taken(cli: Verb, program: str) -> None:
    plants = [word for name in ("crash_on_sqrt", "flip_one_sign") for word in ("--plugin", str(PLANTS / f"{name}.py"))]
    recipe = cli("recipe", program, *plants).stdout
    steps = "".join(
        f'\n[[steps]]\nname = "{name}"\nlevel = "mlir"\nanchor = "builtin.module"\noptions = []\nenabled = false\n'
        f'phase = "fused"\n'
        for name in ("crash-on-sqrt", "flip-one-sign")
    )
    head, mark, tail = recipe.partition('\n[[steps]]\nname = "one-shot-bufferize"')
    path = Path(program).with_suffix(".toml")
    path.write_text(head + steps + mark + tail)
    vary = "--vary", "crash-on-sqrt=on,off", "--vary", "flip-one-sign=on,off"
    done = cli("tune", program, "--recipe", str(path), "--trust", *vary, "--within", "200", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    problems = {tuple(one["choices"]): one["problem"] for one in found["tries"]}
    assert "crashed" in problems["crash-on-sqrt=on", "flip-one-sign=off"]
    assert "differs from eager" in problems["crash-on-sqrt=off", "flip-one-sign=on"]
    assert found["choices"] == ["crash-on-sqrt=off", "flip-one-sign=off"]


WEIGHTED = """
import torch

torch.manual_seed(0)
layers = [layer for _ in range(3) for layer in (torch.nn.Linear(96, 96), torch.nn.ReLU())]
model, example_inputs = torch.nn.Sequential(*layers).eval(), (torch.randn(64, 96),)
"""


def test_precisions_are_chosen_within_an_error(cli: Verb, tmp_path: Path) -> None:
    """Whatever is faster on this machine, the outputs of the recipe are within the error."""
    path, best = tmp_path / "program.py", tmp_path / "best.toml"
    path.write_text(WEIGHTED)
    words = "--max-error", "2e-2", "--json", "-o", str(best)
    first = cli("tune", str(path), *words)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert "timing products in f32" in first.stderr
    assert len(found["nodes"]) == 3
    assert all(one["error"] <= 2e-2 for one in found["tries"] if not one["problem"])
    effects = [effect for node in found["nodes"] for effect in node["effects"]]
    assert {"bf16", "int8-dynamic"} <= {effect["precision"] for effect in effects}
    assert cli("run", str(path), "--recipe", str(best)).returncode == 0
    text = cli("tune", str(path), "--max-error", "0").stdout
    assert "error  x eager  precisions" in text
    assert "all products stay in f32" in text


def test_what_cannot_vary_is_refused_in_words(cli: Verb, program: str) -> None:
    done = cli("tune", program, "--vary", "no-such-pass=on,off")
    assert done.returncode == 1
    assert "no-such-pass: the recipe has no such pass" in done.stderr
    assert "Traceback" not in done.stderr
    assert cli("tune", program, "--vary", "nothing").returncode == 2


@pytest.mark.full("a Dask cluster of processes")
def test_a_cluster_tries_recipes_and_loses_none_with_a_worker(cli: Verb, program: str, cluster: Any) -> None:
    address, workers = cluster
    first = cli("tune", program, *SMALL, "--cluster", address, "--json")
    assert first.returncode == 0, first.stderr
    tries = json.loads(first.stdout)["tries"]
    assert {tuple(one["choices"]) for one in tries} == {(f"{ROWS}={value}",) for value in ("default", "1", "8")}
    assert not any(one["problem"] for one in tries)
    workers[0].kill()
    second = cli("tune", program, *SMALL, "--cluster", address, "--json")
    assert second.returncode == 0, second.stderr
    assert len(json.loads(second.stdout)["tries"]) == len(tries)


@pytest.mark.full("waits for a connection to time out")
def test_a_cluster_that_is_not_there_is_said(cli: Verb, program: str) -> None:
    pytest.importorskip("distributed")
    done = cli("tune", program, *SMALL, "--cluster", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in done.stderr
