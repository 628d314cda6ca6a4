"""The processes that try recipes: what a search makes of it when they are lost, and what they leave."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from buddy.app.session.client import EngineClient
from buddy.compiler.protocol import Attempted, ListPresets, Open, Tune, Variation
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import LoadProgram
from buddy.compiler.tools.tune.processes import LoadForTuning, RecipeTried, TryRecipe, answer_tune_request
from tests.support.engine_processes import forked_from_host

PROGRAM = """
import torch

model, example_inputs = lambda a, b: a @ b - a, (torch.ones(96, 96), torch.ones(96, 96))
"""
ROWS, VECTORS = "contractions-to-kernels.rows", "contractions-to-kernels.vectors"


def slow(recipe: Recipe) -> Recipe:
    """With blocks of one row and one vector, several times as slow as others."""
    (index,) = [k for k, step in enumerate(recipe.steps) if step.name == "contractions-to-kernels"]
    return recipe.with_step(index, options=(("rows", 1), ("vectors", 1)))


@pytest.mark.asyncio
async def test_a_search_that_loses_a_process_ends_with_the_others(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    client = EngineClient()
    welcome = await client.start()
    try:
        await client.request(Open(0, str(path)))
        (preset, *_) = (await client.request(ListPresets(0))).presets
        recipe = slow(msgspec.structs.replace(preset.recipe, source=str(path)))
        vary = Variation(ROWS, (8,)), Variation(VECTORS, (2,))
        lost: list[int] = []

        def came(frame: object) -> None:
            if isinstance(frame, Attempted) and not lost:
                # The first of them, which would also have run the best recipe beside the first one at the end.
                lost.append(min(forked_from_host(welcome.pid)))
                os.kill(lost[0], signal.SIGKILL)

        frame = Tune(client.new_request_id(), recipe, variations=vary, seconds=300.0, jobs=2)
        found = await asyncio.wait_for(client.request(frame, came), 400)
        assert any("was lost" in note for note in found.notes)
        assert found.recipe != recipe
    finally:
        await client.close()


@pytest.mark.asyncio
@pytest.mark.full("a Dask cluster of processes")
async def test_what_a_lost_worker_of_a_cluster_tried_is_tried_again(
    tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    address, workers = cluster
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    client = EngineClient()
    await client.start()
    try:
        await client.request(Open(0, str(path)))
        (preset, *_) = (await client.request(ListPresets(0))).presets
        recipe = slow(msgspec.structs.replace(preset.recipe, source=str(path)))
        tried: list[Attempted] = []

        def came(frame: object) -> None:
            if isinstance(frame, Attempted):
                tried.append(frame)
                workers[0].kill()

        vary = (Variation(ROWS, (2, 4, 6, 8)),)
        frame = Tune(client.new_request_id(), recipe, variations=vary, seconds=300.0, cluster=address)
        found = await asyncio.wait_for(client.request(frame, came), 400)
        assert sorted(attempted.choices for attempted in tried) == [(f"{ROWS}={n}",) for n in (1, 2, 4, 6, 8)]
        assert not any(attempted.problem for attempted in tried)
        assert (found.recipe != recipe) == (found.gain_low > 1)
    finally:
        await client.close()


def asked(path: Path, recipe: Recipe, **load: tuple[str, ...] | str) -> RecipeTried:
    begin = LoadForTuning(LoadProgram(str(path), (), "", **load), 0)  # type: ignore[arg-type]
    question = TryRecipe(recipe, 60.0, 1.0)
    encode = msgspec.msgpack.encode
    return msgspec.msgpack.decode(answer_tune_request(encode(begin), encode(question)), type=RecipeTried)


def test_a_worker_whose_process_ends_at_once_keeps_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text("import os\n\nos._exit(3)\n")
    gc.collect()
    before = os.listdir("/proc/self/fd")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exited with 3"):
            asked(path, Recipe())
        assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_worker_loads_the_program_in_the_shapes_that_it_was_opened_with(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    assert "no_such" in asked(path, Recipe(), shapes=("no_such=4x4",)).problem


def test_a_worker_loads_the_program_by_the_frontend_that_it_was_opened_by(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    found = asked(path, presets()["torch-mlir"].recipe, frontend="torch-mlir")
    assert not found.problem
    assert found.ratio > 0
