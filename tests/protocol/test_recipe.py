"""The recipe: TOML, ranges, errors that name the field, keys that say what may be reused, and what needs trust."""

from __future__ import annotations

import msgspec
import pytest

from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.presets import default_recipe, presets
from buddy.compiler.protocol.recipe import (
    OpChoice,
    PassStep,
    PluginFile,
    PrecisionChoice,
    Recipe,
    RecipeError,
    digest,
    file_option,
    from_toml,
    prefix_keys,
    preset_of,
    rejection_text,
    required_permissions,
    to_toml,
)

STEPS = (PassStep("a", "graph", ""), PassStep("b"), PassStep("c", options=(("size", 4),)), PassStep("d"))
RECIPE = Recipe("model.py", ("--tiny",), steps=STEPS)


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
def test_a_recipe_comes_back_from_toml_as_it_was(preset: str, dialect: str) -> None:
    recipe = default_recipe("model.py", ("--layers", "2"), preset, dialect)  # type: ignore[arg-type]
    recipe = recipe.with_choice("layer.0/gelu.0", "eager").toggled(3)
    assert from_toml(to_toml(recipe)) == recipe


def test_option_types_survive_toml() -> None:
    options = (("flag", True), ("count", 3), ("ratio", 0.5), ("name", "x"))
    recipe = Recipe(steps=(PassStep("p", options=options),))
    (step,) = from_toml(to_toml(recipe)).steps
    assert [(type(value), value) for _, value in step.options] == [(type(value), value) for _, value in options]


def test_only_torch_mlir_lowers_to_stablehlo() -> None:
    recipe = from_toml("frontend = 'torch-mlir'\ndialect = 'stablehlo'")
    assert from_toml(to_toml(recipe)) == recipe == Recipe(frontend="torch-mlir", dialect="stablehlo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "dialect = 'stablehlo'",
            "needs the frontend torch-mlir, but the recipe has dynamo - at `$.dialect`",
        ),
        ("threads = 'two'", "$.threads"),
        ("threads = 0", "$.threads"),
        ("threads = 1000000", "$.threads"),
        ("[[steps]]\nname = 1", "$.steps[0].name"),
        ("[[steps]]\nlevel = 'mlir'", "name"),
        ("[[choices]]\nnode = 'x'", "lowering"),
        ("dialect = \n", "line 1"),
        (f"graph = 1{'0' * 30}", "$.graph"),
        ("opt_level = -1", "$.opt_level"),
        ("steps = " + "[" * 5000, "not a recipe"),
        ("[[steps]]\nname = 'p'\noptions = [['n', 99999999999999999999999]]", "option n of p"),
        ("[[steps]]\nname = 'p'\noptions = [['n', nan]]", "option n of p"),
        ("[[steps]]\nname = 'p'\noptions = [['n', -inf]]", "option n of p"),
    ],
)
def test_what_is_no_recipe_is_refused_with_the_field(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="not a recipe") as error:
        from_toml(text)
    assert said in str(error.value)


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="default") as error:
        default_recipe(preset="fast")
    assert "upstream" in str(error.value)


def test_a_step_is_spelt_as_in_a_pass_pipeline() -> None:
    assert PassStep("canonicalize").spelling() == "canonicalize"
    assert PassStep("p", options=(("top-down", False), ("n", 2))).spelling() == "p{top-down=false n=2}"


def test_a_choice_replaces_the_one_before_and_none_takes_it_back() -> None:
    chosen = RECIPE.with_choice("n", "tosa").with_choice("n", "eager")
    assert chosen.choice_map() == {"n": "eager"}
    assert chosen.with_choice("n", None) == RECIPE


def test_the_order_of_choices_does_not_matter() -> None:
    assert RECIPE.with_choice("a", "tosa").with_choice("b", "tosa") == RECIPE.with_choice("b", "tosa").with_choice(
        "a", "tosa"
    )


def test_toggling_twice_is_the_recipe_itself() -> None:
    assert RECIPE.toggled(1).toggled(1) == RECIPE
    assert not RECIPE.toggled(1).steps[1].enabled


# ---- keys of prefixes ------------------------------------------------------------------------------------------------


def test_a_step_switched_off_has_the_key_of_the_step_before() -> None:
    keys = prefix_keys(RECIPE.toggled(2), "graph")
    assert keys.after_step[2] == keys.after_step[1]


