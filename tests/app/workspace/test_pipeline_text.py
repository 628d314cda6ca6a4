"""The pipeline as text: printed text parses again, and errors have a position."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.workspace.pipeline_text import (
    MODULE,
    PipelineError,
    check_pipeline,
    completions,
    mlir_pipeline,
    option_error,
    option_value,
    parse_pipeline,
    pipeline_text,
    to_steps,
)
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import OptionInfo, PassInfo
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, Recipe

CATALOGUE = (
    PassInfo("canonicalize", "mlir", "Canonicalize operations", options=(OptionInfo("top-down", "true"),)),
    PassInfo("convert-linalg-to-loops", "mlir", "Lower linalg to loops", "func.func"),
    PassInfo("cse", "mlir", "Eliminate common sub-expressions"),
    PassInfo("fuse-rows", "mlir", "rows at once", ours=True),
    PassInfo("linear-sums", "graph", "sums of products", "", ours=True),
)


@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_survives_printing_and_parsing(name: str) -> None:
    steps = presets()[name].recipe.steps
    graph = tuple(step for step in steps if step.level == "graph")
    rest = tuple(step for step in steps if step.level != "graph")
    assert to_steps(parse_pipeline(pipeline_text(steps)), steps) == graph + rest


def test_ir_is_represented_by_a_hash() -> None:
    steps = (PassStep("replace-ir", options=(("text", "module {\n}\n"),), phase="fused"), PassStep("cse"))
    text = pipeline_text(steps)
    assert "module {" not in text
    assert to_steps(parse_pipeline(text), steps) == steps


def test_the_syntax_of_mlir_opt_parses() -> None:
    text = "builtin.module(func.func(convert-linalg-to-loops),canonicalize{  max-iterations=10 top-down=true},cse)"
    items = parse_pipeline(text)
    assert [(item.name, item.anchor) for item in items] == [
        ("convert-linalg-to-loops", "func.func"),
        ("canonicalize", "builtin.module"),
        ("cse", "builtin.module"),
    ]
    assert items[1].options == (("max-iterations", 10), ("top-down", True))
    steps = to_steps(items, ())
    assert mlir_pipeline(steps) == text.replace("{  ", "{")


def test_comments_contain_disabled_passes() -> None:
    items = parse_pipeline(
        "builtin.module(\n  cse,\n  // canonicalize{top-down=false}\n  // a remark of mine\n  fuse-rows\n)"
    )
    assert [(item.name, item.enabled) for item in items] == [
        ("cse", True),
        ("canonicalize", False),
        ("fuse-rows", True),
    ]
    assert items[1].options == (("top-down", False),)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("builtin.module(cse", 14, "not closed"),
        ("builtin.module(cse canonicalize)", 19, "expected a comma"),
        ("builtin.module(canonicalize{top-down})", 36, "has no value"),
        ("builtin.module(canonicalize{top-down=1", 27, "brace"),
        ("nothing(cse)", 0, "is not an anchor"),
        ("builtin.module(csee)", 15, "did you mean cse"),
        ("graph(cse)", 6, "must be outside graph"),
        ("builtin.module(linear-sums)", 15, "must be inside graph"),
        ("func.func(fuse-rows)", 10, "runs on builtin.module"),
        ("builtin.module(canonicalize{top-dwn=1})", 28, "did you mean top-down"),
        ("builtin.module(cse))", 19, "found ')'"),
        ("func.func(func.func(cse))", 10, "not allowed inside"),
    ],
)
def test_errors_have_a_position(text: str, place: int, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        check_pipeline(parse_pipeline(text), CATALOGUE)
    assert caught.value.offset == place
    assert message in caught.value.message


@pytest.mark.parametrize("text", ["007", "1_000", "+3", ".5", "nan", "inf", "0x10"])
def test_a_text_that_would_print_otherwise_is_no_number(text: str) -> None:
    assert option_value(text) == text


def test_a_value_with_a_quote_and_one_that_looks_like_a_number_are_kept() -> None:
    steps = (
        PassStep("canonicalize", "mlir", MODULE, (("patterns", 'a "b'), ("top", "8"))),
        PassStep("cse", "mlir", MODULE, (("count", 8),)),
    )
    assert to_steps(parse_pipeline(pipeline_text(steps)), steps) == steps


def test_a_new_pass_gets_the_phase_of_its_neighbour() -> None:
    before = (PassStep("cse", phase="fused"), PassStep("fuse-rows", phase="vector"))
    steps = to_steps(parse_pipeline("builtin.module(cse, canonicalize, fuse-rows)"), before)
    assert [step.phase for step in steps] == ["fused", "fused", "vector"]


def test_completions_depend_on_the_position() -> None:
    def words(text: str) -> list[str]:
        return [found.word for found in completions(text, len(text), CATALOGUE)[1]]

    assert words("builtin.module(c") == ["canonicalize", "convert-linalg-to-loops", "cse", "func.func("]
    assert words("builtin.module(cse, loops") == ["convert-linalg-to-loops"]
    assert words("graph(") == ["linear-sums"]
    assert words("builtin.module(canonicalize{") == ["top-down="]
    assert completions("builtin.module(can", 18, CATALOGUE)[0] == 15


@pytest.mark.parametrize("text", ["9" * 23, "-" + "9" * 23, "9" * 5000, "nan", "inf", "-inf", "1e999"])
def test_a_number_beyond_the_range_of_a_recipe_stays_text_and_can_be_saved(text: str, tmp_path: Path) -> None:
    workspace = Workspace("x.py", (), tmp_path)
    workspace.load(Recipe())
    workspace.edit(Recipe(steps=to_steps(parse_pipeline(f"canonicalize{{max-iterations={text}}},"), ())), "by hand")
    assert workspace.recipe.steps[0].options == (("max-iterations", text),)
    assert workspace.problem == ""
    again = Workspace("x.py", (), tmp_path)
    again.load(Recipe())
    assert again.recipe == workspace.recipe
    assert again.undo() == "by hand"


@pytest.mark.parametrize(
    ("text", "default", "reason"),
    [("", "true", ""), ("false", "true", ""), ("0", "false", ""), ("maybe", "true", "not true or false"),
     ("-3", "10", ""), ("ten", "10", "not a whole number"), ("1.5", "10", "not a whole number"),
     ("99999999999999999999", "10", "does not fit"), ("anything", "", ""), ("wrong", "aggressive", ""),
     ("2,0,1", "0,1,2", ""), ("1,x", "0,1,2", "x is not a whole number"), ("1,,2", "0,1,2", "empty text is not")],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_an_error(text: str, default: str, reason: str) -> None:
    assert (option_error(text, default) == "") == (reason == "")
    assert reason in option_error(text, default)


def test_an_unknown_word_of_an_option_is_an_error_with_the_known_words() -> None:
    assert option_error("aggressive", "normal", ("normal", "aggressive")) == ""
    assert option_error("wild", "normal", ("normal", "aggressive")) == "wild is not one of normal, aggressive"
