"""Leaving and coming back: the last layout, reproducers, and the command line of what is on the screen."""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.background import begin
from buddy.app.command_line import Shown, command
from buddy.app.drafts import drafts
from buddy.app.keeping import Kept, merged, read_kept, write_kept
from buddy.app.lines import UnavailableError
from buddy.app.locks import FileLock, alone
from buddy.app.panes.comparison import HOW
from buddy.app.runs import without_content
from buddy.app.typed import typed_path

if TYPE_CHECKING:
    from buddy.app.panes.ir import IrPane
    from buddy.app.workbench import Workbench


class Sessions:
    """Keeps how the screen is left, and writes down what is on it for others."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        # The screen is gone before the application is; the pane outlives it.
        self._ir: IrPane | None = None
        self._began = Kept()

    # ---- layout --------------------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self._bench.workspace.path_of(0).with_suffix(".session")

    @cached_property
    def _open(self) -> FileLock:
        """What all workbenches on this program share."""
        return FileLock(self._path.with_suffix(".open"))

    def restore(self) -> None:
        """Take up the layout of the last session; the stage and the node are shown as soon as they are there."""
        bench = self._bench
        self._ir = bench.ir
        kept, problem = read_kept(self._path)
        self._began = kept
        bench.arrangement.with_source = kept.source
        if kept.pane in bench.arrangement.order:
            bench.arrangement.pane_id = kept.pane
        bench.arrangement.zoomed = kept.zoomed
        bench.state.runs = list(kept.runs)
        bench.running.restore(kept.inputs)
        bench.selection.node = kept.node
        if kept.how in HOW:
            bench.ir.comparison.how = kept.how
        if kept.stage is not None:
            bench.ir.expect(kept.stage)
        self._restore_bookmarks(kept)
        if news := [text for text in (problem, *self._left_by_others()) if text]:
            bench.say("; ".join(news))

    def _left_by_others(self) -> list[str]:
        """What earlier sessions have left, and what other workbenches hold now."""
        found, news = drafts(self._bench.workspace.path_of(0)), []
        if found.left:
            news.append(f"typed and not accepted when the workbench ended: {', '.join(found.left)}; its editor has it")
        with contextlib.suppress(OSError):
            if self._open.share():
                typed = f", where somebody types: {', '.join(found.open)}" if found.open else ""
                news.append(f"open in another workbench too{typed}; each keeps its own edits")
        return news

    def _restore_bookmarks(self, kept: Kept) -> None:
        bookmarks = getattr(self._bench, "bookmarks", None)
        if bookmarks is not None and kept.bookmarks is not None:
            try:
                self._bench.bookmarks = type(bookmarks).from_data(kept.bookmarks)
            except ValueError as error:
                self._bench.say(f"the bookmarks kept from last time could not be read: {error}")

    def keep(self) -> None:
        """Write down how the screen is left."""
        bench, ir = self._bench, self._ir
        if ir is None:
            return
        bookmarks = getattr(bench, "bookmarks", None)
        kept = Kept(
            bench.arrangement.pane_id,
            bench.arrangement.zoomed,
            ir.key,
            bench.selection.node,
            ir.comparison.how,
            inputs=without_content(bench.session.inputs),
            bookmarks=bookmarks.to_data() if bookmarks is not None else None,
            runs=tuple(bench.state.runs),
            source=bench.arrangement.with_source,
        )
        try:
            with alone(self._path.with_suffix(".lock")):
                theirs, _ = read_kept(self._path)
                write_kept(self._path, merged(self._began, theirs, kept))
        except OSError as error:
            bench.say(f"the layout could not be kept: {error}")
        self._open.release()

    # ---- reproducers ---------------------------------------------------------------------------------------------

    def ask_reproducer(self) -> None:
        name = Path(self._bench.workspace.source.partition(":")[0]).stem or "program"
        self._bench.ask("write a reproducer to the folder", f"{name}.reproducer", self.write_reproducer)

    def write_reproducer(self, folder: str) -> None:
        # With it comes the command line, which a start of the workbench can do without.
        from buddy.app.reproducer import holds_other_things

        if not folder.strip():
            return
        try:
            path = typed_path(folder)
            there, others = path.exists(), holds_other_things(path)
        except (OSError, ValueError) as error:
            self._bench.say(f"{folder.strip()} could not be written: {getattr(error, 'strerror', None) or error}")
            return
        if there:
            holds = "holds other things than a reproducer; files of the same names are replaced"
            question = f"{folder.strip()} {holds if others else 'is there already'}. Write into it?"
            self._bench.confirm(question, lambda: self._start_writing(path))
        else:
            self._start_writing(path)

    def _start_writing(self, folder: Path) -> None:
        begin(self._bench, "reproducer", self._write, folder)

    async def _write(self, folder: Path) -> None:
        from buddy.app.reproducer import Engine, Subject, write_reproducer

        bench = self._bench
        session, state = bench.session, bench.state
        if state.info is None:
            return
        subject = Subject(
            bench.workspace.recipe, state.info, state.welcome, str(session.inputs), tuple(state.assignments.values()),
            state.files, session.shapes,
        )  # fmt: skip
        engine = Engine(session.compile_beside, session.whole_text, session.run_values)
        bench.say(f"writing {folder}{bench.glyphs.ellipsis}")
        try:
            with bench.wait():
                found = await write_reproducer(folder, subject, engine, UnavailableError)
        except (OSError, UnavailableError) as error:
            bench.say(f"{folder} could not be written: {error}")
        else:
            without = f", without outputs: {found.problem}" if found.problem else ""
            without += f"; {found.lacks}" if found.lacks else ""
            bench.say(f"{len(found.stages)} stages in {folder}; `buddy-tui replay {folder}` does it again{without}")

    # ---- the command line ----------------------------------------------------------------------------------------

    def command_line(self, shown: Shown | None = None) -> str:
        """The command that gives without a screen what is `shown`, which is what is on it unless something is said."""
        bench = self._bench
        recipe = bench.workspace.recipe
        preset = next((each.recipe for each in bench.state.presets if each.name == recipe.preset), None)
        return command(recipe, preset, bench.workspace.path, shown or self._shown())

    def _shown(self) -> Shown:
        bench = self._bench
        ir, pane, graphs = bench.ir, bench.pane.pane_id, len(bench.state.graphs)
        if pane != "ir" or ir.shown is None:
            return Shown(pane, graphs=graphs)
        names = [row.stage.name for row in ir.rows]
        stage = _stage_word(ir.shown.key, names)
        other = next((row for row in ir.rows if ir.other is not None and row.stage == ir.other), None)
        if ir.diff is None or other is None:
            return Shown(pane, stage, graphs=graphs)
        return Shown(pane, stage, _stage_word(other.key, names), ir.comparison.how == "structural", graphs)

    def copy_command(self) -> None:
        self._bench.copy_text(self.command_line())


def _stage_word(key: tuple[str, int], names: list[str]) -> str:
    """A stage as `--stage` takes it: `canonicalize#2` where there are several of that name."""
    name, number = key
    return f"{name}#{number + 1}" if names.count(name) > 1 else name
