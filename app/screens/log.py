"""The log: the engine's workers, what went wrong since the start, and where the full log is."""

from __future__ import annotations

from pathlib import Path

from buddy.app.panes.report import diagnostic_lines
from buddy.app.screens.detail import DetailScreen
from buddy.app.session.state import State
from buddy.app.widgets.look import Cells


def log_screen(state: State, path: Path | None) -> DetailScreen:
    """What the engine has reported, newest last."""
    lines: list[Cells] = [[("Engine", "title")], *_engine(state), []]
    lines += [[("Reported", "title")]]
    for entry in state.log:
        lines += diagnostic_lines(entry, 110)
    if not state.log:
        lines.append([("    nothing", "dim")])
    lines += [[], [("Log file   ", "dim"), (str(path) if path else "none: --log FILE keeps one", "text")]]
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
