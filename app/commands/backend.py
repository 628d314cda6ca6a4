"""Chooses the frontend, the backend and the target of a recipe, and exports compiled code."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from buddy.app.actions import key_of
from buddy.app.panes.ir_comparison import ComparedStages
from buddy.app.reports import formatting
from buddy.app.session.stages import StagePosition
from buddy.app.workspace.presets import FRONTEND_SUMMARIES, ScreenState, dialects_of, with_frontend
from buddy.compiler.protocol import (
    EXPORT_KINDS,
    BackendDescribed,
    CheckFlags,
    DescribeBackend,
    Export,
    FlagInfo,
    NodeRow,
)
from buddy.compiler.protocol.recipe import FRONTENDS, TARGETS, TORCH_MLIR, Backend, Dialect, Frontend

if TYPE_CHECKING:
    from buddy.app.commands.screens import ProvenanceCommands
    from buddy.app.commands.sessions import SessionCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane


# ---- frontend and dialect --------------------------------------------------------------------------------------------


class _FrontendChoice(NamedTuple):
    frontend: Frontend
    dialect: Dialect


class FrontendCommands:
    """Edits the frontend and the dialect of the recipe, and replaces the passes that depend on them."""

    def __init__(self, context: WorkbenchContext, ir: IrPane, provenance: ProvenanceCommands) -> None:
        self._context, self._ir, self._provenance = context, ir, provenance

    def choose_frontend(self) -> None:
        """Lists every frontend with each dialect that it supports."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        recipe = self._context.workspace.recipe
        current = _FrontendChoice(recipe.frontend, recipe.dialect)
        pairs = [_FrontendChoice(frontend, dialect) for frontend in FRONTENDS for dialect in dialects_of(frontend)]
        choices = [
            PickerChoice(f"{pair.frontend}, {pair.dialect}", _describe_choice(pair), pair, marked=pair == current)
            for pair in pairs
        ]
        self._context.dialogs.open(PickerScreen("Frontend and target dialect", choices), self._use_frontend)

    def next_dialect(self) -> None:
        """Switches to the next dialect that the recipe's frontend supports."""
        recipe = self._context.workspace.recipe
        dialects = dialects_of(recipe.frontend)
        next_dialect = dialects[(dialects.index(recipe.dialect) + 1) % len(dialects)]
        self._use_frontend(_FrontendChoice(recipe.frontend, next_dialect))

    def _use_frontend(self, choice: _FrontendChoice | None) -> None:
        """Sets the frontend and the dialect in the recipe. `None` means that the user chose nothing."""
        workspace = self._context.workspace
        recipe = workspace.recipe
        if choice is None or choice == (recipe.frontend, recipe.dialect):
            return
        new_recipe = with_frontend(recipe, self._context.state.presets, *choice)
        frontend = f"frontend {choice.frontend}, " if choice.frontend != recipe.frontend else ""
        self._context.edits.edit(new_recipe, f"{frontend}dialect {choice.dialect}")

    def compare_node(self) -> None:
        """Shows the node under the cursor in this compiler's IR and in torch-mlir's IR."""
        from buddy.app.screens.frontend_comparison import FrontendComparisonScreen

        info = self._context.state.info
        if info is not None and info.entry_phase:
            self._context.say(f"{info.name} was given as IR, so it has no FX nodes to compare")
            return
        context = self._context

        def open_comparison(row: NodeRow) -> None:
            screen = FrontendComparisonScreen(context.session, context.workspace.recipe, row)
            context.dialogs.open(screen, self._show_result)

        self._provenance.with_node(open_comparison)

    def _show_result(self, result: StagePosition | ComparedStages | None) -> None:
        """Goes to the position that was chosen in the comparison, or compares the stages that were chosen there."""
        if result is None:
            return
        self._context.layout.show_pane("ir")
        if isinstance(result, ComparedStages):
            self._ir.comparison.compare_with(result)
        else:
            self._ir.jumps.go_to_position(result)


def _describe_choice(choice: _FrontendChoice) -> str:
    if choice.frontend == TORCH_MLIR:
        return FRONTEND_SUMMARIES[choice.frontend]
    return f"{FRONTEND_SUMMARIES[choice.frontend]}, {choice.dialect} first"


# ---- backend, its flags, and LLVM's passes ---------------------------------------------------------------------------


# Values of flag kinds for which the help of the backend's compiler lists no values.
_VALUES_OF_KIND = {"optimization level": ("O0", "O1", "O2", "O3")}
_BOOLEAN_VALUES = ("true", "false")
# Answers of the pickers of flags and values: remove the flag; let the user type the flag or its value.
_REMOVE_FLAG, _TYPE_FLAG = object(), object()
# The answer of the picker of LLVM's passes that shows or hides their stages.
_TOGGLE_STAGES = object()
# The stages of LLVM IR that no pass of LLVM makes.
_STAGES_WITHOUT_PASS = ("translate", "optimiser-input")


