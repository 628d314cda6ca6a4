"""The content of the header, the status line and the line of keys, as cells. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Pane, Situation
from buddy.app.reports import formatting
from buddy.app.reports.formatting import CANCELLED, progress_text
from buddy.app.session.progress import elapsed_text
from buddy.app.session.state import State
from buddy.app.widgets.look import Cells, align_both_ends, cut_cells, length
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.recipe import IREE, NATIVE

ORIGINS = {"none": "", "preset": "recipe: preset", "restored": "recipe: restored", "edited": "recipe: edited (saved)"}
MOST_USED = ("run", "undo", "next-pane", "zoom", "palette", "help")


def header_cells(state: State, workspace: Workspace, busy: bool, width: int, glyphs: formatting.Glyphs) -> Cells:
    """The header: program, graph and target at the left, engine and recipe at the right.

    `busy` is whether anything runs that the user can cancel.
    """
    dot = f" {glyphs.dot} "
    left: Cells = [(" buddy ", "key"), (_short_source(workspace.source), "title")]
    right: Cells = [*_engine_cells(state, busy), (" ", "dim")]
    origin = ORIGINS[workspace.origin] if width >= 100 else workspace.origin.replace("none", "")
    if origin:
        right = [*right[:-1], ("   " if width >= 100 else dot, "dim"), (origin + " ", "dim")]
    if state.info is not None:
        left += [(f" {glyphs.arrow} ", "dim"), (state.info.name, "title")]
        room = width - length(left) - length(right) - 3
        left.append(("  " + formatting.join_fitting(_graph_facts(state, workspace), dot, room), "dim"))
    return align_both_ends(left, right, width)


def _graph_facts(state: State, workspace: Workspace) -> list[str]:
    info, recipe = state.info, workspace.recipe
    assert info is not None
    threads = formatting.thread_count(recipe.threads)
    target = recipe.target or (state.welcome.target if state.welcome else "")
    other = {NATIVE: "", IREE: "IREE"}.get(recipe.backend, recipe.backend)
    facts = [f"{len(info.rows)} nodes", info.dtype, threads, other, target]
    return [fact for fact in facts if fact]


def _engine_cells(state: State, busy: bool) -> Cells:
    if state.link:
        return [("engine not responding" if state.silent else "disconnected", "bad")]
    if state.engine == "lost":
        return [("engine exited", "bad")]
    if state.silent:
        return [("engine not responding", "bad")]
    if state.engine == "starting":
        return [("engine starting", "warn")]
    dead = [name for name, worker in state.workers.items() if worker.state == "dead"]
    if dead:
        return [(f"{dead[0]} exited", "bad")]
    if stopped := _stopped_workers(state):
        return [(f"{stopped[0]} stopped", "bad")]
    return [("engine busy", "accent")] if busy else [("engine ready", "ok")]


def status_cells(
    state: State,
    message: str,
    hint: str,
    busy: bool,
    panes: Sequence[Pane],
    shown: Pane | None,
    width: int,
    glyphs: formatting.Glyphs,
) -> Cells:
    """A hint for a key sequence, a message, the progress or the problem; at the right, the shown pane if folded."""
    left = _status_left(state, message, hint, glyphs)
    right: Cells = [] if hint else _pane_cells(panes, shown) if shown else _job_cells(state) if busy else []
    if shown and length(left) + length(right) >= width:
        # The text at the left takes precedence over the names of hidden panes.
        right = _pane_cells((shown,), shown)
    if message and length(left) + length(right) >= width:
        right = []
    return align_both_ends(left, right, width)


def _status_left(state: State, message: str, hint: str, glyphs: formatting.Glyphs) -> Cells:
    if hint:
        return [(" " + hint, "key")]
    if message:
        return [(" " + message, "text")]
    if state.link:
        # The hint is first, because the message of ssh may be long.
        todo = "press R to restart" if state.silent else "press R to reconnect"
        return [(f" {todo}", "dim"), (f" · {state.link}", "text")]
    if state.silent:
        return [(f" the engine has not answered for {state.silent} s", "text"), ("  press R to restart", "dim")]
    if stopped := _stopped_workers(state):
        return [(f" the {stopped[0]} process was stopped by a signal", "text"), (_stopped_hint(state), "dim")]
    if state.progress is not None:
        return [(" " + progress_text(state, glyphs), "accent")]
    if state.problem is not None:
        return [(" [!] ", "bad"), (_problem_text(state.problem), "text"), ("  press ! to show it", "dim")]
    if state.engine == "starting":
        return [(" the engine is starting", "dim")]
    if state.busy:
        return [(f" {'opening' if 'open' in state.jobs.values() else 'compiling'}{glyphs.ellipsis}", "accent")]
    if state.opening_cancelled and not state.captured:
        return [(f" {CANCELLED}", "text")]
    return [(" " + _compile_summary(state), "dim")]


def _stopped_workers(state: State) -> list[str]:
    """The workers that are stopped by a signal (SIGSTOP)."""
    return [name for name, worker in state.workers.items() if worker.state == "stopped"]


def _stopped_hint(state: State) -> str:
    return "  press ctrl+c to cancel" if state.busy else "  press R to restart"


def _problem_text(problem: Diagnostic) -> str:
    return f"{problem.what} ({problem.where})" if problem.where else problem.what


def _compile_summary(state: State) -> str:
    if state.compiled is None:
        return ""
    if state.reused and not state.compile_seconds:
        return f"compiled before: all {state.reused} stages are from the cache"
    reused = f" ({state.reused} stages from cache)" if state.reused else ""
    return f"compiled in {formatting.seconds(state.compile_seconds)}{reused}"


def _job_cells(state: State) -> Cells:
    return [("ctrl+c", "key"), (" ends it " if elapsed_text(state.seconds_since_progress) else " cancels ", "dim")]


def _pane_cells(panes: Sequence[Pane], shown: Pane) -> Cells:
    cells: Cells = []
    for pane in panes:
        title = PANE_TITLES[pane]
        cells.append((f"[{title}]", "key") if pane == shown else (f" {title} ", "dim"))
    return [*cells, (" ", "dim")]


def key_cells(pane: Pane, situation: Situation, width: int) -> Cells:
    """The most important keys of a pane, as many as fit. Keys of disabled actions are faint."""
    own = [action for action in ACTIONS if action.pane == pane and action.footer]
    common = [action for action in ACTIONS if action.id in MOST_USED]
    step = [action for action in ACTIONS if action.footer and action.anywhere and action.pane != pane]
    cells: Cells = [(" ", "dim")]
    always: Cells = [cell for action in common[-2:] for cell in _key_cell(action, situation)]
    for action in (*own[:4], *common[:3], *own[4:], *step, *common[3:-2]):
        piece = _key_cell(action, situation)
        if length(cells) + length(piece) + length(always) <= width:
            cells += piece
    return cut_cells([*cells, *always], width)


def _key_cell(action: Action, situation: Situation) -> Cells:
    blocked = bool(action.blocked(situation))
    key = {"space": "space", "left": "<"}.get(action.key, action.key)
    key = "[ ]" if action.id == "ir.next" else "J K" if action.id == "passes.down" else key
    return [(key, "faint" if blocked else "key"), (f" {action.footer}  ", "faint" if blocked else "dim")]


def _short_source(source: str) -> str:
    """The source, or its file name if the path is long."""
    return source if len(source) <= 32 else Path(source).name