def test_steps_before_a_change_keep_their_keys_and_those_after_lose_them() -> None:
    before, after = prefix_keys(RECIPE, "graph"), prefix_keys(RECIPE.with_step(2, options=(("size", 8),)), "graph")
    assert before.top == after.top
    assert before.after_step[:2] == after.after_step[:2]
    assert not set(before.after_step[2:]) & set(after.after_step[2:])


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(RECIPE, dialect="tosa"),
        msgspec.structs.replace(RECIPE, partition="whole"),
        RECIPE.with_choice("n", "eager"),
        RECIPE.toggled(0),
    ],
    ids=["dialect", "partition", "choice", "graph pass"],
)
def test_what_makes_the_top_level_changes_every_key(changed: Recipe) -> None:
    before, after = prefix_keys(RECIPE, "graph"), prefix_keys(changed, "graph")
    assert not {before.top, *before.after_step} & {after.top, *after.after_step}


def test_another_graph_has_other_keys() -> None:
    assert prefix_keys(RECIPE, "graph").top != prefix_keys(RECIPE, "another").top


def test_where_a_program_comes_from_and_phases_do_not_matter() -> None:
    moved = msgspec.structs.replace(RECIPE, source="elsewhere.py", preset="upstream").with_step(1, phase="loops")
    assert prefix_keys(moved, "graph") == prefix_keys(RECIPE, "graph")


def test_another_number_of_threads_reruns_from_the_pass_that_shares_loops() -> None:
    recipe = default_recipe()
    reading = [facts(step.name).reads_threads for step in recipe.steps]
    one, two = (prefix_keys(msgspec.structs.replace(recipe, threads=n), "graph").after_step for n in (1, 2))
    first = reading.index(True)
    assert one[:first] == two[:first]
    assert all(a != b for a, b in zip(one[first:], two[first:], strict=True))


def test_a_recipe_with_checks_can_be_read_by_version_0_1_and_one_without_says_so() -> None:
    assert "checks" not in to_toml(Recipe())
    without = Recipe(checks="none")
    assert from_toml(to_toml(without)) == without
    assert prefix_keys(without, "graph").top != prefix_keys(Recipe(), "graph").top


# ---- fields, their ranges and defaults -------------------------------------------------------------------------------

STRUCTS = (PassStep("p"), OpChoice("n", "linalg"), PrecisionChoice("n", "bf16"), PluginFile("p.py"), Recipe())


@pytest.mark.parametrize("value", STRUCTS, ids=lambda value: type(value).__name__)
def test_parts_of_a_recipe_are_frozen_and_have_no_other_fields(value: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], "other")
    fields = {**msgspec.to_builtins(value), "extra": 1}
    with pytest.raises(msgspec.ValidationError, match="unknown field `extra`"):
        msgspec.convert(fields, type(value))


def test_what_a_recipe_says_if_it_says_nothing() -> None:
    recipe = Recipe()
    assert (recipe.graph, recipe.threads, recipe.opt_level, recipe.llvm_stages) == (0, 1, 2, False)
    assert not PluginFile("p.py").passes
    assert hash(prefix_keys(recipe, "g")) == hash(prefix_keys(Recipe(), "g"))


