"""A program that an agent works on: a recipe that it edits, and requests to the engine, inside of one folder.

The methods return plain values for a language model: short, with names that other methods take. Errors are
`BuddyError`s that say what to do.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from buddy.app.cli import arguments
from buddy.app.cli.console import Console
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import CollectedCompilation, Failure, Headless
from buddy.app.cli.recipes import UsageError, find_preset, graph_numbers, matching_nodes, step_indices
from buddy.app.session.client import EngineClient, EngineError, RequestFailed
from buddy.app.workspace.inputs import read_file
from buddy.app.workspace.presets import with_frontend
from buddy.compiler.protocol import (
    Assignment,
    Diagnostic,
    GraphInfo,
    NodeRow,
    Preset,
    Printout,
    Progress,
    Request,
    Stage,
)
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import EAGER, Recipe, from_toml, required_permissions

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


# Called with each new progress text of a request.
ReportProgress = Callable[[str], object]
# How many of the last lines that the program prints are stored, and how many edits can be undone.
_MAX_OUTPUT_LINES = 200
_MAX_UNDO_EDITS = 200
# Compilations that are stored: enough to compare recipes before and after a few edits.
_MAX_COMPILATIONS = 4


class Folder:
    """The folder that an agent may read and write. Paths are checked after links are resolved."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def resolve(self, text: str) -> Path:
        """The path that `text` names, relative to the folder. Raises `BuddyError` for one outside of it."""
        try:
            path = (self.root / text).resolve()
            path.is_file()  # raises for paths that `resolve` accepts but the system does not, such as too long names
        except (OSError, RuntimeError, ValueError) as error:  # a cycle of links, a null character, a long name
            raise BuddyError(f"{text!r:.200} is not a path: {error}", str(self.root), "give another path") from error
        if not path.is_relative_to(self.root):
            todo = "give a path inside of the folder, or ask the user to start the server with another --folder"
            raise BuddyError(f"{text:.200} is outside of the folder that this server may use", str(self.root), todo)
        return path

    def contains(self, path: str) -> bool:
        """Whether `path` is an existing file in the folder."""
        try:
            self.existing_file(path)
        except BuddyError:
            return False
        return True

    def resolve_source(self, text: str) -> str:
        """The source `text`, `model.py` or `model.py:name`, with the absolute path of the file. Raises `BuddyError`."""
        path = self.resolve(text)
        file, colon, name = text.rpartition(":")
        if not path.exists() and colon:
            return f"{self.existing_file(file)}:{name}"
        return str(self.existing_file(text))

    def existing_file(self, text: str) -> Path:
        """The absolute path of the file `text`. Raises `BuddyError` unless it exists and is in the folder."""
        path = self.resolve(text)
        if not path.is_file():
            raise BuddyError(f"there is no file {text:.200}", str(self.root), "give the path of a file in the folder")
        return path

    def new_file(self, text: str, *, overwrite: bool) -> Path:
        """The absolute path of the file `text`. Raises `BuddyError` if it exists, unless it may be overwritten."""
        path = self.resolve(text)
        if path.is_dir() or path == self.root:
            raise BuddyError(f"{text:.200} is a folder", str(self.root), "give the name of a file")
        if path.exists() and not overwrite:
            raise BuddyError(f"{text:.200} exists", str(self.root), "give another name, or set overwrite to true")
        return path

    def name_of(self, path: Path) -> str:
        """A path in the folder, relative to the folder."""
        return str(path.relative_to(self.root))


def _no_program_error() -> BuddyError:
    return BuddyError("no program is open", "", "call open_program first")


class _NoteConsole(Console):
    """A console that collects notes for the agent, and prints neither them nor progress."""

    def __init__(self) -> None:
        super().__init__(plain=True, stdout_is_data=True)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text.removeprefix("note: "))

    def progress(self, text: str) -> None:
        pass

    def clear_progress(self) -> None:
        pass


