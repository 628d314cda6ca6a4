"""Commands that choose the frontend, the target dialect and the backend of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from buddy.app.panes.ir_comparison import ComparedStages
from buddy.app.session.stages import StagePosition
from buddy.app.workspace.frontends import SUMMARIES, dialects_of, with_frontend
from buddy.compiler.protocol import BackendDescribed, CheckFlags, DescribeBackend, FlagInfo
from buddy.compiler.protocol.recipe import FRONTENDS, NATIVE, TORCH_MLIR, Backend, Dialect, Frontend

if TYPE_CHECKING:
    from buddy.app.commands.provenance import ProvenanceCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane

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

        now, found = self._context.workspace.recipe.backend, self._context.state.backends
        if not found:
            self._context.say("the engine has not listed its backends yet: try again in a moment")
            return
        choices = [PickerChoice(each.name, each.summary, each.name, marked=each.name == now) for each in found]
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
        self._context.jobs.open_after("backend", self._list_flags)

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


class _FrontendChoice(NamedTuple):
    frontend: Frontend
    dialect: Dialect


class FrontendCommands:
    """Changes the frontend or the dialect of the recipe, and its passes accordingly."""

    def __init__(self, context: WorkbenchContext, ir: IrPane, provenance: ProvenanceCommands) -> None:
        self._context, self._ir, self._provenance = context, ir, provenance

    def choose_frontend(self) -> None:
        """List every frontend with each dialect that it supports."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        recipe = self._context.workspace.recipe
        now = _FrontendChoice(recipe.frontend, recipe.dialect)
        found = [_FrontendChoice(frontend, dialect) for frontend in FRONTENDS for dialect in dialects_of(frontend)]
        choices = [
            PickerChoice(f"{choice.frontend}, {choice.dialect}", _describe(choice), choice, marked=choice == now)
            for choice in found
        ]
        self._context.dialogs.open(PickerScreen("Frontend and target dialect", choices), self._use_frontend)

    def next_dialect(self) -> None:
        """Switch to the next dialect that the recipe's frontend supports."""
        recipe = self._context.workspace.recipe
        given = dialects_of(recipe.frontend)
        self._use_frontend(_FrontendChoice(recipe.frontend, given[(given.index(recipe.dialect) + 1) % len(given)]))

    def _use_frontend(self, choice: _FrontendChoice | None) -> None:
        workspace = self._context.workspace
        recipe = workspace.recipe
        if choice is None or choice == (recipe.frontend, recipe.dialect):
            return
        changed = with_frontend(recipe, self._context.state.presets, *choice)
        frontend = f"frontend {choice.frontend}, " if choice.frontend != recipe.frontend else ""
        self._context.edits.edit(changed, f"{frontend}dialect {choice.dialect}")

    def compare_node(self) -> None:
        """Show the node under the cursor in this compiler's IR and in torch-mlir's IR."""
        from buddy.app.screens.follow import FrontendComparisonScreen

        if self._context.state.info is not None and self._context.state.info.enters:
            self._context.say(f"{self._context.state.info.name} starts as IR, so no frontend has captured its nodes")
            return
        self._provenance.with_node(
            lambda row: self._context.dialogs.open(
                FrontendComparisonScreen(self._context.session, self._context.workspace.recipe, row), self._show_result
            )
        )

    def _show_result(self, found: StagePosition | ComparedStages | None) -> None:
        if found is None:
            return
        self._context.layout.show_pane("ir")
        if isinstance(found, ComparedStages):
            self._ir.comparison.compare_with(found)
        else:
            self._ir.jumps.go_from_here(found)


def _describe(choice: _FrontendChoice) -> str:
    if choice.frontend == TORCH_MLIR:
        return SUMMARIES[choice.frontend]
    return f"{SUMMARIES[choice.frontend]}, {choice.dialect} first"
