"""All campaigns in one command: the summary, resuming after an interruption, and no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from buddy.app.cli import fuzz
from buddy.compiler.support import files
from buddy.compiler.tools.fuzz import session as fuzzing
from tests.reliability.campaign import Attempt, Batch, Campaign, Fault, Plan, Tried
from tests.reliability.whole import Run, carried_out, programs
from tests.support.engine_processes import command, lives

ROOT = Path(__file__).resolve().parents[2]
# Time limits for a start, and an end, on a loaded machine, in seconds.
START, END = 300.0, 240.0
Found = TypeVar("Found")
WORKERS = ("buddy.compiler.engine.host", "buddy.compiler.engine.compiler")


def _run(name: str, folder: Path, code: str, *found: Batch) -> Run:
    """A campaign of two batches whose process runs `code`, with `found` in its file."""

    @contextmanager
    def trial() -> Iterator[Attempt]:
        yield lambda _seed, _cases: Tried({})

    path = folder / f"{name}.jsonl"
    for batch in found:
        files.append_json_line(path, batch)
    return Run(name, ("-c", code), Plan(20), path, Campaign(name, "", 20, 10, trial))


def _batch(name: str, seed: int, *faults: Fault) -> Batch:
    return Batch(name, seed, "", Tried({"right": 10 - len(faults)}, faults), 1.0, 10)


def test_what_came_of_each_is_told_and_one_that_dies_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        _run("good", tmp_path, "", _batch("good", 0), _batch("good", 1)),
        _run("dies", tmp_path, "import os; os.kill(os.getpid(), 9)", _batch("dies", 0)),
        _run("finds", tmp_path, "raise SystemExit(1)", _batch("finds", 0, Fault("wrong", "")), _batch("finds", 1)),
    ]
    assert carried_out(runs, tmp_path) == 1
    good, dies, finds = capsys.readouterr().out.splitlines()[-3:]
    assert good == "good: no faults; 2 of 2 batches, 20 cases: 20 right · 0 faults"
    assert dies.startswith("dies: ended with SIGKILL")
    assert dies.endswith("; 1 of 2 batches, 10 cases: 10 right · 0 faults")
    assert finds == "finds: faults, or it could not be done; 2 of 2 batches, 19 cases: 19 right · 1 faults"
    assert carried_out(runs[:1], tmp_path) == 0


def test_an_interruption_comes_to_the_campaign_that_is_under_way_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary lists what was not done."""
    waits = (
        "import os, pathlib, signal, sys, time\n"
        "try:\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        f"    pathlib.Path({str(tmp_path / 'told')!r}).open('a').write('interrupted ')\n"
        "    raise SystemExit(130)\n"
    )
    runs = [_run("waits", tmp_path, waits), _run("next", tmp_path, "raise SystemExit(1)")]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            carried_out(runs, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "told").read_text() == "interrupted "
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "waits: not done; 0 of 2 batches, 0 cases:  · 0 faults",
        "next: not done; 0 of 2 batches, 0 cases:  · 0 faults",
    ]


def test_random_programs_are_told_of_as_their_command_has_written_them(tmp_path: Path) -> None:
    options = Namespace(count=60, part=1.0, seed=3, shard="1/1", output=tmp_path, again=False)
    run = programs(options, (1, 1), tmp_path)
    assert run.told() == "0 of 2 batches, 0 cases:  · 0 faults"
    plan = fuzz._make_plan(fuzz.make_parser().parse_args(["--count", "60", "--seed", "3"]))
    files.append_json_line(run.path, fuzzing.FuzzBatch(4, plan.conditions(4), {"compiled": 9, "eager": 1}, 1.0))
    files.append_json_line(run.path, fuzzing.FuzzBatch(3, "other options", {"compiled": 50}, 1.0))
    assert run.told() == "1 of 2 batches, 10 cases: 9 compiled, 1 eager · 0 faults"


@pytest.mark.slow
@pytest.mark.timeout(2 * START + 2 * END)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("all", signal.SIGTERM, "drills: not done; 0 of 1 batches"),
        ("recipes", signal.SIGINT, "interrupted by SIGINT"),
    ],
)
@pytest.mark.full("campaigns started whole")
def test_nothing_is_left_of_a_campaign_that_a_signal_ends(name: str, number: int, told: str, tmp_path: Path) -> None:
    temporary, output = tmp_path / "temporary", tmp_path / "output"
    temporary.mkdir()
    # PyTorch's own cache is permanent.
    environment = {**os.environ, "TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    words = [sys.executable, "-m", "tests.reliability", name, "--count", "20", "--seed", "1", "--output", str(output)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, cwd=ROOT, env=environment)
    try:
        seen = _until(lambda: _with_workers(temporary), START, process)
        process.send_signal(number)
        assert process.wait(END) == 128 + number, (tmp_path / "said").read_text()
        _until(lambda: not any(map(lives, seen)), END)
        assert told in (tmp_path / "said").read_text()
        assert [path.name for path in temporary.iterdir()] == []
    finally:
        process.kill()
        process.wait()


def _with_workers(temporary: Path) -> list[int]:
    """All processes of a campaign once its engine has both of its workers; empty before."""
    found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _below(temporary, pid)]
    commands = [command(pid) for pid in found]
    return found if all(any(word in each for each in commands) for word in WORKERS) else []


def _below(temporary: Path, pid: int) -> bool:
    """Whether a process uses `temporary`, or a folder in it, for temporary files."""
    try:
        return f"TMPDIR={temporary}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _until(condition: Callable[[], Found], seconds: float, process: subprocess.Popen[bytes] | None = None) -> Found:
    """The value of `condition` once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert process is None or process.poll() is None, "the campaign ended by itself"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)
    return found
