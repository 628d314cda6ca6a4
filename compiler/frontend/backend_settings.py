"""Parses `torch.compile(model, backend="buddy", mode=…, options={…})` into a recipe and settings."""

from __future__ import annotations

import difflib
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec
import torch
from msgspec.structs import replace

from buddy.compiler.frontend.summary import SUMMARY_VARIABLE
from buddy.compiler.frontend.verify import Verify
from buddy.compiler.protocol.compatibility import RECIPE_FIELDS, with_new_names
from buddy.compiler.protocol.environment import check_variables
from buddy.compiler.protocol.pass_facts import PACK_WEIGHTS
from buddy.compiler.protocol.presets import default_recipe, without_pack_limit, without_packing
from buddy.compiler.protocol.recipe import (
    F32,
    FLOAT_PRECISIONS,
    MAX_THREADS,
    NATIVE,
    OTHER_COMPILERS,
    OpChoice,
    OptionValue,
    Precision,
    PrecisionChoice,
    Recipe,
    from_toml,
    required_permissions,
)
from buddy.compiler.protocol.searches import SpaceError, default_seconds, with_value
from buddy.compiler.runtime.packed_weights import CAN_RELEASE
from buddy.compiler.support.target import host, measured_rates, prefers_bf16x3

Fallback = Literal["eager", "error"]
# The value of the option `freeze` that also releases the memory of packed weights.
RELEASE = "release"
# How long `mode="max-autotune"` searches for a faster recipe, in seconds, for each new graph.
TUNE_SECONDS = 30.0
# The seconds of this search, by `mode`.
MODES = {"default": 0.0, "max-autotune": TUNE_SECONDS}
# Recipe fields that a caller may set; the others identify the program, which is the caller's graph.
FIELDS = (
    "preset", "dialect", "partition", "steps", "choices", "opt_level", "checks", "threads", "backend", "precision",
    "precisions",
)  # fmt: skip
OPTIONS = (
    "fallback", "fallback_random", "freeze", "verify", "summary", "specialise", "tune", "max_error", "recipe", *FIELDS,
)  # fmt: skip
# The number of calls with the same sizes after which a graph with symbolic sizes gets code for these sizes.
SPECIALISE_CALLS = 8
# The environment variable with the default of the option `verify`: "1" or "error", "warn", "0" or "off".
VERIFY_VARIABLE = "BUDDY_VERIFY"
_VERIFY_BY_OPTION: dict[Any, Verify] = {True: "error", False: "off", "warn": "warn"}
_VERIFY_BY_VALUE: dict[str, Verify] = {
    "1": "error",
    "error": "error",
    "warn": "warn",
    "0": "off",
    "off": "off",
    "": "off",
}
# The target dialects for graphs captured by TorchDynamo.
Dialect = Literal["linalg", "tosa"]
# Recipe fields that identify the program that a recipe was saved for; they are ignored here.
_PROGRAM_FIELDS = ("source", "arguments", "graph", "plugins")


