"""Texts for the progress of a request, and for content that is not available yet."""

from __future__ import annotations

from buddy.app.reports import formatting
from buddy.app.session.progress import elapsed_text, remaining_text
from buddy.app.session.state import State


def progress_text(state: State, glyphs: formatting.Glyphs) -> str:
    """The running request, with a progress bar if its progress is known, and the estimated time left."""
    progress = state.progress
    if progress is None:
        return ""
    left = f"  {elapsed_text(state.seconds_since_progress) or remaining_text(state.seconds_left)}".rstrip()
    if progress.done < 0:
        return f"{progress.what}{glyphs.ellipsis}{left}"
    bar = formatting.bar(progress.done, 12, glyphs).ljust(12)
    return f"{progress.what} {bar} {progress.done:.0%}{left}"


def waiting_text(state: State, what: str, glyphs: formatting.Glyphs) -> str:
    """The reason why `what`, such as the graph, is not available yet."""
    if state.problem is not None:
        return f"no {what}: see Outputs"
    return progress_text(state, glyphs) or f"the {what} appears after capture"
