"""Commands that choose the target of code generation and export compiled programs to a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.reports import formatting
from buddy.app.workspace.command_line import ScreenState
from buddy.compiler.protocol import EXPORT_KINDS, Export, ExportKind
from buddy.compiler.protocol.recipe import TARGETS

if TYPE_CHECKING:
    from buddy.app.commands.sessions import SessionCommands
    from buddy.app.panes.context import WorkbenchContext

_TYPED = object()


def parse_kinds(text: str) -> tuple[ExportKind, ...]:
    """The kinds in a text, separated by commas or spaces. Raises `ValueError` that lists the known kinds."""
    found: dict[str, ExportKind] = {kind: kind for kind in EXPORT_KINDS}
    words = text.replace(",", " ").split()
    unknown = [word for word in words if word not in found]
    if unknown or not words:
        raise ValueError(f"unknown kind {next(iter(unknown), '')!r}; known: {', '.join(EXPORT_KINDS)}")
    return tuple(dict.fromkeys(found[word] for word in words))


class ExportCommands:
    """Asks for the kinds and the folder of an export, which the engine writes; edits the recipe's target."""

    def __init__(self, context: WorkbenchContext, sessions: SessionCommands) -> None:
        self._context, self._sessions = context, sessions

    # ---- the target ----------------------------------------------------------------------------------------------

    def choose_target(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        now = self._context.workspace.recipe.target
        choices = [PickerChoice("this machine", "all features of its CPU", "", marked=not now)]
        choices += [PickerChoice(name, summary, name, marked=name == now) for name, summary in TARGETS.items()]
        choices.append(PickerChoice("another", "type NAME:CPU, NAME:CPU:FEATURES, or a triple", _TYPED, marked=False))
        self._context.dialogs.open(PickerScreen("Target of code generation", choices), self._use_choice)

    def _use_choice(self, answer: object) -> None:
        if answer is _TYPED:
            self._context.dialogs.ask("NAME:CPU:FEATURES, such as aarch64:neoverse-v1", "", self._use_target)
        elif answer is not None:
            self._use_target(str(answer))

    def _use_target(self, target: str) -> None:
        recipe, target = self._context.workspace.recipe, target.strip()
        if target != recipe.target:
            self._context.edits.edit(replace(recipe, target=target), f"target {target or 'this machine'}")

    # ---- exports -------------------------------------------------------------------------------------------------

    def ask_export(self) -> None:
        self._context.dialogs.ask(f"export as ({', '.join(EXPORT_KINDS)})", "object", self._ask_folder)

    def _ask_folder(self, text: str) -> None:
        if not text.strip():
            return
        try:
            kinds = parse_kinds(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        name = Path(self._context.workspace.source.partition(":")[0]).stem or "program"
        self._context.dialogs.ask(
            "export to the folder", f"{name}.export", lambda folder: self._export_to(folder, kinds)
        )

    def _export_to(self, folder: str, kinds: tuple[ExportKind, ...]) -> None:
        def question(path: Path) -> str:
            there = path.exists() and any(path.iterdir())
            what = f"{folder.strip()} exists; files with the same names are replaced. Write into it?"
            return what if there else ""

        def start(path: Path, asked: bool) -> None:
            self._context.jobs.begin("export", self._export, path, kinds, asked)

        self._context.files.use_path(folder, start, question, "cannot be written to")

    async def _export(self, folder: Path, kinds: tuple[ExportKind, ...], force: bool) -> None:
        recipe = self._context.workspace.recipe
        words = ("-o", str(folder), "--kind", ",".join(kinds))
        command = self._sessions.command_line(
            ScreenState("export", graphs=len(self._context.state.graphs), words=words)
        )

        frame = Export(0, recipe, kinds, str(folder), os.getcwd(), force=force, command=command)
        self._context.say(f"exporting to {folder}{self._context.glyphs.ellipsis}")
        made = await self._context.jobs.result_of(self._context.session.request(frame), "nothing was exported")
        if made is not None:
            size = formatting.size(sum(file.size for file in made.files))
            self._context.say(
                f"{len(made.files)} files, {size}, in {made.folder}; see its README.md for how to build them"
            )
