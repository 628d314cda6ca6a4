"""Checks whether a text is a valid module, and previews what each of several passes would change in a module.

Trials run in a disposable process: if a pass crashes or never ends, the caller kills the process, and starts another
one for the remaining candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from buddy.compiler.driver.snapshots import count_deltas
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import op_counts
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import PassRunError, run_pass
from buddy.compiler.passes.replace_ir import parse_problem
from buddy.compiler.protocol.one_shot_messages import IrProblem, PassTrials, TrialOutcome, TrialStarted
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves


def check_ir(text: str) -> IrProblem:
    """Parses and verifies `text`; returns the first error, or an empty `IrProblem`."""
    try:
        ir.Module.parse(text, new_context()).operation.verify()
    except (ir.MLIRError, ValueError) as error:
        return IrProblem(*parse_problem(error))
    return IrProblem()


def try_pass(module: ir.Operation, before: str, number: int, step: PassStep, threads: int) -> TrialOutcome:
    """Tries candidate number `number`, the pass `step`, on a clone of `module`, whose text is `before`."""
    locations = LocationSets()
    with locations.unmapped_location(module.context):
        clone = module.clone(ip=False).operation
        start = time.perf_counter()
        try:
            run_pass(clone, step, PassContext(locations, threads=threads))
        except PassRunError as error:
            return TrialOutcome(number, problem=error.message.partition("\n")[0])
        milliseconds = (time.perf_counter() - start) * 1e3
        after = clone.get_asm(assume_verified=True)
    return TrialOutcome(number, after != before, count_deltas(op_counts(before), op_counts(after)), milliseconds)


def try_passes(trials: PassTrials, send: Callable[[Message], None]) -> None:
    """Tries every candidate; calls `send` before and after each: if one crashes, it is the last one that started."""
    with new_context():
        module = ir.Module.parse(trials.content).operation
        before = module.get_asm(assume_verified=True)
        for number, step in enumerate(trials.candidates):
            send(TrialStarted(number))
            send(try_pass(module, before, number, step, trials.threads))


@serves(PassTrials)
def serve(channel: Channel) -> None:
    """Receives one `PassTrials` and sends the outcome of each candidate."""
    try_passes(channel.receive(), channel.send)
