"""Builds recipes from command-line options. Looks up the names of passes and nodes, and rejects unknown ones."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from buddy.app.cli.arguments import named_plugins
from buddy.app.workspace.frontends import from_preset, with_frontend
from buddy.app.workspace.inputs import file_choice, read_file
from buddy.app.workspace.pipeline_text import PipelineError, parse, steps_of
from buddy.compiler.protocol import GraphInfo, Preset
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import EAGER, NATIVE, PassStep, Recipe, claims, from_toml, preset_of, refusal
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice


class UsageError(Exception):
    """The command line cannot be carried out. The text says why, and lists the alternatives to an unknown name."""


def base_recipes(options: argparse.Namespace, presets: Sequence[Preset], arguments: tuple[str, ...]) -> list[Recipe]:
    """The recipes before graphs and nodes are selected: one per file, or the preset's, with the changes of the options.

    Raises `UsageError`.
    """
    named = [Path(plugin.path) for plugin in named_plugins(options)]
    trusted = None if options.trust else {str(path) for one in named for path in (one, one.resolve())}
    files = [_from_file(path, trusted) for path in options.recipe] or [Recipe(preset="")]
    graphs = [recipe.graph for recipe in files]
    if len(set(graphs)) < len(graphs):
        raise UsageError(f"several recipes are for the same graph: {', '.join(map(str, options.recipe))}")
    found = [_changed(recipe, options, presets, arguments) for recipe in files]
    frontends = dict.fromkeys(recipe.frontend for recipe in found)
    if len(frontends) > 1:
        raise UsageError(
            f"the recipes use different frontends ({' and '.join(frontends)}): a program is opened with one"
        )
    return found


def _changed(
    recipe: Recipe, options: argparse.Namespace, presets: Sequence[Preset], arguments: tuple[str, ...]
) -> Recipe:
    if not recipe.steps or options.preset:
        own = recipe.preset if recipe.preset != "default" else ""
        name = options.preset or own or preset_of(recipe.frontend, recipe.dialect)
        recipe = from_preset(recipe, preset_named(presets, name).recipe)
    frontend, dialect = options.frontend or recipe.frontend, options.dialect or recipe.dialect
    try:
        recipe = with_frontend(recipe, presets, frontend, dialect)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.pipeline is not None:
        recipe = msgspec.structs.replace(recipe, steps=_pipeline(options.pipeline, recipe.steps, options.trust))
    changes = {key: getattr(options, key) for key in ("partition", "checks", "threads", "backend", "target")}
    changes = {key: value for key, value in changes.items() if value is not None}
    is_native = changes.get("backend", recipe.backend) == NATIVE
    if options.backend_flag and is_native:
        raise UsageError("--backend-flag needs another backend: give --backend too")
    changes["backend_flags"] = () if is_native else (*recipe.backend_flags, *options.backend_flag)
    changes["plugins"] = (*recipe.plugins, *named_plugins(options))
    recipe = msgspec.structs.replace(recipe, source=options.source, arguments=arguments, **changes)
    return _switched(_switched(recipe, options.disable, False), options.enable, True)


def enter_at_phase(recipe: Recipe, options: argparse.Namespace, graph: GraphInfo) -> Recipe:
    """The recipe of a graph that starts as IR: in a preset, passes of earlier phases are disabled.

    Passes that the options enable stay enabled. Recipes from files are not changed.
    """
    if options.recipe or options.pipeline is not None:
        return recipe
    return _switched(adapt_to_phase(recipe, graph.enters, graph.dialects), options.enable, True)


def graph_recipes(bases: Sequence[Recipe], numbers: Iterable[int]) -> list[Recipe]:
    """The recipe of each graph: the one with its number, else the first one without its choices for nodes."""
    own = {recipe.graph: recipe for recipe in bases}
    return [own.get(number) or msgspec.structs.replace(bases[0], graph=number, choices=()) for number in numbers]


def with_eager_nodes(recipes: Sequence[Recipe], patterns: Sequence[str], graphs: Sequence[GraphInfo]) -> list[Recipe]:
    """The recipes, with all nodes that match `patterns` set to run in eager.

    Raises `UsageError` for a pattern that matches no node of any graph.
    """
    changed = list(recipes)
    for pattern in patterns:
        before = list(changed)
        changed = [_with_eager(recipe, pattern, graphs[recipe.graph]) for recipe in changed]
        if changed == before and not any(_named(graphs[recipe.graph], pattern) for recipe in recipes):
            raise UsageError(_no_node(pattern, [graphs[recipe.graph] for recipe in recipes]))
    return changed


def _with_eager(recipe: Recipe, pattern: str, graph: GraphInfo) -> Recipe:
    for name in _named(graph, pattern):
        recipe = recipe.with_choice(name, EAGER)
    return recipe


def _named(graph: GraphInfo, pattern: str) -> list[str]:
    """The computing nodes that match the pattern."""
    return [row.stable for row in graph.rows if row.opcode.startswith("call") and _matches(row, pattern)]


def _no_node(pattern: str, graphs: Sequence[GraphInfo]) -> str:
    known = [row.name for graph in graphs for row in graph.rows if row.opcode.startswith("call")]
    subject = f"graph {graphs[0].name} has" if len(graphs) == 1 else "the graphs have"
    return f"{subject} no node {pattern!r}{_suggestion(pattern, known)}"


def graph_numbers(wanted: str | None, graphs: Sequence[GraphInfo]) -> list[int]:
    """The selected graphs: all, or the one with that number or name. Raises `UsageError` if it does not exist."""
    names = [graph.name for graph in graphs]
    if wanted is None:
        return list(range(len(graphs)))
    if wanted in names:
        return [names.index(wanted)]
    if wanted.isdigit() and int(wanted) < len(graphs):
        return [int(wanted)]
    there = ", ".join(f"{number} ({name})" for number, name in enumerate(names))
    raise UsageError(f"unknown graph {wanted!r}: the program has {len(graphs)}: {there}")


def _pipeline(given: str, before: Sequence[PassStep], trusts: bool) -> tuple[PassStep, ...]:
    """The steps of a pipeline in MLIR's syntax. Steps that are also in `before` keep their phases.

    A pipeline in a file may not load plug-ins or other files unless the user `trusts` it. Raises `UsageError`.
    """
    path, text = Path(given), given
    try:
        is_file = "(" not in given and path.exists()
        text = read_file(path) if is_file else given
        steps = steps_of(parse(text), before)
    except OSError as error:
        raise UsageError(f"{given}: {error.strerror}") from error
    except PipelineError as error:
        line = text[: error.offset].count("\n") + 1
        column = error.offset - text.rfind("\n", 0, error.offset)
        raise UsageError(f"the pipeline, line {line}, column {column}: {error.message}") from error
    except ValueError as error:
        raise UsageError(f"{given}: {error}") from error
    asked = claims(Recipe(steps=steps)) if is_file and not trusts else []
    if asked:
        raise UsageError(f"{path} is rejected: {refusal(asked)}")
    return steps


def _from_file(path: Path, trusted: Collection[str] | None) -> Recipe:
    """The recipe in a file, which may load plug-ins only from the `trusted` paths; with `None`, anything.

    Raises `UsageError`.
    """
    try:
        found = from_toml(read_file(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    asked = claims(found, trusted) if trusted is not None else []
    if asked:
        raise UsageError(f"{path} is rejected: {refusal(asked)}")
    return found


def recipe_in(path: str, presets: Sequence[str], trusts: bool) -> Recipe:
    """The recipe in a file. Raises `UsageError`, which also lists `presets`, because a preset could be meant.

    The file may not load plug-ins or other files unless the user `trusts` it.
    """
    if presets and not Path(path).exists():
        raise UsageError(f"{path!r} is neither a file nor a preset; known presets: {', '.join(presets)}")
    return _from_file(Path(path), None if trusts else ())


def preset_named(presets: Sequence[Preset], name: str) -> Preset:
    """The preset with that name. Raises `UsageError`."""
    for preset in presets:
        if preset.name == name:
            return preset
    raise UsageError(f"unknown preset {name!r}; known: {', '.join(preset.name for preset in presets)}")


def _switched(recipe: Recipe, names: Iterable[str], enabled: bool) -> Recipe:
    for name in names:
        for index in _steps_named(recipe, name):
            recipe = recipe.with_step(index, enabled=enabled)
    return recipe


def _steps_named(recipe: Recipe, name: str) -> list[int]:
    """The steps called `name`; `name#2` is the second of them. Raises `UsageError`."""
    plain, _, number = name.partition("#")
    found = [index for index, step in enumerate(recipe.steps) if step.name == plain]
    if not found:
        known = [step.name for step in recipe.steps]
        raise UsageError(f"the recipe has no pass {plain!r}{_suggestion(plain, known)}")
    if not number:
        return found
    if not number.isdigit() or not 1 <= int(number) <= len(found):
        raise UsageError(f"{name!r} does not exist: the recipe has {len(found)} passes called {plain!r}")
    return [found[int(number) - 1]]


def _matches(row: object, pattern: str) -> bool:
    return any(fnmatchcase(str(getattr(row, key)), pattern) for key in ("stable", "name", "target"))


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(set(known)), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def inputs_of(options: argparse.Namespace) -> InputChoice:
    """The inputs that the command line selects. Raises `UsageError`."""
    if options.inputs is not None:
        try:
            return file_choice(options.inputs)
        except (OSError, ValueError) as error:
            raise UsageError(f"{options.inputs}: {error}") from error
    return InputChoice("random", options.seed) if options.seed is not None else OWN_INPUTS
