"""Named pipelines as data. Imports neither torch nor MLIR."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol import Preset
from buddy.compiler.protocol.pass_facts import PACK_WEIGHTS, facts
from buddy.compiler.protocol.recipe import TORCH_MLIR, Dialect, PassStep, Recipe, preset_of
from buddy.compiler.protocol.steps import FUNC, MODULE
from buddy.compiler.protocol.steps import step_of as _step
from buddy.compiler.protocol.steps import steps_of as _steps
from buddy.compiler.protocol.torch_mlir_pipelines import FROM_BACKEND, TO_BACKEND
from buddy.compiler.protocol.torch_mlir_pipelines import phases as import_phases

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
_TO_LINALG = _steps(
    "fused",
    ("tosa-to-linalg-named", FUNC),
    ("tosa-to-linalg", FUNC),
    ("tosa-to-tensor", FUNC),
    ("tosa-to-arith", FUNC),
    ("convert-elementwise-to-linalg", FUNC),
)

# No `cse` here: it would merge the zero fills of different products, and bufferization would then copy them.
_FUSION = _steps(
    "fused",
    "windows-to-generics",
    "choose-layouts",
    "drop-unit-loops",
    "fold-transposes",
    "fuse-elementwise",
    "canonicalize",
    # After fusion, so that an in-place computation covers everything between two windows.
    "pad-in-place",
)
_UPSTREAM_FUSION = _steps("fused", "linalg-fuse-elementwise-ops", "canonicalize")
_MATH = _steps("fused", "expand-math-to-polynomials")

_TO_BUFFERS = _steps(
    "buffers",
    # Identity layouts at function boundaries: strided ones prevent vectorization.
    ("one-shot-bufferize", MODULE, {
        "bufferize-function-boundaries": True, "function-boundary-type-conversion": "identity-layout-map",
    }),
    "results-to-out-params",
    "canonicalize",
    "cse",
)  # fmt: skip
# Loops over tensors with independent iterations, in the form that they have on buffers: threads may share these.
_BUFFERS = [*_TO_BUFFERS, *_steps("buffers", "tile-dynamic", ("scf-forall-to-parallel", FUNC))]

# Off by default: a library's products, to compare the kernels with.
_LIBRARY = [msgspec.structs.replace(_step("buffers", "contractions-to-blas"), enabled=False)]

# Before memory planning: values that live within a row, or only in registers, need no buffer.
_ROWS = _steps("buffers", "fill-borders", "bools-to-bytes", "fuse-epilogues", "fuse-rows")
_KERNELS = _steps(
    "kernels",
    "epilogues-in-place",
    "convolutions-to-kernels",
    "contractions-to-kernels",
    "read-in-place",
    "write-in-place",
    "vectorize-generics",
    "parallel-to-tasks",
)
# After the kernels: their scratch memory is planned too, and that of each thread.
_MEMORY = _steps("kernels", "plan-memory", "pass-sizes")

# Off at first: a profile switches it on. Functions have their memory by then, and loops are still whole.
_COUNTING = [msgspec.structs.replace(_step("kernels", "count-cycles"), enabled=False)]

_LOOPS = _steps("loops", "copies-to-loops", ("convert-linalg-to-loops", FUNC), "lower-affine", "convert-vector-to-scf")

_LLVM = _steps(
    "llvm",
    "expand-bfloat16",
    "canonicalize",
    "convert-scf-to-cf",
    "expand-strided-metadata",
    "lower-affine",
    # Before vectors go: libm knows scalars only, so a vector of them is taken apart and put together again.
    "convert-math-to-llvm",
    "convert-math-to-libm",
    "convert-vector-to-llvm",
    "finalize-memref-to-llvm",
    "convert-ub-to-llvm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    # Shapes are static, so a pointer says all of a buffer; descriptors make 7 arguments of one, and LLVM slow.
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
KERNELS = "gpu.module"

# One function: the host launches kernels one after another, and calls no functions.
_ONE_FUNCTION = _steps("fused", "inline", "symbol-dce")
_GPU_LOOPS = _steps(
    "gpu",
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
    # The oldest chip that current drivers support: drivers compile the PTX for newer ones.
    ("nvvm-attach-target", MODULE, {"chip": "sm_75", "O": 3}),
    "canonicalize",
)
_NVVM = _steps(
    "nvvm",
    ("expand-strided-metadata", KERNELS),
    ("lower-affine", KERNELS),
    ("convert-scf-to-cf", KERNELS),
    ("convert-gpu-to-nvvm", KERNELS, {"use-bare-ptr-memref-call-conv": True}),
    "libdevice-to-intrinsics",
    ("reconcile-unrealized-casts", KERNELS),
    ("canonicalize", KERNELS),
    ("cse", KERNELS),
    ("ensure-debug-info-scope-on-llvm-func", MODULE, {"emission-kind": "LineTablesOnly"}),
)

_TO_DEVICE = [*_ONE_FUNCTION, *_TO_BUFFERS, *_GPU_LOOPS, *_NVVM]


def _graph_passes(*enabled: str) -> list[PassStep]:
    """All graph passes, in an order in which all of them may be enabled."""
    names = (
        "drop-identities", "slice-parts", "maxpool2d-simplify", "eliminate-transpose",
        "eliminate-matmul-transpose-reshape", "gqa-attention-fusion", "flash-attention-prefill",
        "replace-matmul-with-onednn", "replace-matmul-with-onednn-selective", "apply-classic-fusion", "simply-fuse",
    )  # fmt: skip
    return [PassStep(name, "graph", "", enabled=name in enabled, phase="graph") for name in names]


# Blockwise attention is exact, as fast as the full matrix of scores at 128 tokens, and faster beyond. Grouped heads
# need no copies of keys and values, and neither does a cache that only attention reads together with the new entries.
# The other passes do not change machine code (later passes fold transposes, copies and views) or call torch's library
# for products, and they blur the correspondence of nodes and ops.
_GRAPH = _graph_passes("slice-parts", "gqa-attention-fusion", "flash-attention-prefill")
_UPSTREAM_GRAPH = _graph_passes()


def _preset(
    name: str, summary: str, steps: list[PassStep], phases: tuple[tuple[str, str], ...] = PHASES, device: str = ""
) -> Preset:
    return Preset(name, summary, Recipe(preset=name, steps=tuple(steps)), phases, device)


# The common pipeline of all programs from linalg on tensors.
_SHARED = [*_FUSION, *_MATH, *_BUFFERS, *_LIBRARY, *_ROWS, *_KERNELS, *_MEMORY, *_COUNTING, *_LOOPS, *_LLVM]


def _by_torch_mlir(dialect: Dialect, what: str) -> Preset:
    """torch-mlir's pipeline to one of its three dialects, followed by the common pipeline."""
    name = preset_of(TORCH_MLIR, dialect)
    steps = (*TO_BACKEND, *FROM_BACKEND[dialect], *_TO_LINALG, *_SHARED)
    phases = (*PHASES[:2], *import_phases(dialect), *PHASES[3:])
    recipe = Recipe(preset=name, dialect=dialect, steps=steps, frontend=TORCH_MLIR)
    return Preset(name, f"imported by torch-mlir, by its own passes to {what}, then as by default", recipe, phases)


def presets() -> dict[str, Preset]:
    """The presets by name."""
    found = (
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
        _by_torch_mlir("linalg", "linalg on tensors"),
        _by_torch_mlir("tosa", "TOSA"),
        _by_torch_mlir("stablehlo", "StableHLO"),
    )
    return {preset.name: preset for preset in found}


def default_recipe(
    source: str = "",
    arguments: tuple[str, ...] = (),
    preset: str = "default",
    dialect: Dialect = "linalg",
) -> Recipe:
    """The recipe of a preset for a source.

    Raises `ValueError` that lists the presets if `preset` is unknown.
    """
    known = presets()
    if preset not in known:
        raise ValueError(f"no preset {preset!r}; there are {', '.join(known)}")
    return msgspec.structs.replace(known[preset].recipe, source=source, arguments=arguments, dialect=dialect)


def unpacked(recipe: Recipe) -> Recipe:
    """The recipe without packing of weights before the call."""
    steps = [
        msgspec.structs.replace(s, options=(*s.options, (PACK_WEIGHTS, False))) if facts(s.name).packs_weights else s
        for s in recipe.steps
    ]
    return msgspec.structs.replace(recipe, steps=tuple(steps))
