"""Bindings under other names, and tools in the place of `mlir-opt`: real ones, where they are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from tests.support.dumps import mlir_opt


def folder_of(package: str) -> Path | None:
    """Where a package lies, found without loading it."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


@pytest.fixture(scope="session")
def torch_mlir_opt() -> str:
    """The tool that torch-mlir's wheel brings."""
    return mlir_opt()


@pytest.fixture(scope="session")
def iree_opt() -> str:
    """A tool with passes that the bindings lack."""
    folder = folder_of("iree.compiler")
    path = folder / "_mlir_libs" / "iree-opt" if folder is not None else None
    if path is None or not path.exists():
        pytest.skip("iree-base-compiler is not installed")
    return str(path)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package `mlir` of the layout of a build, whose modules are those of the wheel.

    Not a copy: the wheel's libraries know the name that they were built with, and can be loaded once a process.
    """
    wheel, root = folder_of("torch_mlir"), tmp_path_factory.mktemp("build")
    assert wheel is not None
    for path in wheel.rglob("*"):
        inside = path.relative_to(wheel)
        name = inside.name.split(".")[0]
        if "__pycache__" in inside.parts or path.suffix not in (".py", ".so") or name.startswith("lib"):
            continue
        parts = (*inside.parent.parts, *(() if name == "__init__" else (name,)))
        _stand_in(root / "mlir" / inside.parent / f"{name}.py", ".".join(("torch_mlir", *parts)))
    return root


def _stand_in(file: Path, module: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"import importlib, sys\n\nsys.modules[__name__] = importlib.import_module({module!r})\n")


@pytest.fixture
def on_path(tmp_path: Path, torch_mlir_opt: str) -> str:
    """A `PATH` on which an `mlir-opt` is found."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mlir-opt").symlink_to(torch_mlir_opt)
    return f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user has set does not count here."""
    for name in ("BUDDY_MLIR_PACKAGE", "BUDDY_MLIR_OPT"):
        monkeypatch.delenv(name, raising=False)
    if shutil.which("mlir-opt") is not None:
        folders = os.environ["PATH"].split(os.pathsep)
        monkeypatch.setenv("PATH", os.pathsep.join(f for f in folders if not (Path(f) / "mlir-opt").exists()))
