"""`import mlir` in a script: the bindings in use, unless a build of MLIR is on the path."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_modules_under_the_other_name_are_the_bindings_own(run_python: Run, tmp_path: Path) -> None:
    """Also those that nothing here imports, in every form of import, and before anything of ours."""
    (tmp_path / "script.py").write_text(
        "import mlir.ir as ir\n"
        "from mlir import runtime as rt\n"
        "from mlir.dialects import gpu, linalg\n"
        "import mlir.dialects.func as func\n"
        "from buddy.compiler import bindings\n"
        "assert ir is bindings.ir and linalg is bindings.linalg and func is bindings.func and rt is bindings.runtime\n"
        "with ir.Context(), ir.Location.unknown():\n"
        "    print(ir.Module.parse('func.func private @f()'), gpu.__name__)\n"
        "try:\n"
        "    import mlir.ghost\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error.name)\n"
    )
    result = run_python("script.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "func.func private @f()" in result.stdout
    assert result.stdout.splitlines()[-1] == "mlir.ghost"


def test_a_build_of_mlir_on_the_path_comes_first(run_python: Run, tmp_path: Path) -> None:
    """Builds are namespace packages, which would otherwise stand behind every module of that name."""
    (tmp_path / "build" / "mlir").mkdir(parents=True)
    (tmp_path / "build" / "mlir" / "ir.py").write_text("MINE = True\n")
    (tmp_path / "script.py").write_text("import mlir.ir\nprint(mlir.ir.MINE)\n")
    result = run_python("script.py", cwd=tmp_path, PYTHONPATH=str(tmp_path / "build"))
    assert result.stdout == "True\n", result.stderr
