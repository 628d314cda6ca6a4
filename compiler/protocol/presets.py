"""Presets: named pipelines as data, and their adaptation to a program that starts as IR.

torch-mlir's pipelines are those of `torch_mlir.fx`, pass by pass, so that each pass is a step of a recipe; passes
without a registered name stay inside their pipeline, which is then one step. For a program that starts as IR, passes of
earlier phases are disabled, and those that its dialects need are prepended. Imports neither torch nor MLIR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from buddy.compiler.protocol import Preset
from buddy.compiler.protocol.errors import BuddyError, check_registration
from buddy.compiler.protocol.pass_facts import PACK_LIMIT, PACK_WEIGHTS, facts
from buddy.compiler.protocol.recipe import (
    BACKEND_NAME,
    DUMP,
    TORCH_MLIR,
    Dialect,
    OptionValue,
    PassStep,
    Recipe,
    preset_of,
)

MODULE, FUNC = "builtin.module", "func.func"

# A pass of a pipeline: its name, or its name and anchor, or these and its options.
Entry = str | tuple[str, str] | tuple[str, str, dict[str, OptionValue]]


def steps_of(phase: str, *entries: Entry) -> list[PassStep]:
    """Makes the steps of one phase; an entry is the name of a pass, or a tuple of name, anchor and maybe options."""
    return [step_of(phase, *((entry,) if isinstance(entry, str) else entry)) for entry in entries]


def step_of(phase: str, name: str, anchor: str = MODULE, options: dict[str, OptionValue] | None = None) -> PassStep:
    """Makes one step of a phase, a pass over MLIR."""
    return PassStep(name, "mlir", anchor, tuple((options or {}).items()), phase=phase)


# The phases of a program that torch-mlir imports: the imported ops, then the ops of torch-mlir's "torch backend
# contract", which its conversions to other dialects take. The phase after them is named after the target dialect.
IMPORTED, _TORCH_BACKEND = "imported", "torch-backend"
# The dialect of a program from an ONNX file.
ONNX = "onnx"
_ON_TENSORS: dict[Dialect, str] = {"linalg": "linalg-on-tensors", "tosa": "tosa", "stablehlo": "stablehlo"}

# Imported dialects with loops, or with ops that become loops.
_WITH_LOOPS = {"onnx", "torch", "vhlo", "stablehlo", "scf"}

# Converts ONNX ops to torch ops: `torch-onnx-to-torch-backend-pipeline`, with its shape refinement as one step.
_FROM_ONNX = steps_of(
    IMPORTED,
    ("convert-torch-onnx-to-torch", FUNC),
    ("torch-lower-to-backend-contract", MODULE, {"decompose": True, "shape-dtype-refine": True}),
)

# Converts the importer's ops to those that torch-mlir lowers: `torchdynamo-export-to-torch-backend-pipeline`.
_TO_TORCH_BACKEND = steps_of(
    _TORCH_BACKEND,
    "inline",
    ("torch-match-quantized-custom-ops", FUNC),
    ("torch-reduce-op-variants", FUNC),
    ("canonicalize", FUNC),
    ("torch-decompose-complex-ops", FUNC),
    ("torch-recompose-complex-ops", FUNC),
    ("canonicalize", FUNC),
)

_TORCH_TO_LINALG = steps_of(
    _ON_TENSORS["linalg"],
    ("torch-restructure-non-constant-axes", FUNC),
    ("torch-fuse-quantized-ops", FUNC),
    ("convert-torch-to-tmtensor", FUNC),
    ("canonicalize", FUNC),
    ("convert-torch-to-linalg", FUNC),
    ("canonicalize", FUNC),
    ("convert-torch-to-scf", FUNC),
    ("convert-torch-to-arith", FUNC),
    ("convert-torch-to-tensor", FUNC),
    "convert-torch-conversion-to-mlprogram",
    ("memref-expand", FUNC),
    ("canonicalize", FUNC),
    ("resolve-shaped-type-result-dims", FUNC),
    ("cse", FUNC),
    "torch-func-backend-type-conversion",
    ("canonicalize", FUNC),
    ("torch-finalizing-backend-type-conversion", FUNC),
    "torch-verify-linalg-on-tensors-backend-contract",
    "narrow-products",
)

_TO_TOSA = steps_of(
    _ON_TENSORS["tosa"],
    ("torch-fuse-quantized-ops", FUNC),
    ("convert-torch-to-tosa", FUNC, {"require-full-tosa-conversion": True}),
    ("tosa-layerwise-constant-fold", FUNC),
    ("tosa-reduce-transposes", FUNC),
    ("tosa-make-broadcastable", FUNC),
    ("canonicalize", FUNC),
    ("cse", FUNC),
    "torch-func-backend-type-conversion",
    ("canonicalize", FUNC),
    ("torch-finalizing-backend-type-conversion", FUNC),
    "torch-verify-tosa-backend-contract",
)

# CHLO's and StableHLO's own passes of the pipeline have no registered names.
_TO_STABLEHLO = steps_of(
    _ON_TENSORS["stablehlo"],
    "torch-backend-to-stablehlo-backend-pipeline",
)
_FROM_STABLEHLO = steps_of(
    _ON_TENSORS["linalg"],
    ("stablehlo-aggressive-simplification", FUNC),
    "stablehlo-legalize-to-linalg",
    "canonicalize",
)

_FROM_TORCH_BACKEND: dict[Dialect, list[PassStep]] = {
    "linalg": _TORCH_TO_LINALG,
    "tosa": _TO_TOSA,
    "stablehlo": [*_TO_STABLEHLO, *_FROM_STABLEHLO],
}


def import_phases(dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """Returns the phases from torch-mlir's import to linalg on tensors; all programs share the later phases."""
    names = [IMPORTED, _TORCH_BACKEND, _ON_TENSORS[dialect]]
    if dialect == "stablehlo":
        names.append(_ON_TENSORS["linalg"])
    return tuple((name, "mlir") for name in names)


