"""`buddy-tui new`: packages whose tests pass at once, that import only `buddy.api`, and that the engine loads."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.cli.new import KINDS, main, plugin_files

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 150
Run = Callable[..., Any]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The folder of a plug-in with one of everything."""
    assert main(["plugin", "one-of-each", "-o", str(tmp_path / "plugin")]) == 0
    return tmp_path / "plugin"


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_is_short_and_imports_the_public_interface_alone(kind: str) -> None:
    files = plugin_files(kind, "my-part")
    modules = {"pane": ["my_part_pane.py"], "plugin": ["my_part.py", "my_part_pane.py"]}.get(kind, ["my_part.py"])
    assert set(files) == {"README.md", *modules, "pyproject.toml", "test_my_part.py"}
    assert sum(len(files[name].splitlines()) for name in modules) <= MAX_LINES
    for name in modules:
        imports = [node for node in ast.walk(ast.parse(files[name])) if isinstance(node, ast.ImportFrom)]
        assert {node.module for node in imports if node.module and node.module.startswith("buddy")} == {"buddy.api"}
    assert ('my-part = "my_part"' in files["pyproject.toml"]) == (kind != "pane")
    assert ('my-part = "my_part_pane:MyPartPane"' in files["pyproject.toml"]) == (kind in ("pane", "plugin"))
    assert all("@NAME" not in content and "@MODULE" not in content for content in files.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_is_formatted(kind: str, tmp_path: Path) -> None:
    assert main([kind, "my-part", "-o", str(tmp_path / "part")]) == 0
    ruff, config = str(Path(sys.executable).with_name("ruff")), str(ROOT / "pyproject.toml")
    for words in (("check", "--ignore", "I001"), ("format", "--check")):
        command = [ruff, *words, "--no-cache", "--config", config, str(tmp_path / "part")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_tests_of_a_plugin_pass_at_once(plugin: Path, run_python: Run) -> None:
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=plugin)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


@pytest.mark.slow
def test_the_engine_has_the_preset_the_backend_and_the_exporter(plugin: Path, cli: Run) -> None:
    (plugin / "model.py").write_text("import torch\nmodel, example_inputs = lambda x: x - 3.0, (torch.ones(3),)\n")
    options = ("--plugin", "one_of_each.py")
    done = cli("run", "model.py", "--preset", "one-of-each-upstream", *options, cwd=plugin)
    assert done.returncode == 0, done.stderr
    done = cli("stages", "model.py", "--backend", "one-of-each-o3", *options, "--json", cwd=plugin)
    assert "optimize" in [stage["name"] for stage in json.loads(done.stdout)["graphs"][0]["stages"]]
    done = cli("export", "model.py", "--kind", "one-of-each-nodes", "-o", "out", *options, cwd=plugin)
    assert done.returncode == 0, done.stderr
    assert json.loads((plugin / "out" / "model.nodes.json").read_text()) == {"sub.0": "linalg"}
    done = cli("export", "model.py", "--kind", "nothing", "-o", "out", *options, cwd=plugin)
    assert done.returncode == 1
    assert "one-of-each-nodes" in done.stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("My Op", "lower-case letters"),
        ("torch", "a module of this name is installed"),
        ("..", "lower-case letters"),
        ("class", "a keyword of Python"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["op", name, "-o", str(tmp_path / "part")]) == 2
    assert problem in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op", "my-part", "-o", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
