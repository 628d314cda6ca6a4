"""The contraction kernels alone, compared with torch and NumPy, on one thread, interleaved.

    python benchmarks/kernels.py [name ...] [--repeats N] [--copies N] [--tiny]

Weights are packed ahead; calls alternate between `--copies` different ones, so that they come from memory. Prints one
JSON object; the exit code is 1 for a wrong product.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# OpenBLAS reads this once, when NumPy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from support import printing
from support.timing import Call, in_turn, median_and_quartiles, summarize_ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from tests.support.mlir_jit import Compiled


@dataclass(frozen=True)
class Case:
    """A contraction: einsum-like subscripts, the size of each letter, and whether B is a parameter."""

    name: str
    subscripts: str
    sizes: dict[str, int]
    parameter: bool

    @property
    def terms(self) -> list[str]:
        return re.split(",|->", self.subscripts)

    def shape(self, term: str) -> tuple[int, ...]:
        return tuple(self.sizes[letter] for letter in term)

    @property
    def flops(self) -> int:
        return 2 * int(np.prod(list(self.sizes.values())))


def _linear(m: int, k: int, n: int) -> Case:
    return Case(f"linear {m}x{k}x{n}", "mk,nk->mn", {"m": m, "k": k, "n": n}, True)


CASES = (
    _linear(128, 768, 768),
    _linear(128, 768, 3072),
    _linear(128, 3072, 768),
    Case("scores 12x128x64x128", "mhk,nhk->hmn", {"h": 12, "m": 128, "k": 64, "n": 128}, False),
    Case("values 12x128x128x64", "hmk,khn->mhn", {"h": 12, "m": 128, "k": 128, "n": 64}, False),
    Case("matmul 512", "mk,kn->mn", {"m": 512, "k": 512, "n": 512}, False),
    Case("matmul 2048", "mk,kn->mn", {"m": 2048, "k": 2048, "n": 2048}, False),
    _linear(1, 768, 3072),
)


def module_text(case: Case) -> str:
    letters = ",".join(case.sizes)
    maps = ",".join(f"affine_map<({letters})->({','.join(term)})>" for term in case.terms)
    a, b, c = ("memref<" + "x".join(map(str, case.shape(t))) + "xf32>" for t in case.terms)
    mark = " {buddy.parameter}" if case.parameter else ""
    return f"""
    func.func @f(%a: {a}, %b: {b}{mark}, %c: {c}) attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant 0.0 : f32
      linalg.fill ins(%z : f32) outs(%c : {c})
      linalg.contract indexing_maps=[{maps}] ins(%a, %b : {a}, {b}) outs(%c : {c})
      return
    }}"""


@dataclass
class Prepared:
    """The calls of each side, one per copy of B; the kernel's remark; the result of the check."""

    calls: dict[str, list[Call]]
    remark: str
    seconds: float
    error: float
    allowed: float


def prepare(case: Case, copies: int) -> Prepared:
    """Compiles the case and binds its calls to `copies` different B."""
    a_term, b_term, c_term = case.terms
    random = np.random.default_rng(0)
    start = time.perf_counter()
    module = Compiled(module_text(case), [ContractionsToKernels()])
    a = random.standard_normal(case.shape(a_term), dtype=np.float32)
    c = np.empty(case.shape(c_term), np.float32)
    weights = [random.standard_normal(case.shape(b_term), dtype=np.float32) for _ in range(copies)]
    ours = [module.bound("f", a, packed(module, b) if case.parameter else b, c) for b in weights]
    ours[-1]()
    seconds = time.perf_counter() - start
    exact = np.einsum(case.subscripts, a.astype(np.float64), weights[-1].astype(np.float64), optimize=True)
    calls = {"ours": ours, "torch": [torch_call(case, a, b) for b in weights]}
    calls["numpy"] = [numpy_call(case, a, b) for b in weights]
    depth = case.sizes["k"]
    allowed = 4 * depth * float(np.finfo(np.float32).eps)
    return Prepared(calls, module.remarks[0], seconds, float(np.abs(c - exact).max()), allowed)


def packed(module: Compiled, b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns B in the kernel's packed layout."""
    shape = re.search(r"pack_0\(.*?,.*?memref<([\dx]+)xf32>", module.text)
    assert shape
    panels = np.empty([int(size) for size in shape.group(1).split("x")], np.float32)
    module("pack_0", b, panels)
    return panels


def torch_call(case: Case, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Call:
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    if len(case.sizes) > 3:
        return lambda: torch.einsum(case.subscripts, left, right)
    turned = right.T if case.terms[1] == "nk" else right
    return lambda: torch.mm(left, turned)


def numpy_call(case: Case, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Call:
    if len(case.sizes) > 3:
        return lambda: np.einsum(case.subscripts, a, b, optimize=True)
    turned = b.T if case.terms[1] == "nk" else b
    return lambda: a @ turned


def all_of(calls: list[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def measure(case: Case, repeats: int, copies: int) -> dict[str, Any]:
    prepared = prepare(case, copies if case.parameter else 1)
    times = in_turn({name: all_of(calls) for name, calls in prepared.calls.items()}, repeats)
    flops = 1e-9 * case.flops * len(prepared.calls["ours"])
    return {
        "gflops": {name: median_and_quartiles([flops / seconds for seconds in found]) for name, found in times.items()},
        "of_torch": summarize_ratios(times["torch"], times["ours"]),
        "of_numpy": summarize_ratios(times["numpy"], times["ours"]),
        "max_abs": prepared.error,
        "ok": prepared.error <= prepared.allowed,
        "prepare_seconds": round(prepared.seconds, 3),
        "remark": prepared.remark,
    }


def row(name: str, found: dict[str, Any]) -> list[object]:
    rates = [f"{found['gflops'][side]['median']:.1f}" for side in ("ours", "torch", "numpy")]
    compared = [printing.between(found[key]) for key in ("of_torch", "of_numpy")]
    return [name, *rates, *compared, f"{found['max_abs']:.1e}"]


def chosen(options: argparse.Namespace) -> list[Case]:
    if options.tiny:
        return [_linear(16, 32, 64)]
    return [case for case in CASES if not options.names or any(name in case.name for name in options.names)]


def main() -> int:
    parser = printing.parser(__doc__, 15, "rounds over the three")
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--copies", type=int, default=8, metavar="N", help="different weights to go through (8)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = printing.machine()
    found = {case.name: measure(case, options.repeats, options.copies) for case in chosen(options)}
    heading = ["kernel", "GFLOP/s", "torch", "NumPy", "of torch (quartiles)", "of NumPy (quartiles)", "max abs error"]
    printing.tell({"machine": machine, "cases": found}, heading, [row(*item) for item in found.items()])
    return 0 if all(figures["ok"] for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
