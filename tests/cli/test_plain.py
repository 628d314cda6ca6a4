"""`buddy-tui --plain`: the workbench as lines, with commands from a pipe."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from buddy.app import cli as command_line
from buddy.app.session.state import State
from buddy.app.workbench.plain_io import ChangePrinter, Printer, find_action, similar_actions
from buddy.compiler.protocol import Diagnostic, Printout, Progress

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240.0
Plain = Callable[..., str]


@pytest.fixture
def plain(tmp_path: Path) -> Plain:
    """`plain("samples/mlp.py", "passes", "run")`: what the workbench prints for these commands."""

    def run(source: str, *commands: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "buddy.app.cli", "--plain", source],
            cwd=ROOT, input="".join(f"{command}\n" for command in commands), env=_environment(tmp_path),
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def _environment(folder: Path) -> dict[str, str]:
    names = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "BUDDY_CACHE")
    return {**os.environ, **{name: str(folder / name) for name in names}}


@pytest.mark.slow
def test_commands_from_a_pipe_are_performed_in_order_and_answered_on_the_same_line(plain: Plain) -> None:
    printed = plain(
        "samples/mlp.py", "passes", "toggle one-shot-bufferize", "undo", "node gelu", "toggle", "undo", "stage fx",
        "show 1-2", "stage llvm", "search llvm.func", "threads 2", "run", "no-such-command",
        "stage canonicalize", "quit",
    )  # fmt: skip
    lines = printed.splitlines()

    def line_of(pattern: str, start: int = 0) -> int:
        return next(k for k in range(start, len(lines)) if re.search(pattern, lines[k]))

    captured = line_of(r"captured: graph 0, MLP, \d+ nodes")
    compiled = line_of(r"compiled in .* stages", captured)
    assert "8/8 nodes compiled, no fallback" in lines[compiled + 1]
    table = line_of(r"^on  pass", compiled)
    switched_off = line_of("one-shot-bufferize off", table)
    failed = line_of("^error: ", switched_off)
    undone = line_of("compiled in", failed)
    in_eager = line_of(r"Graph \d+ of 16: off .*gelu.* eager", undone)
    first_stage = line_of("^1 ", in_eager)
    match = line_of(r"/llvm.func  \d/", first_stage)
    threads = line_of("^2 threads", match)
    result = line_of(r"compiled code takes", threads)
    assert line_of("MISMATCH|ok", threads) < result
    line_of("unknown command 'no-such-command'", result)
    line_of("'canonicalize' matches several: ", result)
    assert not re.search("[\x1b\u2500-\u259f]", printed)  # neither escape sequences nor line drawing


@pytest.mark.slow
def test_an_error_of_the_script_is_printed_with_what_to_do_and_the_commands_go_on(plain: Plain, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import torch\nraise ValueError('no weights')\n")
    printed = plain(str(script), "run", "where")
    assert "ValueError: no weights" in printed
    assert "to do: " in printed
    assert "Run: no graph has been captured yet" in printed
    assert "buddy" in printed.splitlines()[-2] or "Graph, 0 rows" in printed


@pytest.mark.slow
def test_an_interrupt_cancels_what_runs_and_the_end_of_the_input_ends_it(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('started', flush=True)\nwhile True: time.sleep(0.1)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "buddy.app.cli", "--plain", str(script)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(tmp_path),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        _read_until(process.stdout, "started")
        process.send_signal(signal.SIGINT)
        _read_until(process.stdout, "Cancelled")
        process.stdin.close()
        assert process.wait(SECONDS) == 0


@pytest.mark.slow
def test_an_interrupt_is_handled_in_the_context_of_the_application(tmp_path: Path) -> None:
    """A redraw that it schedules would otherwise fail, and the workbench would end with an internal error."""
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('started', flush=True)\nwhile True: time.sleep(0.1)\n")
    code = f"""
import sys
from textual._context import active_app
from buddy.app.cli import main
from buddy.app.workbench.plain import PlainWorkbench
PlainWorkbench._interrupt = lambda self: print("in the application:", active_app.get(None) is self, flush=True)
sys.exit(main(["--plain", {str(script)!r}]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(tmp_path),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            _read_until(process.stdout, "started")
            process.send_signal(signal.SIGINT)
            assert "in the application: True" in _read_until(process.stdout, "in the application: ")
        finally:
            process.kill()


def _read_until(stream: IO[str], text: str) -> str:
    """Reads lines until one has `text`; returns that one."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        line = stream.readline()
        assert line, f"the output ended without {text!r}"
        if text in line:
            return line
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("text", "pane", "action_id"),
    [
        ("run", "graph", "run"),
        ("r", "ir", "run"),
        ("g c", "graph", "profile"),
        ("gc", "graph", "profile"),
        ("F", "ir", "ir.follow"),
        ("F", "passes", "passes.dialect"),
        ("numerics", "graph", "graph.numerics"),
        ("numerics", "outputs", "outputs.numerics"),
        ("compare every node", "outputs", "outputs.numerics"),
        ("insert", "graph", "passes.insert"),
        ("passes.insert", "ir", "passes.insert"),
    ],
)
def test_an_action_is_found_by_id_key_title_and_the_end_of_its_id(text: str, pane: str, action_id: str) -> None:
    action = find_action(text, pane)
    assert action is not None
    assert action.id == action_id


def test_an_unknown_command_names_similar_actions() -> None:
    assert find_action("compare", "graph") is None
    assert {"compare-recipes", "compare-presets"} <= {action.id for action in similar_actions("compare")}
    assert similar_actions("zzzz") == []


def test_changes_are_printed_once_without_control_characters() -> None:
    out = io.StringIO()
    changes, state = ChangePrinter(Printer(out)), State()
    state.apply(Printout("one\x1b[2J\ntwo", "stdout"))
    changes.print_changes(state)
    state.apply(Printout(" and more\n", "stdout"))
    changes.print_changes(state)
    state.record_start("open", 1)
    for _ in range(2):
        state.apply(Progress(1, "importing torch"))
        changes.print_changes(state)
    state.add_to_log(Diagnostic("the worker exited", "the host", "open it again", detail="a\nb"))
    changes.print_changes(state)
    changes.print_changes(state)
    assert out.getvalue().splitlines() == [
        "one\u241b[2J",
        "two and more",
        "importing torch",
        "error: the worker exited",
        "  where: the host",
        "  to do: open it again",
        "  | a",
        "  | b",
    ]


def test_it_needs_no_terminal_but_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--plain", "missing.py"]) == command_line.USAGE_ERROR
    assert "there is no file missing.py" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line.main(["--plain", "--web", "samples/mlp.py"])
    assert "give one of them" in capsys.readouterr().err
