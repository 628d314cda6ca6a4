"""Peak memory and times of a Llama of 1.1 billion parameters, each way to run it in processes of its own.

Memory is the proportional set size (PSS) of a process and all its descendants: a page that several of them share counts
once. It is sampled, and the peak of each part of a run is listed. `released` is `freeze="release"`, `frozen` is the
`freezing` of Inductor, `run` is `buddy-tui run`. Rounds alternate the ways, with an empty cache each time. Prints one
JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from support import printing

PROGRAM = Path(__file__).resolve().parent / "programs" / "llama_1b.py"
# Backend, options of `torch.compile`, and whether Inductor freezes weights.
WAYS: Mapping[str, tuple[str, dict[str, Any] | None, bool]] = {
    "buddy": ("buddy", None, False),
    "inductor": ("inductor", None, False),
    "buddy released": ("buddy", {"freeze": "release"}, False),
    "inductor frozen": ("inductor", None, True),
}
RUN = "run"
CALLS = 5
WANTED = {"memory": 1.3, "of Inductor": 1.0}
_MARK = "part: "
_PAUSE = 10


def start_part(name: str) -> None:
    """Tells the process that samples that the next part of the run starts."""
    print(f"{_MARK}{name}", flush=True)


def prepare(way: str, arguments: Sequence[str]) -> tuple[Callable[[], Any], int]:
    """Returns a call of the model that compiles it the first time and returns its logits, and the bytes of weights."""
    backend, options, freezes = WAYS[way]
    start_part("imports")
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    start_part("model")
    sys.argv = [str(PROGRAM), *arguments]
    names = runpy.run_path(str(PROGRAM))
    model, inputs = names["model"], names["example_inputs"]
    weights = sum(parameter.nbytes for parameter in model.parameters())
    names.clear()
    if freezes:
        import torch._inductor.config as inductor

        inductor.freezing = inductor.freezing_discard_parameters = True
    compiled = torch.compile(model, backend=backend, options=options)

    def call() -> Any:
        with torch.no_grad():
            return compiled(*inputs).logits

    return call, weights


def call_compiled(way: str, arguments: Sequence[str]) -> None:
    """Compiles and calls the model in this process, and prints the times."""
    call, weights = prepare(way, arguments)
    seconds = list[float]()
    for number in range(1 + CALLS):
        start_part("later calls" if number else "first call")
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    start_part("end")
    mean = result.double().abs().mean().item()
    print(json.dumps({"weights": weights, "first": seconds[0], "later": median(seconds[1:]), "mean": mean}), flush=True)


# ---- memory of a tree of processes -----------------------------------------------------------------------------------


def descendants(root: int) -> list[int]:
    """Returns the process `root` and all processes that it has started, also indirectly."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, pending = list[int](), [root]
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], ())
    return found


def pss(pid: int) -> int:
    """Returns the proportional set size of a process in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


class Sampler(threading.Thread):
    """Samples the memory of the tree under `root` until `stopped` is set; `peaks` are in bytes, by part of the run.

    A process waits while the kernel walks its pages, so the pauses are `_PAUSE` times as long as a sample.
    """

    def __init__(self, root: int, part: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, int] = {}
        self.stopped = threading.Event()
        self._root, self._part = root, part

    def run(self) -> None:
        pause = 0.0
        while not self.stopped.wait(max(0.05, pause)):
            start = time.perf_counter()
            part, size = self._part(), sum(map(pss, descendants(self._root)))
            self.peaks[part] = max(size, self.peaks.get(part, 0))
            pause = _PAUSE * (time.perf_counter() - start)


def watch(words: Sequence[str], environment: Mapping[str, str]) -> tuple[dict[str, int], str, float]:
    """Runs a command; returns the peaks of its parts, its other output, and its seconds."""
    start, part, lines = time.perf_counter(), "start", list[str]()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stdout is not None
    sampler = Sampler(process.pid, lambda: part)
    sampler.start()
    for line in process.stdout:
        if line.startswith(_MARK):
            part = line.removeprefix(_MARK).strip()
        else:
            lines.append(line)
    code = process.wait()
    sampler.stopped.set()
    sampler.join()
    if code:
        raise SystemExit(f"{' '.join(words)} exits with {code}: {''.join(lines)[-2000:]}")
    return sampler.peaks, "".join(lines), time.perf_counter() - start


def measure(way: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the peaks and times of one compiler, with empty caches."""
    threads = str(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        caches = {"BUDDY_CACHE": f"{folder}/buddy", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        if way != RUN:
            words = [sys.executable, __file__, "--call", way, *arguments]
            peaks, text, _ = watch(words, {**caches, "OMP_NUM_THREADS": threads})
            found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
        else:
            words = [sys.executable, "-m", "buddy_tui", "run", "--json", "--timeout", "1800", str(PROGRAM), "--"]
            peaks, text, seconds = watch([*words, *arguments], caches)
            report = json.loads(text[text.index("{") :])["graphs"][0]
            found = {"weights": report["memory"]["weights"], "parts": report["memory"], "first": seconds}
            found["later"] = report["run"]["median"]
    peak = max(peaks.values())
    return {**found, "peaks": peaks, "peak": peak, "ratio": round(peak / found["weights"], 3)}


def main() -> int:
    parser = printing.parser(__doc__, 1, "rounds over the ways")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join((*WAYS, RUN))} (all)")
    parser.add_argument("--dtype", default="float32", help="element type of the weights (float32)")
    parser.add_argument("--layers", type=int, default=22, metavar="N", help="layers of the model (22)")
    options = parser.parse_args()
    arguments = ["--dtype", options.dtype, *(["--tiny"] if options.tiny else ["--layers", str(options.layers)])]
    ways = options.ways or [*WAYS, RUN]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way in ways:
            found[way].append(measure(way, arguments))
    rows = []
    for way, runs in found.items():
        memory = max(run["ratio"] for run in runs)
        by_part = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in runs[-1]["peaks"].items())
        times = (f"{median(run[name] for run in runs):.2f}" for name in ("first", "later"))
        rows.append([way, f"{runs[-1]['weights'] / 1e9:.2f}", f"{memory:.2f}", *times, by_part])
    heading = ["way", "weights, GB", "peak / weights", "first call, s", "later calls, s", "peaks of parts, GB"]
    met = {way: all(run["ratio"] <= WANTED["memory"] for run in runs) for way, runs in found.items()}
    if {"buddy", "inductor"} <= found.keys():
        for name in ("first", "later"):
            ratios = [a[name] / b[name] for a, b in zip(found["buddy"], found["inductor"], strict=True)]
            met[f"{name} call, of Inductor"] = median(ratios) <= WANTED["of Inductor"]
    printing.tell({"machine": printing.machine(), "ways": found, "wanted": WANTED, "met": met}, heading, rows)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--call"]:
        call_compiled(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
