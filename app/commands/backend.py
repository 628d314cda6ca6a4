"""Commands that choose the backend and the flags of its compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.compiler.protocol import BackendDescribed, CheckFlags, DescribeBackend, FlagInfo
from buddy.compiler.protocol.recipe import BACKENDS, IREE, NATIVE, Backend

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext

SUMMARIES = {
    NATIVE: "this compiler, with the recipe's passes",
    IREE: "iree-compile from the top-level IR, phase by phase; runs are compared with this compiler's code",
}
# The values of flags for which the help of the compiler lists none.
_VALUES = {"optimization level": ("O0", "O1", "O2", "O3")}
_SWITCH = ("true", "false")
_REMOVE, _TYPED = object(), object()


class BackendCommands:
    """Edits the backend of a recipe and its flags. The backend's compiler checks a flag before it is set."""

    def __init__(self, context: WorkbenchContext) -> None:
        self._context = context
        self._described: dict[str, BackendDescribed] = {}

    def choose_backend(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        now = self._context.workspace.recipe.backend
        choices = [PickerChoice(name, SUMMARIES[name], name, marked=name == now) for name in BACKENDS]
        self._context.dialogs.open(PickerScreen("Backend", choices), self._use_backend)

    def _use_backend(self, backend: Backend | None) -> None:
        recipe = self._context.workspace.recipe
        if backend is None or backend == recipe.backend:
            return
        flags = recipe.backend_flags if backend != NATIVE else ()
        self._context.edits.edit(replace(recipe, backend=backend, backend_flags=flags), f"backend {backend}")

    # ---- flags ---------------------------------------------------------------------------------------------------

    def choose_flag(self) -> None:
        """List the flags of the backend's compiler, the ones that are set first."""
        self._context.jobs.begin("backend", self._list_flags)

    async def _list_flags(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        described = await self._describe_backend()
        if described is None:
            return
        given = self._context.workspace.recipe.backend_flags
        choices = [PickerChoice(flag, "set: choose it to change or remove it", flag, marked=True) for flag in given]
        choices += [PickerChoice(flag, "default of the recipe's backend", flag) for flag in described.defaults]
        choices += [PickerChoice(f"--{flag.name}", _describe_flag(flag), flag) for flag in described.flags]
        choices.append(PickerChoice("another flag", "a flag that the compiler's help does not list", _TYPED))
        where = ", ".join(dict.fromkeys(f"{device.driver}" for device in described.devices))
        title = f"Flags of {described.name} {next(iter(described.versions.values()), '')}; its runtime finds {where}"
        self._context.dialogs.open(PickerScreen(title, choices), self._edit_chosen_flag)

    async def _describe_backend(self) -> BackendDescribed | None:
        name = self._context.workspace.recipe.backend
        if name not in self._described:
            found = await self._context.jobs.result_of(self._context.session.request(DescribeBackend(0, name)))
            if found is None:
                return None
            self._described[name] = found
        return self._described[name]

    def _edit_chosen_flag(self, answer: object) -> None:
        if answer is None:
            return
        if answer is _TYPED:
            self._ask_flag("--")
        elif isinstance(answer, FlagInfo):
            self._choose_value(answer)
        else:
            name = str(answer).lstrip("-").partition("=")[0]
            known = next((flag for flag in self._known_flags() if flag.name == name), FlagInfo(name, "value"))
            self._choose_value(known, str(answer))

    def _known_flags(self) -> tuple[FlagInfo, ...]:
        described = self._described.get(self._context.workspace.recipe.backend)
        return described.flags if described is not None else ()

    def _choose_value(self, flag: FlagInfo, now: str = "") -> None:
        """Ask for the value: in a list if the values are known, else in the prompt."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        values = flag.values or _VALUES.get(flag.kind, ()) or (_SWITCH if not flag.kind else ())
        given = any(_flag_name(each) == flag.name for each in self._context.workspace.recipe.backend_flags)
        if not values and not given:
            self._ask_flag(now or f"--{flag.name}=")
            return
        choices = [PickerChoice(f"--{flag.name}={value}", "", f"--{flag.name}={value}") for value in values]
        choices += [PickerChoice("another value", "type it", _TYPED)] * (not values)
        choices += [PickerChoice("remove", "restore the default", _REMOVE)] * given

        def chosen(answer: object) -> None:
            if answer is _REMOVE:
                self._set_flag(flag.name, "")
            elif answer is _TYPED:
                self._ask_flag(now or f"--{flag.name}=")
            elif answer is not None:
                self._begin_check(str(answer))

        self._context.dialogs.open(PickerScreen(f"--{flag.name}", choices), chosen)

    def _ask_flag(self, text: str) -> None:
        self._context.dialogs.ask("flag of the backend's compiler, --NAME or --NAME=VALUE", text, self._begin_check)

    def _begin_check(self, text: str) -> None:
        if text.strip("- "):
            self._context.jobs.begin("backend", self._check_flag, text.strip())

    async def _check_flag(self, flag: str) -> None:
        """Set the flag if the compiler accepts it; else show the error, and ask again."""
        recipe, name = self._context.workspace.recipe, _flag_name(flag)
        others = tuple(each for each in recipe.backend_flags if _flag_name(each) != name)
        request = self._context.session.request(CheckFlags(0, recipe.backend, (*others, flag)))
        found = await self._context.jobs.result_of(request)
        if found is None:
            return
        if found.problem:
            self._context.say(found.problem)
            self._ask_flag(flag)
        else:
            self._set_flag(name, flag)

    def _set_flag(self, name: str, flag: str) -> None:
        """Replace the flag called `name` by `flag`; an empty `flag` removes it."""
        recipe = self._context.workspace.recipe
        others = [each for each in recipe.backend_flags if _flag_name(each) != name]
        flags = tuple([*others, flag] if flag else others)
        self._context.edits.edit(replace(recipe, backend_flags=flags), flag or f"--{name} removed")


def _flag_name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


def _describe_flag(flag: FlagInfo) -> str:
    """The values of a flag, and its summary."""
    value = "|".join(flag.values) or flag.kind
    return " ".join(part for part in (f"<{value}>" if value else "", flag.summary) if part)
