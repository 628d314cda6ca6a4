"""Targets of code generation: LLVM's triple, CPU and features, their vector registers, and rounding to bfloat16.

The bindings generate code for this machine only. For any other target, LLVM IR is compiled by llvmlite, whose LLVM has
all targets.
"""

from __future__ import annotations

import hashlib
import platform
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from buddy.compiler.codegen import llvm_ir
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.files import capture_stderr
from buddy.compiler.support.target import Target, host, missing_instructions

if TYPE_CHECKING:
    from llvmlite.binding import ContextRef, ModuleRef, TargetMachine


TARGET_SYNTAX = "NAME, NAME:CPU or NAME:CPU:FEATURES"

_LINUX = "unknown-linux-gnu"
# Levels of the x86-64 psABI (https://gitlab.com/x86-psABIs/x86-64-ABI, "Micro-Architecture Levels") are CPUs in LLVM.
_X86 = {name: (f"x86_64-{_LINUX}", name, "") for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")}
# The baseline of Linux distributions (RV64GC); `riscv64::+v` adds vectors.
_RV64GC = "+m,+a,+f,+d,+c"
# The short names of targets, each with triple, CPU and features.
TARGET_NAMES = {
    **_X86,
    "aarch64": (f"aarch64-{_LINUX}", "generic", ""),
    "riscv64": (f"riscv64-{_LINUX}", "generic-rv64", _RV64GC),
}
# The supported architectures, by the names that triples and `platform.machine` use for them.
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64"}
# The CPU and features for a triple without these; "generic" for other architectures.
_DEFAULT_CPUS = {"riscv64": ("generic-rv64", _RV64GC)}
# For LLVM's option `abiname`, only RISC-V has a choice: doubles in registers, as on all Linux systems.
_ABIS = {"riscv64": "lp64d"}
# Features that are added for every CPU: LLVM would abort on an unknown CPU, or one that is 32-bit only.
_REQUIRED_FEATURES = {"x86_64": "+64bit"}
# LLVM's warning about a CPU or a feature that it ignores.
_IGNORED_PART = re.compile(r"'([^']*)' is not a recognized (processor|feature)")

# The code for a vector of 64 bytes shows the width of registers, and whether there is a fused multiply-add.
_VECTOR_PROBE = """
define <16 x float> @probe(ptr %p) {
  %a = load <16 x float>, ptr %p
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %a, <16 x float> %a)
  ret <16 x float> %r
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""
_PROBE_BYTES = 64
# Rounding to bfloat16 is one of these instructions, or not supported by the processor.
_ROUNDING_PROBE = """
define bfloat @probe(float %x) {
  %r = fptrunc float %x to bfloat
  ret bfloat %r
}
"""
# Sums of products of bytes, and of products of 16 bits: LLVM selects the instructions for dot products that the
# processor has, on vectors as wide as its registers.
_DOT_PROBE = "declare i32 @llvm.vector.reduce.add.v64i32(<64 x i32>)" + "".join(
    f"""
define i32 @{name}(ptr %p, ptr %q) {{
  %a = load <64 x {element}>, ptr %p
  %b = load <64 x {element}>, ptr %q
  %x = {extension} <64 x {element}> %a to <64 x i32>
  %y = sext <64 x {element}> %b to <64 x i32>
  %products = mul <64 x i32> %x, %y
  %sum = call i32 @llvm.vector.reduce.add.v64i32(<64 x i32> %products)
  ret i32 %sum
}}
"""
    for name, element, extension in (("bytes", "i8", "zext"), ("words", "i16", "sext"))
)
# The instructions to find in the probe's code, the fastest first. Those for bfloat16 and for tiles are left out: only a
# measurement on the processor shows whether they are fast, and tiles need a permission of the operating system.
_PROBED_DOT_INSTRUCTIONS = ("vpdpbusd", "vpmaddwd")
_REGISTERS_BY_BYTES = {64: "zmm", 32: "ymm"}
_ROUNDING_INSTRUCTION = re.compile(r"\bv?cvtneps2bf16|\bbfcvt|\bfcvt\.bf16\.s")


class MachineError(BuddyError):
    """LLVM has no code generator for a target, or code for it cannot run on this machine; see `diagnostic`."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, "the target", todo)


@dataclass(frozen=True)
class Machine:
    """An LLVM target: a triple such as `x86_64-unknown-linux-gnu`, a CPU, and features (`+v,-fma`)."""

    triple: str
    cpu: str
    features: str = ""

    @property
    def architecture(self) -> str:
        return _architecture(self.triple)

    def __str__(self) -> str:
        return f"{self.triple}, CPU {self.cpu}"


@lru_cache(maxsize=64)
def machine_of(target: str) -> Machine:
    """Returns the machine of a recipe's target; "" is this machine.

    Raises `MachineError` if LLVM does not know the CPU or a feature, and for a triple other than those of x86-64,
    AArch64 and RISC-V with 64 bits on Linux.
    """
    if not target:
        return this_machine()
    name, _, cpu_and_features = target.partition(":")
    cpu, _, features = cpu_and_features.partition(":")
    default_cpu, default_features = _DEFAULT_CPUS.get(_architecture(name), ("generic", ""))
    triple, default_cpu, default_features = TARGET_NAMES.get(name, (name, default_cpu, default_features))
    if _architecture(triple) not in _ARCHITECTURES.values() or "linux" not in triple:
        names = ", ".join(TARGET_NAMES)
        raise MachineError(f"unknown target {name!r}", f"choose one of {names}, or a triple of these on Linux")
    machine = Machine(triple, cpu or default_cpu, ",".join(filter(None, (default_features, features))))
    _check_parts(machine, target)
    return machine


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """Returns this machine, with all features of its CPU."""
    llvm = _llvm()
    return Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def target_of(target: str) -> Target:
    """Returns the vector registers and caches of a recipe's target, as kernels need them. Raises `MachineError`."""
    return _vector_target(machine_of(target)) if target else host()


@lru_cache(maxsize=1)
def codegen_version() -> str:
    """Returns a text that identifies the code generator for other machines, as a part of cache keys.

    It has llvmlite's version, and a hash of the modules that prepare LLVM IR for it.
    """
    sources = b"".join(path.read_bytes() for path in (Path(__file__), Path(llvm_ir.__file__)))
    return f"llvmlite {metadata.version('llvmlite')} {hashlib.sha256(sources).hexdigest()[:12]}"


def check_runs_here(target: str) -> None:
    """Raises `MachineError` if this CPU cannot run code for `target`.

    Such code is for another architecture, has wider vectors, or has instructions for dot products that this CPU lacks.
    """
    if not target:
        return
    host_architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    todo = "export it and run it there (`buddy-tui export`), or reset the target"
    if machine_of(target).architecture != host_architecture:
        raise MachineError(f"code for {target} does not run on this machine, which is {host_architecture}", todo)
    vector_bytes = target_of(target).vector_bytes
    if vector_bytes > host().vector_bytes:
        what = f"code for {target} has vectors of {vector_bytes} bytes, wider than those of this CPU"
        raise MachineError(f"{what} ({host().name})", todo)
    if missing := missing_instructions(target_of(target)):
        what = f"code for {target} multiplies integers with {', '.join(missing)}, which this CPU does not have"
        raise MachineError(f"{what} on vectors of {vector_bytes} bytes", todo)


def compile_module(text: str, opt_level: int, machine: Machine) -> bytes:
    """Returns the object of a module in LLVM IR, optimised as the bindings do, as position-independent code."""
    module = parse_module(text, machine)
    run_pipeline(module, opt_level, machine)
    data: bytes = target_machine(machine, opt_level).emit_object(module)
    return data


def parse_module(text: str, machine: Machine, context: ContextRef | None = None) -> ModuleRef:
    """Parses a module in LLVM IR by llvmlite, for `machine`. Raises `RuntimeError` if LLVM rejects it.

    Modules that will be linked must have the same `context`; by default, each has a new one.
    """
    module = _llvm().parse_assembly(llvm_ir.for_older_llvm(text), context or new_context())
    module.triple = machine.triple
    module.data_layout = str(target_machine(machine).target_data)
    return module


def new_context() -> ContextRef:
    """Creates an llvmlite context to parse modules in."""
    return _llvm().create_context()


def run_pipeline(module: ModuleRef, opt_level: int, machine: Machine) -> None:
    """Runs LLVM's pipeline of level `opt_level`, with the options that the bindings' `ExecutionEngine` sets."""
    llvm = _llvm()
    options = llvm.create_pipeline_tuning_options(opt_level)
    options.loop_vectorization = options.slp_vectorization = True
    options.loop_interleaving = options.loop_unrolling = True
    builder = llvm.create_pass_builder(target_machine(machine, opt_level), options)
    builder.getModulePassManager().run(module, builder)


@lru_cache(maxsize=16)
def target_machine(machine: Machine, opt_level: int = 2) -> TargetMachine:
    """Returns LLVM's code generator for `machine`."""
    llvm_target = _llvm().Target.from_triple(machine.triple)
    abi = _ABIS.get(machine.architecture, "")
    features = ",".join(filter(None, (machine.features, _REQUIRED_FEATURES.get(machine.architecture, ""))))
    return llvm_target.create_target_machine(
        machine.cpu, features, opt_level, reloc="pic", codemodel="default", abiname=abi
    )


def set_llvm_options(options: Sequence[str]) -> None:
    """Sets command-line options of llvmlite's LLVM, for the whole process."""
    for option in options:
        _llvm().set_option("", option)


@lru_cache(maxsize=1)
def _llvm() -> ModuleType:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


def _architecture(triple: str) -> str:
    """Returns the architecture of a triple, as in the values of `_ARCHITECTURES` if it is supported."""
    return _ARCHITECTURES.get(triple.partition("-")[0], triple.partition("-")[0])


def _check_parts(machine: Machine, target: str) -> None:
    """Raises `MachineError` if LLVM has no code generator, or would ignore the CPU or a feature with a warning."""
    try:
        kind, name = _unsupported_part(machine)
    except RuntimeError as error:
        raise MachineError(
            f"LLVM has no code for {target}: {error}", f"choose one of {', '.join(TARGET_NAMES)}"
        ) from error
    if kind:
        todo = f"write {TARGET_SYNTAX}, with names that `clang --target={machine.triple} --print-supported-cpus` lists"
        raise MachineError(f"LLVM has no {kind} {name!r} for {machine.triple}", todo)


@lru_cache(maxsize=64)
def _unsupported_part(machine: Machine) -> tuple[str, str]:
    """Returns the first unsupported part of `machine`: "CPU" or "feature", and its name; ("", "") if LLVM knows all.

    The result is cached, since LLVM warns only on the first use of a machine. Raises `RuntimeError` if LLVM has no code
    generator for the triple.
    """
    with tempfile.TemporaryFile() as captured, capture_stderr(captured):
        _vector_target(machine)
        captured.seek(0)
        warning = _IGNORED_PART.search(captured.read().decode(errors="replace"))
    if warning is None:
        return "", ""
    return ("CPU" if warning[2] == "processor" else "feature"), warning[1]


@lru_cache(maxsize=64)
def _vector_target(machine: Machine) -> Target:
    """Returns the registers that LLVM uses for a vector of 64 bytes, and the instructions for narrow elements."""
    vector_code = target_machine(machine).emit_assembly(parse_module(_VECTOR_PROBE, machine))
    rounding_code = target_machine(machine).emit_assembly(parse_module(_ROUNDING_PROBE, machine))
    rounds = _ROUNDING_INSTRUCTION.search(rounding_code) is not None
    target = _target_of_code(machine, vector_code)
    return replace(target, rounds_to_bfloat16=rounds, dot_instructions=_dot_instructions(machine, target))


def _dot_instructions(machine: Machine, target: Target) -> tuple[str, ...]:
    """Returns the instructions for dot products of bytes that LLVM selects, on whole registers of `target`."""
    register = _REGISTERS_BY_BYTES.get(target.vector_bytes)
    if machine.architecture != "x86_64" or register is None:
        return ()
    code = target_machine(machine).emit_assembly(parse_module(_DOT_PROBE, machine))
    return tuple(name for name in _PROBED_DOT_INSTRUCTIONS if re.search(rf"\b{name}\b.*%{register}", code))


def _target_of_code(machine: Machine, assembly: str) -> Target:
    """Returns the target with the vector registers that `assembly`, the code of `_VECTOR_PROBE`, uses."""
    if machine.architecture == "x86_64":
        has_fma = "vfmadd" in assembly
        if has_fma and "zmm" in assembly:
            return Target("avx512", 64, 32)
        return Target("avx2", 32, 16) if has_fma and "ymm" in assembly else Target("generic", 16, 16)
    if machine.architecture == "aarch64":
        return Target("neon", 16, 32)
    # RISC-V groups registers for longer vectors: `m4` is four of 16 bytes.
    grouping = re.search(r"e32, m([1248])", assembly)
    return Target("rvv", _PROBE_BYTES // int(grouping[1]), 32) if grouping else Target("scalar", 4, 32)


# ---- rounding to bfloat16 in software --------------------------------------------------------------------------------

# Rounds the bits of a float to bfloat16: to nearest, ties to even; NaN becomes quiet.
_ROUNDING = """
define private bfloat @buddy_rounded(i32 %bits, i1 %nan) {
  %above = lshr i32 %bits, 16
  %odd = and i32 %above, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %bits, %half
  %near = lshr i32 %sum, 16
  %quiet = or i32 %above, 64
  %chosen = select i1 %nan, i32 %quiet, i32 %near
  %low = trunc i32 %chosen to i16
  %result = bitcast i16 %low to bfloat
  ret bfloat %result
}
"""
# LLVM calls these functions on processors without an instruction that rounds to bfloat16. A double is rounded through a
# float that is rounded to odd, so that the result is rounded once.
_SOFT_FLOAT_FUNCTIONS = {
    "__truncsfbf2": """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %nan = fcmp uno float %x, %x
  %result = call bfloat @buddy_rounded(i32 %bits, i1 %nan)
  ret bfloat %result
}
""",
    "__truncdfbf2": """
declare double @llvm.fabs.f64(double)

define bfloat @__truncdfbf2(double %x) {
  %nan = fcmp uno double %x, %x
  %float = fptrunc double %x to float
  %back = fpext float %float to double
  %inexact = fcmp one double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %rounded = call double @llvm.fabs.f64(double %back)
  %up = fcmp ogt double %rounded, %size
  %one = zext i1 %up to i32
  %nearest = bitcast float %float to i32
  %cut = sub i32 %nearest, %one
  %last = zext i1 %inexact to i32
  %sticky = or i32 %cut, %last
  %result = call bfloat @buddy_rounded(i32 %sticky, i1 %nan)
  ret bfloat %result
}
""",
}
SOFT_FLOAT_NAMES = tuple(_SOFT_FLOAT_FUNCTIONS)


def soft_float_ir(objects: Sequence[bytes]) -> str:
    """Returns the LLVM IR of the soft-float functions that `objects` use, "" if they use none."""
    # An object file has the names of the symbols that it calls as plain bytes in its string table.
    texts = [text for name, text in _SOFT_FLOAT_FUNCTIONS.items() if any(name.encode() in data for data in objects)]
    return _ROUNDING + "".join(texts) if texts else ""
