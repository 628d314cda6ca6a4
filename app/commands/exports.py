"""Sets the target of code generation, and exports compiled code."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.actions import key_of
from buddy.app.reports import formatting
from buddy.app.workspace.command_line import ScreenState
from buddy.compiler.protocol import EXPORT_KINDS, Export
from buddy.compiler.protocol.recipe import TARGETS

if TYPE_CHECKING:
    from buddy.app.commands.sessions import SessionCommands
    from buddy.app.panes.context import WorkbenchContext

# The answer of the picker of targets that lets the user type one.
_TYPE_TARGET = object()


def parse_kinds(text: str, has_plugins: bool = False) -> tuple[str, ...]:
    """The export kinds in `text`, separated by commas or spaces, each once.

    Plug-ins may register kinds that are not known here: with `has_plugins`, unknown ones are accepted. Raises
    `ValueError` with the list of known kinds if a kind is unknown or `text` has none.
    """
    kinds = text.replace(",", " ").split()
    if not kinds:
        raise ValueError(f"give at least one kind; known: {', '.join(EXPORT_KINDS)}")
    unknown = [kind for kind in kinds if kind not in EXPORT_KINDS]
    if unknown and not has_plugins:
        raise ValueError(f"unknown kind {unknown[0]!r}; known: {', '.join(EXPORT_KINDS)}")
    return tuple(dict.fromkeys(kinds))


class ExportCommands:
    """Edits the target of the recipe; asks for the kinds and the folder of an export, which the engine writes."""

    def __init__(self, context: WorkbenchContext, sessions: SessionCommands) -> None:
        self._context, self._sessions = context, sessions

    # ---- the target ----------------------------------------------------------------------------------------------

    def choose_target(self) -> None:
        """List the known targets, and set the chosen or typed one in the recipe."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        target = self._context.workspace.recipe.target
        choices = [PickerChoice("this machine", "all features of its CPU", "", marked=not target)]
        choices += [PickerChoice(name, summary, name, marked=name == target) for name, summary in TARGETS.items()]
        choices.append(
            PickerChoice(
                "another target...", "type NAME:CPU, NAME:CPU:FEATURES, or a triple", _TYPE_TARGET, marked=False
            )
        )
        self._context.dialogs.open(PickerScreen("Target of code generation", choices), self._use_target_choice)

    def _use_target_choice(self, choice: object) -> None:
        if choice is _TYPE_TARGET:
            self._context.dialogs.ask("NAME:CPU:FEATURES, such as aarch64:neoverse-v1", "", self._use_typed_target)
        elif choice is not None:
            self._use_target(str(choice))

    def _use_typed_target(self, text: str) -> None:
        if text.strip():
            self._use_target(text)

    def _use_target(self, target: str) -> None:
        recipe, target = self._context.workspace.recipe, target.strip()
        if target != recipe.target:
            self._context.edits.edit(replace(recipe, target=target), f"target {target or 'this machine'}")

    # ---- exports -------------------------------------------------------------------------------------------------

    def ask_export(self) -> None:
        """Ask for the kinds of an export, then for its folder, and export."""
        self._context.dialogs.ask(f"export as ({', '.join(EXPORT_KINDS)})", "object", self._ask_folder)

    def _ask_folder(self, text: str) -> None:
        """Ask for the folder of an export of the kinds in `text`."""
        if not text.strip():
            return
        try:
            kinds = parse_kinds(text, bool(self._context.workspace.plugins))
        except ValueError as error:
            self._context.say(str(error))
            return
        name = self._context.workspace.program_name
        self._context.dialogs.ask(
            "export to the folder", f"{name}.export", lambda folder: self._export_to(folder, kinds)
        )

    def _export_to(self, folder: str, kinds: tuple[str, ...]) -> None:
        """Export to the typed folder. Asks before it replaces files."""
        if not self._context.session.is_local:
            self._export_on_engine(folder.strip(), kinds)
            return

        def question(path: Path) -> str:
            if not path.exists() or not any(path.iterdir()):
                return ""
            return f"{folder.strip()} is not empty; files with the same names will be replaced. Write into it?"

        def start(path: Path, confirmed: bool) -> None:
            self._context.jobs.begin("export", partial(self._export, str(path), kinds, force=confirmed))

        self._context.files.use_path(folder, start, question, failure="cannot be written to")

    def _export_on_engine(self, folder: str, kinds: tuple[str, ...]) -> None:
        """Export to a folder on the engine's machine, whose files cannot be looked at from here."""
        if folder:
            question = (
                f"Files with the same names in {folder}, on the engine's machine, will be replaced. Write into it?"
            )
            self._context.files.after_confirmation(
                question, lambda: self._context.jobs.begin("export", partial(self._export, folder, kinds, force=True))
            )

    async def _export(self, folder: str, kinds: tuple[str, ...], *, force: bool) -> None:
        """Let the engine write the export. With `force`, files with the same names are replaced."""
        recipe = self._context.workspace.recipe
        arguments = ("-o", folder, "--kind", ",".join(kinds))
        command = self._sessions.command_line(
            ScreenState("export", n_graphs=len(self._context.state.graphs), export_words=arguments)
        )
        export_request = Export(0, recipe, kinds, folder, self._context.session.directory, force=force, command=command)
        self._context.say(f"exporting to {folder}{self._context.glyphs.ellipsis}")
        cancelled_message = f"Cancelled. Nothing was exported; press {key_of('export')} to export again"
        request = self._context.session.request(export_request)
        exported = await self._context.jobs.result_of(request, "nothing was exported", cancelled_message)
        if exported is not None:
            size = formatting.size(sum(file.size for file in exported.files))
            self._context.say(
                f"wrote {len(exported.files)} files ({size}) to {exported.folder}; its README.md says how to build them"
            )
