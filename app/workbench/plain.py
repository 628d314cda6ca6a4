"""The workbench as lines of text, for screen readers, logs and pipes: reads commands, and prints changes.

The application, its panes, its commands and its session are those of the screen, which is not drawn. A command performs
an action of the registry; a question that the action asks is answered by the next line, or by the rest of the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from buddy.app.actions import BY_ID, PANE_TITLES, PANES, Action, actions_of_pane
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir import IrPane
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.editor import EditorScreen
from buddy.app.screens.modal import AnsweringScreen, ConfirmScreen
from buddy.app.screens.pass_options import OptionScreen
from buddy.app.screens.picker import ChoiceList, PickerScreen
from buddy.app.screens.plot import PlotScreen
from buddy.app.screens.programs import ProgramScreen
from buddy.app.session.state import Topic
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.prompt import Prompt
from buddy.app.workbench.app import Workbench
from buddy.app.workbench.plain_io import (
    COMMANDS_HELP,
    MAX_ROWS,
    Candidates,
    ChangePrinter,
    Printer,
    ambiguity_text,
    answer_hint,
    cells_line,
    find_action,
    find_node,
    prompt_hint,
    read_lines,
    row_line,
    screen_lines,
    similar_actions,
    view_lines,
)
from buddy.compiler.protocol import NodeRow

if TYPE_CHECKING:
    from buddy.app.actions.action import Pane


# The file descriptor of standard input.
_STDIN = 0
# The columns and rows of the screen that is not drawn. They decide how many columns tables have.
SCREEN_SIZE = (200, 60)
# The next command is performed when no job has run for this long: longer than `session.COALESCE_SECONDS`, after which
# an edit starts a compilation.
QUIET_SECONDS = 0.25
# How often it is checked whether a job has ended or a line has arrived.
_POLL_SECONDS = 0.02
# How long to wait for lines of a stage from the engine.
LINE_SECONDS = 10.0
# Actions that change only the screen, so that they do nothing here.
SCREEN_ACTIONS = frozenset({"palette", "zoom", "redraw", "theme", "next-pane", "previous-pane"})
# The argument of `show`: a row number, or the first and the last one.
_RANGE = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


class PlainWorkbench(Workbench):
    """The workbench without a screen: performs the commands on standard input, and prints the results."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._printer = Printer(sys.stdout)
        self._changes = ChangePrinter(self._printer)
        # The lines that were read and not performed yet; `None` is the end.
        self._typed_lines: asyncio.Queue[str | None] = asyncio.Queue()
        # Textual's driver for tests, which presses keys and waits for messages. Set when the application runs.
        self._pilot: Pilot[Any] | None = None
        # The open screen or question, and the row of the pane that has focus, that were printed last.
        self._printed_screen: object = None
        self._printed_row = ""
        super().__init__(*arguments, **{**options, "ascii_mode": True})

    async def run_to_exit(self, mouse: bool) -> int | None:
        """Performs the commands that are read from standard input, up to its end or to `quit`."""
        loop = asyncio.get_running_loop()
        reader = threading.Thread(target=read_lines, args=(_STDIN, loop, self._typed_lines.put_nowait), daemon=True)
        self._handle_interrupts()
        self._printer.say(f"{self.title}: type a command, or help")
        return await self.run_async(
            headless=True, mouse=False, size=SCREEN_SIZE, auto_pilot=lambda pilot: self._perform_lines(pilot, reader)
        )

    # ---- overridden methods of the workbench -----------------------------------------------------------------------

    @property
    def raises_errors(self) -> bool:
        return False

    def _make_program(self, *arguments: Any) -> None:
        self._changes = ChangePrinter(self._printer)
        super()._make_program(*arguments)

    def _make_context(self) -> WorkbenchContext:
        context = super()._make_context()
        context.status.on_message, context.status.on_progress = self._printer.say, self._printer.say_progress
        return context

    def session_changed(self, topics: frozenset[Topic]) -> None:
        super().session_changed(topics)
        self._changes.print_changes(self.state)

    def copy_to_clipboard(self, text: str) -> None:
        """Prints the text: there is no terminal to copy it to."""
        self._printer.say(text)

    def exit(self, result: int | None = None, return_code: int = 0, message: object = None) -> None:
        if message is not None:
            self._printer.say(str(message))
        super().exit(result, return_code)
        self._typed_lines.put_nowait(None)

    # ---- lines -------------------------------------------------------------------------------------------------------

    async def _perform_lines(self, pilot: Pilot[Any], reader: threading.Thread) -> None:
        """Starts the thread that reads lines, and performs each line when the workbench is idle, up to the end."""
        self._pilot = pilot
        # The handler runs in the context in which it is added. Here that is the application's, which timers need.
        self._handle_interrupts()
        reader.start()
        while (line := await self._typed_lines.get()) is not None and not self._exit:
            await self._wait_until_idle()
            await self._perform_line(line)
            await self._wait_until_idle()
            await self._print_position()
        if not self._exit:
            if not os.isatty(_STDIN):
                await self._wait_until_idle()
            self.exit(0)

    def _handle_interrupts(self) -> None:
        """Calls `_interrupt` on ctrl+c from now on."""
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        """Handles ctrl+c: closes the open question, or without one, cancels the running jobs."""
        if self._is_question_open:
            self._printer.say("Nothing was chosen")
            self.call_later(self._leave_question)
        elif self.busy or self.state.engine == "starting" or self.context.jobs.is_opening:
            self.context.jobs.cancel_opening()
            self.engine_commands.cancel_jobs()
        else:
            self._printer.say("Nothing is running. Type quit, or press ctrl+d, to leave")

    async def _wait_until_idle(self) -> None:
        """Waits until no job runs, and the panes show its result."""
        assert self._pilot is not None
        quiet_since: float | None = None
        while not self._exit:
            await self._pilot.pause()
            is_starting = self.state.engine == "starting" or not (self.workspace.is_loaded or self.state.problem)
            if self.busy or self._is_screen_loading() or (is_starting and self.state.engine != "lost"):
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= QUIET_SECONDS:
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _is_screen_loading(self) -> bool:
        """Whether a job is about to open a screen, or the open screen waits for its content. Prints its progress."""
        workers = [worker for worker in self.workers if worker.node is self.screen and not worker.is_finished]
        if workers and len(self.screen_stack) > 1:
            for box in self.screen.query("#box"):
                self._printer.say_progress(str(box.border_title or ""))
        return self.context.jobs.is_opening or (bool(workers) and len(self.screen_stack) > 1)

    async def _perform_line(self, line: str) -> None:
        """Performs a command, or uses the line as the answer to the open question."""
        if self._is_question_open:
            if await self._answer(line.strip()):
                return
            await self._leave_question()
        words = line.split()
        if not words:
            self._printed_row = ""
            return
        command = _BUILT_IN.get(words[0].lower())
        if command is not None:
            await command(self, words[1:])
        elif words[0].lower() in PANES and words[0] != "source" and len(words) == 1:  # `source` is an action
            await self._print_pane(words[0].lower())
        else:
            await self._perform_words(words)

    async def _perform_words(self, words: Sequence[str]) -> None:
        """Performs the action that the longest possible start of `words` names. The other words answer its question."""
        for count in range(len(words), 0, -1):
            action = find_action(" ".join(words[:count]), self.pane.pane_id)
            if action is not None:
                await self._perform_action(action, words[count:])
                return
        similar = similar_actions(" ".join(words))
        suggestions = ", ".join(f"{action.id} ({action.title.lower()})" for action in similar)
        todo = f"did you mean {suggestions}?" if suggestions else "`actions` lists them"
        self._printer.say(f"unknown command {words[0]!r}: {todo}")

    async def _perform_action(self, action: Action, answer: Sequence[str] = ()) -> None:
        """Performs an action in its pane, and gives `answer` to its question."""
        if action.id in SCREEN_ACTIONS:
            self._printer.say(f"{action.title} changes only the screen, which is not drawn")
            return
        if action.pane in PANES and action.pane != self.pane.pane_id and not action.anywhere:
            self._go_to_pane(action.pane)
        arguments: list[object] = []
        if action.id == "phase.number":  # the only action with an argument
            if not answer or not answer[0].isdigit():
                self._printer.say("give the number of the phase: phase.number 3")
                return
            arguments, answer = [int(answer[0])], answer[1:]
        await self.perform(action, *arguments)
        if not answer:
            return
        await self._wait_until_idle()
        if self._is_question_open:
            await self._answer(" ".join(answer))
        else:
            self._printer.say(f"{action.title} asked for nothing: {' '.join(answer)!r} is ignored")

    def _go_to_pane(self, pane: Pane) -> None:
        """Focuses a pane. Shows the source pane if it is hidden."""
        if pane == "source" and not self.context.layout.shows_source:
            self.context.layout.toggle_source()
        self.show_pane(pane)

    # ---- questions ---------------------------------------------------------------------------------------------------

    @property
    def _prompt(self) -> Prompt | None:
        """The prompt that is open on the top screen."""
        return next((prompt for prompt in self.screen.query(Prompt) if prompt.display), None)

    @property
    def _is_question_open(self) -> bool:
        """Whether a screen over the panes or a prompt is open."""
        return len(self.screen_stack) > 1 or self._prompt is not None

    async def _leave_question(self) -> None:
        """Closes the prompt and all screens over the panes without an answer."""
        while self._is_question_open and not self._exit:
            prompt, screen = self._prompt, self.screen
            if prompt is not None:
                prompt.action_cancel()
            elif isinstance(screen, AnsweringScreen):
                screen.close_unanswered()
            else:
                self.pop_screen()
            await self._pause()

    async def _answer(self, text: str) -> bool:
        """Answers the open question. Returns false if `text` is not an answer, but the next command."""
        prompt, screen = self._prompt, self.screen
        self._printed_screen = None
        if text in ("cancel", "close"):
            await self._leave_question()
        elif prompt is not None:
            await self._submit(prompt.query_one(Input), text)
        elif isinstance(screen, ConfirmScreen):
            if text.lower() in ("y", "yes", "n", "no"):
                screen.dismiss(text.lower().startswith("y"))
        elif isinstance(screen, PickerScreen):
            await self._choose(screen, text)
        elif isinstance(screen, ProgramScreen):
            choices = screen.query_one(ChoiceList).matches
            is_number = text.isdigit() and 0 < int(text) <= len(choices)
            await self._submit(screen.query_one(Input), choices[int(text) - 1].title if is_number else text)
        elif isinstance(screen, OptionScreen):
            await self._set_option(screen, text)
        else:
            return await self._use_list(screen, text)
        return True

    async def _submit(self, field: Input, text: str) -> None:
        """Types a text in a field and accepts it. An empty text accepts the content of the field."""
        if text:
            field.value = text
            await self._pause()
        await field.action_submit()

    async def _choose(self, screen: PickerScreen, text: str) -> None:
        """Chooses an entry by its number or its title. Any other text narrows the list, and chooses the only match."""
        choices = screen.query_one(ChoiceList)
        titles = [choice.title.lower() for choice in choices.matches]
        if text.lower() in titles:
            row: int | None = titles.index(text.lower())
        elif text.isdigit() and 0 < int(text) <= len(titles):
            row = int(text) - 1
        elif not text:
            row = choices.cursor
        else:
            row = await self._narrow_choices(screen, choices, text)
        if row is not None:
            choices.move_to(row)
            await self._pause()
            screen.on_input_submitted()

    async def _narrow_choices(self, screen: PickerScreen, choices: ChoiceList, text: str) -> int | None:
        """Narrows a list to the entries that match `text`. Returns the row of the only one, or of one called `text`.

        Returns `None` if several match. If none does, prints a message, and shows all entries again.
        """
        field = screen.query_one(Input)
        field.value = text
        await self._pause()
        titles = [choice.title.lower() for choice in choices.matches]
        if not titles:
            self._printer.say(f"nothing matches {text!r}")
            field.value = ""
            await self._pause()
        if len(titles) == 1:
            return 0
        return titles.index(text.lower()) if text.lower() in titles else None

    async def _set_option(self, screen: OptionScreen, text: str) -> None:
        """Sets an option of a pass, as `name=value`. An empty text accepts all options."""
        name, equals, value = text.partition("=")
        indices = [index for index, option in enumerate(screen.options) if option.name == name.strip()]
        if not text:
            screen.action_accept()
        elif equals and indices:
            screen.query_one(f"#option-{indices[0]}", Input).value = value.strip()
            await self._pause()
            self._printer.say(f"{name.strip()} = {value.strip()}: an empty line accepts, cancel leaves")
            self._printed_screen = screen
        else:
            self._printer.say(f"no option {name.strip()}: give name=value, an empty line, or cancel")
            self._printed_screen = screen

    async def _use_list(self, screen: Screen[Any], text: str) -> bool:
        """Chooses a row of an open list by its number, or presses one of its keys. Returns false for other lines."""
        assert self._pilot is not None
        words = text.split()
        if not words:
            return False
        if words[0] == "show":
            await self._show(words[1:])
            self._printed_screen = screen
            return True
        view = next(iter(screen.query(CursorView)), None)
        if text.isdigit() and view is not None and 0 < int(text) <= view.row_count:
            view.move_to(int(text) - 1)
            await self._pilot.press("enter")
            return True
        if text in screen.active_bindings and (len(text) == 1 or text in ("enter", "space", "tab")):
            await self._pilot.press(text)
            return True
        return False

    # ---- commands that only this workbench has -----------------------------------------------------------------------

    async def _help(self, words: Sequence[str]) -> None:
        """Prints the list of commands, or what the action that `words` name does, or else what similar ones do."""
        if not words:
            self._printer.say(COMMANDS_HELP)
            return
        text = " ".join(words)
        named_action = find_action(text, self.pane.pane_id)
        for action in [named_action] if named_action is not None else similar_actions(text):
            keys = f", key {' or '.join(action.keys)}" if action.keys else ""
            reason = action.blocked(self.situation())
            disabled = f" (disabled: {reason})" if reason else ""
            self._printer.say(f"{action.id}{keys}: {action.tooltip}{disabled}")

    async def _actions(self, _words: Sequence[str]) -> None:
        """Prints the actions of the pane that has focus, and those that work everywhere."""
        for action in (*actions_of_pane(self.pane.pane_id), *actions_of_pane("any"), *actions_of_pane("app")):
            keys = f", key {' or '.join(action.keys[:3])}" if action.keys else ""
            self._printer.say(f"{action.id}{keys}: {action.tooltip}")

    async def _where(self, _words: Sequence[str]) -> None:
        """Prints the header and the pane that has focus. `_print_position` then prints its row again."""
        self._printer.say(cells_line(self.border_lines.header_cells(SCREEN_SIZE[0])))
        view = self.pane
        self._printer.say(f"{PANE_TITLES[view.pane_id]}, {view.row_count} rows")
        self._printed_row = ""

    async def _show(self, words: Sequence[str]) -> None:
        """Prints rows of the open list, or of the pane that has focus."""
        lists = self.screen.query(CursorView).results() if len(self.screen_stack) > 1 else iter((self.pane,))
        view = next(lists, None)
        match = _RANGE.fullmatch(" ".join(words)) if words else None
        if view is None or (words and match is None):
            self._printer.say("give the rows: show 1-40")
            return
        # Numbers from 1, of rows, or in the IR pane of lines.
        first = int(match[1]) if match else view.cursor + 1
        last = int(match[2] or match[1]) if match else first + MAX_ROWS - 1
        first_row = max(first - 1, 0)
        if match is not None and view is self.ir and self.ir.row_count:
            first_row = self.ir.row_of(min(first_row, self.ir.row_count - 1))
        await self._print_view(view, first_row, max(last - first + 1, 1))

    async def _node(self, words: Sequence[str]) -> None:
        """Selects the node with that name, or prints why there is no such node."""
        node = self._find_node(" ".join(words))
        if isinstance(node, Candidates):
            self._printer.say(ambiguity_text("node", words, node))
        else:
            self.context.selection.go_to_one_of((node.stable,))

    async def _stages(self, _words: Sequence[str]) -> None:
        """Prints the stages with their numbers."""
        for number, row in enumerate(self.ir.rows, 1):
            stage = row.stage
            facts = [stage.language, f"{stage.lines} lines", "" if stage.changed else "unchanged", row.outdated_reason]
            self._printer.say(f"{number} {stage.name}: {', '.join(filter(None, facts))}")
        if not self.ir.rows:
            self._printer.say("no IR yet: the recipe has not been compiled")

    async def _stage(self, words: Sequence[str]) -> None:
        """Shows the stage with that number or name, or the last one of that phase, and prints its lines."""
        name, rows = " ".join(words), self.ir.rows
        by_number = [row for number, row in enumerate(rows, 1) if str(number) == name]
        matching = by_number or [row for row in rows if row.stage.name == name]
        matching = matching or [row for row in rows if row.stage.phase == name][-1:]
        if len(matching) == 1:
            self.ir.choose(matching[0])
            await self._print_pane("ir")
            return
        candidates = matching or [row for row in rows if name.lower() in row.stage.name.lower()]
        names = tuple(f"{rows.index(row) + 1} {row.stage.name}" for row in candidates)
        self._printer.say(ambiguity_text("stage", words, Candidates(names)))

    async def _toggle(self, words: Sequence[str]) -> None:
        """Toggles the pass or the node with that name; without a name, the selected row of the pane."""
        if not words:
            pane = "passes" if self.pane.pane_id == "passes" else "graph"
            await self._perform_action(BY_ID[f"{pane}.toggle"])
            return
        name = " ".join(words)
        if any(name in row.folded for row in self.passes.rows):
            self.passes.toggle_disabled()
        rows = [
            index
            for index, row in enumerate(self.passes.rows)
            if row.step is not None and name in (row.name, str(index + 1))
        ]
        node = self._find_node(name)
        if len(rows) == 1:
            self._go_to_pane("passes")
            self.passes.move_to(rows[0])
            await self._perform_action(BY_ID["passes.toggle"])
        elif rows:
            names = tuple(f"{row + 1} {self.passes.rows[row].name}" for row in rows)
            self._printer.say(ambiguity_text("pass", words, Candidates(names)))
        elif isinstance(node, Candidates):
            self._printer.say(ambiguity_text("pass or node", words, node))
        else:
            self.context.selection.go_to_one_of((node.stable,))
            await self._pause()
            await self._perform_action(BY_ID["graph.toggle"])

    def _find_node(self, name: str) -> NodeRow | Candidates:
        """Returns the only node of the graph that `find_node` finds by `name`, or the candidates."""
        rows = self.state.info.rows if self.state.info is not None and name else ()
        return find_node(name, [(self.context.selection.name_of(row.stable), row) for row in rows])

    # ---- printing ----------------------------------------------------------------------------------------------------

    async def _print_position(self) -> None:
        """Prints the question that is open, or the row of the pane that has focus, if it has changed."""
        if self._exit:
            return
        screen, prompt = self.screen, self._prompt
        open_screen = screen if len(self.screen_stack) > 1 else None
        question = prompt if prompt is not None else open_screen
        if question is not None and question is not self._printed_screen:
            self._print_question(screen, prompt)
            if isinstance(screen, DetailScreen | EditorScreen | PlotScreen):  # which cannot be answered here
                await self._leave_question()
                question = None
        self._printed_screen = question
        view = self.pane
        if question is None and view.row_count:
            await self._load_rows(view, view.cursor, 1)
            text = f"{PANE_TITLES[view.pane_id]} {view.cursor + 1} of {view.row_count}: {row_line(view, view.cursor)}"
            if text != self._printed_row:
                self._printed_row = text
                self._printer.say(text)

    def _print_question(self, screen: Screen[Any], prompt: Prompt | None) -> None:
        """Prints the open prompt, or the texts of the open screen, and how to answer."""
        if prompt is not None:
            self._printer.say(f"{prompt.title}? {prompt_hint(prompt)}")
            return
        for line in screen_lines(screen):
            self._printer.say(line)
        if hint := answer_hint(screen):
            self._printer.say(hint)

    async def _print_pane(self, pane: Any) -> None:
        """Goes to a pane and prints its rows; of a long pane, those from the cursor on."""
        self._go_to_pane(pane)
        await self._wait_until_idle()
        view = self.pane
        first = 0 if view.row_count <= MAX_ROWS else view.cursor
        await self._print_view(view, first, MAX_ROWS)

    async def _print_view(self, view: CursorView, first: int, count: int) -> None:
        await self._load_rows(view, first, count)
        for line in view_lines(view, first, count):
            self._printer.say(line)

    async def _load_rows(self, view: CursorView, first: int, count: int) -> None:
        """In the IR pane, waits up to `LINE_SECONDS` until the lines of these rows are fetched."""
        if not isinstance(view, IrPane):
            return
        deadline = time.monotonic() + LINE_SECONDS
        rows = range(first, min(first + count, view.row_count))
        while any(view.line_at(row) is None for row in rows) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)

    async def _pause(self) -> None:
        """Waits until the messages of the widgets are handled."""
        assert self._pilot is not None
        await self._pilot.pause()


# The commands that are not actions, by their first word.
_BUILT_IN: dict[str, Callable[[PlainWorkbench, Sequence[str]], Any]] = {
    "help": PlainWorkbench._help,
    "actions": PlainWorkbench._actions,
    "where": PlainWorkbench._where,
    "show": PlainWorkbench._show,
    "node": PlainWorkbench._node,
    "stages": PlainWorkbench._stages,
    "stage": PlainWorkbench._stage,
    "toggle": PlainWorkbench._toggle,
}
