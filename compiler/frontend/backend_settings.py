"""Parses `torch.compile(model, backend="buddy", mode=…, options={…})` into a recipe and settings."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec
import torch
from msgspec.structs import replace

from buddy.compiler.frontend.verify import Verify
from buddy.compiler.protocol.pass_facts import PACK_WEIGHTS
from buddy.compiler.protocol.presets import default_recipe, without_packing
from buddy.compiler.protocol.recipe import IREE, MAX_THREADS, NATIVE, OpChoice, OptionValue, Recipe, claims, from_toml
from buddy.compiler.protocol.renamed import RECIPE_FIELDS, with_new_names
from buddy.compiler.protocol.tuning import SpaceError, with_value

Fallback = Literal["eager", "error"]
# How long `mode="max-autotune"` searches for a faster recipe, in seconds, for each new graph.
TUNE_SECONDS = 30.0
MODES = {"default": 0.0, "max-autotune": TUNE_SECONDS}
# Recipe fields that a caller may set; the others identify the program, which is the caller's graph.
FIELDS = ("preset", "dialect", "partition", "steps", "choices", "opt_level", "checks", "threads", "backend")
OPTIONS = ("fallback", "fallback_random", "freeze", "verify", "tune", "recipe", *FIELDS)
# The default of the option `verify`: "1" or "error", "warn", "0" or "off".
VERIFY_VARIABLE = "BUDDY_VERIFY"
_VERIFY: dict[Any, Verify] = {True: "error", False: "off", "warn": "warn"}
_VERIFY_WORDS: dict[str, Verify] = {"1": "error", "error": "error", "warn": "warn", "0": "off", "off": "off", "": "off"}
# The target dialects for graphs captured by TorchDynamo.
Dialect = Literal["linalg", "tosa"]
# Recipe fields that identify the program that it was made with.
_OF_PROGRAM = ("source", "arguments", "graph", "plugins")


@dataclass(frozen=True)
class BackendSettings:
    """How graphs are compiled.

    `fallback="error"` makes every op that would run in eager an error. With `freeze`, weights of inference graphs are
    constants, packed ahead for the kernels; without `freeze`, weights are read in place at each call. `base` is the
    recipe, None for the default one. `threads` is the number of threads for compiled code; 0 is torch's number at
    compile time. `tune` is the search time for a faster recipe in seconds, once for each graph. `verify` says what
    happens if the first call of a compiled graph differs from eager. With `fallback_random`, random ops run in eager
    and return eager's numbers.
    """

    fallback: Fallback = "eager"
    freeze: bool = False
    base: Recipe | None = None
    threads: int = 0
    tune: float = 0.0
    verify: Verify = "off"
    fallback_random: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any] | None, mode: str | None = None) -> BackendSettings:
        """Parses `options` and `mode`.

        Options are those of `OPTIONS`, and the parameters of a search: a pass of the recipe (True or False),
        `PASS.OPTION`, `lowering:NODE`. Raises `ValueError` for an unknown mode or option, listing the known ones, and
        for an invalid value.
        """
        given = with_new_names(options or {}, RECIPE_FIELDS, "option")
        found = cls(
            _parse_fallback(given), _parse_freeze(given), _parse_recipe(given), _parse_threads(given),
            _parse_tuning_seconds(given, mode), _parse_verify(given), _parse_fallback_random(given),
        )  # fmt: skip
        _check_passes(found.recipe())
        return found

    def recipe(self, training: bool = False) -> Recipe:
        """The recipe; weights are packed ahead only if they are frozen, and never for `training`."""
        threads = self.threads or min(torch.get_num_threads(), MAX_THREADS)
        recipe = replace(self.base or default_recipe(), threads=threads)
        return recipe if self.freezes(training) else without_packing(recipe)

    def freezes(self, training: bool) -> bool:
        """Whether weights are constants; in `training` they change with every step."""
        return self.freeze and not training


def _parse_fallback(given: Mapping[str, Any]) -> Fallback:
    found: Fallback = given.get("fallback", "eager")
    if found not in get_args(Fallback):
        raise ValueError(f"fallback is {found!r}; it may be {' or '.join(get_args(Fallback))}")
    return found


def _parse_fallback_random(given: Mapping[str, Any]) -> bool:
    found = given.get("fallback_random", False)
    if not isinstance(found, bool):
        raise ValueError(f"fallback_random is {found!r}; it may be True, for eager's own random numbers, or False")
    return found


def _parse_freeze(given: Mapping[str, Any]) -> bool:
    """Raises `ValueError` also if a pass would pack weights ahead that may change."""
    found = given.get("freeze", False)
    if not isinstance(found, bool):
        raise ValueError(f"freeze is {found!r}; it may be True, for weights that are constants, or False")
    packing = [name for name, value in given.items() if name.endswith(f".{PACK_WEIGHTS}") and value]
    if packing and not found:
        raise ValueError(
            f"{packing[0]} keeps copies of weights, which are stale once they change; it needs freeze=True"
        )
    return found


def _parse_threads(given: Mapping[str, Any]) -> int:
    """The number of threads that the caller gives, else that of the given recipe."""
    base = given.get("recipe")
    found = given.get("threads", _read_recipe(base).threads if base is not None else 0)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MAX_THREADS:
        raise ValueError(f"threads is {found!r}; it may be 0, for as many as torch uses, to {MAX_THREADS}")
    return found


def _parse_verify(given: Mapping[str, Any]) -> Verify:
    """The value that the caller gives, else that of the environment variable."""
    if "verify" in given:
        found = given["verify"]
        if not isinstance(found, (bool, str)) or found not in _VERIFY:
            raise ValueError(
                f"verify is {found!r}; it may be True (raise an error if compiled code is wrong), 'warn' (fall back to "
                "eager then), or False"
            )
        return _VERIFY[found]
    word = os.environ.get(VERIFY_VARIABLE, "")
    if word.lower() not in _VERIFY_WORDS:
        raise ValueError(f"{VERIFY_VARIABLE} is {word!r} in the environment; it may be 1, warn or 0")
    return _VERIFY_WORDS[word.lower()]


def _parse_tuning_seconds(given: Mapping[str, Any], mode: str | None) -> float:
    if mode is not None and mode not in MODES:
        raise ValueError(f"the buddy backend has no mode {mode!r}; it has {' and '.join(MODES)}")
    found = given.get("tune", MODES[mode or "default"])
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < math.inf:
        raise ValueError(f"tune is {found!r}; it is for how many seconds a faster recipe is looked for, or 0")
    return float(found)


# ---- the recipe ------------------------------------------------------------------------------------------------------


def _parse_recipe(given: Mapping[str, Any]) -> Recipe:
    """The given recipe, or the preset's, with the fields and passes of `given`."""
    dialect = _parse_field("dialect", given.get("dialect", "linalg"))
    base = given.get("recipe")
    if base is not None and "preset" in given:
        raise ValueError("recipe and preset are both given, but each is a pipeline; leave out one")
    recipe = _read_recipe(base) if base is not None else default_recipe(preset=given.get("preset", "default"))
    recipe = replace(recipe, dialect=dialect) if base is None or "dialect" in given else recipe
    for name, value in given.items():
        if name in ("partition", "steps", "choices", "opt_level", "checks", "backend"):
            recipe = replace(recipe, **{name: _parse_field(name, value)})
        elif name not in OPTIONS:
            recipe = _set_parameter(recipe, name, value)
    _check_other_frontends(recipe)
    _check_backend(recipe)
    return recipe


