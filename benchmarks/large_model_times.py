"""Interleaved times of a Llama of 1.1 billion parameters, by this compiler and by Inductor.

Each way has a process of its own, with an empty cache, which builds the model before anything is timed. Then each
compiles it in its first call, one after the other, and prefills of 64 tokens alternate. Load that comes and goes meets
both ways alike, so their ratios mean something where the times of separate runs do not. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from large_model import WAYS, prepare
from support import printing

# Starts a line of the output that is for the other process.
ANSWER = "answer: "


def serve(way: str, arguments: Sequence[str]) -> None:
    """Builds the model in this process, then calls it once for each line of the input, and prints the seconds."""
    call, _ = prepare(way, arguments)
    print(f"{ANSWER}0", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        call()
        print(f"{ANSWER}{time.perf_counter() - start}", flush=True)


class Way:
    """A process that serves calls by one way; a context that ends it."""

    def __init__(self, way: str, arguments: Sequence[str], folder: str) -> None:
        threads = str(len(os.sched_getaffinity(0)))
        caches = {"BUDDY_CACHE": f"{folder}/{way}", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{way}/inductor"}
        words = [sys.executable, __file__, "--serve", way, *arguments]
        environment = {**os.environ, **caches, "OMP_NUM_THREADS": threads}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._way = way

    def __enter__(self) -> Way:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def call(self) -> float:
        """Returns the seconds of one call."""
        assert self._process.stdin is not None
        self._process.stdin.write("call\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        """Returns the next number that the process prints, past the output of libraries."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return float(line.removeprefix(ANSWER))
        raise SystemExit(f"the process of {self._way} exits with {self._process.wait()}")


def main() -> int:
    parser = printing.parser(__doc__, 10, "prefills of each way")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)} (buddy, inductor)")
    parser.add_argument("--dtype", default="float32", help="element type of the weights (float32)")
    parser.add_argument("--layers", type=int, default=22, metavar="N", help="layers of the model (22)")
    options = parser.parse_args()
    arguments = ["--dtype", options.dtype, *(["--tiny"] if options.tiny else ["--layers", str(options.layers)])]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        # One after the other: what holds the weights twice for a moment does so once.
        ways = {
            way: running.enter_context(Way(way, arguments, folder)) for way in options.ways or ["buddy", "inductor"]
        }
        for name, way in ways.items():
            found[name] = {"first": way.call(), "later": []}
        for _ in range(options.repeats):
            for name, way in ways.items():
                found[name]["later"].append(way.call())
    first, *_ = found.values()
    rows = []
    for name, times in found.items():
        ratios = [b / a for a, b in zip(first["later"], times["later"], strict=True)]
        later = f"{median(times['later']):.3f} (at least {min(times['later']):.3f})"
        compared = (
            f"{times['first'] / first['first']:.2f}, {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        rows.append([name, f"{times['first']:.1f}", later, compared])
    heading = ["way", "first call, s", "prefill, s", f"of {next(iter(found))}: first call, prefill"]
    printing.tell({"machine": printing.machine(), "ways": found}, heading, rows)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
