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
    RECIPE_FILE,
    VALUES_FILE,
    ReproducerDescription,
    external_python,
    read_description,
    sha256_of_text,
    source_of,
)
from buddy.app.reports.run_report import run_report_text
from buddy.app.workspace.inputs import inputs_from_file
from buddy.compiler.protocol import Run, Stage
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("replay", VERBS["replay"])
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a folder written by the verb `reproduce`, or by S in the workbench"
    )
    arguments.add_repeats_option(parser)
    text = "run code that the folder refers to but does not contain: a script, plug-ins, pass files"
    parser.add_argument("--trust", action="store_true", help=text)
    arguments.add_comparison_options(parser)
    arguments.add_engine_options(parser)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(words)
    console = Console(options.plain, stdout_is_data=True)
    try:
        description = read_description(options.folder)
    except ValueError as error:
        make_parser().error(str(error))
    external = "" if options.trust else external_python(description)
    if external:
        what = f"{options.folder} does not contain its program: replay would run {external}"
        make_parser().error(f"{what} · allow it with --trust if you trust the author of the folder")
    return run_with_engine(options, console, lambda engine: _replay(engine, options, description))


async def _replay(engine: Headless, options: argparse.Namespace, description: ReproducerDescription) -> int:
    """Compiles the reproducer, runs it unless the original failed, and prints differences. Returns the exit code."""
    recipe = await _open_reproducer(engine, options, description)
    compilation = await engine.compile(recipe)
    changed_stages = await _changed_stages(engine, compilation.ordered_stages(), description)
    values_path = options.folder / VALUES_FILE
    ran = None
    if not description.problem:
        inputs, equal_nan = _original_inputs(values_path), options.equal_nan
        run = Run(0, recipe, options.repeats, for_comparison=True, inputs=inputs, values=True, equal_nan=equal_nan)
        ran = await engine.client.request(run)
    changed_outputs = _changed_outputs(values_path, ran.values) if ran is not None and values_path.exists() else []
    ok = not changed_stages and (ran is None or not ran.report.wrong)
    n_stages = len(description.stages)
    if options.json:
        summary = {"ok": ok, "stages": n_stages, "changed": changed_stages, "outputs_changed": changed_outputs}
        print(json.dumps(summary, indent=2))
        return 0 if ok else FAILURE
    print(f"{n_stages - len(changed_stages)} of {n_stages} stages are unchanged")
    for line in changed_stages:
        print(f"  differs: {line}")
    if ran is not None:
        print(run_report_text(engine.graphs[recipe.graph], ran.report, compilation.assignments))
        print("outputs differ: " + ", ".join(changed_outputs) if changed_outputs else "outputs are bitwise equal")
    else:
        print(f"the original run failed: {description.problem}")
    _note_changed_versions(engine, description)
    return 0 if ok else FAILURE


async def _open_reproducer(engine: Headless, options: argparse.Namespace, description: ReproducerDescription) -> Recipe:
    """Opens the program of the reproducer with its recipe and shapes. Returns the recipe of its graph."""
    parser = arguments.source_parser("replay", "")
    arguments.add_recipe_options(parser)
    words = ["--recipe", str(options.folder / RECIPE_FILE), "--graph", str(description.graph)]
    words += [f"--shape={shape}" for shape in description.shapes] + ["--trust"] * options.trust
    words += [*arguments.engine_words(options), "--", source_of(options.folder, description)]
    return (await engine.open_program(parser.parse_args(words), description.arguments))[0]


def _original_inputs(values: Path) -> InputChoice:
    """The inputs of the original run, from the file `values`; without that file, those of the script.

    Raises `UsageError` if the file cannot be read.
    """
    if not values.exists():
        return OWN_INPUTS
    try:
        return inputs_from_file(values)
    except ValueError as error:
        raise UsageError(f"{values}: {error}") from error


async def _changed_stages(engine: Headless, stages: Sequence[Stage], description: ReproducerDescription) -> list[str]:
    """The files of stages whose text has changed, and a sentence if names or the number of stages differ.

    Raises `UsageError` if the reproducer has no stages.
    """
    if not description.stages:
        raise UsageError("the folder has no stages: nothing to compare with")
    changed: list[str] = []
    for stage, old in zip(stages, description.stages, strict=False):
        if stage.name != old.name:
            return [*changed, f"{old.name} is now {stage.name}; later stages are not compared"]
        if sha256_of_text(await engine.client.fetch_text(stage.text)) != old.sha256:
            changed.append(old.file)
    if len(stages) != len(description.stages):
        changed.append(f"the program now has {len(stages)} stages")
    return changed


def _changed_outputs(path: Path, values: bytes) -> list[str]:
    """The names of outputs of compiled code that are not bitwise equal to those in the `.npz` file `path`.

    `values` is the content of another such file, which has the outputs of this run.
    """
    import io

    import numpy as np

    before, after = np.load(path, allow_pickle=False), np.load(io.BytesIO(values), allow_pickle=False)
    names = [name for name in before.files if name.startswith("output/")]
    return [name for name in names if name not in after.files or before[name].tobytes() != after[name].tobytes()]


def _note_changed_versions(engine: Headless, description: ReproducerDescription) -> None:
    """Prints which versions differ from those of the original run."""
    welcome = engine.client.welcome
    if welcome is None:
        return
    now = {"buddy-tui": welcome.engine, "machine": welcome.target, **welcome.packages}
    original = {"buddy-tui": description.engine, "machine": description.target, **description.packages}
    for name, version in original.items():
        if now.get(name) != version:
            engine.console.note(f"note: {name} was {version} and is now {now.get(name, 'not installed')}")