# The phases of the presets for the CPU, in order, each with its language.
PHASES = (
    ("torch", "fx"),
    ("graph", "buddy"),
    ("toplevel", "mlir"),
    ("fused", "mlir"),
    ("buffers", "mlir"),
    ("kernels", "mlir"),
    ("loops", "mlir"),
    ("llvm", "mlir"),
    ("ir", "llvm"),
    ("asm", "asm"),
)

# TOSA and tensor-level math become linalg. Passes for dialects that the program does not use change nothing.
_TO_LINALG = steps_of(
    "fused",
    ("tosa-to-linalg-named", FUNC),
    ("tosa-to-linalg", FUNC),
    ("tosa-to-tensor", FUNC),
    ("tosa-to-arith", FUNC),
    ("convert-elementwise-to-linalg", FUNC),
)

# No `cse` here: it would merge the zero fills of different products, and bufferization would then copy them.
_FUSION = steps_of(
    "fused",
    "hoist-parameters",
    "windows-to-generics",
    "choose-layouts",
    "drop-unit-loops",
    "fold-transposes",
    "fuse-elementwise",
    "canonicalize",
    # Runs after fusion, so that one fused op computes, in place, all that lies between two windowed ops.
    "pad-in-place",
)
_UPSTREAM_FUSION = steps_of("fused", "linalg-fuse-elementwise-ops", "canonicalize")
_MATH = steps_of("fused", "expand-math-to-polynomials")

_TO_BUFFERS = steps_of(
    "buffers",
    # Identity layouts at function boundaries: strided ones prevent vectorization.
    ("one-shot-bufferize", MODULE, {
        "bufferize-function-boundaries": True, "function-boundary-type-conversion": "identity-layout-map",
    }),
    "results-to-out-params",
    "canonicalize",
    "cse",
)  # fmt: skip
# Converts loops with independent iterations to parallel loops, whose iterations several threads may share.
_BUFFERS = [*_TO_BUFFERS, *steps_of("buffers", "tile-dynamic", ("scf-forall-to-parallel", FUNC))]

