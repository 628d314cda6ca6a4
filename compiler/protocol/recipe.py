"""The recipe: everything that determines a compilation, as one frozen value, and checks of what it may access.

Disabling a pass, choosing another lowering for an op, bisecting and tuning all compile the same recipe with one field
changed. Imports neither torch nor MLIR.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import msgspec

from buddy.compiler.protocol import compatibility
from buddy.compiler.protocol.compatibility import RECIPE_FIELDS, with_new_names
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.pass_facts import OptionValue as OptionValue
from buddy.compiler.protocol.pass_facts import facts

Level = Literal["graph", "mlir", "llvm"]
Lowering = Literal["tosa", "linalg", "math", "unrolled", "torch-mlir", "func", "eager"]
BACKEND_NAME = re.compile(r"^[a-z][a-z0-9-]*$")
# "native", "iree", "inductor", or the name of a plug-in's backend.
Backend = Annotated[str, msgspec.Meta(pattern=BACKEND_NAME.pattern)]
Checks = Literal["eager", "none"]
Dialect = Literal["linalg", "tosa", "stablehlo"]
Frontend = Literal["dynamo", "export", "torch-mlir"]
Precision = Literal[
    "f32", "bf16x3", "bf16", "int8-dynamic", "int8-weights", "int4-weights", "int4-weights-64", "int4-weights-32"
]  # fmt: skip

CHECKS: tuple[Checks, ...] = get_args(Checks)
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
FRONTENDS: tuple[Frontend, ...] = get_args(Frontend)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

EAGER: Lowering = "eager"
# The precision of products as the program has them. Other precisions apply to products of float32 only.
F32: Precision = "f32"
# The precisions whose gradients are those of the same products: numbers are only rounded to floats.
FLOAT_PRECISIONS: tuple[Precision, ...] = ("f32", "bf16x3", "bf16")
# The number of 4-bit weights along K that share a scale.
GROUP_SIZES: dict[Precision, int] = {"int4-weights": 128, "int4-weights-64": 64, "int4-weights-32": 32}
# The frontend that imports graphs by torch-mlir, and the lowering of its nodes.
TORCH_MLIR: Literal["torch-mlir"] = "torch-mlir"
# The frontends whose graphs this compiler lowers node by node.
OWN_FRONTENDS: tuple[Frontend, ...] = ("dynamo", "export")

NATIVE: Backend = "native"
IREE: Backend = "iree"
INDUCTOR: Backend = "inductor"
BACKENDS: tuple[Backend, ...] = (NATIVE, IREE, INDUCTOR)
# The backends that do not run the recipe's passes over MLIR: other compilers, whose runs are compared with native code.
OTHER_COMPILERS: tuple[Backend, ...] = (IREE, INDUCTOR)
# The phase at which a dump of another compiler enters the pipeline, and the preset of its recipe, which has no passes.
DUMP = "dump"

# Targets that a recipe may name besides triples, with their descriptions.
TARGETS = {
    "x86-64": "any 64-bit CPU by AMD or Intel: SSE2",
    "x86-64-v2": "SSE4.2",
    "x86-64-v3": "AVX2 and FMA",
    "x86-64-v4": "AVX-512",
    "aarch64": "Armv8-A with NEON",
    "riscv64": "RV64GC, without vectors",
}

MAX_THREADS = 1024
MAX_GRAPHS = 2**31
# The range of integers in frames and saved files.
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
# Values for `StepNote.step` during the parts of a compilation that are not steps of the recipe.
LOWERING_STEP, CODE_STEP = -1, -2


class PassStep(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """One pass of a pipeline.

    `name` is a key of the pass catalogue, `anchor` the op it runs on ("" for graph passes), `phase` the name of the
    phase (a tab of the workbench) that the IR is in once the pass has run.
    """

    name: str
    level: Level = "mlir"
    anchor: str = "builtin.module"
    options: tuple[tuple[str, OptionValue], ...] = ()
    enabled: bool = True
    phase: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` for an option that is an integer out of range, or NaN."""
        for key, value in self.options:
            if not is_plain_number(value):
                raise ValueError(f"option {key} of {self.name}: a number must be finite and fit into 64 bits")

    def spelling(self) -> str:
        """Returns the step in the syntax of `mlir-opt --pass-pipeline`, without its anchor."""
        if not self.options:
            return self.name
        text = " ".join(f"{key}={option_text(value)}" for key, value in self.options)
        return f"{self.name}{{{text}}}"


