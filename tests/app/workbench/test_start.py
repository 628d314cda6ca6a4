"""The first screen of `buddy-tui` without arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, Markdown

from buddy.app.screens.documentation import PageScreen, page_choices
from buddy.app.workbench.start import StartApp, StartScreen, Verb, sample_choices
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.sources import Program, RecentPrograms
from tests.app.picturing import until


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


async def test_the_documentation_is_read_by_keys(tmp_path: Path) -> None:
    app = StartApp(Settings(), tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"docs", "down", "up", "enter", *"wrong node", "enter")
        await until(pilot, lambda: isinstance(app.screen, PageScreen))
        box = app.screen.query_one("#box")
        await until(pilot, lambda: box.border_title == "tutorials/find-a-wrong-node.md")
        document = app.screen.query_one(Markdown)
        await until(pilot, lambda: document.source.startswith("# "))
        app.screen.post_message(Markdown.LinkClicked(document, "../how-to/numerics.md"))
        await until(pilot, lambda: box.border_title == "how-to/numerics.md")
        app.screen.post_message(Markdown.LinkClicked(document, "https://example.org/page"))
        await until(pilot, lambda: box.border_subtitle == "https://example.org/page")
        app.screen.post_message(Markdown.LinkClicked(document, "missing.md"))
        await until(pilot, lambda: "cannot read missing.md" in str(box.border_subtitle))
        await pilot.press("backspace", "backspace")
        await until(pilot, lambda: box.border_title == "tutorials/find-a-wrong-node.md")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: isinstance(app.screen, StartScreen))


async def test_the_place_in_the_list_is_shown_and_tab_ignores_verbs(tmp_path: Path) -> None:
    app = StartApp(Settings(), tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        count = len(sample_choices()) + 3  # docs, doctor, help
        box = app.screen.query_one("#box")
        assert str(box.border_subtitle).startswith(f"1/{count}, enter opens")
        await pilot.press(*["pagedown"] * 5, "tab")
        await until(pilot, lambda: str(box.border_subtitle).startswith(f"{count}/{count}, "))
        assert app.screen.query_one(Input).value == ""


def test_every_page_has_a_title() -> None:
    pages = page_choices()
    assert len(pages) > 40
    assert [page.summary for page in pages if page.title == page.value.stem] == []


def test_every_sample_says_what_it_is() -> None:
    choices = sample_choices()
    assert len(choices) > 10
    assert [choice.title for choice in choices if not choice.summary] == []
