"""The samples of MLIR in Python run as plain Python, say what their page says, and open in the workbench."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.support import blas

NAMES = ("build_module", "own_dialect", "own_pass", "matmul_to_blas")
# f32: sums of 512 products in another order than NumPy's differ by some ten ulps of their largest partial sums.
TOLERANCE = {"build_module": 1e-5, "own_dialect": 1e-6, "matmul_to_blas": 1e-3}


@pytest.fixture(scope="module")
def printed(root: Path, run_python: Callable[..., Any]) -> Callable[..., str]:
    """What a sample prints; each runs once."""
    known: dict[str, str] = {}

    def run(name: str, *arguments: str) -> str:
        if name == "matmul_to_blas" and blas.find_blas() is None:
            pytest.skip("no OpenBLAS is installed")
        if name not in known:
            done = run_python(str(root / "samples" / "bindings" / f"{name}.py"), *arguments)
            assert done.returncode == 0, done.stderr
            known[name] = done.stdout
        return known[name]

    return run


@pytest.mark.parametrize("name", sorted(TOLERANCE))
def test_a_module_computes_what_numpy_does(name: str, printed: Callable[..., str]) -> None:
    found = re.search(r"largest difference from NumPy: (\S+)", printed(name, "--time"))
    assert found is not None
    assert float(found[1]) < TOLERANCE[name]


def test_a_module_built_by_hand(printed: Callable[..., str]) -> None:
    text = printed("build_module")
    assert "func.func @layer(%arg0: tensor<16x32xf32>, %arg1: tensor<32x8xf32>, %arg2: tensor<8xf32>)" in text
    assert "linalg.matmul" in text
    assert "arith.maximumf" in text


def test_a_dialect_of_its_own_is_lowered(printed: Callable[..., str]) -> None:
    before, _, after = printed("own_dialect").partition("\nmodule")
    assert '"act.leaky_relu"' in before or "act.leaky_relu" in before
    assert "act.swish" in before
    assert "act." not in after
    assert "math.exp" in after


def test_a_pass_in_python_replaces_what_is_exact(printed: Callable[..., str]) -> None:
    text = printed("own_pass")
    before, _, after = text.partition("\nmodule")
    assert (before.count("arith.divf"), before.count("arith.mulf")) == (2, 0)
    assert (after.count("arith.divf"), after.count("arith.mulf")) == (1, 1)
    assert text.rstrip().endswith("1 division replaced; the same bits as NumPy: True")


def test_the_tutorial_pass_calls_the_library_and_is_timed(printed: Callable[..., str]) -> None:
    text = printed("matmul_to_blas", "--time")
    before, _, after = text.partition("\nmodule")
    assert "linalg.matmul" in before
    assert "linalg.matmul" not in after
    assert re.search(r"call @buddy_cblas_sgemm_(32|64)\(", after)
    times = dict(re.findall(r"^(.+): ([\d.]+) ms$", text, re.M))
    assert len(times) == 3
    # Plain loops are tens of times as slow; no more than that is asked of a busy machine.
    assert all(float(times[name]) < float(times["MLIR's loops"]) for name in times if name != "MLIR's loops")


PHASES = {"build_module": "toplevel", "own_dialect": "toplevel", "own_pass": "toplevel", "matmul_to_blas": "buffers"}


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_opens_at_the_phase_of_its_module_and_agrees_with_its_reference(name: str, root: Path) -> None:
    if name == "matmul_to_blas" and blas.find_blas() is None:
        pytest.skip("no OpenBLAS is installed")
    (captured,) = load_program(str(root / "samples" / "bindings" / f"{name}.py")).graphs
    assert captured.info.entry_phase == PHASES[name]
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    compilation = Compiler(captured.graph).compile(recipe)
    nodes, seconds = NodeCounts.of(compilation.assignments), compilation.seconds
    report = run_and_compare(captured, compilation.artifact, repeats=1, threads=1, nodes=nodes, compile_seconds=seconds)
    assert [output.verdict for output in report.outputs] == ["ok"]
