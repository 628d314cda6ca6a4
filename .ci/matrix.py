"""Tests buddy-tui with supported versions of PyTorch and Python: `matrix.py FOLDER-OF-UV [PYTHON/TORCH ...]`.

Run by `make matrix`, which names all cells. Each cell has an environment of its own, made by uv with the versions of
`requirements.lock` where that Python and PyTorch allow them, and removed afterwards: builds with CUDA take 5 GB. The
tests are those that depend most on PyTorch: TorchDynamo's private parts, what it and AOTAutograd pass to a backend,
calls through PyTorch's C interface, whole models, training, exported programs, sizes that vary. A cell whose Python is
not on this machine is skipped, and said to be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELLS = (
    *(("3.11", torch) for torch in ("2.11", "2.12", "2.13", "2.14", "2.15")),
    *((python, "2.13") for python in ("3.10", "3.12", "3.13")),
    ("3.10", "2.11"),
    ("3.13", "2.15"),
    ("3.14", "2.15"),
)
TESTS = (
    "tests/frontend/test_backend.py",
    "tests/frontend/test_backend_use.py",
    "tests/frontend/test_aliasing.py",
    "tests/frontend/test_direct_calls.py",
    "tests/frontend/test_direct_gradients.py",
    "tests/frontend/test_dynamic.py",
    "tests/frontend/test_left_to_eager.py",
    "tests/frontend/test_quantised_tensors.py",
    "tests/frontend/test_summary.py",
    "tests/frontend/test_weights.py",
    "tests/ops/test_linear_algebra.py",
    "tests/runtime/test_native_calls.py",
    "tests/runtime/test_native_entry.py",
    "tests/training/test_steps.py",
    "tests/samples/test_samples.py",
    "tests/importers/test_program_files.py",
    "tests/cli/test_environment.py",
    "tests/tools/explain/test_recorder.py",
    "tests/test_dynamo_internals.py",
)


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: matrix.py FOLDER-OF-UV [PYTHON/TORCH ...], such as 3.11/2.14", file=sys.stderr)
        return 2
    uv = Path(sys.argv[1]).resolve() / "uv"
    cells = [tuple(word.split("/", 1)) for word in sys.argv[2:]] or list(CELLS)
    wrong = [cell for cell in cells if cell not in CELLS]
    if wrong:
        print(f"no such cell: {wrong[0]}; there are {', '.join('/'.join(cell) for cell in CELLS)}", file=sys.stderr)
        return 2
    results = {cell: test(uv, *cell) for cell in cells}
    print("\nPython  PyTorch  result")
    for (python, torch), result in results.items():
        print(f"{python:<7} {torch:<8} {result}")
    return int(any("failed" in result or "error" in result for result in results.values()))


def test(uv: Path, python: str, torch: str) -> str:
    """The result of a cell: pytest's last line, or why it has none."""
    interpreter = find_python(uv, python)
    if not interpreter:
        return "skipped: there is no such Python here"
    print(f"== Python {python}, PyTorch {torch}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"buddy-{python}-{torch}-"))
    try:
        here = folder / "environment"
        if not install(uv, interpreter, torch, here):
            return "error: the environment cannot be installed; see above"
        command = [str(here / "bin" / "python"), "-m", "pytest", "-q", "--tb=short", "-m", "not full", *TESTS]
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, errors="replace", check=False
        )
        print(done.stdout[-20_000:] if done.returncode else "", flush=True)
        last = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1].strip("= ")
        said = last if not done.returncode or "failed" in last or "error" in last else f"failed: {last}"
        return re.sub(r" in [\d.]+s.*", "", said) + f", {time.monotonic() - started:.0f} s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_python(uv: Path, python: str) -> str:
    """The path of an interpreter of this version, or an empty string."""
    command = [uv, "python", "find", "--no-python-downloads", "--no-project", "--system", python]
    done = subprocess.run(
        command, env=with_pyenv(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    return done.stdout.strip() if not done.returncode else ""


def with_pyenv() -> dict[str, str]:
    """The variables of this process with all versions of pyenv selected, if there is one.

    Its commands fail for versions that are not selected, and uv gives up at a command that fails.
    """
    try:
        done = subprocess.run(["pyenv", "versions", "--bare"], stdout=subprocess.PIPE, text=True, check=False)
    except OSError:
        return dict(os.environ)
    return {**os.environ, "PYENV_VERSION": ":".join(done.stdout.split())}


def install(uv: Path, interpreter: str, torch: str, folder: Path) -> bool:
    """Makes an environment with everything that the tests import; whether that worked."""
    chosen, bounds = folder.parent / "requirements.txt", folder.parent / "constraints.txt"
    # uv keeps the versions of a file that it overwrites, but for those that do not fit: NumPy, among others, drops a
    # version of Python with each release, and PyTorch 2.12 needs an older setuptools.
    pins = re.findall(r"^([\w.-]+==[^\s;]+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    chosen.write_text("\n".join(pin for pin in pins if not pin.startswith("torch==")), encoding="utf-8")
    bounds.write_text(f"torch=={torch}.*", encoding="utf-8")
    resolve = [uv, "pip", "compile", "--quiet", "--python", interpreter, "--constraint", bounds]
    target = ["--python", folder / "bin" / "python"]
    steps = (
        [*resolve, "--output-file", chosen, "--extra", "samples", "--extra", "dev", "pyproject.toml"],
        [uv, "venv", "--quiet", "--python", interpreter, folder],
        [uv, "pip", "install", "--quiet", *target, "-r", chosen],
        [uv, "pip", "install", "--quiet", "--no-deps", *target, "--editable", ROOT],
    )
    # `pip compile` prints what it writes.
    return all(subprocess.run(step, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0 for step in steps)


def environment() -> dict[str, str]:
    """The variables of the tests, which import this tree whatever is installed."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'build' / 'tree'}{os.pathsep}{ROOT}"}


if __name__ == "__main__":
    sys.exit(main())
