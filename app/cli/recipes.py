"""Builds recipes from command-line options, and rejects unknown names of presets, passes, graphs and nodes."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from buddy.app.cli.arguments import is_dump, plugins_of
from buddy.app.workspace.inputs import inputs_from_file, read_file
from buddy.app.workspace.pipeline_text import PipelineError, parse_pipeline, to_steps
from buddy.app.workspace.presets import with_frontend, with_preset
from buddy.compiler.protocol import GraphInfo, NodeRow, Preset
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import (
    EAGER,
    NATIVE,
    PassStep,
    Recipe,
    from_toml,
    rejection_text,
    required_permissions,
)
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice


class UsageError(BuddyError):
    """The command line is rejected. The message has the reason, and lists the alternatives to an unknown name."""


def base_recipes(options: argparse.Namespace, presets: Sequence[Preset], arguments: tuple[str, ...]) -> list[Recipe]:
    """The recipes of the files in `options`, or that of the preset, with the other options applied.

    Options about graphs and nodes are not applied yet. `arguments` are those of the script. Raises `UsageError`.
    """
    trusted = trusted_plugins(options)
    # Without a file, the recipe has no steps: `_apply_options` takes those of a preset.
    recipes = [_read_recipe(path, trusted) for path in options.recipe] or [Recipe(preset="")]
    path_of_graph: dict[int, Path] = {}
    for recipe, path in zip(recipes, options.recipe, strict=False):
        first = path_of_graph.setdefault(recipe.graph, path)
        if first is not path:
            raise UsageError(f"two recipes are for the same graph, {recipe.graph}: {first} and {path}")
    recipes = [_apply_options(recipe, options, presets, arguments) for recipe in recipes]
    frontends = dict.fromkeys(recipe.frontend for recipe in recipes)
    if len(frontends) > 1:
        raise UsageError(
            f"the recipes use different frontends ({' and '.join(frontends)}): "
            "all graphs of a program use the same one; select it with --frontend"
        )
    return recipes


def trusted_plugins(options: argparse.Namespace) -> Collection[str] | None:
    """The paths of the plug-ins that recipe files may load; `None` if the files may do anything.

    These are the plug-ins that the options name, each by the path in the option and by its absolute path.
    """
    if options.trust:
        return None
    paths = [Path(plugin.path) for plugin in plugins_of(options)]
    return {str(path) for path in paths} | {str(path.resolve()) for path in paths}


def with_preset_steps(recipe: Recipe, presets: Sequence[Preset], name: str = "") -> Recipe:
    """`recipe` with the steps of the preset called `name`; without a name, of the one for its frontend and dialect.

    Raises `UsageError` if the preset does not exist or does not suit the recipe.
    """
    try:
        return with_preset(recipe, presets, name)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _apply_options(
    recipe: Recipe, options: argparse.Namespace, presets: Sequence[Preset], arguments: tuple[str, ...]
) -> Recipe:
    """`recipe` with the source, and with what the options change. Raises `UsageError`."""
    if not recipe.steps or options.preset:
        recipe = with_preset_steps(recipe, presets, options.preset or "")
    frontend, dialect = options.frontend or recipe.frontend, options.dialect or recipe.dialect
    try:
        recipe = with_frontend(recipe, presets, frontend, dialect)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.pipeline is not None:
        recipe = msgspec.structs.replace(recipe, steps=_parse_pipeline(options.pipeline, recipe.steps, options.trust))
    changes = {
        key: getattr(options, key) for key in ("partition", "checks", "threads", "precision", "backend", "target")
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    is_native = changes.get("backend", recipe.backend) == NATIVE
    if options.backend_flag and is_native:
        raise UsageError("--backend-flag does not apply to the native backend: select another one with --backend")
    # The flags in a recipe file are those of the backend that it names.
    file_flags = recipe.backend_flags if changes.get("backend", recipe.backend) == recipe.backend else ()
    changes["backend_flags"] = () if is_native else (*file_flags, *options.backend_flag)
    changes["llvm_stages"] = recipe.llvm_stages or options.llvm_passes
    changes["llvm_disabled"] = tuple(dict.fromkeys((*recipe.llvm_disabled, *options.disable_llvm_pass)))
    changes["plugins"] = (*recipe.plugins, *plugins_of(options))
    recipe = msgspec.structs.replace(recipe, source=options.source, arguments=arguments, **changes)
    if is_dump(options):  # its steps are known only when it has been read
        return recipe
    return _set_enabled(_set_enabled(recipe, options.disable, False), options.enable, True)


def disable_earlier_phases(recipe: Recipe, options: argparse.Namespace, graph: GraphInfo) -> Recipe:
    """`recipe` with the passes of earlier phases disabled, if `graph` starts as IR of a later phase.

    Passes that the options enable stay enabled. The steps of recipe files and of `--pipeline` are not changed.
    """
    if options.recipe or options.pipeline is not None:
        return recipe
    return _set_enabled(adapt_to_phase(recipe, graph.entry_phase, graph.dialects), options.enable, True)


def graph_recipes(bases: Sequence[Recipe], numbers: Iterable[int]) -> list[Recipe]:
    """The recipe of each graph: the base with the number of the graph, else the first base without node choices."""
    recipe_of_graph = {recipe.graph: recipe for recipe in bases}
    template = msgspec.structs.replace(bases[0], choices=(), precisions=())
    return [recipe_of_graph.get(number) or msgspec.structs.replace(template, graph=number) for number in numbers]


def with_eager_nodes(recipes: Sequence[Recipe], patterns: Sequence[str], graphs: Sequence[GraphInfo]) -> list[Recipe]:
    """The recipes, with all nodes that match `patterns` set to run in eager mode.

    Raises `UsageError` for a pattern that matches no node of any graph.
    """
    changed_recipes = list(recipes)
    for pattern in patterns:
        nodes_of_recipes = [matching_nodes(graphs[recipe.graph], pattern) for recipe in recipes]
        if not any(nodes_of_recipes):
            raise UsageError(_no_node_error(pattern, [graphs[recipe.graph] for recipe in recipes]))
        changed_recipes = [
            _with_eager(recipe, nodes) for recipe, nodes in zip(changed_recipes, nodes_of_recipes, strict=True)
        ]
    return changed_recipes


def _with_eager(recipe: Recipe, nodes: Iterable[str]) -> Recipe:
    """`recipe` with the nodes of these stable names set to run in eager mode."""
    for node in nodes:
        recipe = recipe.with_choice(node, EAGER)
    return recipe


def matching_nodes(graph: GraphInfo, pattern: str) -> list[str]:
    """The stable names of the `call_*` nodes called `pattern`; without such nodes, of those that match it.

    The pattern is compared with stable names, FX names and targets.
    """
    rows = graph.nodes_named(pattern) or [row for row in graph.rows if _matches(row, pattern)]
    return [row.stable for row in rows if row.opcode.startswith("call")]


def _no_node_error(pattern: str, graphs: Sequence[GraphInfo]) -> str:
    """The error if `pattern` selects no node of these graphs that can run in eager."""
    named = next((row for graph in graphs for row in graph.nodes_named(pattern)), None)
    if named is not None:
        return f"node {pattern!r} is not a call but {named.opcode}: only calls can run in eager"
    nodes = [row for graph in graphs for row in graph.rows if row.opcode.startswith("call")]
    names = [name for row in nodes for name in (row.display_name, row.name)]
    subject = f"graph {graphs[0].name} has" if len(graphs) == 1 else "the graphs have"
    return f"{subject} no node {pattern!r}{_suggestion(pattern, names)}"


def graph_numbers(selector: str | None, graphs: Sequence[GraphInfo]) -> list[int]:
    """The numbers of the selected graphs: all with `None`, else the one with that name or number.

    Raises `UsageError` if there is no such graph.
    """
    names = [graph.name for graph in graphs]
    if selector is None:
        return list(range(len(graphs)))
    if selector in names:
        return [names.index(selector)]
    if selector.isdigit() and int(selector) < len(graphs):
        return [int(selector)]
    known = ", ".join(f"{number} ({name})" for number, name in enumerate(names))
    raise UsageError(f"unknown graph {selector!r}; the program has {known}")


def _parse_pipeline(text_or_file: str, current_steps: Sequence[PassStep], is_trusted: bool) -> tuple[PassStep, ...]:
    """The steps of a pipeline in MLIR's syntax. Steps that are also in `current_steps` keep their phases.

    The pipeline of a file that is not trusted may not load plug-ins or other files. Raises `UsageError`.
    """
    path, text = Path(text_or_file), text_or_file
    is_file = bool(text) and _is_file(path)  # `Path("")` is the current folder
    try:
        text = read_file(path) if is_file else text
        steps = to_steps(parse_pipeline(text), current_steps)
    except OSError as error:
        raise UsageError(f"{text_or_file}: {error.strerror}") from error
    except PipelineError as error:
        line = text[: error.offset].count("\n") + 1
        column = error.offset - text.rfind("\n", 0, error.offset)
        raise UsageError(f"the pipeline, line {line}, column {column}: {error.message}") from error
    except ValueError as error:
        raise UsageError(f"{text_or_file}: {error}") from error
    untrusted = required_permissions(Recipe(steps=steps)) if is_file and not is_trusted else []
    if untrusted:
        raise UsageError(f"{path} is rejected: {rejection_text(untrusted)}")
    return steps


def _is_file(path: Path) -> bool:
    """Whether there is such a file."""
    try:
        return path.exists()
    except OSError:  # the text is a pipeline, and longer than a path can be
        return False


def _read_recipe(path: Path, trusted: Collection[str] | None) -> Recipe:
    """The recipe in a file. `trusted` lists the plug-ins that the file may load; `None` means that it may do anything.

    Raises `UsageError`.
    """
    try:
        recipe = from_toml(read_file(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    untrusted = required_permissions(recipe, trusted) if trusted is not None else []
    if untrusted:
        raise UsageError(f"{path} is rejected: {rejection_text(untrusted)}")
    return recipe


def read_recipe(path: str, presets: Sequence[str], trusted: Collection[str] | None) -> Recipe:
    """The recipe in a file, which may load the plug-ins in `trusted` (see `trusted_plugins`). Raises `UsageError`.

    If there is no such file, the error lists `presets`, in case the user meant a preset.
    """
    if presets and not Path(path).exists():
        raise UsageError(f"{path!r} is neither a file nor a preset; known presets: {', '.join(presets)}")
    return _read_recipe(Path(path), trusted)


def find_preset(presets: Sequence[Preset], name: str) -> Preset:
    """The preset with that name. Raises `UsageError`."""
    for preset in presets:
        if preset.name == name:
            return preset
    raise UsageError(f"unknown preset {name!r}; known: {', '.join(preset.name for preset in presets)}")


def _set_enabled(recipe: Recipe, names: Iterable[str], enabled: bool) -> Recipe:
    """`recipe` with the steps called `names` enabled or disabled. Raises `UsageError`."""
    for name in names:
        for index in step_indices(recipe, name):
            recipe = recipe.with_step(index, enabled=enabled)
    return recipe


def step_indices(recipe: Recipe, name: str) -> list[int]:
    """The indices of the steps called `name`; `name#2` selects only the second one. Raises `UsageError`."""
    plain_name, _, number = name.partition("#")
    indices = [index for index, step in enumerate(recipe.steps) if step.name == plain_name]
    if not indices:
        names = [step.name for step in recipe.steps]
        raise UsageError(f"the recipe has no pass {plain_name!r}{_suggestion(plain_name, names)}")
    if not number:
        return indices
    if not number.isdigit() or not 1 <= int(number) <= len(indices):
        raise UsageError(f"unknown pass {name!r}: the recipe has {len(indices)} passes called {plain_name!r}")
    return [indices[int(number) - 1]]


def _matches(row: NodeRow, pattern: str) -> bool:
    """Whether the stable name, the FX name or the target of a node matches a pattern such as `mm_*`."""
    return any(fnmatchcase(text, pattern) for text in (row.stable, row.name, row.target))


def _suggestion(name: str, known: Iterable[str]) -> str:
    """The `known` names that resemble `name`, as the end of an error message; empty if none does."""
    similar_names = get_close_matches(name, sorted(set(known)), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(similar_names)}?" if similar_names else ""


def inputs_of(options: argparse.Namespace) -> InputChoice:
    """The inputs that the command line selects. Raises `UsageError`."""
    if options.inputs is not None:
        try:
            return inputs_from_file(options.inputs)
        except OSError as error:
            raise UsageError(f"{options.inputs}: {error.strerror or error}") from error
        except ValueError as error:
            raise UsageError(f"{options.inputs}: {error}") from error
    return InputChoice("random", options.seed) if options.seed is not None else OWN_INPUTS