class BackendCommands:
    """Edits the backend of the recipe and the flags of the backend's compiler, which checks a flag before it is set."""

    def __init__(self, context: WorkbenchContext) -> None:
        self._context = context
        # The engine's description of each backend for which it was requested, by the backend's name.
        self._descriptions: dict[str, BackendDescribed] = {}

    def choose_backend(self) -> None:
        """Lists the backends, and sets the chosen one in the recipe."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        current, backends = self._context.workspace.recipe.backend, self._context.state.backends
        if not backends:
            self._context.say("the engine has not listed its backends yet: try again after a few seconds")
            return
        choices = [
            PickerChoice(backend.name, backend.summary, backend.name, marked=backend.name == current)
            for backend in backends
        ]
        self._context.dialogs.open(PickerScreen("Backend", choices), self._use_backend)

    def _use_backend(self, backend: Backend | None) -> None:
        recipe = self._context.workspace.recipe
        if backend is None or backend == recipe.backend:
            return
        self._context.edits.edit(replace(recipe, backend=backend, backend_flags=()), f"backend {backend}")

    # ---- flags ---------------------------------------------------------------------------------------------------

    def choose_flag(self) -> None:
        """Lists the flags of the backend's compiler. The flags that the recipe sets come first."""
        self._context.jobs.begin_opening("backend", self._list_flags)

    async def _list_flags(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        description = await self._describe_backend()
        if description is None:
            return
        recipe_flags = self._context.workspace.recipe.backend_flags
        choices = [
            PickerChoice(flag, "set in the recipe: choose it to change or remove it", flag, marked=True)
            for flag in recipe_flags
        ]
        choices += [PickerChoice(flag, "default of the recipe's backend", flag) for flag in description.defaults]
        choices += [PickerChoice(f"--{flag.name}", _describe_flag(flag), flag) for flag in description.flags]
        choices.append(PickerChoice("another flag...", "a flag that the compiler's help does not list", _TYPE_FLAG))
        drivers = ", ".join(dict.fromkeys(device.driver for device in description.devices))
        version = next(iter(description.versions.values()), "")
        title = f"Flags of {description.name} {version}"
        if drivers:
            title += f"; drivers of its runtime: {drivers}"
        self._context.dialogs.open(PickerScreen(title, choices), self._edit_chosen_flag)

    # ---- LLVM's passes -------------------------------------------------------------------------------------------

    def choose_llvm_pass(self) -> None:
        """Lists the passes of LLVM that changed something or are skipped; shows their stages, or skips one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        recipe = self._context.workspace.recipe
        stages = [row.stage for row in self._context.state.board.rows()]
        llvm_names = [stage.name for stage in stages if stage.phase == "ir" and stage.language == "llvm"]
        counts = Counter(name for name in llvm_names if name not in _STAGES_WITHOUT_PASS)
        if recipe.llvm_stages:
            choices = [PickerChoice("hide stages", "remove the stages of LLVM's passes", _TOGGLE_STAGES)]
        else:
            summary = "add a stage for each pass that changes something"
            choices = [PickerChoice("show stages", summary, _TOGGLE_STAGES)]
        choices += [
            PickerChoice(name, "skipped: choose it to run it again", name, marked=True) for name in recipe.llvm_disabled
        ]
        choices += [
            PickerChoice(name, f"changes {count} stage{'s' * (count != 1)}: choose it to skip it", name)
            for name, count in sorted(counts.items())
            if name not in recipe.llvm_disabled
        ]
        self._context.dialogs.open(PickerScreen("Passes of LLVM's optimiser", choices), self._toggle_llvm_pass)

    def _toggle_llvm_pass(self, answer: object) -> None:
        """Skips the chosen pass or runs it again, or shows or hides the stages. `answer` is `None` without a choice."""
        recipe = self._context.workspace.recipe
        if answer is None:
            return
        if answer is _TOGGLE_STAGES:
            shows = not recipe.llvm_stages
            self._context.edits.edit(replace(recipe, llvm_stages=shows), f"LLVM's passes {'on' if shows else 'off'}")
            return
        name, disabled = str(answer), recipe.llvm_disabled
        skips = name not in disabled
        names = (*disabled, name) if skips else tuple(other for other in disabled if other != name)
        change = f"LLVM's {name} {'skipped' if skips else 'enabled'}"
        self._context.edits.edit(replace(recipe, llvm_disabled=names), change)

    async def _describe_backend(self) -> BackendDescribed | None:
        """The engine's description of the recipe's backend; `None`, after a message, if the request fails."""
        name = self._context.workspace.recipe.backend
        if name not in self._descriptions:
            description = await self._context.jobs.result_of(self._context.session.request(DescribeBackend(0, name)))
            if description is None:
                return None
            self._descriptions[name] = description
        return self._descriptions[name]

    def _edit_chosen_flag(self, answer: object) -> None:
        """Asks for the value of the chosen flag; for `_TYPE_FLAG`, asks for a flag with its value.

        `answer` is a flag that the compiler lists, a text `--NAME=VALUE`, `_TYPE_FLAG`, or `None` without a choice.
        """
        if answer is None:
            return
        if answer is _TYPE_FLAG:
            self._ask_flag("--")
        elif isinstance(answer, FlagInfo):
            self._choose_value(answer)
        else:
            name = str(answer).lstrip("-").partition("=")[0]
            flag = next((flag for flag in self._listed_flags() if flag.name == name), FlagInfo(name, "value"))
            self._choose_value(flag, str(answer))

    def _listed_flags(self) -> tuple[FlagInfo, ...]:
        """The flags that the help of the backend's compiler lists; empty before the backend was described."""
        description = self._descriptions.get(self._context.workspace.recipe.backend)
        return description.flags if description is not None else ()

    def _choose_value(self, flag: FlagInfo, current: str = "") -> None:
        """Asks for the value of a flag: in a list if its values are known or the recipe sets it, else in the prompt.

        `current` is the flag with its value in the recipe or by default, "" if it has none.
        """
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        values = flag.values or _VALUES_OF_KIND.get(flag.kind, ()) or (_BOOLEAN_VALUES if not flag.kind else ())
        is_set = any(_flag_name(other) == flag.name for other in self._context.workspace.recipe.backend_flags)
        if not values and not is_set:
            self._ask_flag(current or f"--{flag.name}=")
            return
        choices = [PickerChoice(f"--{flag.name}={value}", "", f"--{flag.name}={value}") for value in values]
        if not values:
            choices.append(PickerChoice("another value...", "type the value", _TYPE_FLAG))
        if is_set:
            choices.append(PickerChoice("remove", "restore the default", _REMOVE_FLAG))

        def use_choice(answer: object) -> None:
            if answer is _REMOVE_FLAG:
                self._set_flag(flag.name, "")
            elif answer is _TYPE_FLAG:
                self._ask_flag(current or f"--{flag.name}=")
            elif answer is not None:
                self._begin_check(str(answer))

        self._context.dialogs.open(PickerScreen(f"--{flag.name}", choices), use_choice)

    def _ask_flag(self, text: str) -> None:
        self._context.dialogs.ask("flag of the backend's compiler, --NAME or --NAME=VALUE", text, self._begin_check)

    def _begin_check(self, text: str) -> None:
        """Checks the typed flag in the background. Does nothing for an empty text or dashes alone."""
        if text.strip("- "):
            self._context.jobs.begin("backend", self._check_flag, text.strip())

    async def _check_flag(self, flag: str) -> None:
        """Sets the flag if the backend's compiler accepts it. Otherwise, shows the error and asks for it again."""
        recipe, name = self._context.workspace.recipe, _flag_name(flag)
        others = tuple(other for other in recipe.backend_flags if _flag_name(other) != name)
        request = self._context.session.request(CheckFlags(0, recipe.backend, (*others, flag)))
        check = await self._context.jobs.result_of(request)
        if check is None:
            return
        if check.problem:
            self._context.say(check.problem)
            self._ask_flag(flag)
        else:
            self._set_flag(name, flag)

    def _set_flag(self, name: str, flag: str) -> None:
        """Replaces the flag called `name` by `flag`; an empty `flag` removes it."""
        recipe = self._context.workspace.recipe
        others = [other for other in recipe.backend_flags if _flag_name(other) != name]
        flags = tuple([*others, flag] if flag else others)
        self._context.edits.edit(replace(recipe, backend_flags=flags), flag or f"--{name} removed")


def _flag_name(flag: str) -> str:
    """The name of a flag: `iree-opt-level` of `--iree-opt-level=O2`."""
    return flag.lstrip("-").partition("=")[0]


def _describe_flag(flag: FlagInfo) -> str:
    """The values or the kind of a flag in angle brackets, followed by its summary."""
    value = "|".join(flag.values) or flag.kind
    return " ".join(part for part in (f"<{value}>" if value else "", flag.summary) if part)


# ---- target and export -----------------------------------------------------------------------------------------------


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
        """Lists the known targets, and sets the chosen or typed one in the recipe."""
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
        """Asks for the kinds of an export, then for its folder, and exports."""
        self._context.dialogs.ask(f"export as ({', '.join(EXPORT_KINDS)})", "object", self._ask_folder)

    def _ask_folder(self, text: str) -> None:
        """Asks for the folder of an export of the kinds in `text`."""
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
        """Exports to the typed folder. Asks before it replaces files."""
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
        """Exports to a folder on the engine's machine, whose files the workbench cannot read."""
        if folder:
            question = (
                f"Files with the same names in {folder}, on the engine's machine, will be replaced. Write into it?"
            )
            self._context.files.after_confirmation(
                question, lambda: self._context.jobs.begin("export", partial(self._export, folder, kinds, force=True))
            )

    async def _export(self, folder: str, kinds: tuple[str, ...], *, force: bool) -> None:
        """Lets the engine write the export. With `force`, files with the same names are replaced."""
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
