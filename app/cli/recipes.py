"""From the options of a command line to a recipe: names of passes and nodes are looked up, and unknown ones refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import msgspec

from buddy.compiler.protocol import GraphInfo, Preset
from buddy.compiler.recipe import EAGER, Recipe, from_toml


class UsageError(Exception):
    """The command line asks for something that does not exist; the text says what, and what there is."""


def base_recipe(options: argparse.Namespace, presets: Sequence[Preset], arguments: tuple[str, ...]) -> Recipe:
    """The recipe before nodes are chosen: the preset's or the file's, with the options' changes.

    Raises `UsageError`.
    """
    found = _from_file(options) if options.recipe else Recipe(preset="")
    if not found.steps or options.preset:
        name = options.preset or found.preset or "default"
        found = msgspec.structs.replace(found, preset=name, steps=_preset(presets, name).recipe.steps)
    changes = {key: getattr(options, key) for key in ("flavour", "partition", "threads")}
    changes = {key: value for key, value in changes.items() if value is not None}
    changed = msgspec.structs.replace(found, source=options.source, arguments=arguments, **changes)
    return _switched(_switched(changed, options.disable, False), options.enable, True)


def with_eager_nodes(recipe: Recipe, patterns: Sequence[str], graph: GraphInfo) -> Recipe:
    """`recipe` with the nodes of `graph` that match `patterns` left to eager.

    Raises `UsageError` for a pattern that no node matches.
    """
    for pattern in patterns:
        names = [row.stable for row in graph.rows if row.opcode.startswith("call") and _matches(row, pattern)]
        if not names:
            known = [row.name for row in graph.rows if row.opcode.startswith("call")]
            raise UsageError(f"graph {graph.name} has no node {pattern!r}{_near(pattern, known)}")
        for name in names:
            recipe = recipe.with_choice(name, EAGER)
    return recipe


def graph_numbers(wanted: int | None, graphs: Sequence[GraphInfo]) -> list[int]:
    """The graphs to work on: all, or the one that is wanted; raises `UsageError` when it does not exist."""
    if wanted is None:
        return list(range(len(graphs)))
    if not 0 <= wanted < len(graphs):
        raise UsageError(f"there is no graph {wanted}: the program has {len(graphs)}, counted from 0")
    return [wanted]


def _from_file(options: argparse.Namespace) -> Recipe:
    try:
        return from_toml(options.recipe.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{options.recipe}: {error}") from error


def _preset(presets: Sequence[Preset], name: str) -> Preset:
    for preset in presets:
        if preset.name == name:
            return preset
    raise UsageError(f"there is no preset {name!r}; there are {', '.join(preset.name for preset in presets)}")


def _switched(recipe: Recipe, names: Iterable[str], enabled: bool) -> Recipe:
    for name in names:
        for index in _steps_named(recipe, name):
            recipe = recipe.with_step(index, enabled=enabled)
    return recipe


def _steps_named(recipe: Recipe, name: str) -> list[int]:
    """The steps called `name`; `name#2` is the second of them."""
    plain, _, number = name.partition("#")
    found = [index for index, step in enumerate(recipe.steps) if step.name == plain]
    if not found:
        known = [step.name for step in recipe.steps]
        raise UsageError(f"the recipe has no pass {plain!r}{_near(plain, known)}")
    if not number:
        return found
    if not number.isdigit() or not 1 <= int(number) <= len(found):
        raise UsageError(f"the recipe has {len(found)} passes called {plain!r}, and none is {name!r}")
    return [found[int(number) - 1]]


def _matches(row: object, pattern: str) -> bool:
    return any(fnmatchcase(str(getattr(row, key)), pattern) for key in ("stable", "name", "target"))


def _near(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(set(known)), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