# Disabled by default: calls a BLAS library for matrix products, to compare our kernels with the library.
_LIBRARY = [msgspec.structs.replace(step_of("buffers", "contractions-to-blas"), enabled=False)]

# Runs before memory planning, because values that are live within one row, or only in registers, need no buffer.
_ROWS = steps_of("buffers", "fill-borders", "bools-to-bytes", "fuse-epilogues", "fuse-rows")
_KERNELS = steps_of(
    "kernels",
    "epilogues-in-place",
    "convolutions-to-kernels",
    "contractions-to-kernels",
    "chain-packings",
    "read-in-place",
    "write-in-place",
    "vectorize-generics",
    "parallel-to-tasks",
)
# Runs after the kernels, to plan also their scratch memory and that of each thread.
_MEMORY = steps_of("kernels", "plan-memory", "pass-sizes")

# Disabled by default; profiling enables it. It runs after memory planning and before loops are lowered.
_COUNTING = [msgspec.structs.replace(step_of("kernels", "count-cycles"), enabled=False)]

_LOOPS = steps_of(
    "loops", "copies-to-loops", ("convert-linalg-to-loops", FUNC), "lower-affine", "convert-vector-to-scf"
)

_LLVM = steps_of(
    "llvm",
    "expand-bfloat16",
    "canonicalize",
    "convert-scf-to-cf",
    "expand-strided-metadata",
    "lower-affine",
    # Runs before vectors are lowered: libm has scalar functions only, so vectors are split into their elements.
    "convert-math-to-llvm",
    "convert-math-to-libm",
    ("convert-vector-to-llvm", MODULE, {"enable-x86": True}),
    "finalize-memref-to-llvm",
    "convert-ub-to-llvm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    # Shapes are static, so a pointer suffices; a descriptor would be 7 arguments, which makes LLVM slow.
    ("convert-func-to-llvm", MODULE, {"use-bare-ptr-memref-call-conv": True}),
    "convert-tasks-to-llvm",
    "convert-cf-to-llvm",
    "canonicalize",
    "cse",
    "reconcile-unrealized-casts",
    ("ensure-debug-info-scope-on-llvm-func", MODULE, {"emission-kind": "LineTablesOnly"}),
)


# ---- for a GPU -------------------------------------------------------------------------------------------------------

_GPU_PHASES = (
    ("torch", "fx"),
    ("graph", "buddy"),
    ("toplevel", "mlir"),
    ("fused", "mlir"),
    ("buffers", "mlir"),
    ("gpu", "mlir"),
    ("nvvm", "mlir"),
    ("ir", "llvm"),
    ("ptx", "ptx"),
)
GPU_MODULE = "gpu.module"

# Inlines everything into one function, since the host only launches kernels and calls no functions.
_ONE_FUNCTION = steps_of("fused", "inline", "symbol-dce")
_GPU_LOOPS = steps_of(
    "gpu",
    # The host copies bytes; a copy between strided buffers is a kernel.
    ("copies-to-loops", MODULE, {"strided-only": True}),
    ("convert-linalg-to-parallel-loops", FUNC),
    # Tiles become blocks, iterations inside a tile become threads: 256 of them for two loops. Every tile is full, with
    # a condition inside: a partial tile would have a size that no block can have.
    ("scf-parallel-loop-tiling", FUNC, {"parallel-loop-tile-sizes": "8,32", "no-min-max-bounds": True}),
    # Neighbouring threads (along x) read neighbouring elements.
    ("gpu-map-parallel-loops", FUNC, {"mapping-policy": "innermost-first"}),
    "convert-parallel-loops-to-gpu",
    "lower-affine",
    "canonicalize",
    "cse",
    ("gpu-launch-sink-index-computations", MODULE),
    "gpu-kernel-outlining",
    # The oldest chip that current drivers support. A driver compiles the PTX for newer chips.
    ("nvvm-attach-target", MODULE, {"chip": "sm_75", "O": 3}),
    "canonicalize",
)
_NVVM = steps_of(
    "nvvm",
    ("expand-strided-metadata", GPU_MODULE),
    ("lower-affine", GPU_MODULE),
    ("convert-scf-to-cf", GPU_MODULE),
    ("convert-gpu-to-nvvm", GPU_MODULE, {"use-bare-ptr-memref-call-conv": True}),
    "libdevice-to-intrinsics",
    ("reconcile-unrealized-casts", GPU_MODULE),
    ("canonicalize", GPU_MODULE),
    ("cse", GPU_MODULE),
    ("ensure-debug-info-scope-on-llvm-func", MODULE, {"emission-kind": "LineTablesOnly"}),
)

