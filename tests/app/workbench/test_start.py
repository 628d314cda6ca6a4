"""The first screen of `buddy-tui` without arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.workbench.start import StartApp, Verb, sample_choices
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.sources import Program, RecentPrograms


async def chosen(store: Path, *keys: str) -> Program | Verb | None:
    """What the first screen returns after these keys; the keys are pressed at once, as in a paste."""
    app = StartApp(Settings(), store)
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
    return app.return_value


async def test_the_latest_program_is_first(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("")
    RecentPrograms(tmp_path).add(str(script), ("--tiny",), now=1.0)
    program = await chosen(tmp_path, "enter")
    assert isinstance(program, Program)
    assert (program.source, program.arguments) == (str(script), ("--tiny",))


async def test_letters_find_a_sample(tmp_path: Path) -> None:
    program = await chosen(tmp_path, *"samples/whi", "down", "up", "enter")
    assert isinstance(program, Program)
    assert program.source.endswith("samples/whisper.py")
    assert Path(program.source).exists()


async def test_a_path_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert await chosen(tmp_path, *"net.py", "space", *"--x", "enter") == Program("net.py", ("--x",))


async def test_a_verb_can_be_chosen_and_escape_leaves(tmp_path: Path) -> None:
    assert await chosen(tmp_path, *"doctor", "down", "up", "enter") == Verb("doctor")
    assert await chosen(tmp_path, "escape") is None


def test_every_sample_says_what_it_is() -> None:
    choices = sample_choices()
    assert len(choices) > 10
    assert [choice.title for choice in choices if not choice.summary] == []
