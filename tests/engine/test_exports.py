"""An export that is stopped leaves nothing: no folder beside the user's, no compiler at work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from buddy.compiler.protocol import Cancel, Export, Failed, Progress
from tests.support.engine_bench import started
from tests.support.engine_processes import gone

# A C compiler that says where it is and comes to no end.
COMPILER = """\
import os, sys, time
open({path!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.asyncio
async def test_a_stopped_export_leaves_neither_a_folder_nor_a_process(
    add: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, script, place = tmp_path / "pid", tmp_path / "cc.py", tmp_path / "place"
    script.write_text(COMPILER.format(path=str(told)))
    monkeypatch.setenv("CC", f"{sys.executable} {script}")
    place.mkdir()
    async with started() as bench:
        await bench.open(add)
        request = bench.client.new_request_id()
        bench.client.send(Export(request, await bench.recipe(add), ("shared",), str(place / "out")))
        await bench.until(lambda frame: isinstance(frame, Progress) and "library" in frame.activity)
        while not told.exists() or not told.read_text():
            await bench.quiet()
        assert [path.name.startswith("buddy-export-") for path in place.iterdir()] == [True]
        bench.client.send(Cancel(request))
        failed = await bench.end_of(request)
        assert isinstance(failed, Failed)
        assert failed.cancelled
        # A request that takes long to end is answered before it has cleaned up.
        while list(place.iterdir()):
            await bench.quiet()
        assert await gone(int(told.read_text()))
