"""Code for other machines: what names a machine, how wide its vectors are, and what comes out for it."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from pathlib import Path

import capstone
import msgspec
import numpy as np
import pytest
import torch
from elftools.elf.elffile import ELFFile
from torch import nn

from buddy.compiler.codegen import machines
from buddy.compiler.codegen.llvm_ir import for_older_llvm
from buddy.compiler.codegen.machines import MachineError, check_runs_here, machine_of, parse_module, target_of
from buddy.compiler.driver.compilation import CompilationError
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.support import target
from buddy.compiler.support.target import Target, host, host_features, missing_instructions
from tests.programs import Line
from tests.tools.export.written import errors, examples, program, run, write

# How a disassembler takes each machine's objects, and an instruction of its widest multiply-add.
MACHINES = {
    "aarch64": ("EM_AARCH64", (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM), "fmla", 16),
    "riscv64": ("EM_RISCV", (capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC), "fmadd.s", 4),
    "x86-64-v3": ("EM_X86_64", (capstone.CS_ARCH_X86, capstone.CS_MODE_64), "vfmadd213ps", 32),
    "x86-64-v4": ("EM_X86_64", (capstone.CS_ARCH_X86, capstone.CS_MODE_64), "vfmadd231ps", 64),
}


@pytest.fixture(scope="module")
def network() -> Line:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)).eval()
    return Line(layers, torch.randn(24, 64))


def for_machine(name: str) -> object:
    return msgspec.structs.replace(default_recipe(), target=name)


@pytest.mark.parametrize("name", MACHINES)
def test_code_is_of_the_machine_and_uses_its_vectors(network: Line, name: str, tmp_path: Path) -> None:
    architecture, machine, instruction, width = MACHINES[name]
    assert target_of(name).vector_bytes == width
    write(program(network, for_machine(name)), tmp_path, "object", "asm")
    elf = ELFFile(io.BytesIO((tmp_path / "net.o").read_bytes()))
    assert (elf["e_machine"], elf["e_type"]) == (architecture, "ET_REL")
    section = elf.get_section_by_name(".text")
    # Where capstone knows no instruction (RISC-V's vectors, say) it stops: this code has none of these.
    found = [text for _, _, text, _ in capstone.Cs(*machine).disasm_lite(section.data(), 0)]
    assert found.count(instruction) > 16, sorted(set(found))
    assert instruction in (tmp_path / "net.s").read_text()


def test_registers_are_no_wider_than_the_machines(network: Line, tmp_path: Path) -> None:
    write(program(network, for_machine("x86-64-v3")), tmp_path, "asm")
    text = (tmp_path / "net.s").read_text()
    assert "ymm" in text
    assert "zmm" not in text
    assert "%k1" not in text


@pytest.mark.parametrize(
    ("name", "instructions"),
    [
        ("x86-64-v2", ()),
        ("x86-64:bdver2", ()),  # vectors of 32 bytes, but only for floats
        ("x86-64-v3", ("vpmaddwd",)),
        ("x86-64:alderlake", ("vpdpbusd", "vpmaddwd")),
        ("x86-64-v4", ("vpmaddwd",)),
        ("x86-64:icelake-server", ("vpdpbusd", "vpmaddwd")),
        ("aarch64", ()),
    ],
)
def test_dot_products_of_bytes_are_those_of_the_machine(name: str, instructions: tuple[str, ...]) -> None:
    assert target_of(name).dot_instructions == instructions


@pytest.mark.skipif(host().vector_bytes < 32, reason="this CPU has no AVX2")
def test_code_with_an_instruction_that_the_cpu_lacks_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check_runs_here("x86-64-v3")
    flags = set(host_features().split()) - {"avx_vnni", "avx512_vnni"}
    monkeypatch.setattr(target, "_cpu_flags", lambda: flags)
    check_runs_here("x86-64-v3")
    with pytest.raises(MachineError, match="with vpdpbusd, which this CPU does not have on vectors of 32 bytes"):
        check_runs_here("x86-64:alderlake")


@pytest.mark.parametrize(("name", "instruction"), [("x86-64-v3", "vpmaddwd"), ("x86-64:icelake-server", "vpdpbusd")])
def test_integers_are_multiplied_by_the_machines_instruction(name: str, instruction: str) -> None:
    a, b = torch.randint(-128, 128, (9, 70), dtype=torch.int8), torch.randint(-128, 128, (70, 40), dtype=torch.int8)
    product = Line(torch._int_mm, a, b)
    artifact = program(product, for_machine(name)).artifact
    assert instruction in product.text("codegen")
    if target_of(name).vector_bytes <= host().vector_bytes and not missing_instructions(target_of(name)):
        assert torch.equal(LoadedProgram(artifact)([a, b])[0], torch._int_mm(a, b))


def test_the_stage_of_machine_code_is_the_machines(network: Line) -> None:
    program(network, for_machine("aarch64"))
    assert "fmla" in network.text("codegen")
    program(network, default_recipe())
    assert "fmla" not in network.text("codegen")


@pytest.mark.skipif(host().vector_bytes < 32, reason="this CPU has no AVX2")
def test_code_for_a_lesser_cpu_of_this_machine_runs_here(network: Line) -> None:
    found = LoadedProgram(program(network, for_machine("x86-64-v3")).artifact)(network.program.tensors)
    expected = network.program.eager(network.program.tensors)
    # Sums of 128 products of numbers of size 1, in another order.
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)


def test_code_of_another_architecture_is_not_run(network: Line) -> None:
    other = "riscv64" if machine_of("").architecture != "riscv64" else "aarch64"
    with pytest.raises(MachineError, match="does not run on this machine"):
        LoadedProgram(program(network, for_machine(other)).artifact)


def test_code_for_wider_vectors_than_the_cpu_has_is_not_run(network: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = program(network, for_machine("x86-64-v4")).artifact
    monkeypatch.setattr(machines.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machines, "host", lambda: Target("avx2", 32, 16))
    with pytest.raises(MachineError, match="vectors of 64 bytes"):
        LoadedProgram(artifact)


@pytest.mark.skipif(
    None in map(shutil.which, ("qemu-aarch64", "aarch64-linux-gnu-gcc")),
    reason="no emulator and cross compiler for AArch64",
)
def test_code_for_aarch64_gives_eagers_numbers_in_an_emulator(network: Line, tmp_path: Path) -> None:
    write(program(network, for_machine("aarch64")), tmp_path, "object")
    command = ["aarch64-linux-gnu-gcc", "-std=c11", "-O2", "-static", "main.c", "net.c", "net.o", "-lm", "-o", "run"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    emulator = shutil.which("qemu-aarch64")
    assert emulator is not None
    said = run([emulator, tmp_path / "run", *examples(tmp_path), "--repeats", "1"], tmp_path)
    # As on any machine: sums of 128 products of numbers of size 1, in another order.
    assert errors(said)[0] < 1e-5


WRONG = {
    "arm": "unknown target 'arm'",
    "s390x-linux-gnu": "unknown target",
    "i686-linux-gnu": "unknown target",
    "aarch64-apple-darwin": "unknown target",
    ":": "unknown target ''",
    "aarch64:nosuch": "no CPU 'nosuch'",
    "x86-64::+nosuch": r"no feature '\+nosuch'",
    # Over a CPU of which it knows no 64 bits LLVM ends the process.
    "x86-64:nosuch": "no CPU 'nosuch'",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_machine_is_told_of(name: str) -> None:
    for _ in range(2):  # LLVM says it once
        with pytest.raises(MachineError, match=WRONG[name]):
            machine_of(name)


def test_a_cpu_that_had_no_64_bits_yet_has_them_where_the_machine_does() -> None:
    assert target_of("x86-64:i686").vector_bytes == 16


def test_a_recipe_for_no_machine_does_not_compile(network: Line) -> None:
    with pytest.raises(CompilationError, match="unknown target 'vax'"):
        network.compile(for_machine("vax"))


@pytest.mark.parametrize(
    ("name", "width"),
    [("x86-64-v2", 16), ("x86-64:znver4", 64), ("x86_64-linux-gnu:skylake-avx512", 64), ("aarch64:neoverse-v1", 16),
     ("riscv64::+v", 16), ("riscv64-linux-gnu::+v,+zvl256b", 32)],
)  # fmt: skip
def test_cpus_and_features_say_how_wide_vectors_are(name: str, width: int) -> None:
    assert target_of(name).vector_bytes == width


LITERALS = {
    "fadd float %1, f0x3727C5AC": "fadd float %1, 0x3EE4F8B580000000",
    "fadd float %1, -1.000000e-01": "fadd float %1, 0xBFB99999A0000000",
    "fadd double %1, 1.000000e-01": "fadd double %1, 0x3FB999999999999A",
    "fadd double %1, f0x3FB999999999999A": "fadd double %1, 0x3FB999999999999A",
    "fadd half %1, f0x3C00": "fadd half %1, 0xH3C00",
    "fadd bfloat %1, 1.5": "fadd bfloat %1, 0xR3FC0",
    "fcmp olt float %1, +inf": "fcmp olt float %1, 0x7FF0000000000000",
    "fcmp olt double %1, -inf": "fcmp olt double %1, 0xFFF0000000000000",
    "fadd float %1, +qnan": "fadd float %1, 0x7FF8000000000000",
    "select i1 %2, double 2.5, double %3": "select i1 %2, double 0x4004000000000000, double %3",
    "store float %1.5, ptr @a.2.0": "store float %1.5, ptr @a.2.0",
    "align 16, i64 12": "align 16, i64 12",
    '@s = constant [11 x i8] c"a float 1.5"': '@s = constant [11 x i8] c"a float 1.5"',
}


def test_floats_are_spelled_for_an_older_llvm() -> None:
    for text, older in LITERALS.items():
        assert for_older_llvm(text) == older, text


def test_an_older_llvm_reads_the_same_numbers() -> None:
    values = np.random.default_rng(0).standard_normal(64).astype("f4")
    body = "".join(f"  store float {value!s}, ptr %p\n" for value in values.tolist())
    module = parse_module(f"define void @f(ptr %p) {{\n{body}  ret void\n}}", machine_of(""))
    spelled = [line.split(",")[0].split()[-1] for line in str(module).splitlines() if "store" in line]
    read = [struct.unpack(">d", bytes.fromhex(s[2:]))[0] if s.startswith("0x") else float(s) for s in spelled]
    assert np.array_equal(np.array(read, "f4"), values)
