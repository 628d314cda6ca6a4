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
from buddy.app.cli.recipes import UsageError, graph_numbers, preset_named, recipe_in
from buddy.app.reports.formatting import table
from buddy.app.reports.text.unified import unified_diff
from buddy.app.session.stages import key_stages
from buddy.compiler.protocol import Compare, Compared, ListPresets, Stage
from buddy.compiler.protocol.recipe import Recipe

_EPILOG = """
One side is the recipe that the options describe. The other side is the recipe of --against (a preset or a recipe file)
or of a second --recipe, another graph (--against-graph), or, with two --stage options, another stage. Without --stage,
every stage is compared, and a table shows how many lines differ.
"""


class _Side(NamedTuple):
    """A stage, and its title in the heading of a diff."""

    stage: Stage
    title: str


def parser() -> arguments.Parser:
    found = arguments.source_parser("diff", VERBS["diff"])
    found.epilog = _EPILOG + (found.epilog or "")
    text = "a stage by name, phase or number, as for `dump`; give it twice to compare two stages"
    found.add_argument("--stage", metavar="NAME", action="append", default=[], help=text)
    found.add_argument(
        "--against", metavar="PRESET|FILE", help="the other recipe: the name of a preset, or a recipe in TOML"
    )
    found.add_argument("--against-graph", metavar="N|NAME", help="the other graph, compiled with the same passes")
    text = "ignore renumbering, order of attributes, locations and comments"
    found.add_argument("--structural", action="store_true", help=text)
    found.add_argument("--exit-code", action="store_true", help="exit with code 1 if anything differs")
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    options, script = arguments.parse_with_script_arguments(found, words)
    others = [options.against, options.against_graph, options.recipe[1:], options.stage[1:]]
    if sum(map(bool, others)) != 1 or len(options.recipe) > 2 or len(options.stage) > 2:
        found.error("nothing to compare with: give --against, --against-graph, a second --recipe or a second --stage")
    console = Console(options.plain, stdout_is_data=True)
    return run_with_engine(options, console, lambda engine: _diff(engine, options, script))


async def _diff(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    second, options.recipe = options.recipe[1:], options.recipe[:1]
    recipes = await engine.program(options, script)
    mine = recipes[0]
    other = await _other(engine, options, mine, [str(path) for path in second])
    before, after = await _stages(engine, mine), await _stages(engine, other) if other is not None else ()
    if other is None:
        one, two = (choose_stage(before, name) for name in options.stage)
        found = [await _compared(engine, options, _Side(one, one.name), _Side(two, two.name))]
    else:
        found = [
            await _compared(engine, options, _Side(one, f"A, {_title(mine)}"), _Side(two, f"B, {_title(other)}"))
            for one, two in _pairs(before, after, options.stage)
        ]
    _report(options, found, whole=other is not None and not options.stage)
    return FAILURE if options.exit_code and any(difference.hunks for difference in found) else 0


async def _other(engine: Headless, options: argparse.Namespace, mine: Recipe, second: list[str]) -> Recipe | None:
    """The other recipe; `None` if two stages of one recipe are compared."""
    if options.against_graph is not None:
        number = graph_numbers(options.against_graph, engine.graphs)[0]
        return replace(mine, graph=number, choices=())
    wanted = options.against or next(iter(second), None)
    if wanted is None:
        return None
    presets = (await engine.client.request(ListPresets(0))).presets
    if options.against and wanted in [preset.name for preset in presets]:
        return engine.from_preset(preset_named(presets, wanted).recipe, mine)
    read = recipe_in(wanted, [preset.name for preset in presets] if options.against else [], options.trust)
    if not read.steps:
        read = replace(read, steps=preset_named(presets, read.preset or "default").recipe.steps)
    return replace(read, source=mine.source, arguments=mine.arguments, graph=mine.graph)


async def _stages(engine: Headless, recipe: Recipe) -> tuple[Stage, ...]:
    return (await engine.compile(recipe)).ordered()


def _pairs(before: Sequence[Stage], after: Sequence[Stage], wanted: Sequence[str]) -> list[tuple[Stage, Stage]]:
    """The pairs of stages to compare: the requested one, or all that both sides have."""
    if wanted:
        return [(choose_stage(before, wanted[0]), choose_stage(after, wanted[0]))]
    there = dict(key_stages(after))
    found = [(stage, there[key]) for key, stage in key_stages(before) if key in there]
    if not found:
        raise UsageError("the two sides have no stage in common")
    return found


class _Difference(NamedTuple):
    before: _Side
    after: _Side
    compared: Compared
    text: str

    @property
    def hunks(self) -> tuple[tuple[int, int, int, int], ...]:
        return self.compared.hunks


async def _compared(engine: Headless, options: argparse.Namespace, before: _Side, after: _Side) -> _Difference:
    how: Literal["line", "structural"] = "structural" if options.structural else "line"
    client = engine.client
    found = await client.request(Compare(0, before.stage.text, after.stage.text, how, after.stage.language))
    text = ""
    if options.stage and found.hunks:
        one, two = await client.fetch_text(before.stage.text), await client.fetch_text(after.stage.text)
        text = unified_diff(one, two, found.hunks, _heading(before), _heading(after))
    return _Difference(before, after, found, text)


def _heading(side: _Side) -> str:
    return side.stage.name if side.title == side.stage.name else f"{side.stage.name} ({side.title})"


def _title(recipe: Recipe) -> str:
    return f"graph {recipe.graph}, {recipe.preset}"


def _report(options: argparse.Namespace, found: Sequence[_Difference], whole: bool) -> None:
    if options.json:
        print(json.dumps({"how": "structural" if options.structural else "line", "stages": list(map(_json, found))}))
    elif whole:
        print(
            table(["stage", "phase", "-", "+", "places"], [_row(each) for each in found], frozenset({"stage", "phase"}))
        )
    else:
        how = "structural " * options.structural
        print(found[0].text.rstrip() or f"no {how}change")


def _row(found: _Difference) -> list[object]:
    added, removed = sum(hunk[3] for hunk in found.hunks), sum(hunk[1] for hunk in found.hunks)
    stage = found.before.stage
    return [stage.name, stage.phase, removed or "", added or "", len(found.hunks) or "same"]


def _json(found: _Difference) -> dict[str, object]:
    return {
        "before": {"stage": found.before.stage.name, "lines": found.compared.before_lines},
        "after": {"stage": found.after.stage.name, "lines": found.compared.after_lines},
        "hunks": [list(hunk) for hunk in found.hunks],
    }