@dataclass(frozen=True)
class BackendSettings:
    """How graphs are compiled.

    - `fallback="error"` makes every op that would run in eager an error.
    - With `freeze`, weights of inference graphs are constants that are packed ahead for the kernels; otherwise they are
      read in place at each call. With `releases`, only their packed form stays in memory.
    - `base` is the recipe, `None` for the default one. If `has_precision`, an option selects its precisions; otherwise
      `torch.set_float32_matmul_precision` does.
    - `threads` is the number of threads of compiled code; 0 is torch's number at compile time.
    - `tune` is the time in seconds of the search for a faster recipe, once for each graph. With `max_error`, the search
      chooses the precision of each product within this error of the results, as in `Tune`.
    - `verify` says what happens if the first call of a compiled graph differs from eager.
    - With `fallback_random`, random ops run in eager and return eager's numbers.
    - `specialise` is the number of calls with the same sizes after which a graph with symbolic sizes is compiled for
      these sizes in the background; 0 means never.
    - With `summary`, one line for each model is logged.
    """

    fallback: Fallback = "eager"
    freeze: bool = False
    releases: bool = False
    base: Recipe | None = None
    threads: int = 0
    tune: float = 0.0
    verify: Verify = "off"
    fallback_random: bool = False
    summary: bool = True
    has_precision: bool = False
    max_error: float | None = None
    specialise: int = SPECIALISE_CALLS

    @classmethod
    def of(cls, options: Mapping[str, object] | None, mode: str | None = None) -> BackendSettings:
        """Parses `options` and `mode`.

        Options are those of `OPTIONS`, and the parameters of a search: a pass of the recipe (True or False),
        `PASS.OPTION`, `lowering:NODE`. Raises `ValueError` for an unknown mode or option, listing the known ones, for
        an invalid value, and for a misspelt environment variable.
        """
        check_variables()
        options = with_new_names(options or {}, RECIPE_FIELDS, "option")
        freeze = _parse_freeze(options)
        settings = cls(
            fallback=_parse_fallback(options),
            freeze=bool(freeze),
            releases=freeze == RELEASE,
            base=_parse_recipe(options),
            threads=_parse_threads(options),
            tune=_parse_tuning_seconds(options, mode),
            verify=_parse_verify(options),
            fallback_random=_parse_fallback_random(options),
            summary=_parse_summary(options),
            has_precision=bool({"precision", "precisions", "recipe", "max_error"} & options.keys()),
            max_error=_parse_max_error(options),
            specialise=_parse_specialise(options),
        )
        if settings.releases and (settings.tune or settings.verify != "off"):
            raise ValueError(
                "freeze='release' leaves no weights for eager: use it without verify and tune, or use freeze=True"
            )
        _check_passes(settings.recipe())
        return settings

    def recipe(self, training: bool = False) -> Recipe:
        """Returns the recipe; weights are packed ahead only if they are frozen, and never for `training`.

        Products use 8-bit integers only in inference: rounded integers have no gradients.
        """
        threads = self.threads or min(torch.get_num_threads(), MAX_THREADS)
        recipe = replace(self.base or default_recipe(), threads=threads)
        if not self.has_precision:
            recipe = replace(recipe, precision=_precision_of_torch(self.freezes(training)) or recipe.precision)
        if training:
            recipe = _without_int8(recipe)
        return without_pack_limit(recipe) if self.freezes(training) else without_packing(recipe)

    def freezes(self, training: bool) -> bool:
        """True if weights are constants; in `training` they change with every step."""
        return self.freeze and not training


def _precision_of_torch(frozen: bool) -> Precision | None:
    """Returns the precision that `torch.set_float32_matmul_precision` allows, if it is faster on this machine.

    Pairs of bfloat16 are faster only for weights that are `frozen`: others would be split in each call.
    """
    allowed = torch.get_float32_matmul_precision()
    if allowed == "medium" and host().rounds_to_bfloat16:
        return "bf16"
    return "bf16x3" if allowed == "high" and frozen and prefers_bf16x3(measured_rates(host())) else None


def _without_int8(recipe: Recipe) -> Recipe:
    """Returns a recipe without products in 8-bit integers, after a warning if it has some."""
    precisions = tuple(choice for choice in recipe.precisions if choice.precision in FLOAT_PRECISIONS)
    precision = recipe.precision if recipe.precision in FLOAT_PRECISIONS else F32
    if (precision, precisions) == (recipe.precision, recipe.precisions):
        return recipe
    warnings.warn(
        "precision: a graph with gradients is computed in f32, because 8-bit integers have none; "
        "call the model under torch.no_grad() for inference",
        stacklevel=2,
    )
    return replace(recipe, precision=precision, precisions=precisions)


