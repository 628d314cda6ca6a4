"""Edits the recipe: its history, threads and file, its pipeline as text, and the IR after any stage."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.app import SuspendNotSupported

from buddy.app.actions import key_of
from buddy.app.reports.formatting import thread_count
from buddy.app.session.stages import StageRow, phase_of
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.recipe_files import EditorDraft
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import PassStep, Recipe, to_toml

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane
    from buddy.app.screens.editor import TextProblem


# ---- history, threads and file ---------------------------------------------------------------------------------------


class RecipeEditCommands:
    """Undo history, reset, threads and saving of the recipe, each by a picker, a prompt or one key."""

    def __init__(self, context: WorkbenchContext) -> None:
        self._context = context

    @property
    def _workspace(self) -> Workspace:
        return self._context.workspace

    def choose_edit(self) -> None:
        """Lists the edits of the recipe, undone ones and those of other workbenches too, and goes to the chosen one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [
            PickerChoice(edit.title or "the first recipe", _distance_text(steps), steps, marked=not steps)
            for steps, edit in self._workspace.all_edits
        ]
        choices += [
            PickerChoice(edit.title or "the first recipe", "by another workbench", edit.recipe)
            for edit in self._workspace.edits_of_others()
        ]
        self._context.dialogs.open(PickerScreen("Edits, latest first", choices), self._go_to_edit)

    def _go_to_edit(self, choice: int | Recipe | None) -> None:
        """Uses the recipe of another workbench; or redoes (positive) or undoes (negative) this number of edits."""
        if isinstance(choice, Recipe):
            self._context.edits.edit(choice, "a recipe of another workbench")
        elif choice:
            self._context.edits.undo_or_redo(choice)

    def reset(self) -> None:
        self._context.edits.edit(self._workspace.preset, "reset to the preset")

    def choose_threads(self) -> None:
        """Asks for the number of threads of compiled code and eager, up to the cores of the engine's machine."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        threads, welcome = self._workspace.recipe.threads, self._context.state.welcome
        choices = [
            PickerChoice(thread_count(number), "", number, marked=number == threads)
            for number in thread_choices(welcome.cores if welcome else 1, threads)
        ]
        self._context.dialogs.open(PickerScreen("Threads of compiled code and eager", choices), self._use_threads)

    def _use_threads(self, number: int | None) -> None:
        if number is not None:
            self._context.edits.edit(replace(self._workspace.recipe, threads=number), thread_count(number))

    def ask_save(self) -> None:
        """Asks for the file to save the recipe to."""
        name = self._workspace.program_name
        self._context.dialogs.ask("save recipe to", f"{name}.recipe.toml", self._save_to)

    def _save_to(self, path: str) -> None:
        if path.strip():
            self._context.files.write(path.strip(), to_toml(self._workspace.recipe))


def thread_choices(cores: int, current: int) -> list[int]:
    """The thread counts to choose from: 1 to 8 and powers of two up to `cores`, `cores` itself, and `current`."""
    powers_of_two = (2**exponent for exponent in range(4, cores.bit_length()))
    return sorted({*range(1, min(cores, 8) + 1), *powers_of_two, cores, current})


def _distance_text(steps: int) -> str:
    """The position of an edit relative to the current recipe: undone edits have positive `steps`."""
    if not steps:
        return "the current recipe"
    return f"undone; redo {steps} to restore it" if steps > 0 else f"undo {-steps} to return to it"


# ---- pipeline and IR as text -----------------------------------------------------------------------------------------


class EditorError(BuddyError):
    """The editor returned no usable text. The message has the reason, and the path of the editor's output, if any."""


class NoEditorError(EditorError):
    """The editor could not be started, so the user has not seen the text."""


