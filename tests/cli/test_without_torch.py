"""A Python without PyTorch, or with a broken one: one error that says so, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = {
    "missing": ("ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "No module named 'torch'"),
    "broken": ("OSError('libtorch.so: cannot open shared object file')", "libtorch.so: cannot open shared object file"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_names_the_python_that_has_no_torch(name: str, tmp_path: Path) -> None:
    raised, text = PROBLEMS[name]
    (tmp_path / "torch.py").write_text(f"raise {raised}\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "buddy.app.cli", "run", "samples/arith_add.py", "--json"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["what"] == f"PyTorch cannot be imported: {text}"
    assert error["where"] == sys.executable
    assert "-m pip install torch" in error["todo"]
