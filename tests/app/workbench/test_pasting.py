"""Keys go to what the keys before them have opened, also in one burst. Pasted input is text, whatever it contains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual import events
from textual.keys import _character_to_key
from textual.widgets import Input, TextArea

from buddy.app.panes.pane import Pane
from buddy.app.screens.modal import ListScreen
from buddy.app.screens.picker import PickerScreen
from buddy.app.screens.plot import PlotScreen
from buddy.app.widgets.prompt import Prompt
from buddy.app.workbench.terminal import PASTE_END, PASTE_START, PasteParser

Open = Callable[..., Any]
BURST = 200
# The keys that open a prompt, a picker or another screen on a program that has run, by pane; `app` is every pane.
OPENING = {
    "ir": ["/", ":", "g /", "g f", "w", "f", "g o", "g e", "o", "K", "F", "g w", "'", "g r"],
    "graph": ["/", "f", "n", "g n", "w", "X", "enter", "c", "F", "g w", "o", "N", "g N", "g B"],
    "source": ["/"],
    "outputs": ["/", "v", "N", "g N"],
    "app": [
        *("B", "H", "I", "S", "U", "t", "b", "p", "T", "L", "?", "ctrl+p", "ctrl+s"),
        *("g F", "g i", "g x", "g X", "g p", "g v"),
    ],
    "passes": ["/", "i", "e", "w", "o", "P", "f"],
}


def read(*parts: str) -> list[events.Event | object]:
    parser = PasteParser()
    return [event for part in parts for event in parser.feed(part)]


def pasted(*parts: str) -> list[str]:
    """The pasted texts. Fails for any other event."""
    found = read(*parts)
    assert all(isinstance(event, events.Paste) for event in found), found
    return [event.text for event in found if isinstance(event, events.Paste)]


def test_escape_sequences_and_controls_in_a_paste_are_no_keys() -> None:
    junk = "a\x1b[31mq\x00\x03\x1b\x1b[A\tb\n" + "\x1b]52;c;x" * 20
    assert pasted(PASTE_START + junk + PASTE_END) == ["a[31mq[A\tb\n" + "]52;c;x" * 20]


def test_a_paste_marker_inside_a_paste_is_text() -> None:
    assert pasted(PASTE_START + "a" + PASTE_START + "b\x1b" + PASTE_END) == ["a[200~b"]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_paste_read_in_parts_is_one_paste(size: int) -> None:
    whole = PASTE_START + "one \x1b[31mtwo" + PASTE_END + PASTE_START + "three" + PASTE_END
    assert pasted(*(whole[at : at + size] for at in range(0, len(whole), size))) == ["one [31mtwo", "three"]


def test_keys_around_a_paste_stay_keys() -> None:
    found = read("j\x1b[A" + PASTE_START + "x" + PASTE_END + "\x1b[B")
    assert [event.key if isinstance(event, events.Key) else "paste" for event in found] == ["j", "up", "paste", "down"]


# ---- bursts ----------------------------------------------------------------------------------------------------------


def send(bench: Any, *inputs: str | events.Paste) -> None:
    """Put keys and pastes into the queue of the workbench at once, as a terminal does that reads them together."""
    for one in inputs:
        event = one if isinstance(one, events.Paste) else key_event(one)
        event.set_sender(bench.app)
        bench.app._driver.send_message(event)


def key_event(key: str) -> events.Key:
    return events.Key(_character_to_key(key), key) if len(key) == 1 else events.Key(key, None)


def prompt(bench: Any) -> Prompt:
    return bench.app.screen_stack[0].query_one(Prompt)


def is_open(bench: Any) -> bool:
    return len(bench.app.screen_stack) > 1 or bool(prompt(bench).display)


def main_screen(bench: Any) -> tuple[object, ...]:
    """What commands in the panes would change."""
    app = bench.app
    # The prompt takes a line from the source pane, which then scrolls if its cursor is at the end.
    panes = [
        (pane.cursor, pane.first_row if name != "source" else 0, pane.row_count) for name, pane in app.panes.items()
    ]
    return app.workspace.recipe, app.context.layout.pane_id, app.context.layout.zoomed, app.graph.picked, *panes


def typed(bench: Any) -> str:
    """The text of the input that has focus."""
    field = bench.app.focused
    assert isinstance(field, Input | TextArea), field
    return field.value if isinstance(field, Input) else field.text


async def idle(bench: Any) -> None:
    """Wait until all keys are delivered."""
    queue = bench.app._key_queue
    await bench.until(lambda: not queue._waiting and not queue._delivering, "the keys")
    await bench.passed_on()


@pytest.mark.slow
async def test_a_burst_goes_to_what_its_first_key_opens(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app = bench.app
        await bench.press("t", "2", "enter", "r")  # an edit, and a run
        await bench.until(lambda: app.state.report is not None, "the report")
        await bench.settled()
        await bench.press("p", *"loops", "enter", "/", "=", "space", *"mem", "enter")
        await bench.until(lambda: "= mem" in app.ir.line_at(app.ir.cursor).text, "the line with a name and an op")
        await bench.press("M", "escape", "g", "P")
        await bench.settled()
        for pane, keys in OPENING.items():
            app.context.layout.show_pane("graph" if pane == "app" else pane)
            if pane == "passes":
                app.passes.move_to(next(row for row, found in enumerate(app.passes.rows) if found.name == "cse"))
            await bench.settled()
            for key in keys:
                await opens(bench, key, f"{key} in {pane}")


async def opens(bench: Any, key: str, where: str) -> None:
    """Press a key together with many letters, and check that all of them are in what the key opens."""
    before = main_screen(bench)

    send(bench, *key.split(), *"j" * BURST)
    await bench.until(lambda: is_open(bench), f"what {where} opens")
    await idle(bench)
    assert main_screen(bench) == before, where
    if not isinstance(bench.app.screen, ListScreen | PlotScreen):
        assert "j" * BURST in typed(bench), where
        assert "j" * (BURST + 1) not in typed(bench), where
    for _ in range(4):
        if is_open(bench):
            await bench.press("ctrl+c")
    assert not is_open(bench), where


@pytest.mark.slow
async def test_a_burst_of_keys_that_are_commands_is_a_search(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        app = bench.app
        await bench.press("p", *"toplevel", "enter")
        await bench.settled()
        app.context.layout.show_pane("ir")
        await bench.passed_on()
        send(bench, *":3", "enter", *"jj/linalg.generic")
        await idle(bench)
        assert app.ir.line_number == 4
        assert typed(bench) == "linalg.generic"
        send(bench, "enter", "f", *"forward")
        picker = await bench.opened(PickerScreen)
        await idle(bench)
        assert (picker._title, typed(bench)) == ("Show only", "forward"), "after enter, keys are commands again"
        assert app.ir.search.matches.pattern.typed == "linalg.generic"
        assert not app.ir.document.folded


@pytest.mark.slow
async def test_pasted_text_goes_into_the_input_and_is_no_command(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        app = bench.app
        app.context.layout.show_pane("ir")
        await bench.passed_on()
        before = main_screen(bench)
        send(bench, events.Paste("q\nx z"))
        await bench.sees("no input has focus")
        assert main_screen(bench) == before
        assert not is_open(bench)
        send(bench, "/", events.Paste("linalg.contract"), "!")
        await idle(bench)
        assert typed(bench) == "linalg.contract!"


# 10 kB with letters that are commands, lines, tabs and what is not a character of a regular expression.
LONG_TEXT = "xq dzu\tJ([*r\n" * 853
# What takes a paste, by pane: the prompts, a list of choices, the editors.
TAKING = {
    "graph": ["/", "f", "enter"],
    "passes": ["/", "i", "e"],
    "ir": ["/", ":", "g e"],
    "source": ["/"],
    "outputs": ["/"],
    "app": ["ctrl+p", "B"],
}
# A list in a screen takes no paste until its search is open.
LISTS = ["?", "H", "L"]


@pytest.mark.slow
async def test_ten_kilobytes_are_pasted_into_every_pane_and_run_no_command(workbench: Open) -> None:
    assert len(LONG_TEXT) > 10_000
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        app = bench.app
        await bench.press("r", "p", *"toplevel", "enter", "g", "P")
        await bench.until(lambda: app.state.report is not None, "the report")
        await bench.settled()
        for pane, keys in TAKING.items():
            app.context.layout.show_pane("graph" if pane == "app" else pane)
            await bench.settled()
            before = main_screen(bench)
            app.context.say("")
            send(bench, events.Paste(LONG_TEXT))
            await bench.sees("no input has focus")
            await idle(bench)
            assert main_screen(bench) == before, pane
            assert not is_open(bench), pane
            for key in keys:
                await takes_paste(bench, key, f"{key} in {pane}")
        for key in LISTS:
            before = main_screen(bench)
            send(bench, key, events.Paste(LONG_TEXT))
            await bench.until(lambda: is_open(bench), f"what {key} opens")
            await idle(bench)
            screen = bench.app.screen
            send(bench, "/", events.Paste(LONG_TEXT))
            await idle(bench)
            assert bench.app.screen is screen, key
            assert screen.query_one(Input).value == " ".join(LONG_TEXT.splitlines()), key
            await bench.press("escape", "escape")
            assert not is_open(bench), key
            assert main_screen(bench) == before, key


async def takes_paste(bench: Any, key: str, where: str) -> None:
    """Press a key together with a paste and a letter, and check that both are in what the key opens, in full."""
    before = main_screen(bench)
    send(bench, *key.split(), events.Paste(LONG_TEXT), "j")
    await bench.until(lambda: is_open(bench), f"what {where} opens")
    await idle(bench)
    assert main_screen(bench) == before, where
    text = typed(bench)
    assert LONG_TEXT in text or " ".join(LONG_TEXT.splitlines()) + "j" in text, where
    for _ in range(4):
        if is_open(bench):
            await bench.press("ctrl+c")
    assert not is_open(bench), where
    assert main_screen(bench) == before, where


@pytest.mark.slow
async def test_keys_wait_for_a_screen_that_needs_an_answer(workbench: Open) -> None:
    async with workbench("arith_add.py") as bench:
        app = bench.app
        graph = app.graph
        graph.move_top()

        async def work(answer: asyncio.Event) -> None:
            await answer.wait()

        for keys, moves in (((), 3), (("ctrl+c",), 0)):
            answer, cursor = asyncio.Event(), graph.cursor
            app.context.jobs.begin_opening("test", work, answer)
            send(bench, *"jjj", *keys)
            await bench.pilot.pause(0.1)
            assert graph.cursor == cursor, "the keys wait"
            if not keys:
                answer.set()
            await idle(bench)
            assert graph.cursor == cursor + moves, "without a screen the pane gets them; after ctrl+c nothing does"
            assert isinstance(app.focused, Pane)
            send(bench, "k")
            await idle(bench)
            assert graph.cursor == max(cursor + moves - 1, 0)
            graph.move_top()