_TO_DEVICE = [*_ONE_FUNCTION, *_TO_BUFFERS, *_GPU_LOOPS, *_NVVM]


def _graph_passes(*enabled: str) -> list[PassStep]:
    """Returns all graph passes, in an order in which all of them may be enabled."""
    names = (
        "drop-identities", "slice-parts", "integer-products", "maxpool2d-simplify", "eliminate-transpose",
        "eliminate-matmul-transpose-reshape", "gqa-attention-fusion", "flash-attention-prefill",
        "replace-matmul-with-onednn", "replace-matmul-with-onednn-selective", "apply-classic-fusion", "simply-fuse",
    )  # fmt: skip
    return [PassStep(name, "graph", "", enabled=name in enabled, phase="graph") for name in names]


# `flash-attention-prefill` computes attention in blocks: exactly, as fast as with the full matrix of scores at 128
# tokens, and faster for more tokens. `gqa-attention-fusion` avoids copies of the keys and values of grouped heads, and
# of a cache that only attention reads together with the new entries. `integer-products` computes quantised models on
# integers, several times as fast as on the dequantised numbers. The disabled passes blur the correspondence of nodes
# and ops. They call torch's library for products, or do not change machine code, because later passes fold
# transposes, copies and views.
_GRAPH = _graph_passes("slice-parts", "integer-products", "gqa-attention-fusion", "flash-attention-prefill")
_UPSTREAM_GRAPH = _graph_passes()


def _preset(
    name: str, summary: str, steps: list[PassStep], phases: tuple[tuple[str, str], ...] = PHASES, device: str = ""
) -> Preset:
    """Returns a preset of this package; `device` is what its programs need to run."""
    return Preset(name, summary, Recipe(preset=name, steps=tuple(steps)), phases, device)


# The common pipeline of all programs from linalg on tensors.
_SHARED = [*_FUSION, *_MATH, *_BUFFERS, *_LIBRARY, *_ROWS, *_KERNELS, *_MEMORY, *_COUNTING, *_LOOPS, *_LLVM]


def _torch_mlir_preset(dialect: Dialect, target: str) -> Preset:
    """Returns the preset of torch-mlir's pipeline to `dialect`, then the common pipeline.

    The summary of the preset calls the dialect `target`.
    """
    name = preset_of(TORCH_MLIR, dialect)
    steps = (*_TO_TORCH_BACKEND, *_FROM_TORCH_BACKEND[dialect], *_TO_LINALG, *_SHARED)
    phases = (*PHASES[:2], *import_phases(dialect), *PHASES[3:])
    recipe = Recipe(preset=name, dialect=dialect, steps=steps, frontend=TORCH_MLIR)
    return Preset(name, f"imported by torch-mlir, by its own passes to {target}, then as by default", recipe, phases)


