"""`buddy-tui fuzz`: random programs agree with eager, planted faults are found and made small, campaigns resume."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec.structs import replace

from buddy.compiler.support import files
from buddy.compiler.tools.fuzz.checking import check
from buddy.compiler.tools.fuzz.restartable_process import RestartableProcess
from buddy.compiler.tools.fuzz.session import FuzzBatch, FuzzPlan, read_batches
from buddy.compiler.tools.fuzz.writing import GeneratedProgram, scripts
from tests.conftest import RunPython

Fuzz = Callable[..., "subprocess.CompletedProcess[str]"]

# Seconds for hundreds of programs, each compiled and run: a minute where nothing else runs, and far more elsewhere.
PATIENCE = 1700
pytestmark = pytest.mark.timeout(1800)

SIGN_FLIPPED = """
from buddy.compiler.ops import linalg

@linalg.ops_registry.lowering("SubOp")
def sub(node, symbol_table):
    return linalg.ops_registry["AddOp"](node, symbol_table)
"""


@pytest.fixture
def fuzz(cli: RunPython) -> Fuzz:
    return lambda *words: cli("fuzz", "--plain", *words, timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.full("a campaign of random programs in miniature")
def test_random_programs_are_compiled_and_right(fuzz: Fuzz, tmp_path: Path) -> None:
    file = tmp_path / "batches.jsonl"
    done = fuzz("--count", 50, "--seed", 20, "-o", file, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["found"]) == (0, []), done.stdout + done.stderr
    assert found["programs"] == 50
    # Seed 20 draws 11 programs with an op that runs in eager on purpose.
    reasons = found["drawn"]["reasons"]
    assert found["outcomes"]["compiled"] + sum(reasons.values()) == 50
    assert all("random number generator" in reason or "mode.default" in reason for reason in reasons), reasons
    assert sum(reasons.values()) <= 11, reasons
    again = fuzz("--count", 50, "--seed", 20, "-o", file)
    assert "50 programs" in again.stdout
    assert len(file.read_text().splitlines()) == 1, "what was tried is not tried again"


@pytest.mark.slow
@pytest.mark.full("a campaign of random programs in miniature")
def test_a_planted_fault_is_found_and_made_small(fuzz: Fuzz, tmp_path: Path) -> None:
    plant = tmp_path / "plant.py"
    plant.write_text(SIGN_FLIPPED.replace("SubOp", "MulOp"))  # of products there are many
    done = fuzz(
        "--count", 20, "--seed", 1, "--statements", 4, "--extension", plant, "--found", tmp_path / "found", "--json"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    fault = next(fault for fault in json.loads(done.stdout)["found"] if fault["fault"] == "wrong")
    body = fault["script"].split("def forward")[1].split("example_inputs")[0].splitlines()
    assert len(body) <= 8, "nothing that could be left out is left"
    script = tmp_path / "found" / f"wrong_{fault['seed']}.py"
    assert script.read_text() == fault["script"]
    verdict = check(fault["script"], {})
    assert verdict.outcome == "compiled", "without the plant the program is right"


def test_programs_of_a_seed_are_always_the_same() -> None:
    def drawn() -> list[str]:
        found: list[str] = []
        chosen: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "phases": (Phase.generate,)}

        @seed(7)
        @settings(max_examples=10, database=None, deadline=None, **chosen)
        @given(scripts())
        def take(drawn: GeneratedProgram) -> None:
            found.append(drawn.script)

        take()
        return found

    first = drawn()
    assert first == drawn()
    assert len(set(first)) > 5
    for script in first:
        compile(script, "random_program.py", "exec")


def test_no_statement_that_eager_died_of_is_tried_again() -> None:
    heard: list[str] = []
    # A machine with much to do is too slow for Hypothesis's checks, and says nothing of what is drawn.
    chosen: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "phases": (Phase.generate,)}

    def script_without(deadly: set[str]) -> str:
        heard.clear()

        @seed(3)
        @settings(max_examples=2, database=None, deadline=None, **chosen)
        @given(scripts(on_statement=heard.append, crashing=deadly))
        def take(drawn: GeneratedProgram) -> None:
            found.append(drawn.script)

        found: list[str] = []
        take()
        return found[-1]

    first = script_without(set())
    told = [text for text in heard if text]
    assert heard == [word for text in told for word in (text, "")]
    taken = next(text for text in told if f" = {text}\n" in first)
    assert f" = {taken}\n" not in script_without({taken})
    assert taken not in heard


# Run by Python as it starts: a statement of which eager dies, as some of PyTorch's own do for want of a check.
DEADLY = """
from buddy.compiler.tools.fuzz import statements
statements.STATEMENTS = {kind: ("(torch.os.abort(), {x})[1]", "{x} + 1") for kind in statements.STATEMENTS}
"""


@pytest.mark.full("a campaign of random programs in miniature")
def test_a_campaign_goes_on_behind_a_statement_that_eager_dies_of(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    words = ("fuzz", "--plain", "--count", "2", "--statements", "2", "--json", "-o", str(tmp_path / "batches.jsonl"))
    done = run_python("-m", "buddy.app.cli", *words, timeout=PATIENCE, PYTHONPATH=str(tmp_path))
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcomes"]) == (0, {"compiled": 2}), done.stdout + done.stderr
    assert "eager crashed on (torch.os.abort(), x0)[1]" in done.stderr


def test_what_dies_or_never_ends_is_said_to_and_work_goes_on() -> None:
    with RestartableProcess("os", "abort") as worker:
        assert worker.ask((), 60).how == "crash"
    with RestartableProcess("time", "sleep") as worker:
        assert worker.ask((60,), 0.5).how == "timeout"
        assert worker.ask((0.0,), 60) == ("answer", None)


OWNER = """
from pathlib import Path
from buddy.compiler.tools.fuzz.restartable_process import RestartableProcess
with RestartableProcess("time", "sleep") as worker:
    worker.ask((0.0,), 60)
    (fork,) = Path(f"/proc/{worker._warm.pid}/task/{worker._warm.pid}/children").read_text().split()
    print(fork, flush=True)
    worker.ask((600.0,), 600)
