"""A log of gigabytes in the workbench and its engine: time to the first stage, to any stage, a search, memory.

    python benchmarks/dumps.py [--gigabytes 2] [--stage-megabytes 4] [--tiny]

The log has the form of `mlir-opt --mlir-print-ir-after-all`: every second pass changes nothing. It is written to a
temporary folder and read once before the measurement, as after the compiler that wrote it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.terminal import Terminal

from buddy.app.session.client import EngineClient
from buddy.compiler.protocol import Captured, Compile, Compiled, FetchLines, Open, Progress, SearchEach, StageDone
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import DUMP, Recipe

BUDGET = {"first_stage_seconds": 2.0, "memory_megabytes": 400, "stage_milliseconds": 200}
_OP = '    %{0} = arith.addf %{1}, %cst : tensor<4x128x768xf32> loc("model.py":{2}:7)\n'


def write_log(path: Path, size: int, stage_size: int) -> int:
    """Writes a log of about `size` bytes with stages of `stage_size` bytes. Returns the number of stages."""
    count = stage_size // len(_OP.format(1000, 1000, 100))
    body = "".join(_OP.format(number, max(number - 1, 0), number % 500) for number in range(count))
    number = written = 0
    with path.open("w") as file:
        while written < size:
            header = (
                f"// -----// IR Dump After Pass{number}Pass: pass-{number} ('builtin.module' operation) //----- //\n"
            )
            text = f"{header}module {{\n  func.func @main() {{\n{body}    // {number // 2}\n  }}\n}}\n\n"
            written += file.write(text)
            number += 1
    return number


def resident_megabytes(pid: int) -> float:
    """Returns the memory of a process and of all that it has started, without shared pages of the file cache."""
    total, pids = 0.0, [pid]
    while pids:
        current = pids.pop()
        try:
            status = Path(f"/proc/{current}/status").read_text()
            pids += map(int, Path(f"/proc/{current}/task/{current}/children").read_text().split())
        except OSError:
            continue
        total += (
            sum(int(match[1]) for match in re.finditer(r"^Rss(?:Anon|Shmem):\s+(\d+)", status, re.MULTILINE)) / 1024
        )
    return total


def in_terminal(path: Path, stages: int) -> dict[str, float]:
    """Measures the workbench: seconds to the first stage on the screen and to all stages, and peak memory."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "buddy.app.cli", str(path)]
        start = time.perf_counter()
        terminal = Terminal(command, 160, 50, environment | {"BUDDY_TUI_STATE": state})
        try:
            terminal.until("func.func @main", 120)
            first, peak = time.perf_counter() - start, 0.0
            end = time.monotonic() + 600
            while f"{stages} stages" not in terminal.text and time.monotonic() < end:
                terminal.read(0.2)
                peak = max(peak, resident_megabytes(terminal.process.pid))
            indexed = time.perf_counter() - start
            return {
                "first_stage_seconds": round(first, 2),
                "indexed_seconds": round(indexed, 2),
                "peak_megabytes": round(peak),
            }
        finally:
            terminal.process.terminate()
            terminal.process.wait(30)


async def in_engine(path: Path) -> dict[str, object]:
    """Measures the engine alone: seconds to the first stage after the request, milliseconds to stages, a search."""
    client = EngineClient(reopens_saved_graphs=True)
    welcome = await client.start()
    recipe = adapt_to_phase(Recipe(source=str(path)), DUMP)
    try:
        start = time.perf_counter()
        client.send(Open(client.new_request_id(), str(path), reopens=True))
        peak, compiled, first, has_asked = 0.0, None, 0.0, False
        async for frame in client.frames():
            peak = max(peak, resident_megabytes(welcome.pid))
            if not has_asked and type(frame).__name__ in ("Reopened", "Captured"):
                has_asked = True
                client.send(Compile(client.new_request_id(), recipe))
            if isinstance(frame, StageDone) and not first:
                first = time.perf_counter() - start
            if isinstance(frame, Captured):
                indexed = time.perf_counter() - start
            if isinstance(frame, Compiled):
                compiled = frame
                break
        assert compiled is not None
        times = []
        for stage in compiled.stages[:: max(1, len(compiled.stages) // 40)]:
            begin = time.perf_counter()
            await client.request(FetchLines(0, stage.text, stage.lines // 2, 100))
            times.append((time.perf_counter() - begin) * 1e3)
            peak = max(peak, resident_megabytes(welcome.pid))
        searches: dict[str, object] = {}
        for pattern, regex in (("%999 = ", False), (r"%12\d\d = arith\.\w+", True)):
            begin, progress = time.perf_counter(), 0

            def count(frame: object) -> None:
                nonlocal progress, peak
                progress += isinstance(frame, Progress)
                peak = max(peak, resident_megabytes(welcome.pid))

            texts = tuple(stage.text for stage in compiled.stages)
            found = await client.request(SearchEach(0, texts, pattern, regex), count)
            searches[pattern] = {
                "seconds": round(time.perf_counter() - begin, 2), "texts": len(found.hits), "progress_frames": progress,
            }  # fmt: skip
        return {
            "first_stage_seconds": round(first, 2),
            "indexed_seconds": round(indexed, 2),
            "stages": len(compiled.stages),
            "stage_milliseconds": {"median": round(statistics.median(times)), "max": round(max(times))},
            "searches": searches,
            "peak_megabytes": round(peak),
        }
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--stage-megabytes", type=float, default=4.0)
    parser.add_argument("--tiny", action="store_true", help="a log of 40 MB")
    options = parser.parse_args()
    size = 40e6 if options.tiny else options.gigabytes * 1e9
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "after_all.log"
        stages = write_log(path, int(size), int(options.stage_megabytes * 1e6))
        result = {"bytes": path.stat().st_size, "engine": asyncio.run(in_engine(path))}
        print(json.dumps({**result, "workbench": in_terminal(path, stages), "budget": BUDGET}, indent=2))


if __name__ == "__main__":
    main()
