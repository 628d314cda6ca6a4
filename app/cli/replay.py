"""`buddy-tui replay FOLDER`: compiles and runs a reproducer again, and reports what differs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, run_with_engine
from buddy.app.cli.recipes import UsageError
from buddy.app.reports.reproducer import (
    RECIPE,
    VALUES,
    ReproducerDescription,
    external_python,
    read_description,
    source_of,
    text_hash,
)
from buddy.app.reports.run_report import as_text
from buddy.app.workspace.inputs import file_choice
from buddy.compiler.protocol import Run, Stage
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice


def parser() -> arguments.Parser:
    found = arguments.Parser("replay", VERBS["replay"])
    found.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a folder that S in the workbench or the verb `reproduce` wrote"
    )
    text = "timed runs (10)"
    found.add_argument("--repeats", type=arguments.positive_number, default=10, metavar="N", help=text)
    text = "run code that the folder refers to but does not contain: a script, plug-ins, pass files"
    found.add_argument("--trust", action="store_true", help=text)
    arguments.add_comparison_options(found)
    arguments.add_engine_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    console = Console(options.plain, stdout_is_data=True)
    try:
        found = read_description(options.folder)
    except ValueError as error:
        parser().error(str(error))
    elsewhere = "" if options.trust else external_python(found)
    if elsewhere:
        what = f"{options.folder} does not contain its program: replay would run {elsewhere}"
        parser().error(f"{what} · allow it with --trust if you trust the author of the folder")
    return run_with_engine(options, console, lambda engine: _replay(engine, options, found))


async def _replay(engine: Headless, options: argparse.Namespace, found: ReproducerDescription) -> int:
    recipe_words = ["--recipe", str(options.folder / RECIPE), "--graph", str(found.graph)]
    as_run = arguments.source_parser("replay", "")
    arguments.add_recipe_options(as_run)
    shapes = [f"--shape={shape}" for shape in found.shapes] + ["--trust"] * options.trust
    words = [*recipe_words, *shapes, *arguments.engine_words(options), "--", source_of(options.folder, found)]
    opened = as_run.parse_args(words)
    recipe = (await engine.program(opened, found.arguments))[0]
    compilation = await engine.compile(recipe)
    changed = await _changed_stages(engine, compilation.ordered(), found)
    values = options.folder / VALUES
    ran = None
    if not found.problem:
        inputs, equal_nan = _inputs(values), options.equal_nan
        run = Run(0, recipe, options.repeats, beside=True, inputs=inputs, values=True, equal_nan=equal_nan)
        ran = await engine.client.request(run)
    same_values = _same_values(values, ran.values) if ran is not None and values.exists() else []
    ok = not changed and (ran is None or not ran.report.wrong)
    if options.json:
        summary = {"ok": ok, "stages": len(found.stages), "changed": changed, "outputs_changed": same_values}
        print(json.dumps(summary, indent=2))
        return 0 if ok else FAILURE
    print(f"{len(found.stages) - len(changed)} of {len(found.stages)} stages are unchanged")
    for line in changed:
        print(f"  differs: {line}")
    if ran is not None:
        print(as_text(engine.graphs[recipe.graph], ran.report, compilation.assignments))
        print("outputs differ: " + ", ".join(same_values) if same_values else "outputs are bitwise equal")
    else:
        print(f"the original run failed: {found.problem}")
    _tell_versions(engine, found)
    return 0 if ok else FAILURE


def _inputs(values: Path) -> InputChoice:
    """The inputs of the original run. Raises `UsageError`."""
    if not values.exists():
        return OWN_INPUTS
    try:
        return file_choice(values)
    except ValueError as error:
        raise UsageError(f"{values}: {error}") from error


async def _changed_stages(engine: Headless, stages: Sequence[Stage], found: ReproducerDescription) -> list[str]:
    """The stages whose text differs from the folder's, and those that only one side has. Raises `UsageError`."""
    if not found.stages:
        raise UsageError("the folder has no stages: nothing to compare with")
    changed: list[str] = []
    for stage, old in zip(stages, found.stages, strict=False):
        if stage.name != old.name:
            return [*changed, f"{old.name} is now {stage.name}; later stages are not compared"]
        if text_hash(await engine.client.fetch_text(stage.text)) != old.sha256:
            changed.append(old.file)
    if len(stages) != len(found.stages):
        changed.append(f"the program now has {len(stages)} stages")
    return changed


def _same_values(path: Path, values: bytes) -> list[str]:
    """The outputs of compiled code that are not bitwise equal to those in the folder."""
    import io

    import numpy as np

    before, after = np.load(path, allow_pickle=False), np.load(io.BytesIO(values), allow_pickle=False)
    names = [name for name in before.files if name.startswith("output/")]
    there = set(after.files)
    return [name for name in names if name not in there or before[name].tobytes() != after[name].tobytes()]


def _tell_versions(engine: Headless, found: ReproducerDescription) -> None:
    """Print the versions that have changed since."""
    welcome = engine.client.welcome
    if welcome is None:
        return
    now = {"buddy-tui": welcome.engine, "machine": welcome.target, **welcome.packages}
    then = {"buddy-tui": found.engine, "machine": found.target, **found.packages}
    for name, version in then.items():
        if now.get(name) != version:
            engine.console.note(f"note: {name} was {version} and is now {now.get(name, 'not installed')}")
