"""What a user does first with a model of her own, by keys in a real terminal at both sizes, reading only the screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.app.workbench.test_terminal import PATIENCE, benchmark, terminal  # noqa: F401 (fixtures)

pytestmark = pytest.mark.slow

MODEL = '''"""A model with a graph break, and an op that runs in eager."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)

    def forward(self, x):
        y = self.down(self.act(self.up(x)))
        print("mean", y.mean().item())
        return {"features": y, "roots": torch.linalg.eigvals(y)}


torch.manual_seed(0)
model, example_inputs = Net(), (torch.randn(64, 64),)
'''
ESCAPE = "\x1b"


class Task(NamedTuple):
    """Keys, what the screen shows then (a regular expression), and the keys that close what the task has opened."""

    keys: str
    shows: str
    close: str = ""


# In this order, in one session.
TASKS = {
    "find the slowest op": Task("gc", r"aten\.addmm +0\.\d+ ms +\d+\.\d%", "q"),
    "find what is not compiled": Task("gE", r"eager +1 linalg_eig", "q"),
    "find the graph break": Task("gE", r"break +0 Unsupported Tensor\.item", "q"),
    "find the line of a node": Task("gS", r"13 x.*self\.up\(x\)", "gP"),
    "choose a pass": Task("\t/fuse-ep\r", r">\[x\] .*fuse-epilogues"),
    "switch it off": Task(" ", r">\[ \] .*fuse-epilogues +off"),
    "compare with eager": Task("r", r"run: ok, [\d.]+x eager's speed|OK +features"),
    "undo": Task("u", r">\[[x=]\] .*fuse-epilogues +\d"),
    "search the IR": Task("\t3/contract\r", r"/contract +[12]/2", ESCAPE),
    "edit the IR": Task("E", r"ctrl\+s", ESCAPE),
    "export C": Task("gx", r"export as"),
    "choose the kind and the folder": Task("\x01\x0bobject\r", r"[Ff]older|into"),
}


@pytest.mark.parametrize(("columns", "rows"), [(160, 50), (80, 24)])
def test_the_tasks_of_a_new_user(terminal: Callable[..., Any], tmp_path: Path, columns: int, rows: int) -> None:  # noqa: F811
    script = tmp_path / "own.py"
    script.write_text(MODEL)
    one = terminal(columns=columns, rows=rows, source=script)
    one.until_compiled(PATIENCE)
    for name, task in TASKS.items():
        one.key(task.keys)
        try:
            one.match(task.shows, PATIENCE)
        except TimeoutError as error:
            raise AssertionError(f"{name}: {error}") from error
        if task.close:
            one.key(task.close)
            one.settle()
