"""Runs the warm process of a coverage run, which imports torch, its operator database and MLIR once, and forks workers.

It receives the plan and sends the list of the plan's pairs; then it receives one pair after another and sends the
result of checking it.
"""

from __future__ import annotations

import runpy

import torch

from buddy.compiler.mlir.bindings import PACKAGE, version
from buddy.compiler.ops import registries
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.coverage.plan import CheckPair, CoverageListing, ListPairs, PairChecked, PairsListed
from buddy.compiler.tools.coverage.samples import core_ops, list_pairs, op_infos
from buddy.compiler.tools.coverage.worker import CoverageWorker


@serves(ListPairs | CheckPair)
def serve(channel: Channel) -> None:
    """Answers one `ListPairs`, then any number of `CheckPair`, until the channel closes."""
    plan = channel.receive().plan
    _warm_up()
    for path in plan.extensions:
        runpy.run_path(path)
    versions = {"torch": str(torch.__version__), PACKAGE: version()}
    channel.send(PairsListed(CoverageListing(list_pairs(plan), core_ops(), versions)))
    worker = CoverageWorker(plan)
    try:
        while (request := channel.receive()) is not None:
            channel.send(PairChecked(worker.check(request.pair)))
    finally:
        worker.close()


def _warm_up() -> None:
    """Loads what workers need, without running ops: torch's thread pool, once started, hangs in forked processes."""
    torch.set_num_threads(1)
    op_infos()
    registries()
    own_passes()
