"""Kernels of dot-product instructions and tiles, with the instructions computed by plain code, beside NumPy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buddy.compiler.codegen.llvm_ir import for_older_llvm
from buddy.compiler.codegen.machines import Machine, parse_module, run_pipeline, target_machine
from buddy.compiler.mlir.bindings import ir, passmanager
from buddy.compiler.mlir.printing import to_llvm_ir
from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.support import instruction_rates
from buddy.compiler.support.target import host, measured_rates, request_amx_tiles
from tests.passes.convolution_calls import weights_of
from tests.passes.products import function
from tests.support.dot_products import Emulated
from tests.support.mlir_jit import LOWER, TARGETS, Compiled

ORDERS = {
    "mk,kn->mn": (False, False),
    "mk,nk->mn": (False, True),
    "km,kn->mn": (True, False),
    "km,nk->mn": (True, True),
}
SHAPES = [
    (16, 32, 64), (17, 33, 65), (5, 7, 3), (40, 50, 130), (64, 48, 96), (33, 16, 31), (9, 100, 2), (20, 17, 129),
    (19, 24, 33), (12, 37, 70),
]  # fmt: skip
# Each shape in one of the orders, in turn.
PROGRAMS = [(shape, list(ORDERS)[i % 4]) for i, shape in enumerate(SHAPES)]
# Instruction and bytes of vectors -> element type, and target.
CASES = {
    "vdpbf16ps": ("bf16", "avx512"),
    "vpdpbusd": ("i8", "avx512"),
    "vpdpbusd 256": ("i8", "avx2"),
    "vpmaddwd": ("i8", "avx2"),
    "vpmaddwd 512": ("i8", "avx512"),
    "tdpbf16ps": ("bf16", "avx512"),
    "tdpbssd": ("i8", "avx512"),
}


def texts_of(element: str, unsigned: tuple[bool, bool], parameter: bool) -> str:
    return "\n".join(
        function(
            f"f{i}", order, dict(zip("mnk", shape, strict=True)), element=element,
            sums="f32" if element == "bf16" else "i32", unsigned=unsigned, parameter=parameter,
        )
        for i, (shape, order) in enumerate(PROGRAMS)
    )  # fmt: skip


def kernels(case: str, unsigned: tuple[bool, bool] = (False, False), parameter: bool = False) -> Emulated:
    element, target = CASES[case]
    name = case.split()[0]
    text = texts_of(element, unsigned, parameter)
    found = Emulated(text, [ContractionsToKernels()], target=replace(TARGETS[target], dot_instructions=(name,)))
    assert all(name in remark for remark in found.remarks), [r for r in found.remarks if name not in r]
    return found


def factors(element: str, shape: tuple[int, int, int], unsigned: tuple[bool, bool]) -> list[torch.Tensor]:
    m, n, k = shape
    torch.manual_seed(m + n + k)
    if element == "bf16":
        return [torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()]
    return [
        torch.randint(0, 256, size, dtype=torch.uint8) if flag else torch.randint(-128, 128, size, dtype=torch.int8)
        for size, flag in zip(((m, k), (k, n)), unsigned, strict=True)
    ]


def check(found: Compiled, element: str, unsigned: tuple[bool, bool]) -> None:
    for i, (shape, order) in enumerate(PROGRAMS):
        a, b = factors(element, shape, unsigned)
        stored = [(x.t() if turn else x).contiguous() for x, turn in zip((a, b), ORDERS[order], strict=True)]
        out: Any = np.full((shape[0], shape[1]), 7, np.float32 if element == "bf16" else np.int32)
        found(f"f{i}", *((x.view(torch.int16) if element == "bf16" else x).numpy() for x in stored), out)
        exact = a.double() @ b.double()
        if element == "i8":
            np.testing.assert_array_equal(out, exact.numpy(), err_msg=f"{shape} {order}")
        else:
            # Products of bfloat16 are exact in f32; each of the k additions rounds a sum of about sqrt(k).
            np.testing.assert_allclose(out, exact.numpy(), rtol=0, atol=2e-6 * shape[2], err_msg=f"{shape} {order}")


@pytest.mark.parametrize("case", CASES)
def test_products_of_narrow_elements(case: str) -> None:
    check(kernels(case), CASES[case][0], (False, False))


@pytest.mark.parametrize("parameter", [False, True])
def test_columns_are_added_up_once_for_many_rows(parameter: bool) -> None:
    """Their sums then take no registers of a block, which has 9 rows. The second product has blocks of K, if packed."""
    target = replace(TARGETS["small cache"], dot_instructions=("vpdpbusd",))
    sizes = [{"m": 36, "n": 48, "k": 30}, {"m": 45, "n": 47, "k": 602}]
    texts = [
        function(f"f{i}", "mk,kn->mn", size, element="i8", sums="i32", parameter=parameter)
        for i, size in enumerate(sizes)
    ]
    found = Emulated("\n".join(texts), [ContractionsToKernels()], target=target)
    assert all("9x48 register block" in remark for remark in found.remarks), found.remarks
    for i, size in enumerate(sizes):
        a, b = factors("i8", (size["m"], size["n"], size["k"]), (False, False))
        a[0], b[:, 0] = -128, 127
        out: Any = np.full((size["m"], size["n"]), 7, np.int32)
        packed = weights_of(found, f"f{i}", b.numpy()) if parameter else [b.numpy()]
        found(f"f{i}", a.numpy(), *packed, out)
        np.testing.assert_array_equal(out, (a.int() @ b.int()).numpy())


@pytest.mark.parametrize("case", ["vdpbf16ps", "vpdpbusd", "vpmaddwd 512"])
def test_few_columns_fill_half_vectors(case: str) -> None:
    """24 columns are 3 half vectors instead of 2 whole ones; for 100 columns they would gain little."""
    columns = {shape[1]: i for i, shape in enumerate(SHAPES)}
    blocks = [re.search(r"\d+x(\d+) register block", remark) for remark in kernels(case).remarks]
    widths = [int(block.group(1)) if block else 0 for block in blocks]
    assert widths[columns[24]] == 24
    assert widths[columns[100]] % 16 == 0


@pytest.mark.parametrize("unsigned", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("case", ["vpmaddwd", "tdpbssd"])
def test_products_of_unsigned_bytes(case: str, unsigned: tuple[bool, bool]) -> None:
    check(kernels(case, unsigned), "i8", unsigned)


@pytest.mark.parametrize("case", ["vpdpbusd", "vpdpbusd 256"])
def test_products_of_unsigned_and_signed_bytes(case: str) -> None:
    check(kernels(case, (True, False)), "i8", (True, False))


@pytest.mark.parametrize("unsigned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_bytes_by_the_instructions_of_this_machine(unsigned: tuple[bool, bool]) -> None:
    request_amx_tiles()
    check(Compiled(texts_of("i8", unsigned, False), [ContractionsToKernels()]), "i8", unsigned)


def test_products_of_bfloat16_by_the_instructions_of_this_machine() -> None:
    request_amx_tiles()
    check(Compiled(texts_of("bf16", (False, False), False), [ContractionsToKernels()]), "bf16", (False, False))


@pytest.mark.parametrize("case", ["vdpbf16ps", "tdpbf16ps"])
def test_the_parts_of_pairs_are_one_depth(case: str) -> None:
    """The precision `bf16x3` multiplies [high, high, low] and [high, low, high], and adds over parts and depth."""
    sizes = {"m": 20, "n": 33, "p": 3, "k": 32}
    text = function("f", "mpk,npk->mn", sizes, element="bf16", sums="f32")
    target = replace(TARGETS["avx512"], dot_instructions=(case,))
    found = Emulated(text, [ContractionsToKernels()], target=target)
    assert [case in remark and "20x33x96" in remark for remark in found.remarks] == [True]
    torch.manual_seed(0)
    a, b = torch.randn(20, 32), torch.randn(33, 32)
    (a_high, a_low), (b_high, b_low) = ((x.bfloat16(), (x - x.bfloat16()).bfloat16()) for x in (a, b))
    parts = torch.stack([a_high, a_high, a_low], 1), torch.stack([b_high, b_low, b_high], 1)
    out: Any = np.zeros((20, 33), np.float32)
    found("f", *(x.contiguous().view(torch.int16).numpy() for x in parts), out)
    np.testing.assert_allclose(out, (a.double() @ b.double().t()).numpy(), rtol=0, atol=2e-4)
    assert float(np.abs(out - (a_high.double() @ b_high.double().t()).numpy()).max()) > 1e-2


def test_tiles_stay_in_registers() -> None:
    """LLVM configures the tiles once, outside the loop over K, and stores each tile of sums once, after it."""
    text = function("f", "mk,nk->mn", {"m": 32, "n": 32, "k": 2048}, element="bf16", sums="f32", parameter=True)
    found = Compiled(
        text, [ContractionsToKernels()], target=replace(TARGETS["avx512"], dot_instructions=("tdpbf16ps",))
    )
    code = assembly_of(found, "sapphirerapids")
    assert code.count("ldtilecfg") == 1
    assert code.count("tilestored") == 4
    assert code.count("tdpbf16ps") % 4 == 0
    assert "tdpbf16ps" in code


@pytest.mark.parametrize(
    ("case", "cpu"), [("vdpbf16ps", "znver4"), ("vpdpbusd", "znver4"), ("vpdpbusd 256", "alderlake")]
)
def test_sums_stay_in_registers(case: str, cpu: str) -> None:
    """The loop over K has one instruction for each vector of sums, and stores none of them."""
    element, target = CASES[case]
    name = case.split()[0]
    sums = "f32" if element == "bf16" else "i32"
    text = function("f", "mk,nk->mn", {"m": 64, "n": 48, "k": 1024}, element=element, sums=sums, parameter=True)
    found = Compiled(text, [ContractionsToKernels()], target=replace(TARGETS[target], dot_instructions=(name,)))
    loop = max(re.split(r"^\.L\w+:", assembly_of(found, cpu), flags=re.MULTILINE), key=lambda part: part.count(name))
    products = loop.count(name)
    assert products >= 8
    assert loop.count("(%rsp)") <= products // 4


@pytest.mark.parametrize("name", ["vfmadd", "vdpbf16ps", "tdpbf16ps"])
def test_the_loops_that_measure_rates_add_in_registers(name: str) -> None:
    """A loop has only its instruction and a counter, so that its time is that of the instruction."""
    machine = Machine("x86_64-unknown-linux-gnu", "sapphirerapids")
    module = parse_module(instruction_rates.instruction_loops([name]), machine)
    run_pipeline(module, 3, machine)
    code = target_machine(machine).emit_assembly(module)
    loop = max(re.split(r"^\.L\w+:", code, flags=re.MULTILINE)[1:], key=lambda part: part.count(name))
    body = loop[: loop.index("\tjne\t")].strip().splitlines()
    assert len(body) - sum(name in line for line in body) <= 2
    assert sum(name in line for line in body) >= 4


def test_the_rates_of_this_machine() -> None:
    rates = measured_rates(host())
    if not rates:
        pytest.skip("this processor has no products of bfloat16")
    assert all(rate > 1 for rate in rates.values())
    assert {"tdpbf16ps", "vdpbf16ps"} & rates.keys()


def assembly_of(found: Compiled, cpu: str) -> str:
    with found.context, ir.Location.unknown():
        passmanager.PassManager.parse(LOWER).run(found.module.operation)
        text = for_older_llvm(to_llvm_ir(found.module.operation))
    machine = Machine("x86_64-unknown-linux-gnu", cpu)
    module = parse_module(text, machine)
    run_pipeline(module, 3, machine)
    return str(target_machine(machine).emit_assembly(module))


def test_measured_rates_of_other_processors_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Machines with different processors may share the cache folder; each measures once."""
    monkeypatch.setenv("BUDDY_CACHE", str(tmp_path))
    measured: list[str] = []

    def measure(names: Sequence[str]) -> dict[str, float]:
        measured.append(instruction_rates._processor_model())
        return {name: float(len(measured)) for name in names}

    monkeypatch.setattr(instruction_rates, "_measure_rates", measure)
    for model, rate in (("first", 1.0), ("second", 2.0), ("first", 1.0), ("second", 2.0)):
        monkeypatch.setattr(instruction_rates, "_processor_model", lambda model=model: model)
        assert instruction_rates.bfloat16_rates(["vdpbf16ps"]) == {"vdpbf16ps": rate, "vfmadd": rate}
    assert measured == ["first", "second"]
