"""Compares the current recipe with other recipes; chooses inputs, time limit and runtimes of runs; lists runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from buddy.app.actions import key_of
from buddy.app.panes.ir_comparison import ComparedStages, TitledRecipe
from buddy.app.workspace.inputs import inputs_from_file, parse_path, parse_seconds, parse_seed, read_file
from buddy.app.workspace.presets import with_preset
from buddy.app.workspace.session_file import RunRecord, content_hash
from buddy.compiler.protocol.recipe import from_toml, rejection_text, required_permissions
from buddy.compiler.protocol.run_report import RUNTIMES, InputChoice, Mark

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane


# ---- comparison of recipes -------------------------------------------------------------------------------------------


class CompareCommands:
    """Compiles other recipes for a comparison. The current recipe does not change."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir

    def comparable_recipes(self) -> list[tuple[TitledRecipe, str]]:
        """Returns the recipes that can be compared with the current one, each with a description."""
        workspace, state = self._context.workspace, self._context.state
        choices = [(TitledRecipe("the current recipe", workspace.recipe), "compare later edits with the current state")]
        choices += [
            (TitledRecipe(f"backend {backend.name}", replace(workspace.recipe, backend=backend.name)), backend.summary)
            for backend in state.backends
            if backend.name != workspace.recipe.backend
        ]
        choices += [
            (TitledRecipe(f"preset {preset.name}", workspace.with_steps_of(preset.recipe)), preset.summary)
            for preset in state.presets
        ]
        choices += [
            (TitledRecipe(f"after: {edit.title}" if edit.title else "the first recipe", edit.recipe), "an earlier edit")
            for edit in workspace.past_edits
        ]
        choices += [
            (
                TitledRecipe(f"graph {number}, {info.name}", workspace.recipe_of(number)),
                f"{len(info.rows)} nodes; the recipe of that graph",
            )
            for number, info in enumerate(state.graphs)
            if number != state.graph
        ]
        return choices

    def choose_recipe_to_compare(self) -> None:
        """Asks for the other recipe, compiles it, and shows the differences of each stage."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(recipe.title, summary, recipe) for recipe, summary in self.comparable_recipes()]
        choices.append(PickerChoice("a recipe file", "a TOML file, as given to `buddy-tui run --recipe`", "file"))
        self._context.dialogs.open(PickerScreen("Compare with", choices), self._compare_with_choice)

    def _compare_with_choice(self, other: TitledRecipe | Literal["file"] | None) -> None:
        if other == "file":
            self._context.dialogs.ask("compare with the recipe in the file", "", self._compare_with_file)
        elif other is not None:
            self.compare_with(other)

    def _compare_with_file(self, path: str) -> None:
        """Compares with the recipe in a file, for the current graph. Without steps, it gets those of its preset."""
        if not path.strip():
            return
        try:
            file_recipe = from_toml(read_file(parse_path(path)))
            if not file_recipe.steps:
                file_recipe = with_preset(file_recipe, self._context.state.presets)
        except (OSError, ValueError) as error:
            self._context.say(f"{path.strip()}: {getattr(error, 'strerror', None) or error}")
            return
        # The plug-ins that the file names are replaced below, so the user need not trust them.
        needs_trust = required_permissions(replace(file_recipe, plugins=()))
        if needs_trust and not self._context.session.is_trusted:
            self._context.say(f"{path.strip()} is rejected: {rejection_text(needs_trust)}")
            return
        current = self._context.workspace.recipe
        # Plug-ins are code: the recipe uses those that the user has loaded, not those of the file.
        recipe = replace(
            file_recipe,
            source=current.source,
            arguments=current.arguments,
            graph=current.graph,
            plugins=current.plugins,
        )
        self.compare_with(TitledRecipe(Path(path.strip()).name, recipe))

    def compare_with(self, other: TitledRecipe) -> None:
        """Compiles the recipe `other` in the background, then shows the differences of its stages in the IR pane."""
        self._context.say(f"compiling {other.title}{self._context.glyphs.ellipsis} press {key_of('cancel')} to cancel")
        self._context.jobs.begin("compare", self._compile_and_compare, other)

    async def _compile_and_compare(self, other: TitledRecipe) -> None:
        """Compiles `other`, and shows the differences. Shows the error if that fails."""
        compiled = await self._context.jobs.result_of(
            self._context.session.compile_for_comparison(other.recipe), other.title
        )
        if compiled is not None:
            self._context.layout.show_pane("ir")
            stages = ComparedStages(other.title, compiled.stages)
            # The stages of another graph differ from the first on, so the chosen stage is shown instead of that one.
            is_same_graph = other.recipe.graph == self._context.state.graph
            self._ir.comparison.compare_with(stages, at_first_difference=is_same_graph)

    def compare_presets(self) -> None:
        """Compiles the program with every applicable preset, and shows times, op counts and code sizes in a table."""
        from buddy.app.screens.presets import PresetsScreen

        current, presets = self._context.workspace.recipe, self._context.state.presets
        recipes = [
            (preset.name, self._context.workspace.with_steps_of(preset.recipe))
            for preset in presets
            if preset.suits(current)
        ]
        if current not in [recipe for _, recipe in recipes]:
            recipes.insert(0, ("current recipe", current))
        self._context.dialogs.open(PresetsScreen(self._context.session, recipes), self._use_preset_answer)

    def _use_preset_answer(self, answer: tuple[str, TitledRecipe] | None) -> None:
        """Compares with the chosen preset, or uses it. `answer` has the chosen action and the preset's recipe."""
        if answer is None:
            return
        action, preset = answer
        if action == "compare":
            self.compare_with(preset)
        else:
            self._context.edits.edit(preset.recipe, f"preset {preset.title}")