class OpChoice(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """How one node is lowered: `node` is its stable name, `lowering` a registry's name or "eager"."""

    node: str
    lowering: str


# The entry points by which installed packages name their plug-ins.
PLUGIN_GROUP = "buddy.plugins"


class PrecisionChoice(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """The precision in which one node multiplies: `node` is its stable name."""

    node: str
    precision: Precision


class PluginFile(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A user's file that adds to the registries: its path, and a hash of its content ("" if it has not been read).

    A file that is listed for its `passes` must register at least one.
    """

    path: str
    hash: str = ""
    passes: bool = False


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that determines a compilation of graph number `graph` of the program in `source`.

    `arguments` are the command-line arguments of a script. `plugins` are loaded before the source, in order.

    `steps` are the passes, in order; `preset` names the pipeline that they come from. `choices` select lowerings for
    single nodes. `partition` says whether the graph is lowered to one function ("whole"), or to several ("layers"):
    repeated layers share a function, and long functions are divided. `opt_level` is LLVM's optimisation level.

    `threads` is the maximum number of threads for compiled code, and for eager when it is timed. It is 1 by default:
    the IR then has no parallel loops, and timings do not depend on how busy the other cores are.

    `target` is the target machine, as `codegen.machines.machine_of` parses it; "" is this machine.

    `frontend` converts the program to IR: TorchDynamo or torch.export captures a graph that this compiler lowers, or
    TorchDynamo captures it and torch-mlir imports it and lowers it to the dialect `dialect` by its own passes. Only
    torch-mlir supports StableHLO.

    `backend` compiles the program: this compiler ("native") or a plug-in's backend, after the passes of `steps`; IREE,
    from top-level IR and by its own phases; or Inductor. `backend_flags` are for the backends other than "native". A
    recipe for IREE or Inductor keeps its `steps`, which apply again when the backend is "native".

    `llvm_stages` adds a stage for each pass of LLVM's optimiser that changes something, and `llvm_disabled` are the
    names of passes of LLVM that are skipped. With either of them, llvmlite's LLVM compiles the code, so that the stages
    are those of the code that runs.

    `skipped_steps` are the steps of a dump that are left out, each by the number of its first stage in the dump: the
    steps after them are run again by the user's `mlir-opt`.

    `checks` says whether compiled code detects values that eager rejects (indices out of range, failed assertions of
    the program), and raises eager's error. With "none", the results for such values are undefined, but no access is out
    of bounds.

    `precision` is the precision of all float32 matrix products, except for nodes in `precisions`. "bf16" rounds both
    operands and accumulates in f32. "bf16x3" represents each operand as the sum of two bfloat16 numbers, and adds three
    of the four products. "int8-dynamic" rounds both operands to 8-bit integers with a scale per row and column, and
    accumulates exactly. "int8-weights" rounds only parameters; "int4-weights" rounds them to 4 bits, with a scale for
    each output channel and 128 elements along K ("int4-weights-64", "int4-weights-32": 64 or 32 elements).
    """

    source: str = ""
    arguments: tuple[str, ...] = ()
    graph: Annotated[int, msgspec.Meta(ge=0, lt=MAX_GRAPHS)] = 0
    preset: str = "default"
    dialect: Dialect = "linalg"
    partition: Literal["layers", "whole"] = "layers"
    steps: tuple[PassStep, ...] = ()
    choices: tuple[OpChoice, ...] = ()
    threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)] = 1
    opt_level: Annotated[int, msgspec.Meta(ge=0, le=3)] = 2
    plugins: tuple[PluginFile, ...] = ()
    target: str = ""
    frontend: Frontend = "dynamo"
    backend: Backend = "native"
    backend_flags: tuple[str, ...] = ()
    llvm_stages: bool = False
    llvm_disabled: tuple[str, ...] = ()
    checks: Checks = "eager"
    precision: Precision = F32
    precisions: tuple[PrecisionChoice, ...] = ()
    skipped_steps: tuple[int, ...] = ()

    def choice_map(self) -> dict[str, str]:
        """Returns the lowering that the recipe selects for single nodes, by stable name."""
        return {choice.node: choice.lowering for choice in self.choices}

    def node_settings(self) -> dict[str, str]:
        """Returns the lowering and the precision that the recipe selects for single nodes, as text, by stable name."""
        settings = self.choice_map()
        for choice in self.precisions:
            settings[choice.node] = f"{settings.get(choice.node, '')} {choice.precision}"
        return settings

    def precision_of(self, node: str) -> Precision:
        """Returns the precision that the recipe selects for the products of `node`."""
        return next((choice.precision for choice in self.precisions if choice.node == node), self.precision)

    def with_precision(self, node: str, precision: Precision | None) -> Recipe:
        """Returns this recipe with the products of `node` in `precision`; `None` restores the common precision."""
        others = [choice for choice in self.precisions if choice.node != node]
        if precision is not None:
            others.append(PrecisionChoice(node, precision))
        return msgspec.structs.replace(self, precisions=tuple(sorted(others)))

    def with_choice(self, node: str, lowering: str | None) -> Recipe:
        """Returns this recipe with `node` lowered by `lowering`; `None` restores the dialect's default."""
        others = [choice for choice in self.choices if choice.node != node]
        if lowering is not None:
            others.append(OpChoice(node, lowering))
        return msgspec.structs.replace(self, choices=tuple(sorted(others)))

    def with_step(self, index: int, **changes: object) -> Recipe:
        """Returns this recipe with fields of step `index` replaced, for example `enabled=False`."""
        steps = list(self.steps)
        steps[index] = msgspec.structs.replace(steps[index], **changes)
        return msgspec.structs.replace(self, steps=tuple(steps))

    def toggled(self, index: int) -> Recipe:
        """Returns this recipe with step `index` enabled if it is disabled, else disabled.

        In a recipe for a dump, `index` is the number of the step's first stage in the dump.
        """
        if self.is_dump:
            return msgspec.structs.replace(self, skipped_steps=tuple(sorted({*self.skipped_steps} ^ {index})))
        return self.with_step(index, enabled=not self.steps[index].enabled)

    @property
    def is_dump(self) -> bool:
        """Whether the stages come from a dump of another compiler, so that there is no pipeline."""
        return self.preset == DUMP

    @property
    def runs_passes(self) -> bool:
        """Whether `steps` generate the code: true unless the backend is another compiler, such as IREE."""
        return self.backend not in OTHER_COMPILERS

    def for_backend(self) -> Recipe:
        """Returns the recipe that its backend compiles.

        If the backend does not run the recipe's passes over MLIR, the graph passes for this compiler's kernels are
        disabled.
        """
        if self.runs_passes:
            return self
        steps = (
            msgspec.structs.replace(step, enabled=step.enabled and not facts(step.name).for_own_kernels)
            for step in self.steps
        )
        return msgspec.structs.replace(self, steps=tuple(steps))

    def for_native(self) -> Recipe:
        """Returns this recipe with this compiler as its backend."""
        return msgspec.structs.replace(self, backend=NATIVE, backend_flags=())


def preset_of(frontend: Frontend, dialect: Dialect) -> str:
    """Returns the preset for a frontend and dialect: torch-mlir has a separate pipeline for each dialect."""
    if frontend in OWN_FRONTENDS:
        return "default"
    return frontend if dialect == "linalg" else f"{frontend}-{dialect}"


def dialects_of(frontend: Frontend) -> tuple[Dialect, ...]:
    """Returns the target dialects that a frontend supports: StableHLO only with torch-mlir."""
    return DIALECTS if frontend == TORCH_MLIR else ("linalg", "tosa")


@dataclass(frozen=True)
class PrefixKeys:
    """Hashes of prefixes of a recipe: `top` for the top-level IR, `after_step[i]` for the IR after steps 0 to `i`."""

    top: str
    after_step: tuple[str, ...]


def digest(*parts: object) -> str:
    """Returns a short stable hash of plain values."""
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:24]


