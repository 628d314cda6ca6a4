"""The warm process of a coverage run: it imports torch, its operator database and MLIR once, and forks workers.

`python -m buddy.compiler.tools.coverage.server FD PLAN` writes JSON lines to file descriptor FD: the list of what to
check, then a result for each pair that it reads from stdin, as JSON lines.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import TextIO

import msgspec

from buddy.compiler.tools.coverage.plan import CoveragePlan, Listing, OpDtypePair


def main(words: list[str]) -> int:
    answers, plan = os.fdopen(int(words[0]), "w"), msgspec.json.decode(words[1], type=CoveragePlan)
    _warm_up()
    for path in plan.extensions:
        runpy.run_path(path)
    from buddy.compiler.tools.coverage.core_aten import core_ops
    from buddy.compiler.tools.coverage.samples import pairs
    from buddy.compiler.tools.coverage.worker import CoverageWorker

    _say(answers, Listing(pairs(plan), core_ops(), _versions()))
    worker = CoverageWorker(plan)
    try:
        for line in sys.stdin:
            _say(answers, worker.check(msgspec.json.decode(line, type=OpDtypePair)))
    finally:
        worker.close()
    return 0


def _warm_up() -> None:
    """Imports all that workers need, without running anything: a fork after the use of torch's thread pool would
    hang.
    """
    import torch

    torch.set_num_threads(1)
    from buddy.compiler.ops import registries
    from buddy.compiler.passes.pass_runner import own_passes
    from buddy.compiler.tools.coverage.samples import database

    database()
    registries()
    own_passes()


def _versions() -> dict[str, str]:
    import torch

    from buddy.compiler.mlir.bindings import PACKAGE, version

    return {"torch": str(torch.__version__), PACKAGE: version()}


def _say(answers: TextIO, value: object) -> None:
    answers.write(msgspec.json.encode(value).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
