"""Exports from the workbench. The target is an edit of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.commands.backend import parse_kinds
from buddy.compiler.codegen.machines import TARGET_NAMES
from buddy.compiler.protocol.recipe import TARGETS

Open = Callable[..., Any]


def test_kinds_are_separated_by_commas_and_spaces() -> None:
    assert parse_kinds("object, asm object") == ("object", "asm")
    for text in ("", "elf", "object,,x"):
        with pytest.raises(ValueError, match="known: asm, object"):
            parse_kinds(text)


def test_the_target_picker_lists_the_named_targets() -> None:
    assert set(TARGETS) == set(TARGET_NAMES)


async def test_a_chosen_target_is_an_edit_that_can_be_undone(workbench: Open, tmp_path: Path) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        app = bench.app
        await bench.settled()
        app.export_commands._use_target("aarch64")
        app.export_commands._use_typed_target(" ")
        await bench.settled()
        assert "--target aarch64" in app.session_commands.command_line()
        await bench.sees("aarch64")
        app.export_commands._ask_folder("asm llvm-ir")
        await bench.drawn()
        await bench.press("escape")
        app.session.directory = str(tmp_path)
        app.export_commands._export_to("out", parse_kinds("asm llvm-ir"))
        await bench.until(lambda: (tmp_path / "out" / "README.md").exists(), "the export")
        assert "fadd" in (tmp_path / "out" / "arith_add.s").read_text()
        readme = (tmp_path / "out" / "README.md").read_text()
        assert "buddy-tui export" in readme
        assert "--target aarch64" in readme
        app.session._location = "an engine elsewhere"
        app.export_commands._export_to("out", ("asm",))
        await bench.until(lambda: len(app.screen_stack) > 1, "the question about files that are elsewhere")
        await bench.press("n")
        await bench.press("u")
        await bench.settled()
        assert not app.workspace.recipe.target
