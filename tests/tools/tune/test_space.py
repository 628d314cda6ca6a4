"""The space of recipes around one: what varies, what is refused, and that its first point is the recipe itself."""

from __future__ import annotations

from itertools import product

import pytest

from buddy.app.reports.searches import VariationError, read_variation
from buddy.compiler.protocol import Variation
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.searches import SpaceError, space_of

BASE = default_recipe("samples/mlp.py")
ROWS = "contractions-to-kernels.rows"


def test_the_first_point_is_the_recipe_itself() -> None:
    space = space_of(BASE, (Variation(ROWS, (4, 8)), Variation("fuse-rows", (False, True)), Variation("threads", (2,))))
    assert space.recipe(space.start) == BASE
    assert space.words(space.start) == (f"{ROWS}=default", "fuse-rows=on", "threads=1")
    assert space.size == 3 * 2 * 2


def test_every_point_is_another_recipe_and_differs_where_it_says() -> None:
    space = space_of(BASE, (Variation(ROWS, (4, 8)), Variation("cse", (False,)), Variation("lowering:mm", ("eager",))))
    points = list(product(*(range(len(variation.values)) for variation in space.variations)))
    assert len({space.recipe(point) for point in points}) == space.size == len(points)
    recipe = space.recipe((2, 1, 1))
    steps = {step.name: step for step in reversed(recipe.steps)}
    assert dict(steps["contractions-to-kernels"].options) == {"rows": 8}
    assert not steps["cse"].enabled
    assert recipe.choice_map() == {"mm": "eager"}


def test_a_number_chooses_among_steps_of_one_name() -> None:
    second = space_of(BASE, (Variation("canonicalize#2", (False,)),)).recipe((1,))
    off = [index for index, step in enumerate(second.steps) if not step.enabled and BASE.steps[index].enabled]
    assert [BASE.steps[index].name for index in off] == ["canonicalize"]
    assert [step.name for step in BASE.steps[: off[0]]].count("canonicalize") == 1


@pytest.mark.parametrize(
    ("variation", "reason"),
    [
        (Variation("no-such-pass", (True,)), "no such pass"),
        (Variation("canonicalize#99", (True,)), "only"),
        (Variation("fuse-rows", (3,)), "on or off"),
        (Variation("threads", ("many",)), "has another type"),
        (Variation("precision", ("bf17",)), "unknown precision bf17; known: f32, bf16x3, bf16, int8-dynamic"),
        (Variation("precision:mm.0", ("int4",)), "precision:mm.0: unknown precision int4"),
    ],
)
def test_what_the_recipe_has_nothing_for_is_refused(variation: Variation, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        space_of(BASE, (variation,))


def test_what_is_usual_is_what_the_recipe_has() -> None:
    varied = {variation.parameter for variation in space_of(BASE).variations}
    assert ROWS in varied
    assert {variation.parameter for variation in space_of(default_recipe(preset="upstream")).variations} < varied


def test_variations_are_read_as_they_are_written() -> None:
    assert read_variation("fuse-rows=on,off") == Variation("fuse-rows", (True, False))
    assert read_variation("a.b = 1, 2.5, default, auto") == Variation("a.b", (1, 2.5, "", "auto"))
    for text in ("fuse-rows", "=1", "a="):
        with pytest.raises(VariationError, match="SETTING=VALUE"):
            read_variation(text)


def test_what_passes_would_choose_themselves_is_a_point_too() -> None:
    recipe = default_recipe()
    (index,) = [k for k, step in enumerate(recipe.steps) if step.name == "contractions-to-kernels"]
    bad = recipe.with_step(index, options=(("rows", 1), ("vectors", 1)))
    space = space_of(bad)
    words = space.words(space.natural)
    assert {"contractions-to-kernels.rows=0", "contractions-to-kernels.vectors=0"} <= set(words)
    assert [word for word in words if "." not in word] == [word for word in space.words(space.start) if "." not in word]
    given = space_of(bad, [Variation("contractions-to-kernels.rows", (4,))])
    assert given.natural == given.start


def test_the_precision_of_all_products_or_of_one_node_is_varied() -> None:
    space = space_of(BASE, (Variation("precision", ("bf16",)), Variation("precision:mm.0", ("int8-weights",))))
    assert space.size == 4
    recipe = space.recipe((1, 1))
    assert (recipe.precision, recipe.precision_of("mm.0"), recipe.precision_of("mm.1")) == (
        "bf16",
        "int8-weights",
        "bf16",
    )
    assert space.recipe((1, 0)).precisions == ()
