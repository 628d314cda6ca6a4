"""The only place that decides which package the MLIR Python bindings come from.

`BUDDY_MLIR_PACKAGE` names it (`torch_mlir`, `mlir`, `buddy_mlir`, …); without it the `torch_mlir` wheel is taken. Every
module of the project says `from buddy.compiler.bindings import ir, linalg`, never `import torch_mlir`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import Any, NamedTuple

PACKAGE = os.environ.get("BUDDY_MLIR_PACKAGE", "torch_mlir")

_TOP = ("ir", "passmanager", "execution_engine", "rewrite", "runtime")
_DIALECTS = (
    "affine", "arith", "bufferization", "cf", "func", "linalg", "llvm", "math", "memref", "scf", "tensor", "tosa",
    "vector",
)  # fmt: skip


def _load(name: str) -> Any:
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the MLIR Python bindings are not in {PACKAGE!r} ({error}): `pip install torch-mlir`, or set "
            "BUDDY_MLIR_PACKAGE to the package of your own LLVM build"
        ) from error


def __getattr__(name: str) -> Any:
    if name in _TOP:
        return _load(name)
    if name in _DIALECTS:
        return _load(f"dialects.{name}")
    raise AttributeError(name)


@lru_cache(maxsize=1)
def version() -> str:
    """The version of the package that the bindings come from; "local" where it is no installed one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(PACKAGE.replace("_", "-"))
    return "local"


def package() -> Any:
    """The package that the bindings come from."""
    _load("ir")
    return sys.modules[PACKAGE]


def torch_dialect() -> Any | None:
    """The torch dialect, which needs no torch; None where the bindings come from a package without it."""
    try:
        return importlib.import_module(f"{PACKAGE}.dialects.torch")
    except ModuleNotFoundError:
        return None


class TorchImporter(NamedTuple):
    """torch-mlir's importer of FX graphs: a factory by MLIR context, and the decompositions that it expects."""

    importer: Callable[[Any], Any]
    decompositions: Callable[[], dict[Any, Any]]


def torch_importer() -> TorchImporter:
    """What imports FX graphs, which imports torch; only the `torch_mlir` package has it."""
    found, table = _load("extras.fx_importer"), _load("extras.fx_decomp_util")
    return TorchImporter(lambda context: found.FxImporter(context=context), table.get_decomposition_table)


def onnx_importer() -> Any:
    """torch-mlir's importer of ONNX models, which imports onnx; only the `torch_mlir` package has it."""
    return _load("extras.onnx_importer")


def torch_fx() -> Any:
    """torch-mlir's own importer of exported programs, which imports torch; only the `torch_mlir` package has it."""
    return _load("fx")