def presets() -> dict[str, Preset]:
    """Returns all presets by name, in the order in which they are listed."""
    all_presets = (
        _preset(
            "default",
            "fused, packed and vectorised for this machine",
            [*_GRAPH, *_TO_LINALG, *_SHARED],
        ),
        _preset(
            "upstream",
            "MLIR's own passes to scalar loops; only memory is ours",
            [*_UPSTREAM_GRAPH, *_TO_LINALG, *_UPSTREAM_FUSION, *_BUFFERS, *_MEMORY, *_COUNTING, *_LOOPS, *_LLVM],
        ),
        _preset(
            "gpu",
            "MLIR's own passes to kernels for an NVIDIA GPU, as PTX: runs where a CUDA driver is",
            [*_UPSTREAM_GRAPH, *_TO_LINALG, *_UPSTREAM_FUSION, *_MATH, *_TO_DEVICE],
            _GPU_PHASES,
            "a CUDA device",
        ),
        _torch_mlir_preset("linalg", "linalg on tensors"),
        _torch_mlir_preset("tosa", "TOSA"),
        _torch_mlir_preset("stablehlo", "StableHLO"),
        *(plugin_preset for plugin_preset, _ in _PLUGIN_PRESETS.values()),
    )
    return {preset.name: preset for preset in all_presets}


Maker = TypeVar("Maker", bound=Callable[[], Recipe | Sequence[PassStep]])
# The presets of plug-ins by name, each with the function that has made it.
_PLUGIN_PRESETS: dict[str, tuple[Preset, Callable[..., Any]]] = {}


def preset(name: str, summary: str) -> Callable[[Maker], Maker]:
    """Decorates a function that returns a recipe, or the steps of a recipe: registers it as the preset `name`.

    The function is called once, when it is decorated. Raises `BuddyError` if the name is invalid or already in use.
    """

    def register(make: Maker) -> Maker:
        recipe_or_steps = make()
        recipe = recipe_or_steps if isinstance(recipe_or_steps, Recipe) else Recipe(steps=tuple(recipe_or_steps))
        check_registration("preset", name, plugin_preset_functions().get(name), make)
        if not BACKEND_NAME.search(name) or (name in presets() and name not in _PLUGIN_PRESETS):
            todo = "choose a new name of lower-case letters, digits and hyphens"
            raise BuddyError(f"a preset cannot be called {name!r}", make.__module__, todo)
        _PLUGIN_PRESETS[name] = (Preset(name, summary, msgspec.structs.replace(recipe, preset=name), PHASES), make)
        return make

    return register


def plugin_preset_functions() -> dict[str, Callable[..., Any]]:
    """Returns the functions that have made the presets of plug-ins, by name."""
    return {name: make for name, (_, make) in _PLUGIN_PRESETS.items()}


def default_recipe(
    source: str = "",
    arguments: tuple[str, ...] = (),
    preset: str = "default",
    dialect: Dialect = "linalg",
) -> Recipe:
    """Returns the recipe of a preset for a source. Raises `ValueError`, which lists the presets, for an unknown one."""
    by_name = presets()
    if preset not in by_name:
        raise ValueError(f"unknown preset {preset!r}; the presets are {', '.join(by_name)}")
    return msgspec.structs.replace(by_name[preset].recipe, source=source, arguments=arguments, dialect=dialect)


def without_packing(recipe: Recipe) -> Recipe:
    """Returns the recipe without packing of weights before the call."""
    steps = [
        msgspec.structs.replace(step, options=(*step.options, (PACK_WEIGHTS, False)))
        if facts(step.name).packs_weights
        else step
        for step in recipe.steps
    ]
    return msgspec.structs.replace(recipe, steps=tuple(steps))


def without_pack_limit(recipe: Recipe) -> Recipe:
    """Returns the recipe with no limit on the size of weights that are packed before the call.

    Steps that set a limit keep it: of equal options, the last one counts.
    """
    steps = [
        msgspec.structs.replace(step, options=((PACK_LIMIT, 0), *step.options))
        if facts(step.name).limits_packing
        else step
        for step in recipe.steps
    ]
    return msgspec.structs.replace(recipe, steps=tuple(steps))