def prefix_keys(recipe: Recipe, graph_hash: str) -> PrefixKeys:
    """Returns the keys under which the stages of a compilation are cached.

    A disabled step has the key of the step before it, because it does not change the IR. Fields that are newer than the
    cache are part of a key only if they differ from their defaults, so that cached stages stay valid.
    """
    graph_steps = [_identity(step) for step in recipe.steps if step.level == "graph" and step.enabled]
    plugins = [plugin.hash for plugin in recipe.plugins]
    newer_fields: list[object] = []
    if recipe.frontend not in OWN_FRONTENDS:
        newer_fields.append(recipe.frontend)
    if recipe.checks != "eager":
        newer_fields.append(recipe.checks)
    if recipe.precision != F32 or recipe.precisions:
        newer_fields += [recipe.precision, recipe.precisions]
    top = digest(graph_hash, recipe.dialect, recipe.partition, recipe.choices, graph_steps, plugins, *newer_fields)
    keys, key = [], top
    for step in recipe.steps:
        if step.enabled and step.level != "graph":
            threads = [recipe.threads] if facts(step.name).reads_threads else []
            target = [recipe.target] if recipe.target else []
            key = digest(key, _identity(step), *threads, *target)
        keys.append(key)
    return PrefixKeys(top, tuple(keys))


