"""Programs exported from this process, built by the C compilers that are there, and run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buddy.compiler.protocol import ExportedFile, ExportKind
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.tools.export import CompiledProgram, ExportOrder, export
from tests.programs import Line

COMPILERS = ("gcc", "clang")
_LARGEST = re.compile(r"largest difference from \S+: (\S+)")
Written = tuple[Path, list[ExportedFile]]


def line(
    function: Callable[..., Any], *args: torch.Tensor, recipe: Recipe | None = None
) -> tuple[Line, CompiledProgram]:
    """A captured program, compiled, and what an export of it starts from."""
    found = Line(function, *args)
    return found, program(found, recipe or default_recipe())


def program(found: Line, recipe: Recipe) -> CompiledProgram:
    compilation = found.compile(recipe)
    mlir = next(text.content for stage, text in found.stages if stage.language == "mlir")
    return CompiledProgram(
        found.program,
        recipe,
        compilation.artifact,
        compilation.assignments,
        found.text("translate"),
        mlir,
        "a test",
        "sh",
    )


def write(
    made: CompiledProgram, folder: Path, *kinds: ExportKind, name: str = "net", force: bool = False
) -> list[ExportedFile]:
    return export(made, ExportOrder(folder, name, kinds, force))


def need(*tools: str) -> None:
    """Skip the test where one of these is not installed."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def build(folder: Path, compiler: str, *words: str) -> Path:
    """The program of `words` in `folder`, without a warning; skips the test where the compiler is not installed."""
    need(compiler)
    made = folder / f"run-{compiler}"
    command = [compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *words, "-lm", "-o", str(made)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    return made


def run(command: Sequence[str | Path], folder: Path, code: int = 0) -> str:
    """What a program prints, run where there is no Python on the path and nothing in the environment."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env={}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def errors(text: str) -> list[float]:
    """The largest differences from eager that `main.c` has told of."""
    return [float(found) for found in _LARGEST.findall(text)]


def examples(folder: Path) -> list[str]:
    """The words that have `main.c` run on the export's own inputs and compare with eager's outputs."""
    inputs = sorted((folder / "example").glob("input*.npy"))
    outputs = sorted((folder / "example").glob("output*.npy"))
    return [*map(str, inputs), *(word for path in outputs for word in ("--expect", str(path)))]


def npy(folder: Path, **arrays: torch.Tensor) -> list[str]:
    """Files of these tensors, by name; their paths."""
    for name, tensor in arrays.items():
        np.save(folder / f"{name}.npy", tensor.numpy())
    return [str(folder / f"{name}.npy") for name in arrays]