@pytest.mark.parametrize(
    ("field", "least", "most"), [("graph", 0, 2**31 - 1), ("threads", 1, 1024), ("opt_level", 0, 3)]
)
def test_numbers_of_a_recipe_have_ranges(field: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(from_toml(f"{field} = {value}"), field) == value
    for value in (least - 1, most + 1):
        with pytest.raises(RecipeError, match=rf"\$\.{field}"):
            from_toml(f"{field} = {value}")
    with pytest.raises(RecipeError, match=rf"got `str` - at `\$\.{field}`"):
        from_toml(f'{field} = "{least}"')


def test_integers_of_options_fit_into_64_bits() -> None:
    """Signed or unsigned, as MLIR's options are; the wire has no larger ones."""
    for value in (-(2**63), 2**64 - 1):
        assert PassStep("p", options=(("size", value),)).options == (("size", value),)
    for value in (-(2**63) - 1, 2**64, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="option size of p"):
            PassStep("p", options=(("size", value),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thread = 2", "unknown field `thread` (did you mean threads?)"),
        ("thread = 2\nopt-level = 1", "unknown fields `thread`, `opt-level` (did you mean threads, opt_level?)"),
        ("zzz = 2", "unknown field `zzz`; the fields are source, arguments, graph"),
        ("\n".join(f"z{number} = 1" for number in range(7)), "unknown fields `z0`, `z1`, `z2`, `z3`, `z4`; the fields"),
        (f"{'z' * 70} = 1", f"unknown field `{'z' * 60}`; "),
    ],
)  # fmt: skip
def test_unknown_fields_are_named_with_near_ones(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        from_toml(text)
    assert f"not a recipe: {said}" in str(caught.value)


def test_a_recipe_without_a_format_is_one_of_the_first() -> None:
    assert from_toml('source = "a.py"').source == "a.py"
    with pytest.raises(RecipeError, match="format 99"):
        from_toml("format = 99")


# ---- precisions, backends, presets -----------------------------------------------------------------------------------


def test_the_precision_of_a_node_replaces_that_of_the_recipe() -> None:
    recipe = Recipe(precision="bf16").with_precision("b", "int8-dynamic").with_precision("a", "f32")
    assert [recipe.precision_of(node) for node in "abc"] == ["f32", "int8-dynamic", "bf16"]
    assert [choice.node for choice in recipe.precisions] == ["a", "b"], "sorted"
    assert recipe.with_precision("a", "bf16").precision_of("a") == "bf16"
    assert recipe.with_precision("a", None).with_precision("b", None) == Recipe(precision="bf16")
    assert recipe.with_choice("b", "linalg").node_settings() == {"a": " f32", "b": "linalg int8-dynamic"}


def test_plugins_are_sorted_by_path() -> None:
    assert sorted([PluginFile("b"), PluginFile("a")]) == [PluginFile("a"), PluginFile("b")]
    assert sorted([PassStep("b"), PassStep("a")]) == [PassStep("a"), PassStep("b")]


@pytest.mark.parametrize("changed", [
    Recipe(checks="none"), Recipe(precision="bf16"), Recipe(precisions=(PrecisionChoice("a", "bf16"),)),
    Recipe(frontend="torch-mlir"),
], ids=["checks", "precision", "precisions", "frontend"])  # fmt: skip
def test_settings_of_the_lowering_change_the_first_key(changed: Recipe) -> None:
    assert prefix_keys(changed, "g").top != prefix_keys(Recipe(), "g").top


def test_defaults_added_later_leave_the_keys_of_caches_alone() -> None:
    """The keys of version 0.1, which knew neither checks nor precisions, as its caches have them."""
    parts = ("g", "linalg", "layers", (), [], [])
    assert prefix_keys(Recipe(), "g").top == digest(*parts)
    assert len(digest(*parts)) == 24
    step = PassStep("canonicalize")
    (key,) = prefix_keys(Recipe(steps=(step,)), "g").after_step
    assert key == digest(digest(*parts), ("canonicalize", "mlir", "builtin.module", ()))
    (other,) = prefix_keys(Recipe(steps=(step,), target="x86-64"), "g").after_step
    assert other == digest(digest(*parts), ("canonicalize", "mlir", "builtin.module", ()), "x86-64")


def test_another_compiler_does_not_run_the_passes_for_our_kernels() -> None:
    own = next(step for step in default_recipe().steps if facts(step.name).for_own_kernels)
    recipe = Recipe(steps=(own, PassStep("canonicalize"), PassStep("cse", enabled=False)))
    assert recipe.for_backend() is recipe
    iree = msgspec.structs.replace(recipe, backend="iree", backend_flags=("--x",))
    assert [step.enabled for step in iree.for_backend().steps] == [False, True, False]
    assert iree.for_native() == recipe
    assert (recipe.runs_passes, iree.runs_passes) == (True, False)
    assert (Recipe(preset="dump").is_dump, recipe.is_dump) == (True, False)


def test_the_preset_of_a_frontend_and_a_dialect() -> None:
    assert [preset_of(frontend, "tosa") for frontend in ("dynamo", "export")] == ["default"] * 2
    assert preset_of("torch-mlir", "linalg") == "torch-mlir"
    assert preset_of("torch-mlir", "stablehlo") == "torch-mlir-stablehlo"


# ---- what needs trust ------------------------------------------------------------------------------------------------


def claims_of(name: str = "p", level: str = "mlir", anchor: str = "builtin.module", **options: object) -> list[str]:
    return required_permissions(Recipe(steps=(PassStep(name, level, anchor, tuple(options.items())),)))  # type: ignore[arg-type]


def test_plain_passes_claim_nothing() -> None:
    options = {"size": 4, "flag": True, "patterns": "a,b", "nested": "inner{size=2 name=x}", "empty": "", "ratio": 0.5}
    assert claims_of(**options) == []
    assert claims_of("graph pass; anything", "graph") == []
    assert claims_of(anchor="") == []


@pytest.mark.parametrize("text", ["/etc/x", "./x", "../x", "~/x", "\\\\host", "a/../x", "inner{a=1 b=/etc/x}"])
def test_values_that_look_like_paths_are_claimed(text: str) -> None:
    (phrase,) = claims_of(value=text)
    assert phrase == f"value={text} of the pass p, which names a file"


def test_options_that_name_files_are_claimed() -> None:
    assert claims_of(**{"dump-file": "x"}) == ["dump-file=x of the pass p, which names a file"]
    assert claims_of(pipeline="inner{size=2 link-files=lib}") == ["link-files=lib of the pass p, which names a file"]
    assert claims_of(**{"path": ""}) == [], "an empty name is not a file"
    (phrase,) = claims_of("p" * 70, path="x" * 70)
    assert phrase == f"path={'x' * 55} of the pass {'p' * 60}, which names a file"


@pytest.mark.parametrize("name", [
    "file", "filename", "path", "paths", "dir", "directory", "library", "libraries", "toolkit", "plugin", "link-files",
    "l", "opts", "cmd-options",
])  # fmt: skip
def test_each_word_for_a_file_or_a_program_is_claimed_alone_and_at_the_end_of_a_name(name: str) -> None:
    for option in (name, f"some-{name}", f"some_{name}"):
        assert claims_of(**{option: "x"}) == [f"{option}=x of the pass p, which names a file"]
        assert claims_of(pipeline=f"inner{{{option}=x}}") == [f"{option}=x of the pass p, which names a file"]
    assert claims_of(**{f"{name}-count": "x"}) == [], "the word is not the last of the name"


def test_the_option_of_a_spelt_pass_that_names_a_file_is_found() -> None:
    assert file_option("p{size=2 dump-file=x}") == "dump-file=x"
    assert file_option("p{size=2 name=x}") == ""


def test_names_with_other_characters_are_claimed() -> None:
    long = "a b" * 30
    assert claims_of(long) == [f"the pass {long[:60]}, with {long[:60]!r} as a name"]
    assert claims_of(anchor="any(x)") == ["the pass p, with 'any(x)' as a name"]
    assert claims_of(**{"a b": 1}) == ["the pass p, with 'a b' as a name"]


@pytest.mark.parametrize(("flag", "is_claimed"), [
    ("--iree-opt-level=3", False), ("--dump-to=x", True), ("--x=/etc", True), ("--x=~", True), ("--plugin", True),
])  # fmt: skip
def test_flags_that_may_name_files_are_claimed(flag: str, is_claimed: bool) -> None:
    found = required_permissions(Recipe(backend="iree", backend_flags=(flag,)))
    assert found == [f"the flag {flag}, which may name files or programs"] * is_claimed


@pytest.mark.parametrize("word", [
    "dump", "path", "file", "dir", "plugin", "toolkit", "linker", "command", "load", "preprocess", "compile-to",
    "compile-to-phase", "bitcode", "save", "trace",
])  # fmt: skip
def test_each_word_for_a_file_or_a_program_in_the_name_of_a_flag_is_claimed(word: str) -> None:
    for flag in (f"--{word}", f"-{word}=x", f"--iree-{word}=x"):
        assert len(required_permissions(Recipe(backend="iree", backend_flags=(flag,)))) == 1, flag
    assert required_permissions(Recipe(backend="iree", backend_flags=(f"--iree-opt={word}",))) == [], (
        "a value is not a name"
    )


@pytest.mark.parametrize("character", "/~\\ $;|&'\"`*?(\n")
def test_a_value_of_a_flag_has_no_characters_of_paths_or_shells(character: str) -> None:
    for value in (character, f"a{character}", f"{character}a"):
        assert len(required_permissions(Recipe(backend="iree", backend_flags=(f"--x={value}",)))) == 1
    assert required_permissions(Recipe(backend="iree", backend_flags=("--x=a.b,c:d+e[0]=f-1",))) == []


def test_only_other_plugins_than_the_allowed_are_claimed() -> None:
    recipe = Recipe(plugins=(PluginFile("a.py"), PluginFile("b.py")))
    assert required_permissions(recipe, ["a.py"]) == ["plug-in b.py, which is Python code"]
    assert rejection_text(required_permissions(recipe)) == (
        "it asks for plug-in a.py, which is Python code; plug-in b.py, which is Python code"
        " · --trust allows it, if you trust who wrote it"
    )
