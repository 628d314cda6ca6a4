"""Chooses the backend of a recipe, the flags of its compiler, and the passes of LLVM's optimiser."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.compiler.protocol import BackendDescribed, CheckFlags, DescribeBackend, FlagInfo
from buddy.compiler.protocol.recipe import Backend

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext

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
        """List the backends, and set the chosen one in the recipe."""
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
        """List the flags of the backend's compiler. The flags that the recipe sets come first."""
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
        """List the passes of LLVM that changed something or are skipped; show their stages, or skip one."""
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
        """Skip the chosen pass or run it again, or show or hide the stages. `answer` is `None` without a choice."""
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
        """Ask for the value of the chosen flag: one that the compiler lists, or one with a value, as a text."""
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
        """Ask for the value of a flag: in a list if its values are known or the recipe sets it, else in the prompt.

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
        """Check the typed flag in the background. Does nothing for an empty text or dashes alone."""
        if text.strip("- "):
            self._context.jobs.begin("backend", self._check_flag, text.strip())

    async def _check_flag(self, flag: str) -> None:
        """Set the flag if the backend's compiler accepts it. Otherwise, show the error and ask for the flag again."""
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
        """Replace the flag called `name` by `flag`; an empty `flag` removes it."""
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
