"""What each option of `torch.compile(backend="buddy", options=…)` may be, what it selects, and what is said if not."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from buddy.compiler.driver import backends
from buddy.compiler.frontend import backend_settings
from buddy.compiler.frontend.backend_settings import TUNE_SECONDS, VERIFY_VARIABLE, BackendSettings
from buddy.compiler.frontend.summary import SUMMARY_VARIABLE
from buddy.compiler.protocol.presets import default_recipe, without_pack_limit, without_packing
from buddy.compiler.protocol.recipe import (
    MAX_THREADS,
    OpChoice,
    PassStep,
    PluginFile,
    PrecisionChoice,
    Recipe,
    to_toml,
)
from buddy.compiler.runtime.packed_weights import CAN_RELEASE


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SUMMARY_VARIABLE, VERIFY_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def refused(options: dict[str, Any], message: str, mode: str | None = None) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        BackendSettings.of(options, mode)


def test_without_options_nothing_is_special() -> None:
    assert BackendSettings.of(None) == BackendSettings(base=default_recipe())
    assert BackendSettings() == BackendSettings("eager", False, False, None, 0, 0.0, "off", False, True, False, None)


def test_a_misspelt_variable_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDDY_VERIFYY", "1")
    refused({}, "BUDDY_VERIFYY in the environment is not a variable of buddy-tui")


# ---- single options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fallback_random", "summary"])
def test_a_switch_is_on_or_off(name: str) -> None:
    for value in (True, False):
        assert getattr(BackendSettings.of({name: value}), name) is value
    for value in (1, "yes", None):
        refused({name: value}, f"{name} is {value!r}; it may be True")


def test_a_fallback_is_eager_or_an_error() -> None:
    assert [BackendSettings.of({"fallback": word}).fallback for word in ("eager", "error")] == ["eager", "error"]
    refused({"fallback": True}, "fallback is True; it may be eager or error")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("", True), ("1", True), ("on", True), ("ON", True), ("0", False), ("off", False), ("Off", False)],
)
def test_the_environment_switches_the_summary_and_the_option_goes_first(
    monkeypatch: pytest.MonkeyPatch, word: str, expected: bool
) -> None:
    monkeypatch.setenv(SUMMARY_VARIABLE, word)
    assert BackendSettings.of({}).summary is expected
    assert BackendSettings.of({"summary": not expected}).summary is not expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [("1", "error"), ("error", "error"), ("WARN", "warn"), ("0", "off"), ("off", "off"), ("", "off")],
)
def test_the_environment_asks_for_verification_and_the_option_goes_first(
    monkeypatch: pytest.MonkeyPatch, word: str, expected: str
) -> None:
    monkeypatch.setenv(VERIFY_VARIABLE, word)
    assert BackendSettings.of({}).verify == expected
    assert [BackendSettings.of({"verify": value}).verify for value in (True, "warn", False)] == ["error", "warn", "off"]


def test_another_word_for_a_summary_or_a_verification_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1, "yes", None, ["warn"]):
        refused({"verify": value}, f"verify is {value!r}; it may be True (raise an error if compiled code is wrong)")
    monkeypatch.setenv(VERIFY_VARIABLE, "often")
    refused({}, f"{VERIFY_VARIABLE} is 'often' in the environment; it may be 1, warn or 0")
    monkeypatch.setenv(VERIFY_VARIABLE, "")
    monkeypatch.setenv(SUMMARY_VARIABLE, "often")
    refused({}, f"{SUMMARY_VARIABLE} is 'often' in the environment; it may be 1 or 0")


def test_threads_are_those_of_the_option_of_the_recipe_or_of_torch() -> None:
    three = replace(default_recipe(), threads=3)
    assert BackendSettings.of({"recipe": three}).recipe().threads == 3
    assert BackendSettings.of({"recipe": three, "threads": 2}).recipe().threads == 2
    assert BackendSettings.of({"threads": MAX_THREADS}).threads == MAX_THREADS
    for options in ({}, {"threads": 0}, {"recipe": three, "threads": 0}):
        assert BackendSettings.of(options).recipe().threads == torch.get_num_threads()
    for value in (-1, MAX_THREADS + 1, True, 1.0, "2", None):
        refused({"threads": value}, f"threads is {value!r}; it may be 0, for as many as torch uses, to {MAX_THREADS}")


def test_more_threads_of_torch_than_a_recipe_may_have_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: MAX_THREADS + 1)
    assert BackendSettings.of({}).recipe().threads == MAX_THREADS


def test_a_search_takes_the_seconds_of_the_option_of_the_mode_or_of_the_error() -> None:
    assert BackendSettings.of({}, "max-autotune").tune == TUNE_SECONDS
    assert BackendSettings.of({"tune": 0}, "max-autotune").tune == 0
    assert [BackendSettings.of({"tune": seconds}).tune for seconds in (0, 1, 0.5)] == [0, 1, 0.5]
    exact = BackendSettings.of({"max_error": 0, "freeze": True})
    assert (exact.max_error, exact.tune, exact.has_precision) == (0, 0, True), "nothing may be lost: nothing to search"
    none = BackendSettings.of({"max_error": None}, "max-autotune")
    assert (none.max_error, none.tune) == (None, TUNE_SECONDS)
    for seconds in (-1, float("inf"), float("nan"), True, None, "1"):
        refused({"tune": seconds}, f"tune is {seconds!r}; give the number of seconds")
    for error in (-0.1, float("inf"), False, "1e-2"):
        refused({"max_error": error, "freeze": True}, f"max_error is {error!r}; give the largest error")
    refused({"max_error": 1e-2}, "max_error chooses precisions, whose weights are rounded once: set freeze=True")
    refused({}, "the buddy backend has no mode 'fast'; it has default and max-autotune", mode="fast")


def test_sizes_are_specialised_after_a_number_of_calls_from_0() -> None:
    assert BackendSettings.of({}).specialise == backend_settings.SPECIALISE_CALLS == 8
    assert [BackendSettings.of({"specialise": calls}).specialise for calls in (0, 1, 99)] == [0, 1, 99]
    for calls in (-1, True, None, 2.0, "2"):
        refused({"specialise": calls}, f"specialise is {calls!r}; give the number of calls")


@pytest.mark.parametrize("options", [
    {"precision": "f32"}, {"precisions": {"mm.0": "bf16"}}, {"recipe": default_recipe()},
], ids=lambda options: next(iter(options)))  # fmt: skip
def test_an_option_that_selects_precisions_goes_before_torchs_setting(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_settings, "_precision_of_torch", lambda frozen: "bf16")
    assert BackendSettings.of({}).recipe().precision == "bf16"
    assert BackendSettings.of(options).recipe().precision == "f32"


# ---- frozen weights --------------------------------------------------------------------------------------------------


def test_only_frozen_weights_of_inference_are_packed_ahead() -> None:
    settings = BackendSettings.of({"freeze": True, "threads": 1})
    one = replace(default_recipe(), threads=1)
    assert (settings.freeze, settings.releases) == (True, False)
    assert settings.recipe() == without_pack_limit(one)
    assert settings.recipe(training=True) == without_packing(one)
    assert BackendSettings.of({"threads": 1}).recipe() == without_packing(one)


@pytest.mark.skipif(not CAN_RELEASE, reason="the memory of weights is released on Linux only")
def test_released_weights_are_frozen_and_nothing_may_need_them() -> None:
    settings = BackendSettings.of({"freeze": "release", "verify": False, "tune": 0})
    assert (settings.freeze, settings.releases) == (True, True)
    for more in ({"verify": True}, {"verify": "warn"}, {"tune": 1}):
        refused({"freeze": "release", **more}, "freeze='release' leaves no weights for eager")


def test_where_memory_cannot_be_released_the_other_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_settings, "CAN_RELEASE", False)
    refused({"freeze": "release"}, "freeze='release' needs Linux: use freeze=True")
    assert BackendSettings.of({"freeze": True}).freeze


def test_a_pass_packs_only_frozen_weights() -> None:
    packing = "contractions-to-kernels.pack-weights"
    refused({packing: True}, f"{packing} packs copies of weights, which must not change: set freeze=True")
    assert BackendSettings.of({packing: True, "freeze": True}).freeze
    assert not BackendSettings.of({packing: False}).freeze
    for value in ("yes", 1, None):
        refused({"freeze": value}, f"freeze is {value!r}; it may be True, for weights that are constants")


# ---- the recipe ------------------------------------------------------------------------------------------------------


def test_nodes_are_mapped_to_lowerings_and_precisions_in_the_order_of_their_names() -> None:
    recipe = BackendSettings.of(
        {"choices": {"mm.1": "tosa", "mm.0": "eager"}, "precisions": {"mm.1": "int8", "mm.0": "bf16"}}
    ).recipe()
    assert recipe.choices == (OpChoice("mm.0", "eager"), OpChoice("mm.1", "tosa"))
    assert recipe.precisions == (PrecisionChoice("mm.0", "bf16"), PrecisionChoice("mm.1", "int8-dynamic"))
    assert BackendSettings.of({"precision": "int8"}).recipe().precision == "int8-dynamic"
    same = BackendSettings.of({"choices": recipe.choices, "precisions": recipe.precisions}).recipe()
    assert (same.choices, same.precisions) == (recipe.choices, recipe.precisions)


def test_training_has_no_products_in_integers_and_says_so() -> None:
    mixed = {"precision": "bf16", "precisions": {"mm.0": "int8", "mm.1": "f32"}}
    for options, precision, precisions in (
        ({"precision": "int8-weights"}, "f32", ()),
        (mixed, "bf16", (PrecisionChoice("mm.1", "f32"),)),
    ):
        settings = BackendSettings.of(options)
        with pytest.warns(UserWarning, match=r"^precision: a graph with gradients is computed in f32"):
            recipe = settings.recipe(training=True)
        assert (recipe.precision, recipe.precisions) == (precision, precisions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = BackendSettings.of({"precision": "bf16", "precisions": {"mm.1": "f32"}}).recipe(training=True)
        assert (recipe.precision, recipe.precisions) == ("bf16", (PrecisionChoice("mm.1", "f32"),))
        assert BackendSettings.of({"precision": "int8"}).recipe().precision == "int8-dynamic"


def test_a_recipe_keeps_its_dialect_unless_one_is_given() -> None:
    tosa = default_recipe(dialect="tosa")
    assert BackendSettings.of({"recipe": tosa}).recipe().dialect == "tosa"
    assert BackendSettings.of({"recipe": tosa, "dialect": "linalg"}).recipe().dialect == "linalg"
    assert BackendSettings.of({}).recipe().dialect == "linalg"
    assert BackendSettings.of({"preset": "upstream", "dialect": "tosa"}).recipe().steps[0].name != ""
    refused({"recipe": tosa, "preset": "upstream"}, "recipe and preset are both given")


def test_a_recipe_of_another_program_is_used_without_it() -> None:
    """The workbench saves the program with its recipe."""
    recipe = replace(
        default_recipe("net.py", ("3",)), graph=2, plugins=(PluginFile("plug.py"),), opt_level=1, partition="whole"
    )
    assert BackendSettings.of({"recipe": recipe}).recipe().opt_level == 1
    for name, value in (("frontend", "torch-mlir"), ("target", "x86_64-linux"), ("backend_flags", ("--x",))):
        refused({"recipe": replace(recipe, **{name: value})}, f"recipe: {name} is {value!r}; torch.compile only")


def test_a_recipe_that_needs_trust_is_refused_from_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    opener = PassStep("canonicalize", options=(("file-name", "/etc/passwd"),))
    recipe = replace(default_recipe(), steps=(opener, PassStep("print-ir", anchor="a b")))
    path.write_text(to_toml(recipe))
    with pytest.raises(ValueError, match=r"mine\.toml asks for .*names a file; .*; if you trust who wrote it"):
        BackendSettings.of({"recipe": path})
    assert BackendSettings.of({"recipe": recipe}).recipe().steps == recipe.steps
    path.write_text(to_toml(replace(default_recipe(), plugins=(PluginFile("plug.py"),))))
    assert BackendSettings.of({"recipe": str(path)}).recipe().steps == without_packing(default_recipe()).steps


def test_a_recipe_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    refused({"recipe": tmp_path}, f"recipe: {tmp_path} cannot be read: Is a directory")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    refused({"recipe": tmp_path / "bytes.toml"}, f"recipe: {tmp_path / 'bytes.toml'} is ")


def test_a_value_of_another_type_is_refused_with_what_it_may_be() -> None:
    refused({"recipe": 3}, "recipe is 3; it may be a Recipe, or the path of one in TOML")
    refused({"dialect": "mhlo"}, "dialect is 'mhlo': it may be 'linalg' or 'tosa'")
    refused({"recipe": replace(default_recipe(), dialect="stablehlo")}, "dialect is 'stablehlo': it may be 'linalg'")
    refused({"recipe": replace(default_recipe(), backend="iree")}, "recipe: backend is 'iree'; torch.compile only")
    refused({"opt_level": 4}, "opt_level is 4: Expected `int` <= 3")
    refused({"partition": "int8"}, "partition is 'int8': it may be 'layers' or 'whole'")


def test_a_backend_of_a_plug_in_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        name, summary, takes, phases, reads = "mine", "for this test", "llvm", (), ("opt_level",)

    for value in ("mine", "iree"):
        with pytest.raises(ValueError, match=f"backend is '{value}'"):
            BackendSettings.of({"backend": value})
    monkeypatch.setitem(backends._PLUGIN_BACKENDS, "mine", Mine())  # type: ignore[arg-type]
    assert BackendSettings.of({"backend": "mine", "opt_level": 1}).recipe().backend == "mine"
    refused({"backend": "other"}, "backend is 'other'; it may be 'native' or 'mine'")
    monkeypatch.setattr(Mine, "reads", ())
    refused({"backend": "mine", "opt_level": 1}, "opt_level has no effect: the backend mine does not read it")


# ---- passes and their options ----------------------------------------------------------------------------------------


def steps_of(options: dict[str, Any], name: str) -> list[PassStep]:
    return [step for step in BackendSettings.of({"freeze": True, **options}).recipe().steps if step.name == name]


def test_an_option_of_a_pass_that_is_off_has_no_effect_and_is_refused() -> None:
    off = "contractions-to-blas.nodes"
    refused({off: "mm.0"}, f"{off} has no effect, because the pass contractions-to-blas is off")
    (step,) = steps_of({"contractions-to-blas": True, off: "mm.0"}, "contractions-to-blas")
    assert step.enabled
    assert ("nodes", "mm.0") in step.options
    first, second, *_ = steps_of({"canonicalize#2.max-iterations": 3, "canonicalize#1": False}, "canonicalize")
    assert (first.enabled, dict(second.options)["max-iterations"]) == (False, 3)
    assert BackendSettings.of({"lowering:mm.0": "eager"}).recipe().choices == (OpChoice("mm.0", "eager"),)


def test_a_wrong_parameter_of_a_search_is_named() -> None:
    refused({"canonicalize#99": False}, "canonicalize#99: canonicalize occurs only")
    refused({"fuse-rows": "no"}, "fuse-rows is on or off, not no")
    refused({"fuse-rows": [True]}, "fuse-rows is [True]; it may be a bool, a number or a string")
    with pytest.raises(ValueError, match=r"^the buddy backend has no option 'zzzz'; it has fallback, .*lowering:NODE$"):
        BackendSettings.of({"zzzz": 1})
    with pytest.raises(ValueError, match=r"no option 'canonicalise' \(did you mean canonicalize\?\); it has"):
        BackendSettings.of({"canonicalise": False})


def test_options_of_own_passes_are_checked_at_once_and_those_of_mlir_when_they_run() -> None:
    steps = (PassStep("plan-memory", options=(("no-such", 1),)),)
    with pytest.raises(ValueError, match="plan-memory has no option 'no-such'"):
        BackendSettings.of({"steps": steps})
    for step in (PassStep("canonicalize", options=(("no-such", 1),)), PassStep("plan-memory", "graph", "", ())):
        assert BackendSettings.of({"steps": (step,)}).recipe() == replace(
            Recipe(steps=(step,)), threads=torch.get_num_threads()
        )
