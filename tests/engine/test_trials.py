"""Passes tried in a disposable process: outcomes, a crash, a pass that never ends, and a time that is up."""

from __future__ import annotations

import asyncio
import time
from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from buddy.compiler.engine.one_shot_requests import PassTrialHandler
from buddy.compiler.protocol import Tried, TriedAll, TryPasses
from buddy.compiler.protocol.one_shot_messages import TrialOutcome
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.support.processes.jobs import Job
from buddy.compiler.support.processes.worker_process import OneShotProcess

MODULE = """
func.func @f(%a: f32) -> f32 {
  %0 = arith.addf %a, %a : f32
  %1 = arith.addf %a, %a : f32
  %2 = arith.mulf %0, %1 : f32
  return %2 : f32
}
"""


def tried(*candidates: PassStep, content: str = MODULE, **bounds: float) -> tuple[list[Tried], TriedAll]:
    store, frames = TextStore(), []
    store.put("t", IndexedText(content, array("I"), ((),)))
    frame = TryPasses(1, "t", candidates, **bounds)  # type: ignore[arg-type]
    asyncio.run(PassTrialHandler(store, frames.append).try_passes(frame, Job(1)))
    *outcomes, end = frames
    return outcomes, end


def test_each_candidate_is_told_of_by_what_it_would_do() -> None:
    outcomes, end = tried(
        PassStep("cse"), PassStep("symbol-dce"), PassStep("nosuch"), PassStep("convert-arith-to-llvm")
    )
    cse, dce, nosuch, convert = outcomes
    assert (cse.changed, cse.deltas) == (True, (("arith.addf", -1),))
    assert not dce.changed
    assert nosuch.problem == "unknown pass"
    assert dict(convert.deltas)["llvm.fadd"] == 2
    assert (end.tried, end.candidates) == (4, 4)


def test_a_candidate_that_kills_its_process_is_named_and_the_others_are_tried(monkeypatch: Any) -> None:
    """`convert-func-to-llvm` with a layout that is none ends the process by an error that MLIR calls fatal."""
    deadly = PassStep("set-llvm-module-datalayout", options=(("data-layout", "nonsense"),))
    outcomes, end = tried(PassStep("cse"), deadly, PassStep("convert-func-to-llvm"), PassStep("canonicalize"))
    assert [outcome.number for outcome in outcomes] == [0, 1, 2, 3]
    assert outcomes[0].changed
    assert end.tried == 4


def test_what_a_pass_prints_is_no_answer() -> None:
    """`transform.print` writes to standard output, by MLIR's own streams."""
    printing = """
    module attributes {transform.with_named_sequence} {
      transform.named_sequence @__transform_main(%root: !transform.any_op {transform.readonly}) {
        transform.print %root {name = "0"} : !transform.any_op
        transform.yield
      }
      func.func private @unused()
    }
    """
    outcomes, end = tried(PassStep("transform-interpreter"), PassStep("symbol-dce"), content=printing)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert outcomes[1].changed
    assert end.tried == 2


def test_the_time_is_bounded() -> None:
    start = time.monotonic()
    _, end = tried(*[PassStep("cse")] * 2000, timeout=3.0)
    assert time.monotonic() - start < 20
    assert end.candidates == 2000


async def _cancel_with_a_message() -> None:
    """A cancellation that arrives in the same moment as a message, which `wait_for` would lose."""
    process = SimpleNamespace(messages=asyncio.Queue())
    handler = PassTrialHandler(TextStore(), lambda _frame: None)
    frame = TryPasses(1, "t", (PassStep("cse"),))
    listening = asyncio.ensure_future(
        handler._listen(cast(OneShotProcess, process), 1, frame, Job(1), 0, time.monotonic() + 60)
    )
    await asyncio.sleep(0)
    process.messages.put_nowait(TrialOutcome(0, False, (), 1.0, ""))
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening


def test_a_cancellation_is_not_lost_when_an_outcome_arrives_with_it() -> None:
    asyncio.run(_cancel_with_a_message())
