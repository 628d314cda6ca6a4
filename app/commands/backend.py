"""Another backend in the workbench: which one takes the program on, and the flags of its compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.compiler.protocol import BackendDescribed, CheckFlags, DescribeBackend, FlagInfo
from buddy.compiler.protocol.recipe import BACKENDS, IREE, NATIVE, Backend

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext

SUMMARIES = {
    NATIVE: "this compiler, by the recipe's passes",
    IREE: "iree-compile from top-level IR on, phase by phase, and IREE's runtime beside this compiler's code",
}
# Values to choose from where the backend's help leaves them out.
_VALUES = {"optimization level": ("O0", "O1", "O2", "O3")}
_SWITCH = ("true", "false")
_OUT, _TYPED = object(), object()


class BackendCommands:
    """Edits of a recipe's backend and of its flags, which are checked by that backend before they are taken."""

    def __init__(self, context: WorkbenchContext) -> None:
        self._context = context
        self._described: dict[str, BackendDescribed] = {}

    def choose_backend(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        now = self._context.workspace.recipe.backend
        choices = [PickerChoice(name, SUMMARIES[name], name, marked=name == now) for name in BACKENDS]
        self._context.dialogs.open(PickerScreen("Backend", choices), self._use)

    def _use(self, backend: Backend | None) -> None:
        recipe = self._context.workspace.recipe
        if backend is None or backend == recipe.backend:
            return
        flags = recipe.backend_flags if backend != NATIVE else ()
        self._context.edits.edit(replace(recipe, backend=backend, backend_flags=flags), f"backend {backend}")

    # ---- flags ---------------------------------------------------------------------------------------------------

    def choose_flag(self) -> None:
        """List the flags of the backend's compiler, those that are set first; typing narrows."""
        self._context.jobs.begin("backend", self._list)

    async def _list(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        described = await self._describe()
        if described is None:
            return
        given = self._context.workspace.recipe.backend_flags
        choices = [PickerChoice(flag, "set: choose to change it or take it out", flag, marked=True) for flag in given]
        choices += [PickerChoice(flag, "stands unless another value is given", flag) for flag in described.defaults]
        choices += [PickerChoice(f"--{flag.name}", _told(flag), flag) for flag in described.flags]
        choices.append(PickerChoice("another flag", "one that the compiler's help does not list", _TYPED))
        where = ", ".join(dict.fromkeys(f"{device.driver}" for device in described.devices))
        title = f"Flags of {described.name} {next(iter(described.versions.values()), '')}; its runtime finds {where}"
        self._context.dialogs.open(PickerScreen(title, choices), self._chosen)

    async def _describe(self) -> BackendDescribed | None:
        name = self._context.workspace.recipe.backend
        if name not in self._described:
            found = await self._context.jobs.result_of(self._context.session.request(DescribeBackend(0, name)))
            if found is None:
                return None
            self._described[name] = found
        return self._described[name]

    def _chosen(self, answer: object) -> None:
        if answer is None:
            return
        if answer is _TYPED:
            self._type("--")
        elif isinstance(answer, FlagInfo):
            self._choose_value(answer)
        else:
            name = str(answer).lstrip("-").partition("=")[0]
            known = next((flag for flag in self._known() if flag.name == name), FlagInfo(name, "value"))
            self._choose_value(known, str(answer))

    def _known(self) -> tuple[FlagInfo, ...]:
        described = self._described.get(self._context.workspace.recipe.backend)
        return described.flags if described is not None else ()

    def _choose_value(self, flag: FlagInfo, now: str = "") -> None:
        """Ask for the value: from a list where there is one, else on the line at the bottom."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        values = flag.values or _VALUES.get(flag.kind, ()) or (_SWITCH if not flag.kind else ())
        given = any(_name(each) == flag.name for each in self._context.workspace.recipe.backend_flags)
        if not values and not given:
            self._type(now or f"--{flag.name}=")
            return
        choices = [PickerChoice(f"--{flag.name}={value}", "", f"--{flag.name}={value}") for value in values]
        choices += [PickerChoice("another value", "typed", _TYPED)] * (not values)
        choices += [PickerChoice("take it out", "back to its default", _OUT)] * given

        def chosen(answer: object) -> None:
            if answer is _OUT:
                self._set(flag.name, "")
            elif answer is _TYPED:
                self._type(now or f"--{flag.name}=")
            elif answer is not None:
                self._try(str(answer))

        self._context.dialogs.open(PickerScreen(f"--{flag.name}", choices), chosen)

    def _type(self, text: str) -> None:
        self._context.dialogs.ask("flag of the backend's compiler, --NAME or --NAME=VALUE", text, self._try)

    def _try(self, text: str) -> None:
        if text.strip("- "):
            self._context.jobs.begin("backend", self._check, text.strip())

    async def _check(self, flag: str) -> None:
        """Take the flag if the backend does; else say why not, and ask again."""
        recipe, name = self._context.workspace.recipe, _name(flag)
        others = tuple(each for each in recipe.backend_flags if _name(each) != name)
        request = self._context.session.request(CheckFlags(0, recipe.backend, (*others, flag)))
        found = await self._context.jobs.result_of(request)
        if found is None:
            return
        if found.problem:
            self._context.say(found.problem)
            self._type(flag)
        else:
            self._set(name, flag)

    def _set(self, name: str, flag: str) -> None:
        """Put `flag` in the place of what is set by that name; "" takes it out."""
        recipe = self._context.workspace.recipe
        others = [each for each in recipe.backend_flags if _name(each) != name]
        flags = tuple([*others, flag] if flag else others)
        self._context.edits.edit(replace(recipe, backend_flags=flags), flag or f"--{name} taken out")


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


def _told(flag: FlagInfo) -> str:
    """What a flag's value is, and what it does."""
    value = "|".join(flag.values) or flag.kind
    return " ".join(part for part in (f"<{value}>" if value else "", flag.summary) if part)
