"""What every test may use: the root folder, a Python process of its own, and a state folder that is not the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session", autouse=True)
def private_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Settings, history and caches of this process and its children go to a temporary folder."""
    home = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
        yield


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """`run_python(*arguments, cwd=ROOT, timeout=120, **environment)`: the finished process, its output as text."""

    def run(
        *arguments: str, cwd: Path = ROOT, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing that TorchDynamo knows of other tests, and random numbers from a seed."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