# The phases that precede the LLVM dialect, and that dialect, in the presets for the CPU, in order.
_PHASES_TO_LLVM = ("torch", "graph", "toplevel", "fused", "buffers", "kernels", "loops", "llvm")
# The phase of the steps that are prepended to convert imported dialects.
_IMPORT_PHASE = "fused"


def adapt_to_phase(recipe: Recipe, entry_phase: str, dialects: Collection[str] = ()) -> Recipe:
    """Returns a preset's recipe adapted to a program that starts as IR at phase `entry_phase`, with ops of `dialects`.

    Returns the recipe unchanged for a captured program (`entry_phase` is ""). Steps that do not apply are disabled
    rather than removed, so that a user can enable them again. A dump of another compiler has no steps.
    """
    if not entry_phase:
        return recipe
    if entry_phase == DUMP:
        return msgspec.structs.replace(recipe, steps=(), preset=DUMP)
    new_steps = [step for step in _import_steps(recipe, dialects) if step not in recipe.steps]
    steps = [
        step if _has_work(step, entry_phase) else msgspec.structs.replace(step, enabled=False) for step in recipe.steps
    ]
    return msgspec.structs.replace(recipe, steps=(*new_steps, *steps))


def _import_steps(recipe: Recipe, dialects: Collection[str]) -> list[PassStep]:
    """Returns the steps that convert the imported `dialects` to ops of MLIR's own dialects on tensors, in order."""
    # Functions that the entry function does not call are not part of the program.
    steps: list[PassStep] = steps_of(_IMPORT_PHASE, "symbol-dce")
    if "onnx" in dialects:
        steps += _FROM_ONNX
    if "torch" in dialects:
        steps += [*_TO_TORCH_BACKEND, *_FROM_TORCH_BACKEND[recipe.dialect]]
    if {"vhlo", "stablehlo", "chlo"} & set(dialects):
        steps += _hlo_import_steps(dialects)
    if "complex" in dialects:
        steps += steps_of(_IMPORT_PHASE, ("convert-complex-to-standard", FUNC))
    if "shape" in dialects:
        steps += steps_of(_IMPORT_PHASE, "shape-to-shape-lowering", "convert-shape-to-std")
    if _WITH_LOOPS & set(dialects):
        steps += steps_of(_IMPORT_PHASE, "copy-carried-tensors")
    return [msgspec.structs.replace(step, phase=_IMPORT_PHASE) for step in steps]


def _hlo_import_steps(dialects: Collection[str]) -> Iterable[PassStep]:
    """Yields the steps that convert VHLO, CHLO and StableHLO to linalg on tensors."""
    if "vhlo" in dialects:
        yield from steps_of(_IMPORT_PHASE, "vhlo-legalize-to-stablehlo")
    if "chlo" in dialects:
        yield from steps_of(_IMPORT_PHASE, ("chlo-legalize-to-stablehlo", FUNC))
    yield from _FROM_STABLEHLO


def _has_work(step: PassStep, entry_phase: str) -> bool:
    """Returns whether a step is enabled and has something to do for a program that starts as IR at `entry_phase`."""
    if not step.enabled or step.level == "graph":
        return False
    if entry_phase == "toplevel" or step.phase not in _PHASES_TO_LLVM:
        return True
    phase_index, pass_facts = _PHASES_TO_LLVM.index(step.phase), facts(step.name)
    if entry_phase == "llvm":
        # The wrapper around a function in the LLVM dialect copies results by structured ops, which become loops.
        return phase_index >= _PHASES_TO_LLVM.index("llvm") or pass_facts.lowers == "structured-ops"
    if pass_facts.works_on_scalars:
        return True
    # The program has no tensors any more.
    if pass_facts.bufferizes or phase_index <= _PHASES_TO_LLVM.index("fused"):
        return False
    return entry_phase == "buffers" or phase_index >= _PHASES_TO_LLVM.index("loops") or pass_facts.works_on_buffers
