"""The plug-in pane, which hosts the pane of one plug-in: a `pane_plugins.Pane`, whose methods return lines.

The plug-in's code runs in a thread, with a time limit. If it fails, its pane is switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from buddy.app.actions import PANE_TITLES, key_of
from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir import IrPane
from buddy.app.panes.pane import LinkedPane, RowMark
from buddy.app.screens.detail import diagnostic_lines
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session import pane_plugins
from buddy.app.session.pane_plugins import PaneCallError, PaneLine, PaneSource, PaneThread, PaneView, check_lines
from buddy.app.session.state import Topic
from buddy.app.widgets.look import Cells, cut_cells
from buddy.app.widgets.textual_helpers import pane_bindings, start_worker
from buddy.compiler.protocol import Diagnostic, FetchLines

# The value of the picker's entry that hides the pane.
HIDE = object()
NO_PANES_MESSAGE = "No plug-in has a pane: `buddy-tui new plugin NAME` writes one, and --pane FILE.py:CLASS names one"
# The topics that have changed for a pane that has not been drawn yet.
ALL_TOPICS = frozenset({"graph", "passes", "stages", "outputs", "status", "selection"})


class PluginPane(LinkedPane):
    """Shows the lines that the pane of a plug-in returns. `pane_options` are the values of `--pane`."""

    pane_id: ClassVar[PaneId] = "plugin"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("plugin")
    BORDER_TITLE = PANE_TITLES["plugin"]

    def __init__(self, context: WorkbenchContext, ir: IrPane, pane_options: Sequence[str] = ()) -> None:
        super().__init__(context)
        self._ir, self._pane_options = ir, pane_options
        # The panes of plug-ins; `None` until the first call of `sources`.
        self._sources: tuple[PaneSource, ...] | None = None
        # The thread in which the code of the shown pane runs.
        self._thread: PaneThread | None = None
        # The source of the shown pane, or of the pane that was switched off; `None` before a pane is chosen.
        self.source: PaneSource | None = None
        # The plug-in's object that returns the lines; `None` until it is loaded.
        self._hosted_pane: pane_plugins.Pane | None = None
        # The lines that were drawn last; `None` before the first drawing.
        self._lines: list[PaneLine] | None = None
        # The error that has switched the pane off.
        self.problem: Diagnostic | None = None
        # The topics that have changed since the pane was drawn last.
        self._changed: frozenset[str] = frozenset()
        # The keys and clicks that are not passed to the plug-in yet.
        self._inputs: list[Callable[[PaneView], None]] = []
        # The thread that draws the pane now, if any.
        self._drawing_thread: PaneThread | None = None

    # ---- choosing a pane -----------------------------------------------------------------------------------------

    def sources(self) -> tuple[PaneSource, ...]:
        """Returns the panes of plug-ins. The first call looks for them, and shows why others cannot be used."""
        if self._sources is None:
            self._sources, problems = pane_plugins.find_panes(self._pane_options)
            for problem in problems:
                self.state.add_to_log(problem)
                self.say(str(problem))
        return self._sources

    def choose(self) -> None:
        """Shows or hides the only pane of a plug-in. If there are several, lets the user choose."""
        sources = self.sources()
        if not sources:
            self.say(NO_PANES_MESSAGE)
        elif len(sources) == 1:
            is_shown = self.context.layout.shows_plugin and self.problem is None
            self.apply_choice(HIDE if is_shown else sources[0])
        else:
            choices = [PickerChoice(source.name, source.origin, source, source == self.source) for source in sources]
            if self.context.layout.shows_plugin:
                choices.append(PickerChoice("Hide", "hide the pane", HIDE))
            self.context.dialogs.open(PickerScreen("Panes of plug-ins", choices), self.apply_choice)

    def apply_choice(self, choice: object) -> None:
        """Shows the chosen pane, or hides the one that is shown."""
        if choice is HIDE:
            self.context.layout.hide_plugin()
        elif isinstance(choice, PaneSource):
            self.show(choice)

    def show(self, source: PaneSource) -> None:
        """Loads the pane of a plug-in unless it is loaded, shows it, and focuses it."""
        if source != self.source or self.problem is not None:
            self.close()
            self.source, self._hosted_pane, self.problem, self._lines, self._inputs = source, None, None, None, []
            self._thread = PaneThread()
            start_worker(self, "load", self._load, source, self._thread)
        self.context.layout.titles[self.pane_id] = self._title(source)
        self.context.layout.show_plugin()
        self._changed |= ALL_TOPICS
        self._draw_soon()

    def _title(self, source: PaneSource) -> str:
        """The title that the plug-in gives its pane; without one, the name of the pane."""
        return (str(self._hosted_pane.title) if self._hosted_pane is not None else "") or source.name

    def close(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def on_unmount(self) -> None:
        self.close()

    async def _load(self, source: PaneSource, thread: PaneThread) -> None:
        """Loads the plug-in's code in `thread`, then draws its pane."""
        try:
            hosted_pane = await thread.call(source.load, pane_plugins.LOAD_SECONDS)
        except PaneCallError as call_error:
            self._switch_off(thread, call_error.error)
        else:
            if thread is self._thread:
                self._hosted_pane = hosted_pane
                self.context.layout.titles[self.pane_id] = self._title(source)
                self.context.layout.arrange()
                self._draw_soon()

    def _switch_off(self, thread: PaneThread, error: BaseException) -> None:
        """Shows the error of a pane instead of its lines, and stops calling the plug-in."""
        thread.stop()
        if thread is not self._thread or self.source is None:
            # Another pane has replaced this one.
            return
        self._thread, self._hosted_pane, self._inputs = None, None, []
        self.problem = self.source.diagnose(error)
        self.state.add_to_log(self.problem)
        self.say(f"The pane {self.source.name} is switched off: {self.problem.what}")
        self.rows_changed()

    # ---- drawing -------------------------------------------------------------------------------------------------

    def update_from(self, topics: frozenset[Topic]) -> None:
        self._note_changes(topics)

    def selection_changed(self, previous: str) -> None:
        self.refresh_marks()
        self._note_changes(frozenset({"selection"}))

    def stage_shown(self) -> None:
        """Draws the pane again after the IR pane has shown another stage."""
        self._note_changes(frozenset({"stages"}))

    def _note_changes(self, topics: frozenset[str]) -> None:
        """Notes that these topics have changed, and draws the pane again if it depends on one of them."""
        self._changed |= topics
        if self._hosted_pane is not None and topics & frozenset(self._hosted_pane.topics):
            self._draw_soon()

    def on_resize(self) -> None:
        self._changed |= {"size"}
        self._draw_soon()

    def _draw_soon(self) -> None:
        """Starts to draw the pane unless it is hidden. If it is being drawn, `_draw` draws it once more afterwards."""
        hosted_pane, thread = self._hosted_pane, self._thread
        if hosted_pane is None or thread is None or not self.context.layout.shows_plugin:
            return
        if thread is not self._drawing_thread:
            self._drawing_thread = thread
            start_worker(self, "draw", self._draw, hosted_pane, thread)

    async def _draw(self, hosted_pane: pane_plugins.Pane, thread: PaneThread) -> None:
        """Passes keys and clicks to the plug-in and draws its lines, until nothing has changed any more."""
        try:
            while (self._changed or self._inputs) and thread is self._thread:
                view, inputs = self._view(thread), self._inputs
                self._changed, self._inputs = frozenset(), []
                width = max(self.width - 1, 1)
                lines = await thread.call(partial(_draw_lines, hosted_pane, view, inputs, width, self._roles()))
                if thread is self._thread:
                    self._lines = lines
                    self.redraw_changed_lines()
        except PaneCallError as call_error:
            self._switch_off(thread, call_error.error)
        finally:
            if self._drawing_thread is thread:
                self._drawing_thread = None

    def _view(self, thread: PaneThread) -> PaneView:
        """The facts that the plug-in can read while it draws the pane."""
        state, session = self.state, self.context.session
        return PaneView(
            program=self.workspace.source,
            graph=state.info.name if state.info is not None else "",
            nodes=tuple(state.info.rows) if state.info is not None else (),
            assignments=MappingProxyType(dict(state.assignments)),
            selected=self.context.selection.node,
            recipe=self.workspace.recipe,
            stages=tuple(row.stage for row in state.board.rows()),
            stage=self._ir.chosen_stage,
            report=state.report,
            profile=state.profile,
            changed=self._changed,
            _fetch=pane_plugins.line_fetcher(
                thread, lambda text, first, count: session.request(FetchLines(0, text, first, count))
            ),
        )

    def _roles(self) -> frozenset[str]:
        """The roles that cells of a plug-in may have."""
        return frozenset({*self.look.roles, *(f"syntax:{name}" for name in self.look.syntax if name)})

    # ---- rows ----------------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[PaneLine]:
        """The lines that were drawn last; empty for a pane that is switched off."""
        return self._lines or [] if self.problem is None else []

    @property
    def row_count(self) -> int:
        return len(self.lines)

    def row_cells(self, row: int, width: int) -> Cells:
        mark = "*" if self.mark_of(row).is_selected else " "
        marker = ">" if row == self.cursor and self.has_focus else mark
        return [(marker, "key"), *cut_cells(list(self.lines[row].cells), width - 1)]

    def row_text(self, row: int) -> str:
        return "".join(text for text, _ in self.lines[row].cells)

    def mark_of(self, row: int) -> RowMark:
        node, selection = self.lines[row].node, self.context.selection
        return RowMark(bool(node) and node == selection.node, node in selection.linked_nodes)

    def empty(self, width: int) -> list[Cells]:
        if self.problem is not None:
            hint: Cells = [("Switched off. ", "warn"), (key_of("plugin-pane"), "key"), (" shows it again", "dim")]
            return [*diagnostic_lines(self.problem, width), [], hint]
        return [[("loading" if self._lines is None else "no lines", "dim")]] if self.source is not None else []

    def foot(self, width: int) -> list[Cells]:
        """The keys that the plug-in handles, with their descriptions."""
        keys = self._hosted_pane.keys if self._hosted_pane is not None else {}
        cells: Cells = []
        for key, text in keys.items():
            cells += [(f" {key}", "key"), (f" {text} ", "dim")]
        return [cut_cells(cells, width)] if cells else []

    def text_to_copy(self) -> str:
        return self.row_text(self.cursor).rstrip() if self.row_count else ""

    # ---- input ---------------------------------------------------------------------------------------------------

    def take_key(self, key: str) -> bool:
        """Passes `key` to the code of the plug-in if it is one of the plug-in's keys. Returns whether it is."""
        hosted_pane = self._hosted_pane
        if hosted_pane is None or key not in hosted_pane.keys:
            return False
        self._inputs.append(lambda view: hosted_pane.press(view, key))
        self._draw_soon()
        return True

    def on_click(self, event: events.Click) -> None:
        offset, hosted_pane = event.get_content_offset(self), self._hosted_pane
        row = self.row_at(offset.y) if offset else -1
        if hosted_pane is not None and offset is not None and 0 <= row < self.row_count:
            column = max(0, offset.x - 1)
            self._inputs.append(lambda view: hosted_pane.click(view, row, column))
            self._draw_soon()

    def go_to_node(self) -> None:
        node = self.lines[self.cursor].node if self.row_count else ""
        if node:
            self.context.selection.go_to_one_of((node,))
        else:
            self.say("No node belongs to this line")


def _draw_lines(
    hosted_pane: pane_plugins.Pane,
    view: PaneView,
    inputs: Sequence[Callable[[PaneView], None]],
    width: int,
    roles: frozenset[str],
) -> list[PaneLine]:
    """Passes keys and clicks to the pane of a plug-in, then returns its lines. Runs in the pane's thread.

    Raises `BuddyError` for lines that are not valid, such as cells with unknown roles.
    """
    for pass_input in inputs:
        pass_input(view)
    return check_lines(hosted_pane.lines(view, width), roles)
