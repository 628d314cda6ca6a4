"""The log screen: the engine's workers, the errors since the start, and the path of the full log."""

from __future__ import annotations

from pathlib import Path

from buddy.app.panes.report import diagnostic_lines
from buddy.app.screens.detail import DetailScreen
from buddy.app.session.state import State
from buddy.app.widgets.look import Cells


def log_screen(state: State, path: Path | None) -> DetailScreen:
    """The messages of the engine, oldest first."""
    lines: list[Cells] = [[("Engine", "title")], *_engine(state), []]
    lines += [[("Reported", "title")]]
    for entry in state.log:
        lines += diagnostic_lines(entry, 110)
    if not state.log:
        lines.append([("    nothing", "dim")])
    lines += [[], [("Log file   ", "dim"), (str(path) if path else "none: use --log FILE to write one", "text")]]
    return DetailScreen("Log", lines)


def _engine(state: State) -> list[Cells]:
    welcome = state.welcome
    rows: list[tuple[str, str]] = [("state", state.engine)]
    if welcome is not None:
        packages = ", ".join(f"{name} {version}" for name, version in welcome.packages.items())
        rows += [
            ("version", welcome.engine),
            ("process", str(welcome.pid)),
            ("machine", welcome.target),
            ("with", packages),
        ]
    rows += [(name, f"{worker.state}  {worker.what}") for name, worker in state.workers.items()]
    return [[(f"    {title:<10} ", "dim"), (text, "text")] for title, text in rows if text]
