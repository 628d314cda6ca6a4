"""Fault drills of a session with a remote engine: it survives lost connections, which are faults too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from buddy.app.session.engine_options import RemoteHost
from tests.reliability.campaign import Attempt, Campaign
from tests.reliability.drills import BATCH, drill, environment

FAR = Path(__file__).resolve().parents[2] / "benchmarks" / "support" / "far.py"
# Seconds in each direction, so that an answer takes twice as long.
DELAY = 0.02


@contextmanager
def elsewhere() -> Iterator[RemoteHost]:
    """A host with a separate folder for temporary files, which identifies its engines."""
    with tempfile.TemporaryDirectory(prefix="far") as folder:
        program = Path(folder) / "buddy-tui"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m buddy.app.cli "$@"\n')
        program.chmod(0o700)
        with patch.dict(os.environ, {"TMPDIR": folder}), patch.object(tempfile, "tempdir", None):
            yield RemoteHost(
                "far", (sys.executable, str(FAR), folder, str(DELAY)), program=str(program), reconnect_seconds=120.0
            )


@contextmanager
def _trial() -> Iterator[Attempt]:
    with environment(), elsewhere() as place, contextlib.suppress(asyncio.CancelledError):
        yield lambda seed, cases: asyncio.run(drill(seed, cases, place=place))


CAMPAIGN = Campaign(
    name="far_drills",
    summary="faults strike a session whose engine is elsewhere",
    count=200,
    batch=BATCH,
    trial=_trial,
)
