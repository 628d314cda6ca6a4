"""torch-mlir's own pipelines as data: from the torch dialect to linalg on tensors, TOSA, StableHLO; from ONNX to torch.

They are the pipelines that `torch_mlir.fx` runs, pass by pass, so that each pass is a step of a recipe. Passes without
a registered name stay inside their pipeline, which is then one step.
"""

from __future__ import annotations

from buddy.compiler.protocol.recipe import Dialect, PassStep
from buddy.compiler.protocol.steps import FUNC, MODULE, steps_of

# The phases of an import; the last one is named after its dialect.
IMPORTED, BACKEND, ONNX = "imported", "torch-backend", "onnx"
ON_TENSORS: dict[Dialect, str] = {"linalg": "linalg-on-tensors", "tosa": "tosa", "stablehlo": "stablehlo"}

# From ops of ONNX to those of torch: `torch-onnx-to-torch-backend-pipeline`, with its shape refinement as one step.
FROM_ONNX = steps_of(
    IMPORTED,
    ("convert-torch-onnx-to-torch", FUNC),
    ("torch-lower-to-backend-contract", MODULE, {"decompose": True, "shape-dtype-refine": True}),
)

# From the importer's ops to those that torch-mlir's conversions accept: `torchdynamo-export-to-torch-backend-pipeline`.
TO_BACKEND = steps_of(
    BACKEND,
    "inline",
    ("torch-match-quantized-custom-ops", FUNC),
    ("torch-reduce-op-variants", FUNC),
    ("canonicalize", FUNC),
    ("torch-decompose-complex-ops", FUNC),
    ("torch-recompose-complex-ops", FUNC),
    ("canonicalize", FUNC),
)

_TO_LINALG = steps_of(
    ON_TENSORS["linalg"],
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
)

_TO_TOSA = steps_of(
    ON_TENSORS["tosa"],
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
    ON_TENSORS["stablehlo"],
    "torch-backend-to-stablehlo-backend-pipeline",
)
FROM_STABLEHLO = steps_of(
    ON_TENSORS["linalg"],
    ("stablehlo-aggressive-simplification", FUNC),
    "stablehlo-legalize-to-linalg",
    "canonicalize",
)

FROM_BACKEND: dict[Dialect, list[PassStep]] = {
    "linalg": _TO_LINALG,
    "tosa": _TO_TOSA,
    "stablehlo": [*_TO_STABLEHLO, *FROM_STABLEHLO],
}


def phases(dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """The phases of an import before those that all programs share."""
    names = [IMPORTED, BACKEND, ON_TENSORS[dialect], *([ON_TENSORS["linalg"]] * (dialect == "stablehlo"))]
    return tuple((name, "mlir") for name in names)