def split_editor_command(command: str) -> list[str]:
    """Splits the value of $EDITOR into words as a shell does. Raises `NoEditorError` if a quote is not closed."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise NoEditorError(f"$EDITOR is {command!r}: {error}") from error


# Editors that open a file at a line by `+12 FILE`, and those that take `FILE:12` after some options.
_PLUS_EDITORS = (
    "vi",
    "vim",
    "nvim",
    "view",
    "gvim",
    "nano",
    "pico",
    "emacs",
    "emacsclient",
    "kak",
    "micro",
    "joe",
    "jed",
)
_COLON_EDITORS = {"hx": (), "helix": (), "subl": (), "zed": (), "code": ("--goto",), "codium": ("--goto",)}


def editor_command(editor: Sequence[str], path: Path, line: int) -> list[str]:
    """The command that opens `path` in the editor, at `line` (from 0) if the editor is known to support that."""
    name = Path(editor[0]).name
    if line and name in _PLUS_EDITORS:
        return [*editor, f"+{line + 1}", str(path)]
    if line and name in _COLON_EDITORS:
        return [*editor, *_COLON_EDITORS[name], f"{path}:{line + 1}"]
    return [*editor, str(path)]


def edit_in_external_editor(editor: Sequence[str], name: str, text: str, line: int = 0) -> str:
    """Opens `text` in the editor as a file called `name`, and waits until the editor exits. Returns the edited text.

    The cursor is at `line` (from 0), see `editor_command`.

    Raises `NoEditorError` if the editor does not start. Raises `EditorError` if the editor exits with a status other
    than 0 or the file cannot be read afterwards; then the files that the editor has changed are not deleted.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="buddy-tui-"))
    except OSError as error:
        raise NoEditorError(f"no temporary folder for the text: {error.strerror}") from error
    path = folder / name
    try:
        path.write_text(text, "utf-8")
        status = _run_editor(editor_command(editor, path, line))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoEditorError(f"{editor[0]} does not start: {error.strerror}") from error
    try:
        edited = path.read_text("utf-8", "replace")
    except OSError as error:
        # The editor may have written a file with another name.
        note = _delete_unless_edited(folder, sorted(folder.iterdir()) if folder.is_dir() else [])
        raise EditorError(f"{editor[0]} left no readable text: {error.strerror}{note}") from error
    if status != 0:
        note = _delete_unless_edited(folder, [path] if edited != text else [])
        raise EditorError(f"{editor[0]} exited with status {status}, so the text is not used{note}")
    shutil.rmtree(folder, ignore_errors=True)
    return edited


def _delete_unless_edited(folder: Path, edited: Sequence[Path]) -> str:
    """Deletes the folder, unless the editor has changed the files `edited`.

    Returns the end of an error message: the path of the first of these files, or an empty string.
    """
    if edited:
        return f"; its output is in {edited[0]}"
    shutil.rmtree(folder, ignore_errors=True)
    return ""


