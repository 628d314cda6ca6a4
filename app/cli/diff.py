"""`buddy-tui diff SOURCE --stage X`: compares a stage under two recipes, two stages of one recipe, or two graphs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from buddy.app.cli import FAILURE, USAGE_ERROR, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.cli.recipes import (
    UsageError,
    find_preset,
    graph_numbers,
    read_recipe,
    trusted_plugins,
    with_preset_steps,
)
from buddy.app.reports.formatting import table
from buddy.app.reports.text.unified import unified_diff
from buddy.app.session.stages import align_stages
from buddy.compiler.protocol import Compare, Compared, ListPresets, Stage
from buddy.compiler.protocol.recipe import Recipe

_EPILOG = """
The recipe that the options describe is compared with that of --against (a preset or a recipe file), with that of a
second --recipe, or with itself on another graph (--against-graph). With two --stage options, two stages of one recipe
are compared; those of a dump of another compiler may follow it: `buddy-tui diff DUMP A B`. Without --stage, a table
shows how many lines of each stage differ, and the stages that only A (the first recipe) or only B (the second) has.
"""
# Exit codes of --exit-code, as of diff(1).
DIFFERS, COULD_NOT_COMPARE = 1, USAGE_ERROR
# The settings that the titles of two recipes list if they differ.
_TITLED_FIELDS = (
    "dialect",
    "partition",
    "threads",
    "opt_level",
    "target",
    "frontend",
    "backend",
    "checks",
    "precision",
)


class _TitledStage(NamedTuple):
    """A stage that is compared, and the title of its recipe. The title is "" if both stages are of one recipe."""

    stage: Stage
    recipe_title: str


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("diff", VERBS["diff"])
    parser.epilog = _EPILOG + (parser.epilog or "")
    text = "a stage by name, phase or number, as for `dump`; give it twice to compare two stages"
    parser.add_argument("--stage", metavar="NAME", action="append", default=[], help=text)
    parser.add_argument(
        "--against", metavar="PRESET|FILE", help="the second recipe: the name of a preset, or a recipe file in TOML"
    )
    parser.add_argument("--against-graph", metavar="N|NAME", help="the second graph, compiled with the same passes")
    text = "ignore renumbering, order of attributes, locations and comments"
    parser.add_argument("--structural", action="store_true", help=text)
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with code 1 if anything differs, 2 after an error"
    )
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options, script = arguments.parse_program(parser, words)
    if len(script) == 2 and not options.stage and arguments.is_dump(options):
        options.stage, script = list(script), ()
    second_sides = [options.against, options.against_graph, options.recipe[1:], options.stage[1:]]
    for option, values in (("--recipe", options.recipe), ("--stage", options.stage)):
        if len(values) > 2:
            parser.error(f"give {option} at most twice")
    if sum(map(bool, second_sides)) != 1:
        parser.error("give exactly one of --against, --against-graph, a second --recipe and a second --stage")
    console = Console(options.plain, stdout_is_data=True)
    failure_code = COULD_NOT_COMPARE if options.exit_code else FAILURE
    return run_with_engine(options, console, lambda engine: _diff(engine, options, script), failure_code)


async def _diff(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    """Compares two stages, or the stages of two recipes, and prints the differences. Returns the exit code."""
    files = [str(path) for path in options.recipe]
    first_file = files[0] if files else ""
    second_file = files[1] if len(files) > 1 else ""
    options.recipe = options.recipe[:1]  # the program is opened with the first recipe
    if options.against_graph is None:
        first_recipe = await engine.open_graph(options, script)
    else:
        first_recipe = (await engine.open_program(options, script))[0]
    second_recipe = await _second_recipe(engine, options, first_recipe, second_file)
    stages = (await engine.compile(first_recipe)).ordered_stages()
    if second_recipe is None:
        before, after = (_TitledStage(choose_stage(stages, name), "") for name in options.stage)
        differences = [await _compare_stages(engine, options, before, after)]
    else:
        second_stages = (await engine.compile(second_recipe)).ordered_stages()
        first_title = f"A, {_recipe_title(first_recipe, first_file, second_recipe)}"
        second_title = f"B, {_recipe_title(second_recipe, second_file or options.against or first_file, first_recipe)}"
        differences = []
        for first_stage, second_stage in _pair_stages(stages, second_stages, options.stage):
            old = None if first_stage is None else _TitledStage(first_stage, first_title)
            new = None if second_stage is None else _TitledStage(second_stage, second_title)
            differences.append(await _compare_stages(engine, options, old, new))
    _print_differences(options, differences, as_table=second_recipe is not None and not options.stage)
    return DIFFERS if options.exit_code and any(difference.differs for difference in differences) else 0


async def _second_recipe(
    engine: Headless, options: argparse.Namespace, first: Recipe, second_file: str
) -> Recipe | None:
    """The recipe that `first` is compared with; `None` if two stages of `first` are compared.

    `second_file` is the second recipe file of the command line, or "". Raises `UsageError`. A recipe file may name only
    plug-ins that the program was opened with.
    """
    if options.against_graph is not None:
        number = graph_numbers(options.against_graph, engine.graphs)[0]
        return replace(first, graph=number, choices=())
    name = options.against or second_file
    if not name:
        return None
    presets = (
        await engine.client.request(ListPresets(0, arguments.working_folder(options), arguments.plugins_of(options)))
    ).presets
    names = [preset.name for preset in presets]
    if options.against in names:
        return engine.with_steps_of(find_preset(presets, name).recipe, first)
    # The error about an unknown `--against` lists the presets, since it may be a misspelt preset.
    second = read_recipe(name, names if options.against else [], trusted_plugins(options))
    if not second.steps:
        second = with_preset_steps(second, presets)
    loaded = {Path(plugin.path).resolve() for plugin in first.plugins}
    for plugin in second.plugins:
        if Path(plugin.path).resolve() not in loaded:
            raise UsageError(f"{name} needs {plugin.path}, which has not been loaded: give it with --plugin")
    return replace(second, source=first.source, arguments=first.arguments, graph=first.graph, plugins=first.plugins)


def _pair_stages(
    stages: Sequence[Stage], second_stages: Sequence[Stage], names: Sequence[str]
) -> list[tuple[Stage | None, Stage | None]]:
    """The pairs of stages to compare: those that `names` selects, or all, with `None` where a recipe lacks one."""
    if names:
        return [(choose_stage(stages, names[0]), choose_stage(second_stages, names[0]))]
    return align_stages(stages, second_stages)


class _Difference(NamedTuple):
    """Two stages that were compared, the engine's answer, and with `--stage` their unified diff.

    A side is `None` if that recipe lacks the stage; `compared` is then `None`, too.
    """

    before: _TitledStage | None
    after: _TitledStage | None
    compared: Compared | None = None
    diff: str = ""

    @property
    def hunks(self) -> tuple[tuple[int, int, int, int], ...]:
        """The changes, each as (first line before, lines removed, first line after, lines added)."""
        return self.compared.hunks if self.compared is not None else ()

    @property
    def differs(self) -> bool:
        return self.compared is None or bool(self.hunks)


async def _compare_stages(
    engine: Headless, options: argparse.Namespace, before: _TitledStage | None, after: _TitledStage | None
) -> _Difference:
    """Compares two stages, of which one may not exist. Makes their unified diff if `--stage` selects them."""
    if before is None or after is None:
        return _Difference(before, after)
    diff_mode: Literal["line", "structural"] = "structural" if options.structural else "line"
    client = engine.client
    compared = await client.request(Compare(0, before.stage.text, after.stage.text, diff_mode, after.stage.language))
    diff = ""
    if options.stage and compared.hunks:
        old, new = await client.fetch_text(before.stage.text), await client.fetch_text(after.stage.text)
        diff = unified_diff(old, new, compared.hunks, _heading(before), _heading(after))
    return _Difference(before, after, compared, diff)


def _heading(titled: _TitledStage) -> str:
    name = titled.stage.name
    return f"{name} ({titled.recipe_title})" if titled.recipe_title else name


def _recipe_title(recipe: Recipe, file: str, other: Recipe) -> str:
    """The graph, the recipe file or, without one, the preset, and the settings that differ from those of `other`."""
    changed = [field for field in _TITLED_FIELDS if getattr(recipe, field) != getattr(other, field)]
    settings = [f"{field} {getattr(recipe, field) or 'this machine'}" for field in changed]
    return ", ".join([f"graph {recipe.graph}", Path(file).name or recipe.preset, *settings])


def _print_differences(options: argparse.Namespace, differences: Sequence[_Difference], as_table: bool) -> None:
    """Prints the differences as JSON, as a table with a row for each stage, or as the unified diff of one stage."""
    diff_mode = "structural" if options.structural else "line"
    if options.json:
        print(json.dumps({"how": diff_mode, "stages": list(map(_difference_json, differences))}))
    elif as_table:
        heading = ["stage", "phase", "-", "+", "hunks"]
        print(table(heading, list(map(_difference_row, differences)), frozenset({"stage", "phase"})))
    else:
        no_change = "no structural change" if options.structural else "no change"
        print(differences[0].diff.rstrip() or no_change)


def _difference_row(difference: _Difference) -> list[object]:
    """The row of the table: stage, phase, removed lines, added lines, number of hunks."""
    before, after = difference.before, difference.after
    if before is None or after is None:
        titled, side = (before, "A") if before is not None else (after, "B")
        assert titled is not None
        return [titled.stage.name, titled.stage.phase, "", "", f"only in {side}"]
    removed, added = sum(hunk[1] for hunk in difference.hunks), sum(hunk[3] for hunk in difference.hunks)
    stage = before.stage
    return [stage.name, stage.phase, removed or "", added or "", len(difference.hunks) or "same"]


def _difference_json(difference: _Difference) -> dict[str, object]:
    """The stages and the hunks as JSON. `before` or `after` is null if only the other recipe has the stage."""
    sides = {"before": difference.before, "after": difference.after}
    stages = {
        side: titled and {"stage": titled.stage.name, "phase": titled.stage.phase, "lines": titled.stage.lines}
        for side, titled in sides.items()
    }
    return {**stages, "hunks": [list(hunk) for hunk in difference.hunks]}