def _identity(step: PassStep) -> tuple[str, str, str, tuple[tuple[str, OptionValue], ...]]:
    """Returns the fields of a step that determine its result."""
    return (step.name, step.level, step.anchor, step.options)


def is_plain_number(value: OptionValue) -> bool:
    """Returns whether an option's value, if it is a number, is finite and fits into 64 bits, signed or unsigned."""
    if isinstance(value, int):
        return MIN_INTEGER <= value <= MAX_INTEGER
    return not isinstance(value, float) or math.isfinite(value)


def option_text(value: OptionValue) -> str:
    """Returns the value of an option in MLIR's syntax."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class RecipeError(BuddyError, ValueError):
    """A text is not a recipe, or has a later format; the message names the field and the reason."""


def to_toml(recipe: Recipe) -> str:
    """Returns the recipe as TOML, with the number of the file format and the version of this program."""
    import tomli_w

    fields = msgspec.to_builtins(recipe)
    # Newer fields are written only if they are set, because a version without them rejects unknown fields.
    for name, default in (("checks", "eager"), ("precision", F32), ("precisions", ()), ("skipped_steps", ())):
        if getattr(recipe, name) == default:
            del fields[name]
    return tomli_w.dumps({**compatibility.RECIPE.stamp(), **fields})


def from_toml(text: str) -> Recipe:
    """Parses a recipe from TOML.

    A text without the number of a format was written by version 0.1 or by hand. Raises `RecipeError` that names the
    field and the reason if the text is not a recipe, or that names both versions if it has a later format.
    """
    try:
        values = with_new_names(_parse_toml(text), RECIPE_FIELDS, "recipe field")
        compatibility.RECIPE.check(values.pop(compatibility.FORMAT, 1), values.pop(compatibility.WRITER, ""))
        _check_fields(values)
        recipe = msgspec.convert(values, Recipe, strict=True)
    except RecipeError:
        raise
    except compatibility.LaterFormatError as error:
        raise RecipeError(error.diagnostic) from error
    except RecursionError as error:
        raise RecipeError("not a recipe: it is nested too deeply") from error
    except (msgspec.ValidationError, ValueError) as error:
        raise RecipeError(f"not a recipe: {error}") from error
    if recipe.dialect not in dialects_of(recipe.frontend):
        reason = f"{recipe.dialect} needs the frontend {TORCH_MLIR}, but the recipe has {recipe.frontend}"
        raise RecipeError(f"not a recipe: {reason} - at `$.dialect`")
    return recipe


def _check_fields(values: Mapping[str, object]) -> None:
    """Raises `RecipeError` that names the unknown fields, with a similar field for each."""
    fields = Recipe.__struct_fields__
    unknown = [name for name in values if name not in fields]
    if unknown:
        near = [match for name in unknown for match in difflib.get_close_matches(name, fields, 1)]
        hint = f" (did you mean {', '.join(near)}?)" if near else f"; the fields are {', '.join(fields)}"
        names = ", ".join(f"`{name[:60]}`" for name in unknown[:5])
        raise RecipeError(f"not a recipe: unknown field{'s' * (len(unknown) > 1)} {names}{hint}")


def _parse_toml(text: str) -> Mapping[str, object]:
    """Returns the content of a TOML text. Raises `ValueError` if it is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


# Options of MLIR's passes that name a file or folder to write, to read, or to execute (MLIR's `gpu-module-to-binary`
# starts `ptxas` of the given toolkit).
_PATH_OPTION = re.compile(
    r"(?:^|[-_])(?:file|filename|path|paths|dir|directory|library|libraries|toolkit|plugin|link-files|l|opts|cmd-options)$"
)
# A step is passed to MLIR's parser as text, so its names must be plain: others could contain further passes.
_PLAIN_NAME = re.compile(r"[\w.-]+")
# A value may contain further options, or a pipeline of passes with options: these characters separate its words.
_WORD_BREAKS = re.compile(r"[\s{}()<>\"',;=]+")
_NESTED_OPTION = re.compile(r"([\w.-]+)=\S+")
# Flags of IREE's compiler that start programs, load plug-ins, or read and write files. The list may be incomplete, so
# the values of all other flags must match `_PLAIN_VALUE`, which has neither slashes nor `~`.
_UNSAFE_FLAG = re.compile(
    r"dump|path|file|dir|plugin|toolkit|linker|command|load|preprocess|-to(?:$|-)|bitcode|save|trace"
)
_PLAIN_VALUE = re.compile(r"[\w.,:+\[\]=-]*")