class AgentEngine(Headless):
    """A headless client whose requests can be cancelled, and which reports their progress to `report`."""

    def __init__(self, client: EngineClient, report: ReportProgress) -> None:
        self.notes_console = _NoteConsole()
        super().__init__(client, self.notes_console)
        self._report = report

    async def _follow(
        self,
        request: Request[Any],
        handle: Callable[[Frame], None],
        step_limit: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Like `Headless._follow`, without `step_limit`: the agent's client cancels calls that take too long.

        `EngineClient.request` cancels the request in the engine if this coroutine is cancelled.
        """

        def on_frame(frame: Frame) -> None:
            if isinstance(frame, Progress):
                self._report(frame.activity)
            else:
                handle(frame)

        try:
            handle(await self.client.request(request, on_frame))
        except RequestFailed as error:
            raise Failure(error.diagnostic, error.failed.stages) from error


class AgentProgram:
    """The program that is open, its recipes, and the engine. Uses one engine, which is started when it is needed.

    One of its graphs is the current one, about which the agent asks. `timeout` limits the script and each run, in
    seconds. One call at a time may use the engine: hold `busy`. `report` is called with the progress of the running
    call. `output` are the last lines that the program has printed.
    """

    def __init__(self, folder: Folder, timeout: float) -> None:
        self.folder, self.timeout = folder, timeout
        self.busy = asyncio.Lock()
        self.report: ReportProgress = lambda _text: None
        self.output: deque[str] = deque(maxlen=_MAX_OUTPUT_LINES)
        self._engine: AgentEngine | None = None
        self._output_task: asyncio.Task[None] | None = None
        # The current recipe of each graph, by its number. Empty if no program is open.
        self._recipes: dict[int, Recipe] = {}
        self._graph = 0
        # The recipes of the current graph before each edit, for `undo`: the oldest first.
        self._earlier_recipes: list[Recipe] = []
        # The paths of the plug-ins that the program was opened with: edits may not load others.
        self._plugins: frozenset[str] = frozenset()
        # The latest compilations, each with its failure, if any: the oldest first.
        self._compilations: dict[Recipe, tuple[CollectedCompilation, Failure | None]] = {}

    # ---- the engine ----------------------------------------------------------------------------------------------

    @property
    def engine(self) -> AgentEngine:
        """The engine with the program. Raises `BuddyError` if none is open."""
        if self._engine is None or not self._recipes:
            raise _no_program_error()
        return self._engine

    async def _start(self) -> AgentEngine:
        """Starts the engine if it does not run. Returns its client."""
        if self._engine is None:
            client = EngineClient()
            await client.start()
            self._engine = AgentEngine(client, lambda text: self.report(text))
            self._output_task = asyncio.create_task(self._collect_output(client))
        return self._engine

    async def _collect_output(self, client: EngineClient) -> None:
        """Stores the last lines that the program prints, up to the end of the engine."""
        try:
            async for frame in client.frames():
                if isinstance(frame, Printout):
                    self.output.extend(frame.text.splitlines())
        except EngineError:
            self._engine = None
            self._recipes.clear()

    def take_notes(self) -> list[str]:
        """The notes since the last call of this method, each once: on captures and on choices that were not applied."""
        if self._engine is None:
            return []
        console = self._engine.notes_console
        notes, console.notes = console.notes, []
        return list(dict.fromkeys(notes))

    async def close(self) -> None:
        """Stops the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.client.close()
        if self._output_task is not None:
            self._output_task.cancel()

    # ---- the program ---------------------------------------------------------------------------------------------

    async def open(self, source: str, script_arguments: Sequence[str], option_words: Sequence[str]) -> None:
        """Opens a source with the options `option_words` of the command line. Raises `BuddyError`.

        The options are those of `arguments.source_parser` and `arguments.add_recipe_options`.
        """
        parser = arguments.source_parser("mcp", "")
        arguments.add_recipe_options(parser)
        try:
            options = parser.parse_args([*option_words, "--timeout", str(self.timeout), "--", source])
        except SystemExit as error:  # argparse has printed the reason to stderr
            raise BuddyError(
                "an option is invalid", " ".join(option_words), "correct the arguments of the call"
            ) from error
        engine = await self._start()
        self.output.clear()
        recipes = await engine.open_program(options, tuple(script_arguments))
        self._recipes = {recipe.graph: recipe for recipe in recipes}
        self._plugins = frozenset(plugin.path for plugin in recipes[0].plugins)
        self._graph = recipes[0].graph
        self._earlier_recipes.clear()
        self._compilations.clear()

    def choose_graph(self, selector: str) -> None:
        """Makes a graph the current one, by its name or number. Raises `BuddyError`."""
        (number,) = graph_numbers(selector, self.engine.graphs)
        if number not in self._recipes:
            raise BuddyError(f"graph {selector} was not opened", "", "call open_program without a graph")
        self._graph = number
        self._earlier_recipes.clear()

    @property
    def graphs(self) -> tuple[GraphInfo, ...]:
        return self.engine.graphs

    @property
    def info(self) -> GraphInfo:
        """The current graph."""
        return self.engine.graphs[self._graph]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the current graph. Raises `BuddyError` if no program is open."""
        if not self._recipes:
            raise _no_program_error()
        return self._recipes[self._graph]

    # ---- edits of the recipe -------------------------------------------------------------------------------------

    def edit(self, recipe: Recipe) -> bool:
        """Makes `recipe` the current one. Returns whether it differs from the one before.

        Raises `BuddyError` if `recipe` needs access that only the user may grant.
        """
        _check_permissions(recipe, self._plugins, "the recipe", "use other passes or options")
        if recipe == self.recipe:
            return False
        self._earlier_recipes = [*self._earlier_recipes[-_MAX_UNDO_EDITS:], self.recipe]
        self._recipes[self._graph] = recipe
        return True

    @property
    def previous_recipe(self) -> Recipe:
        """The recipe before the last edit. Raises `BuddyError` without one."""
        if not self._earlier_recipes:
            raise BuddyError("the recipe has not been edited", "", "compare two stages of this recipe")
        return self._earlier_recipes[-1]

    def undo(self) -> None:
        """Undoes the last edit. Raises `BuddyError` without one."""
        if not self._earlier_recipes:
            raise BuddyError("there is no edit to undo")
        self._recipes[self._graph] = self._earlier_recipes.pop()

    def steps(self, selector: str) -> list[int]:
        """The indices of the passes that a number (from 1), a name or `name#2` selects. Raises `UsageError`."""
        if selector.isdigit():
            if not 1 <= int(selector) <= len(self.recipe.steps):
                raise UsageError(f"there is no pass {selector}: the recipe has passes 1 to {len(self.recipe.steps)}")
            return [int(selector) - 1]
        return step_indices(self.recipe, selector)

    def nodes(self, patterns: Iterable[str]) -> list[NodeRow]:
        """The compiled nodes that names or patterns select. Raises `UsageError` for one that selects none."""
        rows: dict[str, NodeRow] = {}
        for pattern in patterns:
            names = matching_nodes(self.info, pattern)
            if not names:
                raise UsageError(f"no node matches {pattern!r}: call list_nodes")
            rows |= {row.stable: row for row in self.info.rows if row.stable in names}
        return list(rows.values())

    def with_lowering(self, rows: Sequence[NodeRow], lowering: str, assignments: Sequence[Assignment]) -> Recipe:
        """The recipe with `lowering` chosen for the nodes of `rows`: a registry, `eager`, or `default` for no choice.

        `assignments` are those of the current compilation. Raises `UsageError` if a node has no such lowering.
        """
        recipe, assignment_of_node = self.recipe, {assignment.node: assignment for assignment in assignments}
        for row in rows:
            assignment = assignment_of_node.get(row.stable)
            possible = ("default", EAGER, *(assignment.compiled_choices if assignment else ()))
            if lowering not in possible:
                raise UsageError(
                    f"{row.display_name} cannot be lowered by {lowering!r}; possible: {', '.join(possible)}"
                )
            recipe = recipe.with_choice(row.stable, None if lowering == "default" else lowering)
        return recipe

    def with_settings(self, settings: dict[str, Any]) -> Recipe:
        """The current recipe with these settings. `None` leaves a setting as it is. Raises `UsageError`.

        The keys are fields of a recipe, or `preset`, whose value is the name of the preset that replaces the passes.
        """
        changes = {key: value for key, value in settings.items() if value is not None}
        recipe, presets = self.recipe, self.engine.presets
        if (preset := changes.pop("preset", None)) is not None:
            recipe = self.engine.with_steps_of(find_preset(presets, preset).recipe, recipe)
        if (dialect := changes.pop("dialect", None)) is not None:
            try:
                recipe = with_frontend(recipe, presets, recipe.frontend, dialect)
            except ValueError as error:
                raise UsageError(str(error)) from error
        return replace(recipe, **changes)

    @property
    def presets(self) -> tuple[Preset, ...]:
        return self.engine.presets

    # ---- compilations --------------------------------------------------------------------------------------------

    async def compile(
        self, recipe: Recipe | None = None
    ) -> tuple[Sequence[Stage], Sequence[Assignment], Failure | None]:
        """Compiles a recipe, by default the current one. Returns its stages, the assignments of its nodes, and `None`.

        If the compilation fails, returns the stages up to the failure, no assignments, and the failure.
        """
        recipe = recipe or self.recipe
        if recipe not in self._compilations:
            try:
                result: tuple[CollectedCompilation, Failure | None] = (await self.engine.compile(recipe), None)
            except Failure as failure:
                result = CollectedCompilation({stage.index: stage for stage in failure.stages}), failure
            self._compilations[recipe] = result
            if len(self._compilations) > _MAX_COMPILATIONS:
                del self._compilations[next(iter(self._compilations))]
        compilation, failed = self._compilations[recipe]
        return compilation.ordered_stages(), compilation.assignments, failed

    async def stage(self, selector: str) -> Stage:
        """The stage that a number, a name or a phase selects. Raises `BuddyError`."""
        stages, _, failure = await self.compile()
        try:
            return choose_stage(stages, selector)
        except UsageError as error:
            if failure is None:
                raise
            diagnostic = failure.diagnostic
            what = f"{error}; the compilation failed: {diagnostic.what}"
            raise BuddyError(Diagnostic(what, diagnostic.where, diagnostic.todo)) from error

    def compiled_stages(self) -> Sequence[Stage]:
        """The stages of the current recipe; empty if it has not been compiled."""
        recipe = self._recipes.get(self._graph)
        return self._compilations[recipe][0].ordered_stages() if recipe in self._compilations else ()


def check_recipe_file(file: Path, plugins: Sequence[Path]) -> None:
    """Raises `BuddyError` if a file is not a recipe, or needs more access than to load `plugins`."""
    try:
        recipe = from_toml(read_file(file))
    except (OSError, ValueError) as error:
        raise BuddyError(str(error), file.name, "give a recipe of write_recipe or of `buddy-tui recipe`") from error
    _check_permissions(recipe, map(str, plugins), file.name, "give its plug-ins as `plugins`, or use another recipe")


def _check_permissions(recipe: Recipe, allowed: Iterable[str], where: str, todo: str) -> None:
    """Raises `BuddyError` if a recipe needs access that only a user may grant, such as passes that write files.

    `allowed` are the paths of the plug-ins that it may load; `where` and `todo` are those of the error.
    """
    if permissions := required_permissions(recipe, allowed):
        raise BuddyError(f"the recipe is refused: it asks for {'; '.join(permissions)}", where, todo)
