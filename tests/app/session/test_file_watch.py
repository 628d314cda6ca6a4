"""`--watch`: reloads the program and its plug-ins when their files change; the recipe does not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SCRIPT = """
import torch
from helper import act

def model(x):
    return act(x * 2) {more}

example_inputs = (torch.ones(4, 4),)
"""
HELPER = "import torch\n\ndef act(x):\n    return torch.{name}(x)\n"


async def test_a_changed_file_reloads_the_program_and_keeps_the_recipe(
    workbench: Callable[..., Any], tmp_path: Path
) -> None:
    script, helper = tmp_path / "watched.py", tmp_path / "helper.py"
    script.write_text(SCRIPT.format(more=""))
    helper.write_text(HELPER.format(name="relu"))
    async with workbench(script, size=(120, 40), watch=True) as bench:
        app = bench.app

        def targets() -> list[str]:
            return [row.target for row in app.state.info.rows]

        assert str(helper) in app.state.files
        mul = next(row for row in app.state.info.rows if row.target.startswith("aten.mul"))
        app.graph.show_node(mul.stable)
        await bench.press("space")
        await bench.settled()
        assert app.workspace.recipe.choice_map() == {mul.stable: "eager"}

        helper.write_text(HELPER.format(name="tanh"))
        await bench.until(lambda: any("tanh" in target for target in targets()), "the helper to be loaded again")
        await bench.settled()
        assert app.workspace.recipe.choice_map() == {mul.stable: "eager"}

        script.write_text(SCRIPT.format(more=" +"))
        await bench.until(lambda: "is not valid Python" in str(app.state.problem), "the syntax error")
        await bench.until(lambda: all(row.outdated_reason for row in app.state.board.rows()), "the stages to be stale")
        assert any("tanh" in target for target in targets())

        script.write_text(SCRIPT.format(more=" + 1"))
        await bench.until(lambda: any("add" in target for target in targets()), "the corrected script")
        await bench.settled()
        assert app.state.problem is None
        assert app.workspace.recipe.choice_map() == {mul.stable: "eager"}

        # Saved while the program is being loaded, with the helper read already.
        read = tmp_path / "read"
        pause = f"\n\nimport pathlib, time\n\npathlib.Path({str(read)!r}).touch()\ntime.sleep(2)\n"
        script.write_text(SCRIPT.format(more=" + 2" + pause))
        await bench.until(read.exists, "the helper to be read")
        helper.write_text(HELPER.format(name="sigmoid"))
        await bench.until(lambda: any("sigmoid" in target for target in targets()), "what was saved meanwhile")
        await bench.settled()

        app.session.toggle_watching()
        client = app.session._client
        await bench.until(lambda: not client._pending, "the engine to watch no more")