# ---- runs ------------------------------------------------------------------------------------------------------------


class RunCommands:
    """Asks for the inputs, the time limit and the runtimes of runs, and lists earlier runs."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands, compare: CompareCommands) -> None:
        self._context, self._graphs, self._compare = context, graphs, compare
        # The inputs of the last session while their file is being read, else `None`.
        self._inputs_to_restore: InputChoice | None = None

    @property
    def next_inputs(self) -> InputChoice:
        """The inputs of the next run: those of the last session while their file is read, then those of the session."""
        return self._inputs_to_restore or self._context.session.inputs

    def ask_timeout(self) -> None:
        """Asks for the time limit of a run; a run that takes longer is stopped."""
        self._context.dialogs.ask(
            "time limit of a run in seconds", f"{self._context.session.timeout:g}", self._use_timeout
        )

    def _use_timeout(self, text: str) -> None:
        try:
            self._context.session.timeout = parse_seconds(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self._context.say(f"a run is stopped after {self._context.session.timeout:g} s")

    def choose_runtimes(self) -> None:
        """Lets the user choose other runtimes to compare with in this and later runs, and runs."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        session, all_runtimes = self._context.session, tuple(RUNTIMES)
        search_summary = "searches for the first node that differs if a result does"
        every_node_summary = "compares the values of all nodes, which breaks the runtimes' fusions"
        # Title, summary, and the runtimes with the nodes whose values are compared.
        entries: list[tuple[str, str, tuple[tuple[str, ...], Mark]]] = [
            ("none", "compare compiled code with eager only", ((), "auto")),
            *((title, f"exports to ONNX; {search_summary}", ((name,), "auto")) for name, title in RUNTIMES.items()),
            ("both", search_summary, (all_runtimes, "auto")),
            ("both, every node", every_node_summary, (all_runtimes, "all")),
        ]
        current = session.runtimes, session.mark
        choices = [PickerChoice(title, text, value, marked=value == current) for title, text, value in entries]
        self._context.dialogs.open(PickerScreen("Other runtimes", choices), self._use_runtimes)

    def _use_runtimes(self, choice: tuple[tuple[str, ...], Mark] | None) -> None:
        if choice is None:
            return
        session = self._context.session
        session.runtimes, session.mark = choice
        names = " and ".join(RUNTIMES[name] for name in session.runtimes)
        self._context.say(f"runs are also compared with {names}" if names else "runs are compared with eager only")
        session.run()

    def choose_inputs(self) -> None:
        """Lets the user choose the inputs: the script's, random ones, those of a file, or inputs with other shapes."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        inputs, shapes = self._context.session.inputs, " ".join(self._context.session.shapes)
        choices = [
            PickerChoice("the script's own", "the inputs of the capture", "script", marked=inputs.kind == "script"),
            PickerChoice(
                "random", 
                "from a seed: floats with the distribution of the script's inputs, integers among their values",
                "random",
                marked=inputs.kind == "random",
            ),
            PickerChoice(
                "from a file", ".npy, .npz or .pt: tensors of the same shapes", "file", marked=inputs.kind == "file"
            ),
            PickerChoice(
                "other shapes", shapes or "capture with tensors of other sizes: x=4x128", "shapes", marked=bool(shapes),
            ),
        ]  # fmt: skip
        self._context.dialogs.open(PickerScreen("Inputs", choices), self._use_input_kind)

    def _use_input_kind(self, kind: str | None) -> None:
        inputs = self._context.session.inputs
        if kind == "script":
            self._run_with(InputChoice())
        elif kind == "random":
            self._context.dialogs.ask("seed", str(inputs.seed), self._use_seed)
        elif kind == "shapes":
            shapes = " ".join(self._context.session.shapes)
            self._context.dialogs.ask("shapes such as x=4x128 (empty: those of the script)", shapes, self._use_shapes)
        elif kind == "file":
            self._context.dialogs.ask("file with the inputs", inputs.title, self._use_file)

    def _use_shapes(self, text: str) -> None:
        """Captures the program again with the shapes in `text`. The recipe does not change."""
        self._set_inputs(InputChoice())
        self._context.session.capture_with_shapes(tuple(text.replace(",", " ").split()))

    def _use_seed(self, text: str) -> None:
        try:
            seed = parse_seed(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self._run_with(InputChoice("random", seed))

    def _use_file(self, text: str) -> None:
        try:
            path = parse_path(text).absolute()
        except (OSError, ValueError) as error:
            self._context.say(f"{text.strip()}: {error}")
            return
        self._read_file(path, self._run_with)

    def _read_file(self, path: Path, use_inputs: Callable[[InputChoice], object]) -> None:
        """Reads a file in the background, because it may be large or remote, and calls `use_inputs` with its inputs."""
        self._context.jobs.begin("inputs", self._read_in_background, path, use_inputs)

    async def _read_in_background(self, path: Path, use_inputs: Callable[[InputChoice], object]) -> None:
        """Reads a file in a thread, and calls `use_inputs` with its inputs. Shows the error if that fails."""
        try:
            inputs = await asyncio.to_thread(inputs_from_file, path)
        except ValueError as error:
            self._inputs_to_restore = None
            self._context.say(f"{path}: {error}")
        else:
            use_inputs(inputs)

    def restore(self, inputs: InputChoice) -> None:
        """Restores the inputs of the last session. If their file cannot be read, keeps the inputs of the script."""
        if inputs.kind == "file":
            self._inputs_to_restore = inputs
            self._read_file(Path(inputs.title), self._finish_restoring_inputs)
        else:
            self._set_inputs(inputs)

    def _finish_restoring_inputs(self, inputs: InputChoice) -> None:
        """Sets the inputs of the last session, unless the user has chosen others while the file was read."""
        if self._inputs_to_restore is not None:
            self._set_inputs(inputs)

    def _set_inputs(self, inputs: InputChoice) -> None:
        """Uses these inputs in the next run, also if those of the last session are still being read."""
        self._inputs_to_restore, self._context.session.inputs = None, inputs

    def _run_with(self, inputs: InputChoice) -> None:
        self._set_inputs(inputs)
        self._context.say(str(inputs))
        self._context.session.run()

    # ---- earlier runs --------------------------------------------------------------------------------------------

    def show_runs(self) -> None:
        """Lists the runs of this and earlier sessions, to repeat one or to compare its recipe with the current one."""
        from buddy.app.screens.tables import RunsScreen

        state = self._context.state
        self._context.dialogs.open(RunsScreen(state.runs, state.presets), self._use_run)

    def _use_run(self, answer: tuple[str, RunRecord] | None) -> None:
        """Compares with the recipe of the chosen run, or repeats the run. `answer` is the chosen action and the run."""
        if answer is None:
            return
        action, record = answer
        if action == "compare":
            self._compare.compare_with(TitledRecipe("recipe of the run", record.recipe))
        elif record.inputs.kind == "file":
            self._read_file(Path(record.inputs.title), lambda inputs: self._run_again(record, inputs))
        else:
            self._run_again(record, record.inputs)

    def _run_again(self, record: RunRecord, inputs: InputChoice) -> None:
        """Repeats an earlier run with its recipe. Warns if the file of its inputs has changed."""
        self._graphs.show(record.recipe.graph)
        current = self._context.workspace.recipe
        recipe = replace(record.recipe, source=current.source, arguments=current.arguments, plugins=current.plugins)
        self._set_inputs(inputs)
        self._context.edits.edit(recipe, "the recipe of an earlier run")
        self._context.session.run()
        if content_hash(inputs) != record.inputs_hash:
            self._context.say(f"{inputs.title} has changed since that run")
