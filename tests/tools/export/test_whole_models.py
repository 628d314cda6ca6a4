"""Whole models as programs in C, and a compiled program as a Python package in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import ROOT
from tests.tools.export.written import COMPILERS, build, errors, examples, line, need, run, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Largest differences from eager: sums of some thousand products in another order, through all layers of the model.
MODELS = {"bert.py": 1e-4, "resnet18.py": 1e-5}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder that a sample was exported to by the command line, and how close it has to be."""
    folder = tmp_path_factory.mktemp("model")
    words = [
        "export",
        f"samples/{request.param}",
        "-o",
        str(folder),
        "--kind",
        "object",
        "--name",
        "net",
        "--timeout",
        "600",
    ]
    command = [sys.executable, "-m", "buddy.app.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert not done.returncode, done.stderr
    return folder, MODELS[request.param]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.full("whole models; test_export.py runs small ones in the same way")
def test_a_whole_model_gives_eagers_numbers_without_python(model: tuple[Path, float], compiler: str) -> None:
    folder, close = model
    said = run([build(folder, compiler, "main.c", "net.c", "net.o"), *examples(folder), "--repeats", "3"], folder)
    assert max(errors(said)) < close


def test_a_wheel_is_installed_and_called_without_torch(tmp_path: Path) -> None:
    need("gcc")
    torch.manual_seed(0)
    layers, x = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).eval(), torch.randn(3, 8)
    write(line(layers, x)[1], tmp_path, "wheel")
    (wheel,) = tmp_path.glob("*.whl")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    # NumPy is the one thing it needs: this environment's, alone, so that nothing is fetched.
    place = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    numpy = Path(np.__file__).parent
    for found in (numpy, *numpy.parent.glob("numpy.libs"), *numpy.parent.glob("numpy-*.dist-info")):
        os.symlink(found, place / found.name)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", str(wheel)], check=True, timeout=300)
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import sys, numpy, net\n"
        "program = net.load()\n"
        "(found,) = program(numpy.load('x.npy'))\n"
        "numpy.save('y.npy', found)\n"
        "assert program.inputs[0].shape == (3, 8) and 'torch' not in sys.modules\n"
        "try:\n    program(numpy.zeros((2, 8), 'f4'))\n    sys.exit('a wrong shape was taken')\n"
        "except ValueError as error:\n    assert '(2, 8)' in str(error)\n"
        "try:\n    net.load('nosuch')\n    sys.exit('a file that is not there was opened')\n"
        "except net.Error as error:\n    assert 'cannot be opened' in str(error)\n"
    )
    subprocess.run([python, "-c", code], cwd=tmp_path, check=True, timeout=120)
    # Sums of 64 products of numbers of size 1, in another order.
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), layers(x).detach().numpy(), atol=1e-5)
