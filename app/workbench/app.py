"""The workbench: panes on a screen, a session with an engine, and the wires between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from textual import events, work
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.screen import Screen
from textual.worker import WorkerFailed

from buddy.app import actions
from buddy.app.actions.key_map import Keymap
from buddy.app.commands.backend import BackendCommands
from buddy.app.commands.compare import CompareCommands
from buddy.app.commands.edit_text import TextEditCommands
from buddy.app.commands.export import ExportCommands
from buddy.app.commands.frontend import FrontendCommands
from buddy.app.commands.graphs import GraphCommands, graph_at, graph_cells
from buddy.app.commands.overlays import OverlayCommands
from buddy.app.commands.profile import ProfileCommands
from buddy.app.commands.provenance import ProvenanceCommands
from buddy.app.commands.recipe_edits import RecipeEditCommands
from buddy.app.commands.run import RunCommands
from buddy.app.commands.sessions import SessionCommands
from buddy.app.commands.subgraphs import SubgraphCommands
from buddy.app.commands.tune import TuneCommands
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.graph import GraphPane
from buddy.app.panes.ir import IrPane
from buddy.app.panes.jobs import Jobs
from buddy.app.panes.layout import Layout
from buddy.app.panes.outputs import OutputsPane
from buddy.app.panes.pane import Pane
from buddy.app.panes.passes import PassesPane
from buddy.app.panes.selection import Selection
from buddy.app.panes.source import SourcePane
from buddy.app.panes.stage_queries import StageQueries
from buddy.app.panes.status import Status
from buddy.app.reports import formatting
from buddy.app.screens.dialogs import Dialogs
from buddy.app.screens.files import FileWriter
from buddy.app.session.client import Place
from buddy.app.session.log_file import NO_LOG, LogOptions
from buddy.app.session.progress import LongRequests
from buddy.app.session.recipe_editor import RecipeEditor
from buddy.app.session.session import Session
from buddy.app.session.ssh import RemoteHost
from buddy.app.session.state import State, Topic
from buddy.app.widgets.bindings import screen_bindings
from buddy.app.widgets.cell_line import CellLine
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.prompt import Prompt
from buddy.app.workbench import status_lines
from buddy.app.workbench.clipboard import offer_to_tmux
from buddy.app.workbench.crash import save_crash_log
from buddy.app.workbench.dispatch import Method, resolve
from buddy.app.workbench.key_sequences import KeySequences
from buddy.app.workbench.palette import ActionCommands
from buddy.app.workbench.pasting import read_pastes_as_text
from buddy.app.workbench.textual_caches import forget_places, forget_screens, forget_styles
from buddy.app.workspace.bookmarks import Bookmarks
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.workspace import Workspace, default_store
from buddy.compiler.protocol.recipe import PluginFile
from buddy.themes.palette import DEFAULT, themes
from buddy.themes.textual_themes import textual_themes

STAGES: frozenset[Topic] = frozenset({"stages", "passes"})
STAGES_SECONDS = 0.1


class BenchScreen(Screen[None]):
    """The screen that the panes are on. Keys that work in every pane are bound here: a screen over it has its own."""

    BINDINGS: ClassVar[list[BindingType]] = screen_bindings()


class Workbench(App[int]):
    """Composes the panes and passes on what happens: frames to panes, keys to actions, a selection to every pane."""

    CSS_PATH = "workbench.tcss"
    COMMANDS: ClassVar[set[Any]] = {ActionCommands}
    ESCAPE_TO_MINIMIZE = False

    def __init__(
        self,
        source: str,
        arguments: tuple[str, ...] = (),
        *,
        engine: Place | None = None,
        directory: str | None = None,
        ascii_mode: bool = False,
        settings: Settings | None = None,
        log: LogOptions = NO_LOG,
        store: Path | None = None,
        plugins: tuple[PluginFile, ...] = (),
        watch: bool = False,
    ) -> None:
        super().__init__()
        self.title = f"buddy-tui {source}"
        self.animation_level = "none"
        self.settings = settings or Settings()
        # Chosen before anything is drawn: style sheets are then read once.
        for theme in textual_themes():
            self.register_theme(theme)
        self.theme = self.settings.theme if self.settings.theme in themes() else DEFAULT
        self.keymap = Keymap(self.settings.keys)
        self.glyphs = formatting.ASCII if ascii_mode else formatting.UNICODE
        self.log_path = log.path
        store = store or default_store(engine.place if isinstance(engine, RemoteHost) else "")
        self.workspace = Workspace(source, arguments, store, plugins=plugins)
        here = os.getcwd() if directory is None else directory
        self.session = Session(self.workspace, self.session_changed, engine, log, here)
        self.session.auto_run, self.session.equal_nan = self.settings.auto_run, self.settings.equal_nan
        self.session.timeout = self.settings.timeout
        self.session.watching = watch
        self.context = context = self._make_context()
        self.graph, self.passes, self.ir = GraphPane(context), PassesPane(context), IrPane(context)
        self.source, self.outputs = SourcePane(context), OutputsPane(context)
        panes: tuple[Pane, ...] = (self.graph, self.passes, self.ir, self.source, self.outputs)
        self.panes = {pane.pane_id: pane for pane in panes}
        context.layout.panes = self.panes
        context.selection.views = (self.graph, self.ir, self.source)
        self._make_commands(context)
        self.strokes = KeySequences(self)
        self._methods: dict[str, Method] = {}
        self._changed: frozenset[Topic] = frozenset()
        self._long_jobs = LongRequests()
        CursorView.ascii_mode = ascii_mode

    def _make_context(self) -> WorkbenchContext:
        """What panes and commands share."""
        session, glyphs = self.session, self.glyphs
        status = Status(self, self.update_chrome)
        session.say = lambda message: status.say(message)
        layout, queries = Layout(self, status), StageQueries(session, session.say)
        jobs = Jobs(self, status, queries, self._note_busy)
        dialogs = Dialogs(self, session.say, glyphs)
        return WorkbenchContext(
            session=session,
            queries=queries,
            edits=RecipeEditor(session),
            status=status,
            dialogs=dialogs,
            files=FileWriter(dialogs, session.say),
            jobs=jobs,
            layout=layout,
            selection=Selection(jobs, dialogs, layout),
            bookmarks=Bookmarks(),
            glyphs=glyphs,
        )

    def _make_commands(self, context: WorkbenchContext) -> None:
        """A controller for each task of the user's; one that needs another gets it by name."""
        graph, ir = self.graph, self.ir
        self.editing, self.texts, self.backends = (
            RecipeEditCommands(context),
            TextEditCommands(context, ir),
            BackendCommands(context),
        )
        self.graphs, self.versus = GraphCommands(context, graph, ir), CompareCommands(context, ir)
        self.provenance, self.profiling = ProvenanceCommands(context, graph, ir), ProfileCommands(context, graph, ir)
        self.frontends = FrontendCommands(context, ir, self.provenance)
        self.parting, self.tuner = SubgraphCommands(context, graph, self.graphs), TuneCommands(context, self.graphs)
        self.running = RunCommands(context, self.graphs, self.versus)
        self.sessions = SessionCommands(context, ir, self.running)
        self.exporting = ExportCommands(context, self.sessions)
        self.overlays = OverlayCommands(context, self, graph, ir, self.log_path, self.situation)

    def targets(self) -> list[tuple[str, object]]:
        """What actions name as their targets, besides the panes; commands by their modules."""
        return [
            ("app", self),
            ("layout", self.context.layout),
            ("recipe", self.context.edits),
            ("recipe_edits", self.editing),
            ("edit_text", self.texts),
            ("overlays", self.overlays),
            ("graphs", self.graphs),
            ("subgraphs", self.parting),
            ("provenance", self.provenance),
            ("frontend", self.frontends),
            ("backend", self.backends),
            ("compare", self.versus),
            ("run", self.running),
            ("profile", self.profiling),
            ("tune", self.tuner),
            ("export", self.exporting),
            ("sessions", self.sessions),
            *self.ir.targets,
        ]

    # ---- composition ---------------------------------------------------------------------------------------------

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        read_pastes_as_text(driver)
        return driver

    def get_default_screen(self) -> Screen[None]:
        return BenchScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield CellLine(self._header, id="header", background="panel")
        yield CellLine(self._graphs, id="graphs", background="panel", clicked=self._graph_clicked)
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield self.graph
                yield self.passes
            with Vertical(id="right"):
                yield self.ir
                yield self.source
                yield self.outputs
        yield Prompt()
        yield CellLine(self._status, id="status")
        yield CellLine(self._keys, id="keys")

    def on_mount(self) -> None:
        self._methods = resolve(actions.ACTIONS, self.targets(), self.panes, lambda: self.context.layout.pane_id)
        self.screen.set_class(self.glyphs is formatting.ASCII, "-ascii")
        self.sessions.restore()
        self._seconds = self.set_interval(1.0, self._second, pause=True)
        self.context.layout.arrange()
        self.pane.focus()
        self.call_after_refresh(self._live)

    @work(group="session")
    async def _live(self) -> None:
        try:
            await self.session.live()
        except Exception as error:
            # Without it nothing is compiled any more: this is no work that ends by itself.
            self._handle_exception(error)

    async def on_unmount(self) -> None:
        self.sessions.keep()
        await self.session.close()

    def on_resize(self, event: events.Resize) -> None:
        forget_places()
        self.context.layout.arrange(event.size.width)

    def pop_screen(self) -> AwaitComplete:
        """Leave a screen, and let go of it."""
        forget_screens()
        return super().pop_screen()

    @property
    def pane(self) -> Pane:
        """The pane that has focus."""
        return self.panes[self.context.layout.pane_id]

    # ---- what panes and lines draw from --------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.session.state

    def situation(self) -> actions.Situation:
        """What decides which actions are possible."""
        state, workspace, busy = self.state, self.workspace, self.state.busy or self.context.jobs.waiting
        node, row = self.graph.current, self.passes.current
        return actions.Situation(
            engine=state.engine,
            busy=busy or self.ir.comparison.running or self.ir.search.running,
            captured=state.captured,
            recipe=workspace.ready,
            graphs=len(state.graphs),
            can_undo=workspace.can_undo,
            can_redo=workspace.can_redo,
            others=workspace.has_others,
            node=node,
            assignment=self.graph.assignment(node) if node else None,
            step=row.step if row else None,
            stage=self.ir.stage,
            catalogue=bool(state.passes),
            presets=bool(state.presets),
            found=bool(self.ir.search.matches.lines),
            diff=self.ir.document.diff is not None,
            problem=state.problem is not None,
            edited=workspace.recipe != workspace.preset,
            runs=bool(state.runs),
            profile=state.profile is not None,
            report=state.report is not None,
            picked=len(self.graph.targets),
            tree=self.graph.as_tree,
            extract=self.parting.is_extract,
            compiling=state.compiled != workspace.recipe,
            wrapped=self.ir.wrapped,
            backend=workspace.recipe.backend,
        )

    def _header(self, width: int) -> Cells:
        return status_lines.header_cells(self.state, self.workspace, width, self.glyphs)

    def _graphs(self, width: int) -> Cells:
        return graph_cells(self.state, self.workspace, width, self.glyphs)

    def _graph_clicked(self, x: int, width: int) -> None:
        number = graph_at(self.state, self.workspace, width, self.glyphs, x)
        if number is not None:
            self.graphs.show(number)

    def _status(self, width: int) -> Cells:
        layout, message = self.context.layout, self.context.status.message
        shown = layout.pane_id if layout.folded else None
        return status_lines.status_cells(
            self.state, message, self.strokes.hint, layout.order, shown, width, self.glyphs
        )

    def _keys(self, width: int) -> Cells:
        return status_lines.key_cells(self.context.layout.pane_id, self.situation(), width)

    # ---- what changed --------------------------------------------------------------------------------------------

    def session_changed(self, topics: frozenset[Topic]) -> None:
        """Changes that come together are drawn together; stages of a compilation, a few times a second."""
        waiting, self._changed = self._changed, self._changed | topics
        if topics <= STAGES:
            if not waiting:
                self.set_timer(STAGES_SECONDS, self._draw_changes)
        elif waiting <= STAGES:
            self.call_later(self._draw_changes)

    def _draw_changes(self) -> None:
        topics, self._changed = self._changed, frozenset()
        if not self.is_running or not topics:
            return
        if "graph" in topics and self.state.info is not None:
            self.context.selection.name_nodes(self.state.info.rows)
        if "lines" in topics:
            self.ir.lines_arrived()
        self.screen_stack[0].set_class(len(self.state.graphs) > 1, "-several")
        for pane in self.panes.values():
            pane.update_from(topics)
        if self.passes.has_focus:
            self._show_pass_stage()
        self._note_busy()
        self.update_chrome()

    def _note_busy(self) -> None:
        """The time that is left is told anew every second while there is work; the bell rings when long work ends."""
        busy = self.situation().busy
        if busy:
            self._seconds.resume()
        else:
            self._seconds.pause()
        if self._long_jobs.ended(busy, self.settings.bell_after):
            self.bell()

    def update_chrome(self) -> None:
        """Draw the header, the status line and the keys again where they differ; what has changed is kept, too."""
        self.sessions.note()
        try:
            for line in self.screen_stack[0].query(CellLine).results(CellLine):
                line.update()
        except (NoMatches, IndexError):
            return

    def _second(self) -> None:
        self._note_busy()
        self.update_chrome()

    # ---- keys ----------------------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key) or event.is_forwarded or not await self.strokes.take(event):
            await super().on_event(event)

    def action_first_stroke(self, key: str) -> None:
        self.strokes.begin(key)

    async def action_act(self, action_id: str, *arguments: object) -> None:
        await self.do(actions.BY_ID[action_id], *arguments)

    async def do(self, action: actions.Action, *arguments: object) -> None:
        """Do an action, or say why it cannot be done."""
        self.context.status.message = ""
        reason = action.blocked(self.situation())
        if reason:
            self.context.say(f"{action.title}: {reason}")
            return
        self._methods[action.id](*arguments)
        self.update_chrome()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, Pane):
            self.context.layout.take_focus(event.widget.pane_id)
        self.update_chrome()

    def show_pane(self, pane: actions.Pane) -> None:
        """Focus a pane, and show it if only one pane is shown."""
        self.context.layout.show_pane(pane)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def copy_to_clipboard(self, text: str) -> None:
        super().copy_to_clipboard(text)
        offer_to_tmux(text)

    # ---- the engine ----------------------------------------------------------------------------------------------

    def run_program(self) -> None:
        self.session.run()

    def cancel_jobs(self) -> None:
        self.session.cancel()
        self.context.say("cancelling")

    def start_over(self) -> None:
        if self.state.link and not self.state.silent:
            self.session.mend_link()
            return
        self.session.start_over()
        self.context.say("a fresh engine runs the script again")

    def toggle_source(self) -> None:
        """Show or hide the source pane, which follows the selection."""
        layout, selection = self.context.layout, self.context.selection
        layout.toggle_source()
        if layout.with_source and not selection.node:
            selection.select_row(self.graph.current)
        self.source.follow()

    def toggle_auto(self) -> None:
        self.session.auto_run = not self.session.auto_run
        self.context.say("every edit is run" if self.session.auto_run else "the program is run on r only")

    def toggle_watch(self) -> None:
        self.session.toggle_watching()
        on = self.session.watching
        self.context.say("the program is loaded again when its files change" if on else "files are no longer watched")

    def on_cursor_view_moved(self, event: CursorView.Moved) -> None:
        if isinstance(event.view, GraphPane):
            self.context.selection.select_row(self.graph.current)
        elif isinstance(event.view, PassesPane):
            self._show_pass_stage()
        self.update_chrome()

    def _show_pass_stage(self) -> None:
        """Show the stage of the selected pass in the IR pane when it is available."""
        row = self.passes.current
        if row is not None and row.stage is not None and row.stage.key != self.ir.key:
            self.ir.choose(row.stage, tell=False)

    def on_cursor_view_opened(self, event: CursorView.Opened) -> None:
        if isinstance(event.view, GraphPane | PassesPane):
            event.view.toggle()

    def on_ir_pane_stage_shown(self, event: IrPane.StageShown) -> None:
        self.passes.show_stage(event.row)

    def command_palette(self) -> None:
        self.action_command_palette()

    def watch_theme(self, theme: str) -> None:
        forget_styles()
        for screen in self.screen_stack:
            for view in screen.query("CursorView, CellLine"):
                view.refresh()

    def leave(self) -> None:
        self.exit(0)

    # ---- errors of our own ---------------------------------------------------------------------------------------

    def _handle_exception(self, error: Exception) -> None:
        """No traceback reaches the screen: it goes to the log, and the user is told where.

        What goes on beside the keys ends by itself, and nothing else with it: the session goes on.
        """
        if self.is_headless:
            super()._handle_exception(error)
            return
        path = self.log_path or self.workspace.path.parent.parent / "crash.log"
        if isinstance(error, WorkerFailed):
            problem = save_crash_log(error.error, path, "a fault of the workbench's own")
            self.state.note(problem)
            self.context.say(str(problem))
            return
        problem = save_crash_log(error, path)
        self.exit(70, return_code=70, message=str(problem))
