"""What every test may use: the root folder, a Python process of its own, and a state folder that is not the user's."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from buddy.app.session import client
from tests.support import tiers
from tests.support.warm_processes import warm_processes

# More processes than cores: threads that wait for others of theirs give up the core, before any OpenMP is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
COLD = client.default_command
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


def pytest_configure() -> None:
    """What a shell has ignored for what it starts, by `nohup` or `&`, is not ignored by the processes of tests."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: each look for garbage passes over what is there now."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    tiers.running(item)


def pytest_xdist_auto_num_workers() -> int:
    """The processes of `-n auto`: three for two cores that this process may use, at most one for 4 GiB that are free.

    A test waits for other processes for some third of its time: on two cores the suite takes 14 min 55 s with two of
    them and 12 min 57 s with three.

    Seen in a run: a worker at 1.6 GB, its warm process at 0.55, and an engine's three processes at 0.4 each.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    return max(1, min(len(os.sched_getaffinity(0)) * 3 // 2, free >> 32))


def seed_random_numbers() -> None:
    """Start Python's, NumPy's and torch's generators anew. A library that is not loaded yet starts at its own seed."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


# What a module, a fixture and a test draw depends neither on other tests nor on their order.
@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        seed_random_numbers()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    seed_random_numbers()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    seed_random_numbers()


class WarmPython:
    """Starts a process that has torch and MLIR loaded when the first fork of it is asked for."""

    def __init__(self) -> None:
        self._open = ExitStack()

    @cached_property
    def command(self) -> list[str]:
        """What takes the place of `python` where a module of this project is run."""
        return self._open.enter_context(warm_processes())

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="session")
def warm_python(private_state: None) -> Iterator[WarmPython]:
    """A Python for modules of this project whose processes are there in milliseconds (see `warm_processes`)."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture(scope="session", autouse=True)
def warm_engines(warm_python: WarmPython) -> Iterator[None]:
    """Engines that tests start are forks of a warm process, unless a test asks for `cold_engines`."""

    def command() -> list[str]:
        tiers.refuse_engines_in_unit_tests()
        return [*warm_python.command, "-P", "-m", "buddy.compiler.engine"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "default_command", command)
        yield


@pytest.fixture
def cold_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that this test starts are processes of their own from the first instruction on, as a user's are."""
    monkeypatch.setattr(client, "default_command", COLD)


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """`run_python(*arguments, cwd=ROOT, timeout=300, **environment)`: the finished process, its output as text."""

    def run(
        *arguments: str, cwd: Path = ROOT, timeout: float = 300, python: Sequence[str] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*(python or [sys.executable]), *arguments],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def run_warm(run_python: RunPython, warm_python: WarmPython) -> RunPython:
    """As `run_python`, for a module of this project or a script, in a process that has torch and MLIR loaded."""
    return lambda *arguments, **options: run_python(*arguments, python=warm_python.command, **options)


@pytest.fixture(scope="session")
def cli(run_warm: RunPython) -> RunPython:
    """`cli("run", "samples/addmm.py")`: the finished process of `buddy-tui run samples/addmm.py`."""
    return lambda *words, **options: run_warm("-m", "buddy.app.cli", *map(str, words), **options)


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
    distributed = pytest.importorskip("distributed")
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
        address = json.loads(file.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=240)
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _dask(role: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{role}", *words], **options)
