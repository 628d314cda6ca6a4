"""The progress of the running job as text, and the text of a pane that waits for its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.reports import formatting
from buddy.app.reports.formatting import Glyphs
from buddy.app.session.progress import N_PARTS_BEFORE_RUN, PART_DESCRIPTIONS, elapsed_text, remaining_text
from buddy.compiler.protocol import Part

if TYPE_CHECKING:
    from buddy.app.session.state import State

# The width of the progress bar in characters.
_BAR_WIDTH = 12


def progress_text(state: State, glyphs: Glyphs) -> str:
    """Returns the activity of the running job, a bar if its progress is known, and a time; empty without a job.

    The time is the estimated remaining time, or the time since the last progress if that was long ago.
    """
    progress = state.progress
    if progress is None:
        return ""
    time = f"  {elapsed_text(state.seconds_since_update) or remaining_text(state.seconds_left)}".rstrip()
    part_number = state.part_times.part_number
    activity = f"{part_number}/{N_PARTS_BEFORE_RUN} {progress.activity}" if part_number else progress.activity
    if progress.done < 0:
        return f"{activity}{glyphs.ellipsis}{time}"
    bar = formatting.progress_bar(progress.done, _BAR_WIDTH, glyphs).ljust(_BAR_WIDTH)
    return f"{activity} {bar} {progress.done:.0%}{time}"


def cancelled_text() -> str:
    """Returns the message after the user has cancelled the opening of the program."""
    return f"Cancelled. Press {key_of('rerun')} to run the script again"


# The usual time of each part, shown until the part runs.
_USUAL_TIMES: dict[Part, str] = {
    "torch": "some seconds",
    "script": "as in Python",
    "capture": "about 1 s/100 ops",
    "compile": "about 1 s/200 ops",
}


_NO_SOURCE_LINES = "the dump names no source lines (MLIR prints them with --mlir-print-debuginfo)"


def waiting_texts(state: State, content: str, last: Part, glyphs: Glyphs) -> list[str]:
    """Returns the text of a pane that waits for its content: the parts of opening a program, with their times.

    `content` names the content, such as "graph", which appears after the part `last`. If the content will not appear,
    returns the reason.
    """
    if state.problem is not None:
        return [f"no {content}: see Outputs"]
    if state.opening_cancelled:
        return [cancelled_text()]
    if state.opens_dump:
        has_no_lines = state.info is not None and content == "graph"
        return [_NO_SOURCE_LINES] if has_no_lines else [f"The {content} appears when its first stage has been found"]
    parts = list(PART_DESCRIPTIONS)[: list(PART_DESCRIPTIONS).index(last) + 1]
    part_texts = (_part_text(state, number, part, glyphs) for number, part in enumerate(parts, 1))
    return [f"The {content} appears after {PART_DESCRIPTIONS[last]}:", "", *part_texts]


def _part_text(state: State, number: int, part: Part, glyphs: Glyphs) -> str:
    """Returns a part of opening a program: `>` if it is running, its number and name, and its time or usual time."""
    times = state.part_times
    seconds, is_running = times.seconds(part), part == times.running_part
    if seconds:
        time = formatting.seconds(seconds) + (glyphs.ellipsis if is_running else "")
    else:
        time = "done" if number < times.part_number else _USUAL_TIMES[part]
    return f"{'>' if is_running else ' '} {number}/{N_PARTS_BEFORE_RUN} {PART_DESCRIPTIONS[part]:<20}{time}"