def _parse_fallback(options: Mapping[str, Any]) -> Fallback:
    fallback: Fallback = options.get("fallback", "eager")
    if fallback not in get_args(Fallback):
        raise ValueError(f"fallback is {fallback!r}; it may be {' or '.join(get_args(Fallback))}")
    return fallback


def _parse_fallback_random(options: Mapping[str, Any]) -> bool:
    fallback_random = options.get("fallback_random", False)
    if not isinstance(fallback_random, bool):
        raise ValueError(
            f"fallback_random is {fallback_random!r}; it may be True, for eager's own random numbers, or False"
        )
    return fallback_random


def _parse_summary(options: Mapping[str, Any]) -> bool:
    """Returns the option `summary`, else the value of the environment variable."""
    if "summary" in options:
        summary = options["summary"]
        if not isinstance(summary, bool):
            raise ValueError(f"summary is {summary!r}; it may be True (log one line for each model), or False")
        return summary
    value = os.environ.get(SUMMARY_VARIABLE, "")
    if value.lower() not in ("", "0", "off", "1", "on"):
        raise ValueError(f"{SUMMARY_VARIABLE} is {value!r} in the environment; it may be 1 or 0")
    return value.lower() not in ("0", "off")


def _parse_freeze(options: Mapping[str, Any]) -> bool | str:
    """Returns the option `freeze`.

    Raises `ValueError` for an unknown value, and if a pass would pack weights that are not frozen.
    """
    freeze: bool | str = options.get("freeze", False)
    if not isinstance(freeze, bool) and freeze != RELEASE:
        raise ValueError(
            f"freeze is {freeze!r}; it may be True, for weights that are constants, 'release', which also releases the "
            "memory of what is packed, or False"
        )
    if freeze == RELEASE and not CAN_RELEASE:
        raise ValueError("freeze='release' needs Linux: use freeze=True")
    packing_options = [name for name, value in options.items() if name.endswith(f".{PACK_WEIGHTS}") and value]
    if packing_options and not freeze:
        raise ValueError(f"{packing_options[0]} packs copies of weights, which must not change: set freeze=True")
    return freeze


def _parse_threads(options: Mapping[str, Any]) -> int:
    """Returns the option `threads`, else the number of threads of the option `recipe`, else 0."""
    recipe = options.get("recipe")
    threads = options.get("threads", _read_recipe(recipe).threads if recipe is not None else 0)
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= MAX_THREADS:
        raise ValueError(f"threads is {threads!r}; it may be 0, for as many as torch uses, to {MAX_THREADS}")
    return threads


def _parse_verify(options: Mapping[str, Any]) -> Verify:
    """Returns the option `verify`, else the value of the environment variable."""
    if "verify" in options:
        verify = options["verify"]
        if not isinstance(verify, (bool, str)) or verify not in _VERIFY_BY_OPTION:
            raise ValueError(
                f"verify is {verify!r}; it may be True (raise an error if compiled code is wrong), "
                "'warn' (fall back to eager then), or False"
            )
        return _VERIFY_BY_OPTION[verify]
    value = os.environ.get(VERIFY_VARIABLE, "")
    if value.lower() not in _VERIFY_BY_VALUE:
        raise ValueError(f"{VERIFY_VARIABLE} is {value!r} in the environment; it may be 1, warn or 0")
    return _VERIFY_BY_VALUE[value.lower()]


def _parse_tuning_seconds(options: Mapping[str, Any], mode: str | None) -> float:
    if mode is not None and mode not in MODES:
        raise ValueError(f"the buddy backend has no mode {mode!r}; it has {' and '.join(MODES)}")
    default = default_seconds(options["max_error"], ()) if options.get("max_error") else MODES[mode or "default"]
    seconds = options.get("tune", default)
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        raise ValueError(f"tune is {seconds!r}; give the number of seconds to search for a faster recipe, or 0")
    return float(seconds)


