"""`buddy-tui diff SOURCE --stage X`: compares a stage under two recipes, two stages of one recipe, or two graphs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.cli.recipes import UsageError, find_preset, graph_numbers, read_recipe
from buddy.app.reports.formatting import table
from buddy.app.reports.text.unified import unified_diff
from buddy.app.session.stages import key_stages
from buddy.compiler.protocol import Compare, Compared, ListPresets, Stage
from buddy.compiler.protocol.recipe import Recipe

_EPILOG = """
The recipe that the options describe is compared with that of --against (a preset or a recipe file), with that of a
second --recipe, or with itself on another graph (--against-graph). With two --stage options, two stages of one recipe
are compared. Without --stage, every stage is compared, and a table shows how many lines differ.
"""


class _TitledStage(NamedTuple):
    """A stage that is compared, and its title in the heading of a diff."""

    stage: Stage
    title: str


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("diff", VERBS["diff"])
    parser.epilog = _EPILOG + (parser.epilog or "")
    text = "a stage by name, phase or number, as for `dump`; give it twice to compare two stages"
    parser.add_argument("--stage", metavar="NAME", action="append", default=[], help=text)
    parser.add_argument(
        "--against", metavar="PRESET|FILE", help="the other recipe: the name of a preset, or a recipe file in TOML"
    )
    parser.add_argument("--against-graph", metavar="N|NAME", help="the other graph, compiled with the same passes")
    text = "ignore renumbering, order of attributes, locations and comments"
    parser.add_argument("--structural", action="store_true", help=text)
    parser.add_argument("--exit-code", action="store_true", help="exit with code 1 if anything differs")
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options, script = arguments.parse_program(parser, words)
    seconds = [options.against, options.against_graph, options.recipe[1:], options.stage[1:]]
    if sum(map(bool, seconds)) != 1 or len(options.recipe) > 2 or len(options.stage) > 2:
        parser.error("give exactly one of --against, --against-graph, a second --recipe and a second --stage")
    console = Console(options.plain, stdout_is_data=True)
    return run_with_engine(options, console, lambda engine: _diff(engine, options, script))


async def _diff(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    second_recipe, options.recipe = options.recipe[1:], options.recipe[:1]
    recipe_a = (await engine.open_program(options, script))[0]
    recipe_b = await _second_recipe(engine, options, recipe_a, [str(path) for path in second_recipe])
    stages_a = (await engine.compile(recipe_a)).ordered()
    if recipe_b is None:
        before, after = (_TitledStage(stage, stage.name) for stage in _choose_stages(stages_a, options.stage))
        differences = [await _compare_stages(engine, options, before, after)]
    else:
        stages_b = (await engine.compile(recipe_b)).ordered()
        title_a, title_b = f"A, {_title(recipe_a)}", f"B, {_title(recipe_b)}"
        differences = [
            await _compare_stages(engine, options, _TitledStage(a, title_a), _TitledStage(b, title_b))
            for a, b in _pair_stages(stages_a, stages_b, options.stage)
        ]
    _report(options, differences, as_table=recipe_b is not None and not options.stage)
    return FAILURE if options.exit_code and any(difference.hunks for difference in differences) else 0


async def _second_recipe(
    engine: Headless, options: argparse.Namespace, first: Recipe, files: Sequence[str]
) -> Recipe | None:
    """The recipe that `first` is compared with; `None` if two stages of `first` are compared.

    `files` has the second recipe file of the command line, if there is one. Raises `UsageError`.
    """
    if options.against_graph is not None:
        number = graph_numbers(options.against_graph, engine.graphs)[0]
        return replace(first, graph=number, choices=())
    name = options.against or next(iter(files), None)
    if name is None:
        return None
    presets = (await engine.client.request(ListPresets(0))).presets
    if options.against and name in [preset.name for preset in presets]:
        return engine.with_preset(find_preset(presets, name).recipe, first)
    recipe = read_recipe(name, [preset.name for preset in presets] if options.against else [], options.trust)
    if not recipe.steps:
        recipe = replace(recipe, steps=find_preset(presets, recipe.preset or "default").recipe.steps)
    return replace(recipe, source=first.source, arguments=first.arguments, graph=first.graph)


def _choose_stages(stages: Sequence[Stage], names: Sequence[str]) -> list[Stage]:
    return [choose_stage(stages, name) for name in names]


def _pair_stages(
    stages_a: Sequence[Stage], stages_b: Sequence[Stage], names: Sequence[str]
) -> list[tuple[Stage, Stage]]:
    """The pairs of stages to compare: the one that `names` selects, or all stages that both recipes have."""
    if names:
        return [(choose_stage(stages_a, names[0]), choose_stage(stages_b, names[0]))]
    by_key = dict(key_stages(stages_b))
    pairs = [(stage, by_key[key]) for key, stage in key_stages(stages_a) if key in by_key]
    if not pairs:
        raise UsageError("the two recipes have no stage in common")
    return pairs


class _Difference(NamedTuple):
    """The answer of a comparison, and the unified diff if one stage was requested."""

    before: _TitledStage
    after: _TitledStage
    compared: Compared
    diff: str

    @property
    def hunks(self) -> tuple[tuple[int, int, int, int], ...]:
        return self.compared.hunks


async def _compare_stages(
    engine: Headless, options: argparse.Namespace, before: _TitledStage, after: _TitledStage
) -> _Difference:
    how: Literal["line", "structural"] = "structural" if options.structural else "line"
    client = engine.client
    compared = await client.request(Compare(0, before.stage.text, after.stage.text, how, after.stage.language))
    diff = ""
    if options.stage and compared.hunks:
        old, new = await client.fetch_text(before.stage.text), await client.fetch_text(after.stage.text)
        diff = unified_diff(old, new, compared.hunks, _heading(before), _heading(after))
    return _Difference(before, after, compared, diff)


def _heading(titled: _TitledStage) -> str:
    name = titled.stage.name
    return name if titled.title == name else f"{name} ({titled.title})"


def _title(recipe: Recipe) -> str:
    return f"graph {recipe.graph}, {recipe.preset}"


def _report(options: argparse.Namespace, differences: Sequence[_Difference], as_table: bool) -> None:
    how = "structural" if options.structural else "line"
    if options.json:
        print(json.dumps({"how": how, "stages": list(map(_difference_json, differences))}))
    elif as_table:
        heading = ["stage", "phase", "-", "+", "hunks"]
        print(table(heading, list(map(_difference_row, differences)), frozenset({"stage", "phase"})))
    else:
        print(differences[0].diff.rstrip() or f"no {'structural ' * options.structural}change")


def _difference_row(difference: _Difference) -> list[object]:
    # A hunk is (first line before, lines removed, first line after, lines added).
    removed, added = sum(hunk[1] for hunk in difference.hunks), sum(hunk[3] for hunk in difference.hunks)
    stage = difference.before.stage
    return [stage.name, stage.phase, removed or "", added or "", len(difference.hunks) or "same"]


def _difference_json(difference: _Difference) -> dict[str, object]:
    return {
        "before": {"stage": difference.before.stage.name, "lines": difference.compared.before_lines},
        "after": {"stage": difference.after.stage.name, "lines": difference.compared.after_lines},
        "hunks": [list(hunk) for hunk in difference.hunks],
    }
