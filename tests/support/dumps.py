"""Real dumps of other compilers, from the archives in `tests/data/dumps`, and logs that a real `mlir-opt` writes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ARCHIVES = Path(__file__).resolve().parent.parent / "data" / "dumps"


def unpack(name: str, folder: Path) -> Path:
    """Unpacks the dumps of the compiler `name` into `folder`; returns the folder that has them."""
    target = folder / name
    if not target.exists():
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(target, filter="data")
    return target


# Two functions, and one that is inlined into both: with constants to fold, and a product that a loop can leave.
PROGRAM = """\
func.func private @scale(%x: tensor<4x8xf32>, %s: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = stablehlo.multiply %x, %s : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
func.func @square(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = call @scale(%x, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = call @scale(%x, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %r = stablehlo.add %y, %z : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
func.func @sum(%x: tensor<4x8xf32>, %n: index) -> tensor<4x8xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.addi %one, %one : index
  %r = scf.for %i = %zero to %n step %two iter_args(%acc = %x) -> (tensor<4x8xf32>) {
    %y = stablehlo.multiply %x, %x : tensor<4x8xf32>
    %z = func.call @scale(%acc, %y) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    scf.yield %z : tensor<4x8xf32>
  }
  return %r : tensor<4x8xf32>
}
"""
# Its last pass rejects what `stablehlo-legalize-to-linalg` leaves.
PIPELINE = (
    "builtin.module(symbol-dce,func.func(canonicalize,cse),inline,func.func(loop-invariant-code-motion),"
    "stablehlo-legalize-to-linalg,func.func(memref-expand,canonicalize),torch-verify-linalg-on-tensors-backend-contract)"
)


def mlir_opt() -> str:
    """Returns the `torch-mlir-opt` of torch-mlir's wheel, which has the passes and the interface of `mlir-opt`."""
    spec = importlib.util.find_spec("torch_mlir")
    assert spec is not None
    folders = spec.submodule_search_locations
    path = Path(next(iter(folders or ())), "_mlir_libs", "torch-mlir-opt")
    if not path.exists():
        pytest.skip("this torch-mlir comes without torch-mlir-opt")
    return str(path)


def write_log(path: Path, *flags: str, tool: str = "", program: str = PROGRAM, pipeline: str = PIPELINE) -> Path:
    """Writes the log of a real `mlir-opt` for a program; without flags, that of the IR after all passes."""
    source = path.with_suffix(".mlir")
    source.write_text(program)
    # With threads the passes of two functions are logged in either order, and so are the graphs of the dump.
    command = [tool or mlir_opt(), str(source), f"--pass-pipeline={pipeline}", "-o", os.devnull]
    command.append("--mlir-disable-threading")
    flags = flags or ("--mlir-print-ir-after-all",)
    done = subprocess.run([*command, *flags], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    path.write_bytes(done.stderr)
    return path
