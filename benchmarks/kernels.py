"""Contraction kernels against torch.mm and NumPy, one thread, interleaved. Run: python benchmarks/kernels.py [name…]"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))

from mlir_jit import Compiled

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels

Call = Callable[[], object]


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


def prepare(case: Case, copies: int) -> tuple[list[Call], list[Call], list[Call], str]:
    """Calls of ours, torch's and NumPy's, each over `copies` different B so that weights come from memory."""
    a_term, b_term, c_term = case.terms
    random = np.random.default_rng(0)
    start = time.perf_counter()
    module = Compiled(module_text(case), [ContractionsToKernels()])
    a = random.standard_normal(case.shape(a_term), dtype=np.float32)
    c = np.empty(case.shape(c_term), np.float32)
    ours: list[Call] = []
    theirs: list[Call] = []
    numpys: list[Call] = []
    for _ in range(copies):
        b = random.standard_normal(case.shape(b_term), dtype=np.float32)
        raw = b
        if case.parameter:
            shape = re.search(r"pack_0\(.*?,.*?memref<([\dx]+)xf32>", module.text)
            assert shape
            b = np.empty([int(size) for size in shape.group(1).split("x")], np.float32)
            module("pack_0", raw, b)
        ours.append(module.bound("f", a, b, c))
        ta, tb = torch.from_numpy(a), torch.from_numpy(raw)
        if len(case.sizes) == 3:
            theirs.append(lambda ta=ta, tb=tb: torch.mm(ta, tb.T if b_term == "nk" else tb))
            numpys.append(lambda a=a, raw=raw: a @ (raw.T if b_term == "nk" else raw))
        else:
            theirs.append(lambda ta=ta, tb=tb: torch.einsum(case.subscripts, ta, tb))
            numpys.append(lambda a=a, raw=raw: np.einsum(case.subscripts, a, raw, optimize=True))
    ours[-1]()
    seconds = time.perf_counter() - start
    expected = np.einsum(case.subscripts, a.astype(np.float64), raw.astype(np.float64), optimize=True)
    error = float(np.abs(c - expected).max())
    return ours, theirs, numpys, f"{module.remarks[0]}; error {error:.1e}; compiled and packed in {seconds:.2f} s"


def measure(case: Case, repeats: int, copies: int) -> None:
    ours, theirs, numpys, text = prepare(case, copies if case.parameter else 1)
    times: dict[str, list[float]] = {"ours": [], "torch": [], "numpy": []}
    for _ in range(repeats):
        for label, calls in (("ours", ours), ("torch", theirs), ("numpy", numpys)):
            start = time.perf_counter()
            for call in calls:
                call()
            times[label].append((time.perf_counter() - start) / len(calls))
    rates = {label: case.flops / np.median(values) / 1e9 for label, values in times.items()}
    best = case.flops / min(times["ours"]) / 1e9
    shown = "  ".join(f"{label} {rate:6.1f}" for label, rate in rates.items())
    print(f"{case.name:22} GFLOP/s median: {shown}  (best of ours {best:.1f})\n    {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--copies", type=int, default=8, help="different weights to go through")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        if not options.names or any(name in case.name for name in options.names):
            measure(case, options.repeats, options.copies)


if __name__ == "__main__":
    main()
