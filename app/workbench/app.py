"""The Textual application: creates the panes, the session and the commands, and connects them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from textual import events, work
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.driver import Driver
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import WorkerFailed

from buddy.app import actions
from buddy.app.actions.key_map import Keymap
from buddy.app.commands.backend import BackendCommands, ExportCommands, FrontendCommands
from buddy.app.commands.graphs import GraphCommands, SubgraphCommands
from buddy.app.commands.performance import ProfileCommands, TuneCommands
from buddy.app.commands.recipe_edits import RecipeEditCommands, TextEditCommands
from buddy.app.commands.reduce import BisectCommands, ReduceCommands
from buddy.app.commands.run import CompareCommands, RunCommands
from buddy.app.commands.screens import ProvenanceCommands, ScreenCommands
from buddy.app.commands.sessions import EngineCommands, ProgramCommands, SessionCommands
from buddy.app.panes.context import Layout, Selection, WorkbenchContext
from buddy.app.panes.graph import GraphPane
from buddy.app.panes.ir import IrPane
from buddy.app.panes.jobs import Jobs, StageQueries, Status
from buddy.app.panes.outputs import OutputsPane
from buddy.app.panes.pane import Pane
from buddy.app.panes.passes import PassesPane
from buddy.app.panes.plugin import PluginPane
from buddy.app.panes.source import SourcePane
from buddy.app.reports import formatting
from buddy.app.screens.modal import ConfirmScreen, Dialogs, FileWriter
from buddy.app.screens.results import Results
from buddy.app.session.client import EngineLocation
from buddy.app.session.engine_options import NO_LOG, LogOptions, RemoteHost
from buddy.app.session.progress import BusyPeriod
from buddy.app.session.requests import RecipeEditor
from buddy.app.session.session import Session
from buddy.app.session.state import State, Topic
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.textual_helpers import screen_bindings
from buddy.app.workbench import border_lines
from buddy.app.workbench.border_lines import BorderLines
from buddy.app.workbench.changed_cells import DirtyLinesCompositor, TerminalCells
from buddy.app.workbench.dispatch import ActionCommands, KeySequences, Method, Palette, methods_of_actions
from buddy.app.workbench.key_queue import KeyQueue
from buddy.app.workbench.terminal import (
    ResizeLimiter,
    clear_region_caches,
    clear_style_caches,
    clear_widget_cache,
    copy_to_tmux,
    exit_with_server,
    read_pastes_as_text,
    save_crash_log,
)
from buddy.app.workbench.tour import Tour
from buddy.app.workspace.session_file import FIRST_SCRIPT_NOTICE, Bookmarks, record_first_script
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.workspace import Workspace, default_store
from buddy.compiler.protocol.recipe import PluginFile
from buddy.themes.palette import DEFAULT, themes
from buddy.themes.textual_themes import textual_themes

# Changes of these topics are frequent while jobs run, so they are drawn together, at most every `DRAW_SECONDS`.
FREQUENT_TOPICS: frozenset[Topic] = frozenset({"stages", "passes", "status", "outputs"})
DRAW_SECONDS = 0.1
# How often the files of the program are checked for changes, unless they are watched.
FILE_CHECK_SECONDS = 3.0
# The exit code after an internal error (EX_SOFTWARE of sysexits.h).
INTERNAL_ERROR_EXIT_CODE = 70


class MainScreen(Screen[None]):
    """The main screen with the panes, and the bindings that work in every pane, but not in the screens over it."""

    BINDINGS: ClassVar[list[BindingType]] = screen_bindings()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._compositor = DirtyLinesCompositor()


class Workbench(App[int]):
    """Arranges the panes, dispatches keys to actions, and updates the panes after changes of the session."""

    CSS_PATH = "workbench.tcss"
    COMMANDS: ClassVar[set[Any]] = {ActionCommands}
    ESCAPE_TO_MINIMIZE = False

    def __init__(
        self,
        source: str,
        arguments: tuple[str, ...] = (),
        *,
        engine: EngineLocation | None = None,
        directory: str | None = None,
        ascii_mode: bool = False,
        settings: Settings | None = None,
        log: LogOptions = NO_LOG,
        store: Path | None = None,
        plugins: tuple[PluginFile, ...] = (),
        watch: bool = False,
        reopens_saved_graphs: bool = False,
        pane_files: tuple[str, ...] = (),
    ) -> None:
        """Makes the workbench of the program `source`.

        `engine`, `directory`, `log` and `reopens_saved_graphs` are those of `Session`. `store` is the folder of the
        session files, by default that of the user. `pane_files` are panes of plug-ins, as `FILE.py:CLASS`. With
        `watch`, the program is opened again when its files change. If `shows_tour` is set before the workbench runs, it
        starts with the tour.
        """
        super().__init__()
        self.animation_level = "none"
        self.settings = settings or Settings()
        # Set before the first paint, so that the style sheets are read once.
        for theme in textual_themes():
            self.register_theme(theme)
        self.theme = self.settings.theme if self.settings.theme in themes() else DEFAULT
        self.keymap = Keymap(self.settings.keys)
        self.glyphs = formatting.ASCII if ascii_mode else formatting.UNICODE
        self.log_path, self._log_options = log.path, log
        self._engine = engine
        self._store = store or default_store(engine.key if isinstance(engine, RemoteHost) else "")
        self._directory = os.getcwd() if directory is None else directory
        self._reopens_saved_graphs, self._pane_files = reopens_saved_graphs, pane_files
        self._make_program(source, arguments, plugins, watch)
        self.key_sequences = KeySequences(self)
        # Functions, because each opened program has a context of its own.
        self.tour = Tour(lambda: self.context.layout, lambda message: self.context.say(message))
        self.shows_tour = False
        self._resizes = ResizeLimiter(self, super().on_event)
        self._terminal_cells = TerminalCells()
        self._key_queue = KeyQueue(self, self.context.jobs, self._deliver, self.context.say)
        # The method of each action, by the id of the action.
        self._methods: dict[str, Method] = {}
        self._busy_period = BusyPeriod()
        CursorView.ascii_mode = ascii_mode

    def _make_program(
        self, source: str, arguments: tuple[str, ...], plugins: tuple[PluginFile, ...], watch: bool
    ) -> None:
        """Creates the session of a program, and the panes and commands that show it."""
        self.title = f"buddy-tui {source}"
        self.workspace = Workspace(source, arguments, self._store, plugins=plugins)
        self.session = Session(self.workspace, self.session_changed, self._engine, self._log_options, self._directory)
        self.session.auto_run, self.session.equal_nan = self.settings.auto_run, self.settings.equal_nan
        self.session.timeout = self.settings.timeout
        self.session.watching, self.session.reopens_saved_graphs = watch, self._reopens_saved_graphs
        self.context = context = self._make_context()
        self.graph, self.passes, self.ir = GraphPane(context), PassesPane(context), IrPane(context)
        self.source, self.outputs = SourcePane(context, self.graph), OutputsPane(context)
        self.plugin = PluginPane(context, self.ir, self._pane_files)
        panes: tuple[Pane, ...] = (self.graph, self.passes, self.ir, self.source, self.plugin, self.outputs)
        self.panes = {pane.pane_id: pane for pane in panes}
        context.layout.panes = self.panes
        context.selection.views = (self.graph, self.ir, self.source, self.plugin)
        self._make_commands(context)
        self.border_lines = BorderLines(self)
        self._undrawn_topics: frozenset[Topic] = frozenset()
        self._last_draw_time = 0.0

    def _make_context(self) -> WorkbenchContext:
        """Creates the objects that panes and commands share."""
        session, glyphs = self.session, self.glyphs
        status = Status(self, self.update_border_lines)
        session.say = lambda message: status.say(message)
        layout, queries = Layout(self, status), StageQueries(session, session.say)
        jobs = Jobs(self, status, queries, self._update_busy)
        dialogs = Dialogs(self, session.say, glyphs)
        selection = Selection(jobs, dialogs, layout)
        return WorkbenchContext(
            session=session,
            queries=queries,
            edits=RecipeEditor(session),
            status=status,
            dialogs=dialogs,
            files=FileWriter(dialogs, session.say),
            results=Results(self, session.say, lambda node: selection.go_to_one_of((node,)), lambda: dialogs.is_open),
            jobs=jobs,
            layout=layout,
            selection=selection,
            bookmarks=Bookmarks(),
            glyphs=glyphs,
        )

    def _make_commands(self, context: WorkbenchContext) -> None:
        """Creates the command controllers. A controller gets the panes and controllers that it uses as arguments."""
        graph, ir = self.graph, self.ir
        self.recipe_edit_commands = RecipeEditCommands(context)
        self.text_edit_commands = TextEditCommands(context, ir)
        self.backend_commands = BackendCommands(context)
        self.compare_commands = CompareCommands(context, ir)
        self.provenance_commands = ProvenanceCommands(context, graph, ir, self.source)
        self.graph_commands = GraphCommands(context, graph, ir, self.provenance_commands)
        self.profile_commands = ProfileCommands(context, graph, ir)
        self.frontend_commands = FrontendCommands(context, ir, self.provenance_commands)
        self.reduce_commands = ReduceCommands(context, ir)
        self.engine_commands = EngineCommands(context, self.reduce_commands.stop)
        self.subgraph_commands = SubgraphCommands(context, graph, self.graph_commands)
        self.bisect_commands = BisectCommands(context, self.graph_commands, self.reduce_commands)
        self.tune_commands = TuneCommands(context, self.graph_commands)
        self.run_commands = RunCommands(context, self.graph_commands, self.compare_commands)
        self.session_commands = SessionCommands(context, ir, self.run_commands)
        self.export_commands = ExportCommands(context, self.session_commands)
        self.program_commands = ProgramCommands(context, self.open_program, lambda: self.busy)
        self.screen_commands = ScreenCommands(context, self, graph, ir, self.log_path, self.situation)

    def targets(self) -> list[tuple[str, object]]:
        """Returns the objects other than panes that perform actions, each with its name in `Action.target`.

        A name may have several objects.
        """
        return [
            ("app", self),
            ("engine", self.engine_commands),
            ("layout", self.context.layout),
            ("recipe", self.context.edits),
            ("recipe_edits", self.recipe_edit_commands),
            ("edit_text", self.text_edit_commands),
            ("screens", self.screen_commands),
            ("graphs", self.graph_commands),
            ("subgraphs", self.subgraph_commands),
            ("bisect", self.bisect_commands),
            ("reduce", self.reduce_commands),
            ("provenance", self.provenance_commands),
            ("frontend", self.frontend_commands),
            ("backend", self.backend_commands),
            ("compare", self.compare_commands),
            ("run", self.run_commands),
            ("profile", self.profile_commands),
            ("tune", self.tune_commands),
            ("export", self.export_commands),
            ("sessions", self.session_commands),
            ("programs", self.program_commands),
            ("tour", self.tour),
            *self.ir.targets,
        ]

    async def run_to_exit(self, mouse: bool) -> int | None:
        """Runs on the terminal until the user quits. Returns the exit code, if there is one."""
        return await self.run_async(mouse=mouse)

    # ---- composition -------------------------------------------------------------------------------------------------

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        read_pastes_as_text(driver)
        return exit_with_server(driver)

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(id="_default")

    def compose(self) -> ComposeResult:
        self.border_lines.make()
        yield from self.border_lines.above
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield self.graph
                yield self.passes
            with Vertical(id="right"):
                yield self.ir
                yield self.source
                yield self.plugin
                yield self.outputs
        yield self.tour.make_lines()
        yield self.border_lines.prompt
        yield from self.border_lines.below
        yield self.key_sequences.make_which_key()

    def on_mount(self) -> None:
        self.screen.set_class(self.glyphs is formatting.ASCII, "-ascii")
        self._ticker = self.set_interval(1.0, self._update_time, pause=True)
        self.set_interval(FILE_CHECK_SECONDS, self._check_files)
        self._start_program()
        self._run_session()
        if self.shows_tour:
            self.tour.start()

    def _start_program(self) -> None:
        """Restores the last session of the program, and shows it in the panes, which are mounted."""
        self._methods = methods_of_actions(
            actions.ACTIONS, self.targets(), self.panes, lambda: self.context.layout.pane_id
        )
        self.program_commands.add_to_recent()
        if self.state.opens_dump:
            self.context.layout.pane_id = "ir"  # a dump consists of stages
        self.session_commands.restore()
        self.context.layout.arrange()
        self.pane.focus()

    def open_program(self, source: str, arguments: tuple[str, ...]) -> None:
        """Replaces the program by another one. The edits of both are saved; running jobs are cancelled."""
        self.call_later(self._open_program, source, arguments)

    async def _open_program(self, source: str, arguments: tuple[str, ...]) -> None:
        """Saves the session, and replaces session, panes and commands by those of another program."""
        previous_session, plugins = self.session, self.workspace.plugins
        self.session_commands.save()
        self.workers.cancel_all()
        self._make_program(source, arguments, plugins, previous_session.watching)
        self._key_queue.use(self.context.jobs, self.context.say)
        if record_first_script(source, self._store):
            self.session_commands.startup_messages = (FIRST_SCRIPT_NOTICE,)
        await self.recompose()
        self._start_program()
        self.update_border_lines()
        self._run_session(previous_session)

    async def _check_files(self) -> None:
        await self.program_commands.check_files()

    async def on_app_focus(self) -> None:
        await self._check_files()

    @work(group="session")
    async def _run_session(self, previous_session: Session | None = None) -> None:
        """Runs the session, after the engine of the previous one has exited."""
        session = self.session
        try:
            if previous_session is not None:
                await previous_session.close()
            await session.keep_running()
        except Exception as error:
            # Without a session nothing compiles, so this error must end the workbench.
            self._handle_exception(error)

    async def on_unmount(self) -> None:
        self.session_commands.save()
        await self.session.close()

    def on_resize(self, event: events.Resize) -> None:
        """Arranges the panes for another size of the terminal."""
        clear_region_caches()
        self.context.layout.arrange(event.size.width, event.size.height)

    def pop_screen(self) -> AwaitComplete:
        """Closes a screen, and releases its widgets."""
        clear_widget_cache()
        return super().pop_screen()

    @property
    def pane(self) -> Pane:
        """The pane that has focus."""
        return self.panes[self.context.layout.pane_id]

    # ---- state and status lines --------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def busy(self) -> bool:
        """Whether anything runs that the user can cancel."""
        is_job_running = self.context.jobs.is_busy or self.ir.comparison.running or self.ir.stage_search.running
        return self.state.busy or is_job_running

    def situation(self) -> actions.Situation:
        """Returns the state that decides which actions are enabled."""
        state, workspace = self.state, self.workspace
        node, row = self.graph.current, self.passes.current
        return actions.Situation(
            engine=state.engine,
            busy=self.busy,
            captured=state.captured,
            has_recipe=workspace.is_loaded,
            n_graphs=len(state.graphs),
            can_undo=workspace.can_undo,
            can_redo=workspace.can_redo,
            has_edits_of_others=workspace.has_edits_of_others,
            node=node,
            assignment=self.graph.assignment_of(node) if node else None,
            step=row.step if row else None,
            is_folded=bool(row and row.folded),
            stage=self.ir.chosen_stage,
            has_catalogue=bool(state.passes),
            has_presets=bool(state.presets),
            has_search=self.pane.search.is_active,
            shows_diff=self.ir.document.diff is not None,
            has_problem=state.problem is not None,
            is_edited=workspace.recipe != workspace.preset,
            has_runs=bool(state.runs),
            has_profile=state.profile is not None,
            has_report=state.report is not None,
            n_picked=len(self.graph.selected_rows),
            is_tree=self.graph.as_tree,
            is_extract=self.subgraph_commands.is_extract,
            is_compiling=state.compiled_recipe != workspace.recipe,
            is_wrapped=self.ir.wrapped,
            backend=workspace.recipe.backend,
            is_dump=workspace.recipe.is_dump,
        )

    def on_prompt_toggled(self) -> None:
        self.border_lines.update_keys()

    # ---- updates -----------------------------------------------------------------------------------------------------

    def session_changed(self, topics: frozenset[Topic]) -> None:
        """Schedules a redraw: soon, or `DRAW_SECONDS` after the last one if only `FREQUENT_TOPICS` have changed.

        Changes before that redraw share it.
        """
        # Undrawn topics have a scheduled redraw, which is soon if one of them is not frequent.
        earlier_topics = self._undrawn_topics
        self._undrawn_topics = earlier_topics | topics
        wait = self._last_draw_time + DRAW_SECONDS - time.monotonic()
        if not topics <= FREQUENT_TOPICS:
            if earlier_topics <= FREQUENT_TOPICS:
                self.call_later(self._draw_changes)
        elif not earlier_topics and wait > 0:
            self.set_timer(wait, self._draw_changes)
        elif not earlier_topics:
            self.call_later(self._draw_changes)

    def _draw_changes(self) -> None:
        """Updates the panes and the lines around them after changes of the topics that are not drawn yet."""
        topics = self._undrawn_topics
        self._undrawn_topics = frozenset()
        if not self.is_running or not topics:
            return
        self._last_draw_time = time.monotonic()
        if "graph" in topics and self.state.info is not None:
            self.context.selection.set_graph(self.state.info)
        if "lines" in topics:
            self.ir.draw_fetched_lines()
        self.screen_stack[0].set_class(len(self.state.graphs) > 1, "-several")
        for pane in self.panes.values():
            pane.update_from(topics)
        self._draw_empty_panes()
        if self.passes.has_focus:
            self._show_pass_stage()
        self._update_busy()
        self.update_border_lines()

    def _update_busy(self) -> None:
        """Starts or stops the ticker, which updates times while jobs run. Rings the bell when a long job ends."""
        busy = self.busy
        if busy:
            self._ticker.resume()
        else:
            self._ticker.pause()
            self.engine_commands.report_cancelled()
        if self._busy_period.update(busy, self.settings.bell_after):
            self.bell()

    def update_border_lines(self) -> None:
        """Redraws the lines around the panes if they have changed, and schedules a save of the session."""
        self.session_commands.schedule_save()
        self.border_lines.update()

    def _draw_empty_panes(self) -> None:
        """Draws the progress again in panes that wait for their content."""
        for pane in (self.graph, self.ir):
            if not pane.row_count:
                pane.redraw_changed_lines()

    def _update_time(self) -> None:
        """Draws the times of running jobs again. Called every second while a job runs."""
        self._update_busy()
        self._draw_empty_panes()
        self.update_border_lines()

    # ---- keys --------------------------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        """Queues keys, pasted text and changes of size; passes other events to Textual. A click ends a key sequence."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            await self._key_queue.take(event)
        elif isinstance(event, events.Resize):
            self._terminal_cells.forget()
            await self._resizes.take(event)
        else:
            if isinstance(event, events.MouseDown) and not self._is_on_which_key(event):
                self.key_sequences.end()
            await super().on_event(event)

    def _is_on_which_key(self, event: events.MouseDown) -> bool:
        """Whether a click is on the list of the second keys of a sequence."""
        which_key = self.key_sequences.which_key
        return which_key.display and which_key.region.contains(event.screen_x, event.screen_y)

    async def _deliver(self, event: events.Event) -> None:
        """Handles a key by `_handle_key`, or passes a key or pasted text to the widget that has focus."""
        if isinstance(event, events.Paste):
            if isinstance(self.focused, CursorView | None):
                self.context.say("Pasted text was ignored, because no input has focus")
                return
            if isinstance(self.focused, Input):
                # Textual's input drops all lines after the first.
                event.text = " ".join(event.text.splitlines())
        elif isinstance(event, events.Key) and await self._handle_key(event):
            return
        await super().on_event(event)

    async def _handle_key(self, event: events.Key) -> bool:
        """Handles a key as a part of a sequence, or calls its binding. Returns whether it was handled."""
        return await self.key_sequences.handle(event) or await self._call_binding(event.key)

    async def _call_binding(self, key: str) -> bool:
        """If a list has focus, calls the binding of a key. Returns whether it did.

        A list handles no keys itself. Textual would call the binding after the key has passed through the queues of all
        parents, which takes milliseconds.
        """
        if not isinstance(self.focused, CursorView):
            return False
        return await self._check_bindings(key, priority=True) or await self._check_bindings(key)

    def action_begin_sequence(self, key: str) -> None:
        """Handles the binding of the first key of a sequence."""
        self.key_sequences.begin(key)

    async def action_act(self, action_id: str, *arguments: object) -> None:
        """Performs the action of a key binding."""
        await self.perform(actions.BY_ID[action_id], *arguments)

    async def perform(self, action: actions.Action, *arguments: object) -> None:
        """Performs an action, or shows the reason why it is disabled."""
        self.context.status.message = ""
        situation = self.situation()
        reason = action.blocked(situation)
        replacement = actions.BY_ID.get(action.instead.get(self.pane.pane_id, ""))
        if reason and replacement is not None and not replacement.blocked(situation):
            action, reason = replacement, ""
        if reason:
            self.context.say(f"{action.title}: {reason}")
            return
        if action.id == "search.end" and not self.pane.search.is_active:  # escape without a search
            self.tour.skip()
        pane_id = self.context.layout.pane_id
        self._methods[action.id](*arguments)
        if situation.captured:
            self.tour.advance_after(action.id, pane_id)
        self.update_border_lines()

    def on_click(self, event: events.Click) -> None:
        """Lets a click in the graph pane end the step of the tour that asks to move there."""
        if event.widget is self.graph and self.state.captured:
            self.tour.advance_after("move.down", "graph")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Notes which pane has focus. When a key goes to the passes pane, its cursor goes to the first change."""
        if isinstance(event.widget, Pane):
            # A key first changes the layout and then the focus, a click first the focus.
            by_key = self.context.layout.pane_id == event.widget.pane_id
            self.context.layout.note_focus(event.widget.pane_id)
            stages = self.ir.stages
            # After a click, the cursor goes to the row that was clicked.
            if event.widget is self.passes and by_key and (stages.is_default or stages.expected_key is None):
                self.passes.move_to_first_change()
            else:
                self.passes.stop_waiting_for_change()
        self.update_border_lines()

    def show_pane(self, pane: actions.Pane) -> None:
        """Focuses a pane. If the layout shows one pane at a time, shows this one."""
        self.context.layout.show_pane(pane)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Writes the cells of an update that differ from what the terminal shows."""
        super()._display(screen, self._terminal_cells.as_changes(renderable))

    def redraw_screen(self) -> None:
        """Writes every cell again, after another program has written to the terminal."""
        self._terminal_cells.forget()
        self.refresh()

    def copy_to_clipboard(self, text: str) -> None:
        """Copies a text to the clipboard of the terminal, and inside tmux to a buffer of tmux."""
        super().copy_to_clipboard(text)
        copy_to_tmux(text)

    # ---- panes -------------------------------------------------------------------------------------------------------

    def toggle_source(self) -> None:
        """Shows or hides the source pane, which follows the selection."""
        layout, selection = self.context.layout, self.context.selection
        layout.toggle_source()
        if layout.shows_source and not selection.node:
            selection.select_row(self.graph.current)
        self.source.redraw_links()
        self.source.go_to_selected_node()

    def on_cursor_view_moved(self, event: CursorView.Moved) -> None:
        """Shows the stage of the pass under the cursor, and redraws the key line."""
        if isinstance(event.view, PassesPane):
            event.view.note_move()
            self._show_pass_stage()
        self.update_border_lines()

    def _show_pass_stage(self) -> None:
        """Shows the stage of the selected pass in the IR pane, if the pass has run."""
        row = self.passes.current
        if row is not None and row.stage is not None and row.stage.key != self.ir.chosen_key:
            self.ir.choose(row.stage, notify=False)

    def on_cursor_view_double_clicked(self, event: CursorView.DoubleClicked) -> None:
        if isinstance(event.view, GraphPane):
            event.view.toggle_eager()
        elif isinstance(event.view, PassesPane):
            event.view.toggle_pass()

    def on_ir_pane_stage_shown(self, event: IrPane.StageShown) -> None:
        """Marks the pass of the shown stage in the passes pane."""
        if not self.ir.stages.is_default:
            self.passes.stop_waiting_for_change()
        self.passes.show_stage(event.row)
        self.plugin.stage_shown()

    def pane_commands(self) -> list[tuple[str, str, Callable[[], None]]]:
        """Returns the title, the help and the function of the palette entry of each pane of a plug-in."""
        return [
            (
                f"Pane of a plug-in: {source.name}",
                f"Show the pane of {source.origin}",
                partial(self.plugin.show, source),
            )
            for source in self.plugin.sources()
        ]

    def command_palette(self) -> None:
        self.action_command_palette()

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def watch_theme(self, theme: str) -> None:
        """Draws the views again, whose colours Textual does not know, after a change of the theme."""
        clear_style_caches()
        for screen in self.screen_stack:
            for view in screen.query("CursorView, CellLine"):
                view.refresh()

    def leave(self) -> None:
        """Exits. If a job runs or the recipe is not saved, asks first."""
        question = border_lines.quit_question(self.state, self.workspace, self.busy, self.glyphs)
        if question:
            self.context.dialogs.confirm(question, lambda: self.exit(0), if_declined="")
        else:
            self.exit(0)

    async def action_quit(self) -> None:
        """Exits by ctrl+q, which works in every screen: asks like `leave`, unless a question is open already."""
        if isinstance(self.screen, ConfirmScreen):
            self.exit(0)
        else:
            self.leave()

    # ---- internal errors ---------------------------------------------------------------------------------------------

    @property
    def raises_errors(self) -> bool:
        """Whether internal errors are raised, as in a test, instead of being written to a file."""
        return self.is_headless

    def _handle_exception(self, error: Exception) -> None:
        """Appends the traceback to a file, and shows its path. In a test, lets Textual handle the error.

        An error in a Textual worker ends only this worker; any other error ends the workbench.
        """
        if self.raises_errors:
            super()._handle_exception(error)
            return
        path = self.log_path or self.workspace.path.parent.parent / "crash.log"
        if isinstance(error, WorkerFailed):
            diagnostic = save_crash_log(error.error, path, "internal error in the workbench")
            self.state.add_to_log(diagnostic)
            self.context.say(str(diagnostic))
            return
        diagnostic = save_crash_log(error, path)
        self.exit(INTERNAL_ERROR_EXIT_CODE, return_code=INTERNAL_ERROR_EXIT_CODE, message=str(diagnostic))
