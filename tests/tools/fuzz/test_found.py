"""The least programs that a campaign found to fail: they are right now, and a fault in one is told by its statement."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.compiler.tools.fuzz.checking import check
from buddy.compiler.tools.fuzz.restartable_process import RestartableProcess
from tests.tools.fuzz.test_fuzz import SIGN_FLIPPED

FOUND = sorted(Path(__file__).with_name("found").glob("*.py"))


@pytest.mark.parametrize("script", FOUND, ids=[path.stem for path in FOUND])
def test_what_failed_once_is_right(script: Path) -> None:
    verdict = check(script.read_text(), {"threads": 1})
    assert verdict.outcome in ("compiled", "eager"), verdict.why


PROGRAM = """
import torch

class Program(torch.nn.Module):
    def forward(self, x0):
        v0 = x0 * 2
        v1 = torch.sub(v0, x0)
        v2 = v1.cos()
        x0.add_(1)
        return v2, v0,

model = Program()
example_inputs = (torch.ones(3),)
"""


def test_what_is_wrong_is_told_by_the_first_statement_that_is(tmp_path: Path) -> None:
    plant = tmp_path / "plant.py"
    plant.write_text(SIGN_FLIPPED)
    with RestartableProcess("buddy.compiler.tools.fuzz.checking", "check") as worker:
        verdicts = [worker.ask((PROGRAM, {}, (str(plant),), dynamic), 300).value for dynamic in (False, True)]
    assert [(verdict.outcome, verdict.at) for verdict in verdicts] == [("wrong", "sub")] * 2, verdicts


def test_a_gradient_that_is_wrong_is_found_where_it_is_asked_for(tmp_path: Path) -> None:
    """The derivative of a cosine is the only place where the program has a negation."""
    plant = tmp_path / "plant.py"
    plant.write_text(SIGN_FLIPPED.replace("SubOp", "NegOp").replace("AddOp", "AbsOp"))
    program = PROGRAM.replace("torch.sub(v0, x0)", "v0 + x0")
    with RestartableProcess("buddy.compiler.tools.fuzz.checking", "check") as worker:
        asked = [
            (program, {}, extensions, False, gradients) for extensions in ((), (str(plant),)) for gradients in (0, 1)
        ]
        verdicts = [worker.ask(words, 300).value.outcome for words in asked]
    assert verdicts == ["compiled", "compiled", "compiled", "wrong"]