def _run_editor(words: Sequence[str]) -> int:
    """Runs the command of an editor, and returns its exit status."""
    with _ignored_interrupts():
        return subprocess.run(words, check=False).returncode


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignores SIGINT in this process while the editor runs, because ctrl+c also reaches the workbench.

    The handler is an empty function instead of `SIG_IGN`, because the editor would inherit `SIG_IGN`.
    """
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.SIG_DFL)


# The pass that replaces the module by the text in its option `text`.
REPLACE_IR = "replace-ir"
# Longest text, in characters, that the built-in editor handles without lag; $EDITOR has no such limit.
MAX_BUILT_IN_CHARACTERS = 2_000_000


class TextEditCommands:
    """Opens editors and applies the edited text to the recipe."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir

    # ---- the pipeline --------------------------------------------------------------------------------------------

    def edit_pipeline(self) -> None:
        """Edits the passes as text. The accepted text becomes one edit of the recipe."""
        from buddy.app.screens.editor import PipelineScreen
        from buddy.app.workspace.pipeline_text import pipeline_text

        steps = self._context.workspace.recipe.steps
        draft = EditorDraft(self._context.workspace.path, "pipeline")
        screen = PipelineScreen(pipeline_text(steps), self._context.state.passes, draft)
        self._context.dialogs.open(screen, self._use_pipeline)

    def _use_pipeline(self, text: str | None) -> None:
        """Replaces the passes by those in `text`, which the editor has checked. `None` means that the user cancels."""
        if text is None:
            return
        from buddy.app.workspace.pipeline_text import parse_pipeline, to_steps

        recipe = self._context.workspace.recipe
        steps = to_steps(parse_pipeline(text), recipe.steps)
        self._context.edits.edit(replace(recipe, steps=steps), "the pipeline edited as text")

    # ---- IR ------------------------------------------------------------------------------------------------------

    def edit_ir(self) -> None:
        """Edits the stage's IR in $VISUAL or $EDITOR, or in the built-in editor if neither can be run."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
        self._context.jobs.begin_opening("edit", self._edit, editor)

    def edit_ir_built_in(self) -> None:
        """Edits the stage's IR in the built-in editor."""
        self._context.jobs.begin_opening("edit", self._edit, "")

    async def _edit(self, editor: str) -> None:
        """Edits the stage's IR with the command `editor`; if `editor` is empty or does not run, in the built-in editor.

        If the text that `editor` returns does not verify, the built-in editor opens with that text and the error.
        """
        from buddy.app.screens.editor import check_module

        row = self._ir.chosen_row
        if row is None:
            self._context.say("no stage to edit yet")
            return
        recipe = self._context.workspace.recipe
        line = self._ir.line_number if self._ir.document.text == row.stage.text else 0
        text = await self._context.queries.fetch_text(row.stage.text)
        if text is None:
            return
        try:
            edited, problem = self._edit_externally(editor, row, text, line), None
        except EditorError as error:
            self._context.say(str(error))
            return
        if edited is not None and edited != text:
            problem = await check_module(self._context.session, edited)
        if edited is None or problem is not None:
            edited = await self._edit_built_in(row, text if edited is None else edited, problem, text, line)
        if edited is not None:
            self._apply_ir(recipe, row, text, edited)

    def _edit_externally(self, editor: str, row: StageRow, text: str, line: int) -> str | None:
        """The text that the user saves in `editor`, which opens at `line`; `None` if it cannot be run.

        Raises `EditorError`.
        """
        try:
            words = split_editor_command(editor)
            if not words:
                return None
            with self._context.dialogs.suspend():
                return edit_in_external_editor(words, f"{row.stage.index:02d}-{row.stage.name}.mlir", text, line)
        except SuspendNotSupported:
            return None
        except NoEditorError as error:
            self._context.say(str(error))
            return None

    async def _edit_built_in(
        self, row: StageRow, text: str, problem: TextProblem | None, original: str, line: int
    ) -> str | None:
        """Returns the text that the user accepts, or `None` if the user cancels or the text is too long.

        `problem` is the reason why `text` is rejected, if any; `original` is the text of the stage. Without a problem
        that has a line, the editor opens at `line`.
        """
        if len(text) > MAX_BUILT_IN_CHARACTERS:
            message = "this stage is too long for the built-in editor"
            if problem is not None and text != original:
                message += f": {problem.message}, line {problem.line + 1}; {self._save_rejected(text)}"
            else:
                message += f": set $EDITOR, then press {key_of('ir.edit')}"
            self._context.say(message)
            return None
        from buddy.app.screens.editor import IrEditor

        draft = EditorDraft(self._context.workspace.path, f"{row.stage.index:02d} {row.stage.name}")
        screen = IrEditor(self._context.session, f"IR after {row.stage.name}", text, problem, original, draft, line)
        return await self._context.dialogs.result_of(screen)

    def _apply_ir(self, recipe: Recipe, row: StageRow, original: str, edited: str) -> None:
        """Edits the recipe so that compilation continues from `edited` after the stage of `row`.

        If `recipe` is no longer the current recipe, saves `edited` to a file instead.
        """
        if original == edited:
            self._context.say("the text was not changed")
            return
        rows = self._ir.rows
        row_index = next((index for index, other in enumerate(rows) if other.key == row.key), None)
        if self._context.workspace.recipe != recipe or row_index is None:
            saved = self._save_rejected(edited)
            self._context.say(f"the recipe has changed since the editor opened, so the edit is not applied: {saved}")
            return
        phase = phase_of(rows, row_index)
        steps, step_index = with_replaced_ir(recipe.steps, row.stage.step, edited, phase)
        # The IR pane shows the new stage when it has been compiled. The key of a stage is the name of its pass and the
        # number of stages with that name before it.
        number = sum(step.name == REPLACE_IR and step.enabled for step in steps[:step_index])
        self._ir.stages.expect((REPLACE_IR, number))
        self._context.edits.edit(replace(recipe, steps=steps), f"IR edited after {row.stage.name}")

    def _save_rejected(self, text: str) -> str:
        """Writes edited text that cannot be used to a file next to the recipe. Returns a message with its path."""
        recipe_path = self._context.workspace.path
        suffixes = itertools.chain([".edited.mlir"], (f".edited-{number}.mlir" for number in itertools.count(2)))
        paths = (recipe_path.with_suffix(suffix) for suffix in suffixes)
        path = next(path for path in paths if not path.exists())
        try:
            write_text_atomically(path, text)
        except OSError as error:
            return f"the edited text could not be written to {path}: {error.strerror}"
        return f"the edited text was saved to {path}"


def with_replaced_ir(steps: Sequence[PassStep], step: int, text: str, phase: str) -> tuple[tuple[PassStep, ...], int]:
    """Returns `steps` with a `replace-ir` step after the one with index `step`, and the index of the new step.

    The step replaces the module by `text`, in phase `phase`. With `step` -1, it is after the lowering of the graph. If
    the step with index `step` is itself a `replace-ir`, its text is replaced instead.
    """
    new_steps = list(steps)
    if step >= 0 and new_steps[step].name == REPLACE_IR:
        new_steps[step] = replace(new_steps[step], options=(("text", text),), enabled=True)
        return tuple(new_steps), step
    # Passes on the graph run before it is lowered.
    index = step + 1 if step >= 0 else sum(other.level == "graph" for other in steps)
    new_steps.insert(index, PassStep(REPLACE_IR, options=(("text", text),), phase=phase))
    return tuple(new_steps), index