def _parse_specialise(options: Mapping[str, Any]) -> int:
    calls = options.get("specialise", SPECIALISE_CALLS)
    if not isinstance(calls, int) or isinstance(calls, bool) or calls < 0:
        raise ValueError(
            f"specialise is {calls!r}; give the number of calls with the same sizes after which a graph is compiled "
            "for these sizes, or 0 for never"
        )
    return calls


def _parse_max_error(options: Mapping[str, Any]) -> float | None:
    """Returns the option `max_error`.

    Raises `ValueError` for a value that is negative, infinite or not a number. Also raises it if weights are not
    frozen: reduced precisions round the weights, which takes time in each call unless they are constant.
    """
    error = options.get("max_error")
    if error is None:
        return None
    if not isinstance(error, (int, float)) or isinstance(error, bool) or not 0 <= error < math.inf:
        raise ValueError(
            f"max_error is {error!r}; give the largest error of a result, relative to its rms, such as 1e-2"
        )
    if not options.get("freeze"):
        raise ValueError("max_error chooses precisions, whose weights are rounded once: set freeze=True")
    return float(error)


# ---- the recipe ------------------------------------------------------------------------------------------------------


def _parse_recipe(options: Mapping[str, Any]) -> Recipe:
    """Returns the option `recipe`, else the preset's recipe, with the fields and search parameters of `options`."""
    dialect = _parse_field("dialect", options.get("dialect", "linalg"))
    base = options.get("recipe")
    if base is not None and "preset" in options:
        raise ValueError("recipe and preset are both given, but each is a pipeline; leave out one")
    recipe = _read_recipe(base) if base is not None else default_recipe(preset=options.get("preset", "default"))
    recipe = replace(recipe, dialect=dialect) if base is None or "dialect" in options else recipe
    for name, value in options.items():
        if name in FIELDS and name not in ("preset", "dialect", "threads"):
            recipe = replace(recipe, **{name: _parse_field(name, value)})
        elif name not in OPTIONS:
            recipe = _set_parameter(recipe, name, value)
    _check_other_frontends(recipe)
    _check_backend(recipe)
    _check_options_of_passes(recipe, options)
    return recipe


def _check_options_of_passes(recipe: Recipe, options: Mapping[str, Any]) -> None:
    """Raises `ValueError` for an option of a pass that is off, because it would have no effect."""
    enabled = {step.name for step in recipe.steps if step.enabled}
    for name in options:
        pass_name = _pass_of_parameter(name)
        if "." in name and not name.startswith("lowering:") and pass_name not in enabled:
            raise ValueError(
                f"{name} has no effect, because the pass {pass_name} is off: also set {pass_name!r} to True"
            )


def _pass_of_parameter(name: str) -> str:
    """Returns the name of the pass in a search parameter, such as `PASS`, `PASS.OPTION` or `PASS#2.OPTION`."""
    return name.partition(".")[0].partition("#")[0]


def _check_other_frontends(recipe: Recipe) -> None:
    """Raises `ValueError` for a recipe with another frontend or target, or for another compiler.

    Only the fields in `FIELDS` and `_PROGRAM_FIELDS` may differ from their defaults.
    """
    for field in msgspec.structs.fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name == "dialect":
            _parse_field("dialect", value)
            continue
        is_settable = field.name in (*FIELDS, *_PROGRAM_FIELDS)
        is_other_compiler = field.name == "backend" and value in OTHER_COMPILERS
        if (not is_settable and value != field.default) or is_other_compiler:
            supported = "torch.compile only supports graphs captured by TorchDynamo, this machine, and this compiler"
            raise ValueError(f"recipe: {field.name} is {value!r}; {supported}")


