"""Trials per second of a search for the fastest recipe, on one and on two workers of a Dask cluster, interleaved.

Two clusters run on this machine, with one worker and with two, each worker with one thread; one cluster is idle while
the other is used. Both try all recipes of a space for a matrix product: each is compiled, compared with eager and timed
on one thread. Time runs from the first question to the last answer, on workers that have the program loaded; the
objects of the previous round are deleted. Prints one JSON object; the exit code is 1 if two workers try fewer than
`WANTED` times as many recipes per second. Needs as many free cores as there are workers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support import printing
from support.engine import TimedEngine, run, warm_engine
from support.timing import median_and_quartiles, summarize_ratios

from buddy.compiler.protocol import Attempted, Captured, Open, Tune, Tuned, Variation
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe

WANTED = 1.7
WORKERS = (1, 2)
OP = str(Path(__file__).parent / "programs" / "op.py")
ROWS, DEPTH = "contractions-to-kernels.rows", "contractions-to-kernels.depth"
# Block sizes with similar speed, so that no trial is cut short.
SPACE = (Variation(ROWS, (4, 5, 6)), Variation(DEPTH, (256, 512)), Variation("opt-level", (2, 3)))
# Enough questions for each worker to load the program.
FIRST = (Variation(ROWS, (4, 5, 6)),)
# Seconds for schedulers and workers to start, and more than any search here takes.
_PATIENCE, _LONG = 60.0, 3600.0


async def measure(size: int, repeats: int) -> dict[str, Any]:
    seconds: dict[int, list[float]] = {count: [] for count in WORKERS}
    trials = 0
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        clusters = {count: stack.enter_context(cluster(count, Path(folder))) for count in WORKERS}
        async with warm_engine() as engine:
            recipe = await _opened(engine, size)
            for count in WORKERS:
                await _searched(engine, recipe, clusters[count].address, FIRST)
            for number in range(repeats):
                for count in WORKERS if number % 2 else WORKERS[::-1]:
                    clusters[count].forget()
                    attempts = await _searched(engine, recipe, clusters[count].address, SPACE)
                    trials = len(attempts)
                    seconds[count].append(attempts[-1].elapsed)
    rates = {str(count): median_and_quartiles([trials / each for each in found]) for count, found in seconds.items()}
    gain = summarize_ratios(*seconds.values())
    return {"size": size, "trials": trials, "trials_per_second": rates, "gain": gain}


class Cluster:
    """A scheduler's address, and the folder of the workers' caches."""

    def __init__(self, address: str, caches: Path) -> None:
        self.address, self._caches = address, caches

    def forget(self) -> None:
        """Deletes what the workers have compiled."""
        shutil.rmtree(self._caches, ignore_errors=True)
        self._caches.mkdir(exist_ok=True)


@contextmanager
def cluster(count: int, folder: Path) -> Iterator[Cluster]:
    """Starts a scheduler with `count` workers of one thread each, on this machine; all are stopped afterwards."""
    own = folder / str(count)
    caches, file = own / "caches", own / "scheduler.json"
    caches.mkdir(parents=True)
    here = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    processes = [_dask("scheduler", *here, "--port", "0", folder=own, caches=caches)]
    try:
        address = _address(file)
        alone = ["--nthreads", "1", "--no-nanny"]
        processes += [_dask("worker", *here, *alone, folder=own, caches=caches) for _ in range(count)]
        _wait_for(address, count)
        yield Cluster(address, caches)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _dask(role: str, *words: str, folder: Path, caches: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *words]
    environment = {**os.environ, "BUDDY_CACHE": str(caches)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=quiet, stderr=quiet)


def _address(file: Path) -> str:
    deadline = time.monotonic() + _PATIENCE
    while not file.exists() or not file.read_text().strip():
        if time.monotonic() > deadline:
            sys.exit("error: no Dask scheduler came up")
        time.sleep(0.1)
    return str(json.loads(file.read_text())["address"])


def _wait_for(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=_PATIENCE)


async def _opened(engine: TimedEngine, size: int) -> Recipe:
    words = ("matmul", *[str(size)] * 3)
    request = Open(engine.client.new_request_id(), OP, words)
    async for _ in engine.follow(request, Captured):
        pass
    return default_recipe(OP, words)


async def _searched(engine: TimedEngine, recipe: Recipe, address: str, vary: tuple[Variation, ...]) -> list[Attempted]:
    """Returns the results of all recipes of a space."""
    frame = Tune(engine.client.new_request_id(), recipe, vary, _LONG, cluster=address)
    attempts = [found async for _, found in engine.follow(frame, Tuned) if isinstance(found, Attempted)]
    failed = [found.problem for found in attempts if found.problem]
    if failed:
        sys.exit(f"error: {failed[0]}")
    return attempts


def main() -> int:
    options = printing.parser(__doc__, 3, "rounds over both clusters").parse_args()
    try:
        import distributed  # noqa: F401
    except ImportError:
        sys.exit('error: a Dask cluster needs the package distributed: pip install "buddy-tui[cluster]"')
    machine = printing.machine()
    found = run(measure(64 if options.tiny else 1024, options.repeats))
    met = found["gain"]["median"] >= WANTED
    rows = [(count, f"{rate['median']:.2f}") for count, rate in found["trials_per_second"].items()]
    printing.tell({"machine": machine, **found, "wanted": WANTED, "met": met}, ["workers", "trials/s"], rows)
    print(f"{printing.between(found['gain'], ' times')}, wanted {WANTED}", file=sys.stderr)
    return 0 if met or options.tiny else 1


if __name__ == "__main__":
    sys.exit(main())
