"""Pasted input is text, whatever it contains; typed input stays keys."""

from __future__ import annotations

import pytest
from textual import events

from buddy.app.workbench.terminal import PASTE_END, PASTE_START, PasteParser


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
