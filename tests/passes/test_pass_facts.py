"""The table of facts about passes says what the passes are."""

from __future__ import annotations

import inspect
import sys
from importlib import resources

from buddy.compiler import passes
from buddy.compiler.graph.transform import transforms
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol.pass_facts import PACK_WEIGHTS, PASSES
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.searches import USUAL_VARIATIONS


def test_every_entry_is_a_pass() -> None:
    text = resources.files(passes).joinpath("upstream.txt").read_text("utf-8")
    upstream = {line.split("  ")[0] for line in text.splitlines()}
    assert set(PASSES) <= {*own_passes(), *transforms(), *upstream}


def test_the_passes_that_read_the_recipes_threads_say_so() -> None:
    sources = {name: inspect.getsource(sys.modules[found.__module__]) for name, found in own_passes().items()}
    reading = {name for name, source in sources.items() if "context.threads" in source}
    assert reading == {name for name, found in PASSES.items() if found.reads_threads}


def test_the_passes_that_pack_weights_have_the_option_to_leave_that() -> None:
    having = {name for name, found in own_passes().items() if PACK_WEIGHTS in found.options()}
    assert having == {name for name, found in PASSES.items() if found.packs_weights}


def test_options_that_facts_name_are_those_of_the_pass() -> None:
    own = own_passes()
    for name, found in PASSES.items():
        named = {option for option, _ in found.tuned if option}
        effect = found.numerics
        named |= {effect.exact_option[0]} if effect and effect.exact_option else set()
        assert named <= set(own[name].options() if name in own else ()), name


def test_what_a_search_varies_is_in_the_default_recipe() -> None:
    names = {step.name for step in presets()["default"].recipe.steps}
    assert {variation.parameter.partition(".")[0] for variation in USUAL_VARIATIONS} - names == {"opt-level"}