def _check_other_frontends(recipe: Recipe) -> None:
    """Raises `ValueError` for a recipe with another frontend or target, or for IREE."""
    for field in msgspec.structs.fields(Recipe):
        found = getattr(recipe, field.name)
        if field.name == "dialect":
            _parse_field("dialect", found)
        elif (field.name not in (*FIELDS, *_OF_PROGRAM) and found != field.default) or (
            field.name == "backend" and found == IREE
        ):
            what = "torch.compile only supports graphs captured by TorchDynamo, this machine, and this compiler"
            raise ValueError(f"recipe: {field.name} is {found!r}; {what}")


def _check_backend(recipe: Recipe) -> None:
    """Raises `ValueError` for a backend that is neither this compiler nor that of a plug-in."""
    if recipe.backend != NATIVE:
        from buddy.compiler.driver.backends import registered

        known = (NATIVE, *sorted(registered()))
        if recipe.backend not in known:
            raise ValueError(f"backend is {recipe.backend!r}; it may be {' or '.join(map(repr, known))}")


def _read_recipe(given: Any) -> Recipe:
    """A recipe, or a TOML file's path, as written by the workbench and `buddy-tui tune -o`."""
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, (str, Path)):
        raise ValueError(f"recipe is {given!r}; it may be a Recipe, or the path of one in TOML")
    try:
        found = from_toml(Path(given).read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"recipe: {given} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"recipe: {given} is {error}") from error
    asked = claims(replace(found, plugins=()))
    if asked:
        todo = "if you trust who wrote it, give the Recipe that buddy.compiler.protocol.recipe.from_toml makes of it"
        raise ValueError(f"recipe: {given} asks for {'; '.join(asked)}; {todo}")
    return found


def _parse_field(name: str, value: Any) -> Any:
    """A recipe's field, from the value itself or its plain form; lowerings may be a mapping from nodes."""
    if name == "choices" and isinstance(value, Mapping):
        value = tuple(sorted(OpChoice(str(node), str(lowering)) for node, lowering in value.items()))
    kind = Dialect if name == "dialect" else get_type_hints(Recipe, include_extras=True)[name]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        words = " or ".join(repr(word) for word in get_args(kind) if isinstance(word, str))
        raise ValueError(f"{name} is {value!r}: {f'it may be {words}' if words else error}") from error


def _set_parameter(recipe: Recipe, name: str, value: Any) -> Recipe:
    """The recipe with the search parameter `name` set to `value`."""
    steps = {step.name for step in recipe.steps}
    if name.partition(".")[0].partition("#")[0] not in steps and not name.startswith("lowering:"):
        near = difflib.get_close_matches(name, [*OPTIONS, *steps], 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        what = "a pass of the recipe (True or False), PASS.OPTION and lowering:NODE"
        raise ValueError(f"the buddy backend has no option {name!r}{meant}; it has {', '.join(OPTIONS)}, {what}")
    if not isinstance(value, OptionValue):
        raise ValueError(f"{name} is {value!r}; it may be a bool, a number or a text")
    try:
        return with_value(recipe, name, value)
    except SpaceError as error:
        raise ValueError(str(error)) from error


def _check_passes(recipe: Recipe) -> None:
    """Raises `ValueError` for an unknown option of a pass of this package; MLIR's passes check theirs when they run."""
    from buddy.compiler.passes.pass_runner import own_passes

    own = own_passes()
    for step in recipe.steps:
        if step.name in own and step.level == "mlir":
            own[step.name].create(dict(step.options))
