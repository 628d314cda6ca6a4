"""What is installed is what the tree holds."""

from __future__ import annotations

import re
import runpy
import shutil
import zipfile
from pathlib import Path

import pytest

from buddy.compiler.protocol.environment import FIRST_TORCH, LAST_TORCH

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("api", "app", "compiler", "themes")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files(pattern: str) -> list[Path]:
    """Paths below the root, of files in the folders that are installed."""
    return sorted(path.relative_to(ROOT) for part in PARTS for path in (ROOT / part).rglob(pattern))


@pytest.fixture(scope="module")
def wheel(run_python, tmp_path_factory) -> Path:
    """A wheel built from a copy of the sources, so that a build folder of the tree's own cannot leak into it."""
    work = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "buddy_tui.py", "mlir.py"):
        shutil.copy(ROOT / name, work / name)
    for part in PARTS:
        shutil.copytree(ROOT / part, work / part, ignore=shutil.ignore_patterns("__pycache__"))
    result = run_python(
        "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=work
    )
    assert result.returncode == 0, result.stderr
    (built,) = (work / "dist").glob("*.whl")
    return built


def test_every_folder_with_modules_is_a_package():
    bare = {path.parent for path in files("*.py")} - {path.parent for path in files("__init__.py")}
    assert not bare, "a folder without __init__.py is not installed"


def test_the_package_list_is_the_tree():
    found = sorted(".".join(("buddy", *path.parent.parts)) for path in files("__init__.py"))
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_the_range_of_torch_is_what_is_tested_and_one_release_more():
    (torch,) = (text for text in PROJECT["project"]["dependencies"] if text.startswith("torch>"))
    (first, last) = FIRST_TORCH[1], LAST_TORCH[1]
    assert torch == f"torch>=2.{first},<2.{last + 2}"


def test_continuous_integration_names_every_cell_of_the_matrix():
    cells = re.findall(r"^        cell: \[(.*)\]$", (ROOT / ".github/workflows/checks.yml").read_text("utf-8"), re.M)
    matrix = runpy.run_path(str(ROOT / ".ci/matrix.py"))["CELLS"]
    assert [cell.strip(' "') for cell in cells[0].split(",")] == ["/".join(cell) for cell in matrix]


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_theme(wheel):
    expected = {
        f"buddy/{path.as_posix()}"
        for pattern in ("*.py", "py.typed", "*.toml", "*.tcss", "*.html", "*.css", "*.js")
        for path in files(pattern)
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected | {"buddy_tui.py"} <= names
    assert "buddy/__init__.py" not in names, "`buddy` is a namespace that other distributions may share"


@pytest.mark.slow
def test_the_wheel_carries_its_licence_command_and_dynamo_backend(wheel):
    archive = zipfile.ZipFile(wheel)
    texts = {name.rsplit("/", 1)[-1]: archive.read(name).decode() for name in archive.namelist() if "dist-info" in name}
    assert "LLVM Exceptions to the Apache 2.0 License" in texts["LICENSE"]
    assert "License-Expression: Apache-2.0 WITH LLVM-exception" in texts["METADATA"]
    assert "buddy-tui = buddy_tui:main" in texts["entry_points.txt"]
    assert "[torch_dynamo_backends]\nbuddy = buddy.compiler.frontend:" in texts["entry_points.txt"]


@pytest.mark.slow
def test_an_installed_wheel_names_a_package_that_hides_it(wheel, run_python, tmp_path):
    """`-S` leaves only the unpacked wheel and the stranger on the path, as in an environment without our checkout."""
    installed, stranger = tmp_path / "installed", tmp_path / "stranger"
    zipfile.ZipFile(wheel).extractall(installed)
    (stranger / "buddy").mkdir(parents=True)
    (stranger / "buddy" / "__init__.py").touch()
    result = run_python("-S", "-m", "buddy_tui", cwd=tmp_path, PYTHONPATH=f"{stranger}:{installed}")
    assert result.returncode == 2
    assert "buddy.app is not found" in result.stderr
    assert f"Take {stranger} off PYTHONPATH" in result.stderr
    assert "Traceback" not in result.stderr
