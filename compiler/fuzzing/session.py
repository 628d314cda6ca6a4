"""A campaign of random programs, seen from the one that asks for it. Imports neither torch nor Hypothesis."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator

import msgspec

from buddy.compiler.engine.lifeline import describe_exit
from buddy.compiler.engine.process import safe_path
from buddy.compiler.fuzzing.plan import Batch, Plan

MISSING = "No module named 'hypothesis'"


class CampaignError(Exception):
    """The process of a campaign could not start or ended; the text says what it said last."""


def run(plan: Plan, known: Collection[int] = ()) -> Iterator[Batch]:
    """The batches of `plan`, but for those whose seeds are `known`, as each is done. Raises `CampaignError`."""
    with tempfile.TemporaryDirectory(prefix="buddy-fuzz-") as folder, open(os.path.join(folder, "log"), "w+") as log:
        words = [str(os.getpid()), msgspec.json.encode(plan).decode(), msgspec.json.encode(sorted(known)).decode()]
        process = subprocess.Popen(
            [sys.executable, *safe_path(), "-m", "buddy.compiler.fuzzing.campaign", *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # What others kept on disk is no part of a campaign, and what it leaves behind when it is killed goes.
            env={**os.environ, "BUDDY_CACHE": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield msgspec.json.decode(line, type=Batch)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code:
            log.seek(0)
            said = [line for line in log.read().splitlines() if line.strip()]
            raise CampaignError(said[-1] if said else f"it ended with {describe_exit(code)}")