def required_permissions(recipe: Recipe, allowed: Iterable[str] = ()) -> list[str]:
    """Returns a phrase for each plug-in, file or program that `recipe` may access only if the user trusts the recipe.

    Plug-ins whose paths are in `allowed` are left out.
    """
    paths = set(allowed)
    phrases = [f"plug-in {plugin.path}, which is Python code" for plugin in recipe.plugins if plugin.path not in paths]
    phrases += [phrase for step in recipe.steps for phrase in _permissions_of_step(step)]
    phrases += [
        f"the flag {flag}, which may name files or programs" for flag in recipe.backend_flags if _is_unsafe_flag(flag)
    ]
    return list(dict.fromkeys(phrases))


def rejection_text(phrases: Iterable[str]) -> str:
    """Returns the error message for a recipe with these `required_permissions`, and how to allow them, in one line."""
    return f"it asks for {'; '.join(phrases)} · --trust allows it, if you trust who wrote it"


def _permissions_of_step(step: PassStep) -> Iterator[str]:
    """Yields the phrases for one step, even if it is disabled, because the user can enable it with a key."""
    if step.level != "mlir" or facts(step.name).holds_ir:
        return
    names = (step.name, step.anchor or "any", *(name for name, _ in step.options))
    yield from (
        f"the pass {step.name[:60]}, with {name[:60]!r} as a name" for name in names if not _PLAIN_NAME.fullmatch(name)
    )
    for name, value in step.options:
        if isinstance(value, str) and (option := _path_option(name, value)):
            yield f"{option[:60]} of the pass {step.name[:60]}, which names a file"


def file_option(spelling: str) -> str:
    """Returns the option of a pass that names a file, in the syntax of `mlir-opt --pass-pipeline`; "" if none does."""
    return _path_option("", spelling)


def _path_option(name: str, text: str) -> str:
    """Returns the option that names a file: `name=text` itself, or an option nested in `text`; "" if none does."""
    if text and (_PATH_OPTION.search(name) or any(map(_is_path, _WORD_BREAKS.split(text)))):
        return f"{name}={text}"
    nested = (match[0] for match in _NESTED_OPTION.finditer(text) if _PATH_OPTION.search(match[1]))
    return next(nested, "").rstrip("}")  # the braces that enclose the option


def _is_path(word: str) -> bool:
    """Returns whether a word looks like a path: absolute, relative to a folder, or in the home folder."""
    return word.startswith(("/", "./", "../", "~", "\\")) or "/../" in word


def _is_unsafe_flag(flag: str) -> bool:
    """Returns whether a flag of IREE may name files or programs, by its name or its value."""
    name, _, value = flag.lstrip("-").partition("=")
    return _UNSAFE_FLAG.search(name) is not None or _PLAIN_VALUE.fullmatch(value) is None


# The texts of booleans in MLIR's options, and the types of options in messages.
_BOOL_WORDS = {"true": True, "false": False}
_TYPE_DESCRIPTIONS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def typed_options(
    name: str, defaults: Mapping[str, OptionValue], given: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Returns the options `given` for pass `name`, converted to the types of the pass's `defaults`.

    Raises `ValueError` for an unknown option, with the names of the pass's options, or for a value of the wrong type.
    """
    for key in given:
        if key not in defaults:
            raise ValueError(f"{name} has no option {key!r}; it has {', '.join(defaults) or 'none'}")
    return {key: _convert_option(name, key, defaults[key], value) for key, value in given.items()}


def _convert_option(name: str, key: str, default: OptionValue, value: OptionValue) -> OptionValue:
    """Returns `value` converted to the type of `default`. Raises `ValueError` if the conversion would change it."""
    if isinstance(default, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    option_type = type(default)
    try:
        converted = _BOOL_WORDS[value.lower()] if option_type is bool and isinstance(value, str) else option_type(value)
    except (KeyError, ValueError, OverflowError):
        converted = None
    if converted is None or (not isinstance(value, str) and converted != value):
        raise ValueError(
            f"{name}: {key} is {_TYPE_DESCRIPTIONS.get(option_type, option_type.__name__)}, not {value!r:.60}"
        )
    return converted
