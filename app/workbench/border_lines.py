"""The lines above and below the panes: header, graph tabs, status and keys, and clicks on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.actions import ACTIONS, BY_ID, PANE_TITLES, Action, Pane, Situation, key_of, sequence_prefixes
from buddy.app.actions.action import PIPELINE_ACTIONS
from buddy.app.commands.graphs import graph_cells, graph_of_tab_at
from buddy.app.reports import formatting
from buddy.app.reports.progress_texts import cancelled_text, progress_text
from buddy.app.session.progress import MIN_SHOWN_SECONDS, PART_DESCRIPTIONS
from buddy.app.session.state import State
from buddy.app.widgets.look import CellLine, Cells, align_both_ends, cells_length, cut_cells
from buddy.app.widgets.prompt import KEYS as PROMPT_KEYS
from buddy.app.widgets.prompt import Prompt
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import COMPILER_NAMES, Diagnostic
from buddy.compiler.protocol.recipe import NATIVE

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench


# ---- content ---------------------------------------------------------------------------------------------------------


# The texts of the header for `Workspace.origin`, which says where the current recipe comes from.
ORIGINS = {"none": "", "preset": "recipe: preset", "restored": "recipe: restored", "edited": "recipe: edited (saved)"}
# A longer source is shortened in the header.
_MAX_SOURCE_WIDTH = 32
# From this width in columns, the header has the long texts of `ORIGINS`.
_WIDE_COLUMNS = 100
# The entries of the key line that show the keys of two actions: these actions, by the action of the entry.
_BOTH_DIRECTIONS = {"ir.next": ("ir.previous", "ir.next"), "passes.down": ("passes.down", "passes.up")}
# Actions of the key line in every pane. The last `_ALWAYS_SHOWN` are shown even if nothing else fits.
COMMON_ACTIONS = ("search", "run", "undo", "next-pane", "zoom", "palette", "help")
_ALWAYS_SHOWN = 2


def header_cells(state: State, workspace: Workspace, busy: bool, width: int, glyphs: formatting.Glyphs) -> Cells:
    """Returns the header: program, graph and target at the left, engine and recipe at the right.

    `busy` says whether anything runs that the user can cancel.
    """
    dot = f" {glyphs.dot} "
    left: Cells = [(" buddy ", "key"), (_short_source(workspace.source), "title")]
    right: Cells = [*_engine_cells(state, busy), (" ", "dim")]
    is_wide = width >= _WIDE_COLUMNS
    if state.restored_at:
        # To the left of the state of the engine, which matters less while the graphs may be outdated.
        right = [("from the last session" if is_wide else "last session", "stale"), (dot, "dim"), *right]
    short_origin = "" if workspace.origin == "none" else workspace.origin
    origin = ORIGINS[workspace.origin] if is_wide else short_origin
    if origin and not workspace.recipe.is_dump:
        right = [*right[:-1], ("   " if is_wide else dot, "dim"), (origin + " ", "dim")]
    if state.info is not None:
        left += [(f" {glyphs.arrow} ", "dim"), (state.info.name, "title")]
        free_width = width - cells_length(left) - cells_length(right) - 3
        facts = [fact for fact in _graph_facts(state, workspace) if fact]
        left.append(("  " + formatting.join_fitting(facts, dot, free_width), "dim"))
    return align_both_ends(left, right, width)


def _graph_facts(state: State, workspace: Workspace) -> list[str]:
    """Returns the facts about the shown graph that the header has, the most important ones first."""
    info, recipe = state.info, workspace.recipe
    assert info is not None
    if info.is_dump:
        return [f"{len(state.board.rows())} stages", f"{len(info.rows)} source lines" if info.rows else ""]
    threads = formatting.thread_count(recipe.threads)
    target = recipe.target or (state.welcome.target if state.welcome else "")
    backend = "" if recipe.backend == NATIVE else COMPILER_NAMES.get(recipe.backend, recipe.backend)
    facts = [f"{len(info.rows)} nodes", info.dtype, threads, backend, target]
    return [fact for fact in facts if fact]


def _engine_cells(state: State, busy: bool) -> Cells:
    """Returns the state of the engine, of the connection to it, or of the worker that has a problem."""
    if state.connection_error:
        return [("engine not responding" if state.silent_seconds else "disconnected", "bad")]
    if state.engine == "lost":
        return [("engine exited", "bad")]
    if state.silent_seconds:
        return [("engine not responding", "bad")]
    if state.engine == "starting":
        return [("engine starting", "warn")]
    dead = [name for name, worker in state.workers.items() if worker.state == "dead"]
    if dead:
        return [(f"{dead[0]} exited", "bad")]
    if stopped := _stopped_workers(state):
        return [(f"{stopped[0]} suspended", "bad")]
    if busy:
        part = state.part_times.running_part
        return [(PART_DESCRIPTIONS[part] if part else "engine busy", "accent")]
    return [("engine ready", "ok")]


def status_cells(
    state: State,
    message: str,
    hint: str,
    busy: bool,
    panes: Sequence[Pane],
    only_pane: Pane | None,
    width: int,
    glyphs: formatting.Glyphs,
) -> Cells:
    """Returns the status line: the hint for a key sequence, the message, the progress or the problem.

    If the layout shows one pane at a time, `only_pane`, the right end lists the panes; otherwise, it says how to cancel
    the running job, if the workbench is `busy`.
    """
    left = _status_text(state, message, hint, glyphs, shows_outputs=only_pane in (None, "outputs"))
    right: Cells = []
    if not hint and only_pane:
        right = _pane_cells(panes, only_pane)
    elif not hint and busy:
        right = _job_cells(state)
    if only_pane and cells_length(left) + cells_length(right) >= width:
        # The text at the left takes precedence over the names of hidden panes.
        right = _pane_cells((only_pane,), only_pane)
    if message and cells_length(left) + cells_length(right) >= width:
        right = []
    return align_both_ends(left, right, width)


def _status_text(state: State, message: str, hint: str, glyphs: formatting.Glyphs, *, shows_outputs: bool) -> Cells:
    """Returns the left part of the status line: the most urgent of the possible texts.

    `shows_outputs` says that the outputs pane is visible, which already shows the result of the last run.
    """
    if hint:
        return [(" " + hint, "key")]
    if message:
        return [(" " + message, "text")]
    if state.connection_error:
        # The advice is first, because the message of ssh may be long.
        todo = f"press {key_of('rerun')} to {'restart' if state.silent_seconds else 'reconnect'}"
        return [(f" {todo}", "dim"), (f" · {state.connection_error}", "text")]
    if state.silent_seconds:
        return [
            (f" the engine has not answered for {state.silent_seconds} s", "text"),
            (f"  press {key_of('rerun')} to restart", "dim"),
        ]
    if stopped := _stopped_workers(state):
        return [(f" the {stopped[0]} process is suspended by a signal", "text"), (_stopped_hint(state), "dim")]
    if state.progress is not None:
        return [(" " + progress_text(state, glyphs), "accent")]
    if state.changed_files and not state.busy:
        return [
            (f" {_changed_text(state.changed_files)} on disk", "warn"),
            (f"  press {key_of('rerun')} to {'open it' if state.opens_dump else 'run the script'} again", "dim"),
        ]
    if state.problem is not None:
        return [
            (" [!] ", "bad"),
            (_problem_text(state.problem), "text"),
            (f"  press {key_of('diagnostic')} to show it", "dim"),
        ]
    if state.engine == "starting":
        return [(" the engine is starting", "dim")]
    if state.busy:
        return [(f" {'opening' if 'open' in state.jobs.values() else 'compiling'}{glyphs.ellipsis}", "accent")]
    if state.opening_cancelled and not state.captured:
        return [(f" {cancelled_text()}", "text")]
    run = "" if shows_outputs else _run_summary(state)
    return [(" " + (run or _compile_summary(state)), "dim")]


def _run_summary(state: State) -> str:
    """Returns the verdict and the speed of the last run; empty if the last run was not of the compiled recipe."""
    report = state.report
    if report is None or state.run_recipe != state.compiled_recipe:
        return ""
    wrong = [output.name for output in report.outputs if output.verdict not in ("ok", "unchecked")]
    verdict = f"{report.word}: {', '.join(wrong)}" if wrong else report.word
    ratio = report.eager.median / report.compiled.median if report.compiled.median else 0.0
    return f"run: {verdict}, {ratio:.2f}x eager's speed" if ratio else f"run: {verdict}"


def _changed_text(files: Sequence[str]) -> str:
    """Returns a text such as `model.py changed`, which names at most two files, and counts the others."""
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return f"{', '.join(files[:2])}{more} changed"


def quit_question(state: State, workspace: Workspace, busy: bool, glyphs: formatting.Glyphs) -> str:
    """Returns a question that names what the user would lose by quitting now; empty if nothing would be lost."""
    losses = []
    if workspace.problem:
        losses.append(workspace.problem)
    if busy:
        job = progress_text(state, glyphs)
        losses.append(f"a job is running ({job})" if job else "a job is running")
    reasons = "; ".join(losses)
    return f"{reasons[0].upper()}{reasons[1:]}. Quit?" if reasons else ""


def _stopped_workers(state: State) -> list[str]:
    """Returns the names of the workers that a signal, such as SIGSTOP, has suspended."""
    return [name for name, worker in state.workers.items() if worker.state == "stopped"]


def _stopped_hint(state: State) -> str:
    """Returns what the user can do about a suspended worker."""
    return f"  press {key_of('cancel')} to cancel" if state.busy else f"  press {key_of('rerun')} to restart"


def _problem_text(problem: Diagnostic) -> str:
    """Returns what happened, and where if that is known."""
    return f"{problem.what} ({problem.where})" if problem.where else problem.what


def _compile_summary(state: State) -> str:
    """Returns the duration of the last compilation; for a dump, its first note; empty before the first compilation."""
    if state.compiled_recipe is None:
        return ""
    if state.compiled_recipe.is_dump:
        return next(iter((*state.graph_state.notes, *state.notes)), "")
    if state.n_reused_stages and not state.compile_seconds:
        return f"compiled before: all {state.n_reused_stages} stages are from the cache"
    reused = f" ({state.n_reused_stages} stages from cache)" if state.n_reused_stages else ""
    return f"compiled in {formatting.seconds(state.compile_seconds)}{reused}"


def _job_cells(state: State) -> Cells:
    """Returns the key that cancels the running job, and a verb; another verb if the job makes no progress."""
    is_slow = state.seconds_since_update >= MIN_SHOWN_SECONDS
    return [(key_of("cancel"), "key"), (" stops the job " if is_slow else " cancels ", "dim")]


def _pane_cells(panes: Sequence[Pane], only_pane: Pane) -> Cells:
    """Returns the titles of `panes`, with brackets around that of the pane that is shown."""
    cells: Cells = []
    for pane in panes:
        title = PANE_TITLES[pane]
        cells.append((f"[{title}]", "key") if pane == only_pane else (f" {title} ", "dim"))
    return [*cells, (" ", "dim")]


# An entry of the key line: its cells, and what a click on it does: an action, or the first key of key sequences.
KeyEntry = tuple[Cells, "Action | str"]


def key_cells(pane: Pane, situation: Situation, width: int) -> Cells:
    """Returns the key line: the most important keys of a pane, as many as fit. Keys of disabled actions are faint.

    For a dump, keys of actions on the pipeline, which a dump does not have, are left out.
    """
    entries = _key_entries(pane, situation, width)
    return cut_cells([(" ", "dim"), *(cell for cells, _ in entries for cell in cells)], width)


def key_at(pane: Pane, situation: Situation, width: int, x: int) -> Action | str | None:
    """Returns the action at column `x` of the key line, or the first key of the key sequences there, or `None`."""
    start = 1  # after the space at the start of the line
    for cells, target in _key_entries(pane, situation, width):
        end = start + cells_length(cells)
        if start <= x < min(end, width):
            return target
        start = end
    return None


def prompt_cells(keys: Sequence[tuple[str, str]], width: int) -> Cells:
    """Returns the key line while a prompt is open: its `keys`, each with its effect."""
    cells: Cells = [(" ", "dim")]
    for key, effect in keys:
        cells += [(key, "key"), (f" {effect}  ", "dim")]
    return cut_cells(cells, width)


def prompt_key_at(keys: Sequence[tuple[str, str]], x: int) -> str:
    """Returns the key at column `x` of the line of `prompt_cells`, or ""."""
    start = 1  # after the space at the start of the line
    for key, effect in keys:
        end = start + len(f"{key} {effect}  ")
        if start <= x < end:
            return key
        start = end
    return ""


def _key_entries(pane: Pane, situation: Situation, width: int) -> list[KeyEntry]:
    """Returns the entries of the key line that fit into `width` columns, in the order of the line.

    The last entries, the first keys of sequences, palette and help, are always there.
    """
    actions = [action for action in ACTIONS if not (situation.is_dump and action.id in PIPELINE_ACTIONS)]
    pane_actions = [action for action in actions if action.pane == pane and action.footer]
    common = {action.id: action for action in actions if action.id in COMMON_ACTIONS}
    other_pane_actions = [action for action in actions if action.footer and action.anywhere and action.pane != pane]
    sequences: list[KeyEntry] = [([(key, "key"), (" more  ", "dim")], key) for key in sequence_prefixes(pane)]
    common_actions = list(common.values())
    last_entries = [
        *sequences,
        *((_action_cells(action, situation), action) for action in common_actions[-_ALWAYS_SHOWN:]),
    ]
    entries: list[KeyEntry] = []
    # The last entry needs no space after it.
    free_width = width + 1 - sum(cells_length(cells) for cells, _ in last_entries)
    # In order of importance: the first three actions of the pane, two common ones, the next one of the pane, two common
    # ones, and the rest. An action that does not fit is skipped.
    early = [common[name] for name in ("run", "next-pane") if name in common]
    later = [common[name] for name in ("search", "undo") if name in common]
    others = [action for action in common_actions[:-_ALWAYS_SHOWN] if action not in (*early, *later)]
    order = (*pane_actions[:3], *early, *pane_actions[3:4], *later, *pane_actions[4:], *other_pane_actions, *others)
    for action in order:
        cells = _action_cells(action, situation)
        if cells_length(cells) <= free_width:
            entries.append((cells, action))
            free_width -= cells_length(cells)
    return [*entries, *last_entries]


def _action_cells(action: Action, situation: Situation) -> Cells:
    """Returns the entry of an action: its key, or both keys of a pair such as `[ ]`, and its short name."""
    is_blocked = bool(action.blocked(situation))
    key = " ".join(BY_ID[action_id].key for action_id in _BOTH_DIRECTIONS.get(action.id, (action.id,)))
    return [(key, "faint" if is_blocked else "key"), (f" {action.footer}  ", "faint" if is_blocked else "dim")]


def _short_source(source: str) -> str:
    """Returns the source, or its file name if it is longer than `_MAX_SOURCE_WIDTH`."""
    return source if len(source) <= _MAX_SOURCE_WIDTH else Path(source).name


# ---- widgets ---------------------------------------------------------------------------------------------------------


class BorderLines:
    """The lines above and below the panes, and the prompt of the main screen, which is above the lower lines."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self.prompt = Prompt()
        # The lines above the panes and those below. Empty until the screen is composed.
        self.above: tuple[CellLine, ...] = ()
        self.below: tuple[CellLine, ...] = ()

    def make(self) -> None:
        """Creates the lines, which the main screen mounts."""
        header = CellLine(self.header_cells, id="header", background="panel")
        self.above = (header, CellLine(self._graph_cells, "graphs", "panel", self._show_clicked_graph))
        keys = CellLine(self._key_cells, "keys", on_column_clicked=self._press_clicked_key)
        self.below = (CellLine(self.status_cells, "status"), keys)

    def update(self) -> None:
        """Draws the lines whose content has changed."""
        for line in (*self.above, *self.below):
            line.update()

    def update_keys(self) -> None:
        """Draws the key line again, which has the keys of the prompt while the prompt is open."""
        self.below[-1].update()

    def header_cells(self, width: int) -> Cells:
        app = self._workbench
        return header_cells(app.state, app.workspace, app.busy, width, app.glyphs)

    def status_cells(self, width: int) -> Cells:
        app, layout = self._workbench, self._workbench.context.layout
        message = app.context.status.message
        # The pane that has focus, if the layout shows one pane at a time.
        only_pane = layout.pane_id if layout.shows_one_pane else None
        return status_cells(
            app.state, message, app.key_sequences.hint, app.busy, layout.visible_order, only_pane, width, app.glyphs
        )

    def _graph_cells(self, width: int) -> Cells:
        app = self._workbench
        return graph_cells(app.state, app.workspace, width, app.glyphs)

    def _show_clicked_graph(self, column: int, width: int) -> None:
        app = self._workbench
        number = graph_of_tab_at(app.state, app.workspace, width, app.glyphs, column)
        if number is not None:
            app.graph_commands.show(number)

    def _key_cells(self, width: int) -> Cells:
        if self.prompt.display:
            return prompt_cells(PROMPT_KEYS, width)
        app = self._workbench
        return key_cells(app.context.layout.pane_id, app.situation(), width)

    async def _press_clicked_key(self, column: int, width: int) -> None:
        """Handles a click on the key line like the key: performs its action, or lists the second keys of a sequence."""
        if self.prompt.display:
            if key := prompt_key_at(PROMPT_KEYS, column):
                await self.prompt.press(key)
            return
        app = self._workbench
        action_or_key = key_at(app.context.layout.pane_id, app.situation(), width, column)
        if isinstance(action_or_key, str):
            app.key_sequences.begin(action_or_key)
        elif action_or_key is not None:
            await app.perform(action_or_key)
