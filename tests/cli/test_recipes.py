"""From options to a recipe: what is switched, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.cli import arguments, run
from buddy.app.cli.recipes import UsageError, base_recipe, graph_numbers, with_eager_nodes
from buddy.compiler.presets import presets
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.recipe import Recipe, to_toml

GRAPH = GraphInfo(
    "forward",
    (
        NodeRow(0, "x", "placeholder", "arg0_1", "arg0_1", "()", "{}"),
        NodeRow(1, "gelu.0", "call_function", "gelu", "aten.gelu.default", "()", "{}"),
        NodeRow(2, "mm.0", "call_function", "mm_3", "aten.mm.default", "()", "{}"),
    ),
)


def recipe(*words: str) -> Recipe:
    options, script = arguments.parse(run.parser(), ["a.py", *words])
    return base_recipe(options, tuple(presets().values()), script)


def test_without_options_it_is_the_default_preset() -> None:
    found = recipe("--", "--tiny")
    assert found.steps == presets()["default"].recipe.steps
    assert (found.source, found.arguments, found.preset) == ("a.py", ("--tiny",), "default")


def test_options_change_their_fields() -> None:
    found = recipe("--preset", "upstream", "--flavour", "tosa", "--partition", "whole", "--threads", "2")
    assert (found.preset, found.flavour, found.partition, found.threads) == ("upstream", "tosa", "whole", 2)
    assert found.steps == presets()["upstream"].recipe.steps


def test_a_pass_is_disabled_wherever_it_stands_or_once() -> None:
    all_off = [step.enabled for step in recipe("--disable", "canonicalize").steps if step.name == "canonicalize"]
    assert len(all_off) > 1
    assert not any(all_off)
    one_off = [step.enabled for step in recipe("--disable", "canonicalize#2").steps if step.name == "canonicalize"]
    assert one_off == [index != 1 for index in range(len(one_off))]


def test_a_recipe_from_a_file_keeps_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(recipe("--disable", "cse", "--flavour", "tosa")))
    found = recipe("--recipe", str(path), "--enable", "cse#1")
    assert found.flavour == "tosa"
    enabled = [step.enabled for step in found.steps if step.name == "cse"]
    assert enabled == [True] + [False] * (len(enabled) - 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--disable", "canonicalise"), "did you mean canonicalize"),
        (("--disable", "cse#99"), "none is 'cse#99'"),
        (("--preset", "fast"), "there are default"),
        (("--recipe", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe(*words)


@pytest.mark.parametrize("pattern", ["gelu.0", "gelu", "aten.gelu.*", "ge?u"])
def test_nodes_are_named_as_the_table_names_them(pattern: str) -> None:
    assert with_eager_nodes(Recipe(), [pattern], GRAPH).choice_map() == {"gelu.0": "eager"}


@pytest.mark.parametrize("pattern", ["arg0_1", "gello"])
def test_a_node_that_does_not_compute_or_exist_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=pattern):
        with_eager_nodes(Recipe(), [pattern], GRAPH)


def test_a_graph_that_does_not_exist_is_refused() -> None:
    assert graph_numbers(None, [GRAPH, GRAPH]) == [0, 1]
    assert graph_numbers(1, [GRAPH, GRAPH]) == [1]
    with pytest.raises(UsageError, match="has 2"):
        graph_numbers(2, [GRAPH, GRAPH])
