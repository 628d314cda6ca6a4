"""A share of the architectures, each in a process of its own; the whole is `python -m tests.architectures.sweep`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from tests.architectures.page import page
from tests.architectures.sweep import Outcome, run_apart
from tests.architectures.zoo import Architecture, all_architectures

ROOT = Path(__file__).resolve().parents[2]
# One of each kind that is quick to compile, and that the samples do not have.
SHARE = ("DistilBERT", "Mixtral", "Wav2Vec2", "U-Net", "Variational autoencoder")


def test_the_list_is_as_long_as_it_is_said_to_be() -> None:
    kinds = [architecture.kind for architecture in all_architectures().values()]
    assert kinds.count("torch.nn") >= 15
    assert len(kinds) - kinds.count("torch.nn") >= 25


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.full("a campaign over architectures in miniature")
def test_a_share_is_right() -> None:
    command = [sys.executable, "-m", "tests.architectures.sweep", "--timeout", "240", *SHARE]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": right, ") == len(SHARE)


def dying() -> tuple[nn.Module, object]:
    return nn.Identity(), lambda _run: os.abort()


def test_a_program_that_dies_is_told_and_takes_nobody_along() -> None:
    outcome = run_apart(Architecture("dying", "test", dying), seconds=60)  # type: ignore[arg-type]
    assert outcome.fault == "the process died of SIGABRT"


def test_a_program_that_hangs_is_given_up() -> None:
    import time

    slow = Architecture("slow", "test", lambda: (nn.Identity(), lambda _run: time.sleep(60)))
    assert run_apart(slow, seconds=1).fault == "there was no result in 1 s"


class Unsteady(nn.Module):
    """Gives another result whenever it is built anew."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        Unsteady.built += 1
        self.number = Unsteady.built

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.number


def test_a_wrong_result_is_told() -> None:
    wrong = Architecture("wrong", "test", lambda: (Unsteady(), lambda run: run(torch.ones(3))))
    outcome = run_apart(wrong, seconds=120)
    assert outcome.fault.startswith("result 0 mismatch: 1 at [0]")
    assert (outcome.graphs, outcome.nodes) == (1, 1)


def test_the_page_says_what_stays_in_eager_and_where() -> None:
    text = page([Outcome("A", "kind", 10, 2, 7, {"op.default: why": 3}), Outcome("B", "kind", fault="it died")])
    assert "1 of 2 are right, 0 of them without a fallback to eager." in text
    assert "| A | kind | 10 | 2 | 7 | 3 | 0.0e+00 | right |" in text
    assert "| op.default: why | A (3) |" in text
    assert "| it died |" in text