"""


def test_what_never_ends_ends_with_the_one_that_asked_however_that_ends() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 240
    while lives(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def lives(pid: int) -> bool:
    """Whether a process runs: one that has ended may still have an entry in the table of processes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_batch_behind_a_torn_line_is_kept(tmp_path: Path) -> None:
    file, plan = tmp_path / "batches.jsonl", FuzzPlan(count=500)
    files.append_json_line(file, FuzzBatch(1, plan.conditions(1), {"compiled": 50}, 1.0))
    with file.open("ab") as torn:
        torn.write(b'{"seed": 2, "outc\xff')
    files.append_json_line(file, FuzzBatch(3, plan.conditions(3), {"compiled": 50}, 1.0))
    assert sorted(read_batches(file, plan)) == [1, 3]


def test_what_was_tried_under_other_conditions_does_not_count(tmp_path: Path) -> None:
    file, extension = tmp_path / "batches.jsonl", tmp_path / "extension.py"
    extension.write_text("")
    plan = FuzzPlan(count=90, options={"dialect": "linalg"}, extensions=(str(extension),))
    for number in plan.seeds():
        files.append_json_line(file, FuzzBatch(number, plan.conditions(number), {"compiled": plan.size(number)}, 1.0))
    assert sorted(read_batches(file, plan)) == [0, 1]
    assert sorted(read_batches(file, replace(plan, timeout=9.0, shard=(2, 2)))) == [1], "of which these are a part"
    assert sorted(read_batches(file, replace(plan, count=100))) == [0], "the last batch is of fewer programs"
    others: list[dict[str, Any]] = [
        {"statements": 4},
        {"dynamic": True},
        {"gradients": True},
        {"options": {"dialect": "tosa"}},
    ]
    assert not any(read_batches(file, replace(plan, **other)) for other in others)
    extension.write_text("1")
    assert not read_batches(file, plan)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shard", "3/2"), "3/2"),
        (("--extension", "none.py"), "file not found"),
        (("--count", "0"), "must be 1 or more"),
        (("-o", "/"), "cannot read /"),
    ],
)
def test_words_that_are_wrong_are_named(fuzz: Fuzz, words: tuple[str, ...], said: str) -> None:
    done = fuzz(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert said in done.stderr


@pytest.mark.slow
def test_what_no_program_could_be_compiled_with_is_no_fault_of_programs(fuzz: Fuzz, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    for words, said in (
        (("--extension", broken), "nothing_of_this_name"),
        (("--preset", "none"), "unknown preset 'none'"),
    ):
        done = fuzz(*words, "--json")
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)
        assert said in done.stderr
