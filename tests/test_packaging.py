"""What is installed is what the tree holds."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
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


def test_the_readme_and_the_classifiers_name_the_versions_that_are_tested():
    pythons = [text.rsplit(" ", 1)[1] for text in PROJECT["project"]["classifiers"] if "Python :: 3." in text]
    tested = {cell[0] for cell in runpy.run_path(str(ROOT / ".ci/matrix.py"))["CELLS"]}
    assert set(pythons) <= tested
    first, last = (".".join(map(str, version)) for version in (FIRST_TORCH, LAST_TORCH))
    place = (ROOT / "README.md").read_text("utf-8").partition("## Where it runs")[2].partition("\n## ")[0]
    assert f"Python {pythons[0]} to {pythons[-1]}, PyTorch {first} to {last}," in place


def test_mypy_checks_what_plugins_build_upon_strictly():
    """All that `mypy --strict` adds to the options of the other modules; mypy itself runs in `make types`."""
    (strict,) = (
        part for part in PROJECT["tool"]["mypy"]["overrides"] if "buddy.api.*" in part["module"]
    )  # fmt: skip
    folders = ("api", "compiler.graph", "compiler.passes", "compiler.protocol")
    assert strict["module"] == [f"buddy.{folder}.*" for folder in folders]
    on = {
        "disallow_any_generics", "disallow_subclassing_any", "disallow_untyped_calls", "disallow_untyped_decorators",
        "extra_checks", "warn_return_any",
    }  # fmt: skip
    assert {name: strict[name] for name in strict if name != "module"} == {
        **dict.fromkeys(on, True),
        "implicit_reexport": False,
    }


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
    assert "[torch_dynamo_backends]\nbuddy = buddy_tui:buddy_backend" in texts["entry_points.txt"]


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


@pytest.mark.slow
def test_torch_compile_names_a_package_that_hides_an_installed_wheel(wheel, run_python, tmp_path):
    """A build of Buddy-MLIR has a `buddy.compiler.frontend` of its own."""
    installed, stranger = tmp_path / "installed", tmp_path / "stranger"
    zipfile.ZipFile(wheel).extractall(installed)
    theirs = stranger / "buddy" / "compiler" / "frontend.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("class DynamoCompiler: ...")
    (stranger / "buddy" / "compiler" / "__init__.py").touch()
    script = "import torch; print(torch.compile(lambda x: x + 1, backend='buddy')(torch.ones(2)))"
    hidden = run_python("-c", script, cwd=tmp_path, PYTHONPATH=f"{stranger}:{installed}")
    last = hidden.stderr.rstrip().splitlines()[-1]
    assert last.startswith("ImportError: another package named `buddy` hides a part of buddy-tui: buddy.compiler is ")
    assert last.endswith(f"Take {stranger} off PYTHONPATH and start again")
    ours = run_python("-c", script, cwd=tmp_path, PYTHONPATH=f"{installed}:{stranger}")
    assert ours.stdout == "tensor([2., 2.])\n", ours.stderr


@pytest.mark.slow
def test_two_installed_copies_are_named_and_the_first_runs(wheel, run_python, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        zipfile.ZipFile(wheel).extractall(place)
    (info,) = second.glob("*.dist-info")
    metadata = (info / "METADATA").read_text("utf-8")
    (info / "METADATA").write_text(re.sub(r"^Version: .*", "Version: 0.1.0", metadata, count=1, flags=re.M), "utf-8")
    info.rename(second / "buddy_tui-0.1.0.dist-info")
    version = PROJECT["project"]["version"]
    done = run_python("-m", "buddy_tui", "--version", cwd=tmp_path, PYTHONPATH=f"{first}:{second}")
    assert done.returncode == 0, done.stderr
    assert version in done.stdout
    (line,) = done.stderr.splitlines()
    assert f"{version} in {first}, 0.1.0 in {second}" in line
    assert f"the one in {first} runs. Keep one: " in line


def test_an_editable_copy_and_its_own_metadata_are_one(run_python, tmp_path):
    """Setuptools leaves metadata in a checkout, which are on the path wherever the checkout is."""
    site, checkout = tmp_path / "site", tmp_path / "a checkout"
    for folder in (site / "buddy_tui-0.2.dist-info", checkout / "buddy_tui.egg-info"):
        folder.mkdir(parents=True)
        name = "METADATA" if folder.suffix == ".dist-info" else "PKG-INFO"
        (folder / name).write_text("Metadata-Version: 2.4\nName: buddy-tui\nVersion: 0.2\n")
    origin = f'{{"dir_info": {{"editable": true}}, "url": "{checkout.as_uri()}"}}'
    (site / "buddy_tui-0.2.dist-info" / "direct_url.json").write_text(origin)
    shutil.copy(ROOT / "buddy_tui.py", checkout)
    script = "import buddy_tui; print(buddy_tui.installed_copies(), repr(buddy_tui.copies_message()))"
    done = run_python("-S", "-c", script, cwd=tmp_path, PYTHONPATH=f"{checkout}:{site}")
    assert done.stdout == f"{{{checkout!r}: '0.2'}} ''\n", done.stderr


def uv() -> str | None:
    return shutil.which("uv", path=os.pathsep.join((str(Path(sys.prefix, "tools/bin")), os.environ["PATH"])))


@pytest.mark.slow
@pytest.mark.skipif(uv() is None, reason="there is no uv on the path, nor the tools of `make lock`")
def test_uv_installs_the_command_from_the_wheel(wheel, tmp_path):
    """Without its dependencies, which would be downloaded: the command finds those of these tests."""
    names = [re.split(r"[^\w.-]", text)[0] for text in PROJECT["project"]["dependencies"]]
    (tmp_path / "excluded").write_text("\n".join(names))
    folders = {f"UV_{name}": str(tmp_path / name) for name in ("CACHE_DIR", "TOOL_DIR", "TOOL_BIN_DIR")}
    path = os.pathsep.join((folders["UV_TOOL_BIN_DIR"], os.environ["PATH"]))
    environment = {**os.environ, **folders, "PATH": path, "PYTHONPATH": sysconfig.get_path("purelib")}
    install = [uv(), "tool", "install", "--quiet", "--offline", "--no-index", "--python", sys.executable]
    install += ["--excludes", str(tmp_path / "excluded"), str(wheel)]
    done = subprocess.run(install, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    command = Path(folders["UV_TOOL_BIN_DIR"]) / "buddy-tui"
    done = subprocess.run(
        [command, "presets", "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: buddy-tui presets")
    (place,) = (tmp_path / "TOOL_DIR").glob("buddy-tui/lib/*/site-packages/buddy/app")
    assert str(place.parents[1]) in done.stderr, "it names itself as the copy that runs"