def _check_backend(recipe: Recipe) -> None:
    """Raises `ValueError` for a backend that is neither this compiler nor a plug-in's backend."""
    if recipe.backend != NATIVE:
        from buddy.compiler.driver.backends import ignored_fields, plugin_backends

        names = (NATIVE, *sorted(plugin_backends()))
        if recipe.backend not in names:
            raise ValueError(f"backend is {recipe.backend!r}; it may be {' or '.join(map(repr, names))}")
        if ignored := ignored_fields(plugin_backends()[recipe.backend], recipe):
            raise ValueError("; ".join(ignored))


def _read_recipe(recipe_or_path: object) -> Recipe:
    """Returns the value of the option `recipe`: a recipe, or one that is read from a path.

    The path names a TOML file that the workbench or `buddy-tui tune -o` wrote. Raises `ValueError` for another
    type, an unreadable file, and a file that needs more permissions than plug-ins.
    """
    if isinstance(recipe_or_path, Recipe):
        return recipe_or_path
    if not isinstance(recipe_or_path, (str, Path)):
        raise ValueError(f"recipe is {recipe_or_path!r}; it may be a Recipe, or the path of one in TOML")
    try:
        recipe = from_toml(Path(recipe_or_path).read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"recipe: {recipe_or_path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"recipe: {recipe_or_path} is {error}") from error
    permissions = required_permissions(replace(recipe, plugins=()))
    if permissions:
        todo = "if you trust who wrote it, pass the Recipe that buddy.compiler.protocol.recipe.from_toml returns"
        raise ValueError(f"recipe: {recipe_or_path} asks for {'; '.join(permissions)}; {todo}")
    return recipe


def _parse_field(name: str, value: object) -> Any:
    """Converts a value to the type of the recipe field `name`.

    `choices` and `precisions` may be mappings from nodes to lowerings and to precisions; the precision "int8" is
    "int8-dynamic".

    Raises `ValueError` for a value that cannot be converted.
    """
    if name == "choices" and isinstance(value, Mapping):
        value = tuple(sorted(OpChoice(str(node), str(lowering)) for node, lowering in value.items()))
    elif name == "precisions" and isinstance(value, Mapping):
        named = ((str(node), _parse_field("precision", precision)) for node, precision in value.items())
        value = tuple(sorted(PrecisionChoice(*pair) for pair in named))
    elif name == "precision" and value == "int8":
        value = "int8-dynamic"
    field_type = Dialect if name == "dialect" else get_type_hints(Recipe, include_extras=True)[name]
    try:
        return msgspec.convert(value, field_type)
    except msgspec.ValidationError as error:
        allowed = " or ".join(repr(item) for item in get_args(field_type) if isinstance(item, str))
        raise ValueError(f"{name} is {value!r}: {f'it may be {allowed}' if allowed else error}") from error


def _set_parameter(recipe: Recipe, name: str, value: object) -> Recipe:
    """Returns the recipe with the search parameter `name` set to `value`.

    Raises `ValueError` for an unknown name or value.
    """
    steps = {step.name for step in recipe.steps}
    if _pass_of_parameter(name) not in steps and not name.startswith("lowering:"):
        matches = difflib.get_close_matches(name, [*OPTIONS, *steps], 1)
        suggestion = f" (did you mean {matches[0]}?)" if matches else ""
        parameters = "a pass of the recipe (True or False), PASS.OPTION and lowering:NODE"
        raise ValueError(
            f"the buddy backend has no option {name!r}{suggestion}; it has {', '.join(OPTIONS)}, {parameters}"
        )
    if not isinstance(value, OptionValue):
        raise ValueError(f"{name} is {value!r}; it may be a bool, a number or a string")
    try:
        return with_value(recipe, name, value)
    except SpaceError as error:
        raise ValueError(str(error)) from error


def _check_passes(recipe: Recipe) -> None:
    """Raises `ValueError` for an unknown option of a pass of this package; MLIR's passes check theirs when they run."""
    from buddy.compiler.passes.pass_runner import own_passes

    passes = own_passes()
    for step in recipe.steps:
        if step.name in passes and step.level == "mlir":
            passes[step.name].create(dict(step.options))
