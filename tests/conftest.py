"""What every test may use: the root folder, a Python process of its own, and a state folder that is not the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
    """`run_python(*arguments, cwd=ROOT, timeout=300, **environment)`: the finished process, its output as text."""

    def run(
        *arguments: str, cwd: Path = ROOT, timeout: float = 300, **environment: str
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


Cluster = tuple[str, "list[subprocess.Popen[bytes]]"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Dask scheduler of its own and two workers of one thread each: its address, and the workers."""
    pytest.importorskip("distributed")
    file, quiet = tmp_path / "scheduler.json", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    here = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    processes = [_dask("scheduler", *here, "--port", "0", cwd=tmp_path, **quiet)]
    try:
        deadline = time.monotonic() + 240
        while not file.exists() or not file.read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        alone = ["--nthreads", "1", "--no-nanny"]
        processes += [_dask("worker", *here, *alone, cwd=tmp_path, **quiet) for _ in range(2)]
        yield json.loads(file.read_text())["address"], processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _dask(role: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{role}", *words], **options)
