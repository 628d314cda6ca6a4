"""Measures the rates of instructions of this machine by loops in LLVM IR.

The rates by which the instructions of kernels are selected are measured once for each processor, and cached on disk.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm

from buddy.compiler.support import disk_cache

# The number of independent sums per loop: enough to hide the latency of a multiply-add on two units, and few enough for
# the registers.
SUMS = 12
# The elements of a vector of f32 with AVX-512.
_LANES = 16
_FILE = "instruction-rates.json"
# The iterations of the loop of `vfmadd`, which take about 30 us, and the number of measurements. The fastest one
# counts, because other programs use the machine too.
_STEPS, _MEASUREMENTS = 10_000, 40
# The loop bodies for vectors: each adds products, of f32 or of bfloat16, to 16 sums. `vdpbf16ps` is slower than
# multiply-adds in f32 on some processors, and twice as fast on others.
_FMA_CALL = "call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %x, <16 x float> {sum})"
_DOT_CALL = (
    "call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> {sum}, <32 x bfloat> %w, <32 x bfloat> %w)"
)
_FMA_OR_DOT_DECLARATIONS = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
"""

# The instruction on tiles of AMX adds the products of 16 rows of 32 elements and 16 columns to four tiles of sums, as
# kernels do. It is undefined for two equal tiles (Intel's Software Developer's Manual, TDPBF16PS).
_TILE_CALL = "call x86_amx @llvm.x86.tdpbf16ps.internal(i16 16, i16 64, i16 64, x86_amx {sum}, x86_amx %x, x86_amx %y)"
_TILE_DECLARATIONS = """
declare x86_amx @llvm.x86.tdpbf16ps.internal(i16, i16, i16, x86_amx, x86_amx, x86_amx)
declare x86_amx @llvm.x86.tilezero.internal(i16, i16)
declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)
declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)
"""
# The features that LLVM needs for an instruction, in the form of its target options.
_LLVM_FEATURES = {"vdpbf16ps": ",+avx512bf16", "tdpbf16ps": ",+amx-tile,+amx-bf16"}
# The tiles of sums, the products per instruction, and the bytes of a tile.
_TILES, _TILE_PRODUCTS, _TILE_BYTES = 4, 16 * 16 * 32, 1024


def bfloat16_rates(instructions: Sequence[str]) -> dict[str, float]:
    """Returns the products per nanosecond and thread of each of `instructions`, and of "vfmadd", which multiplies f32.

    `instructions` are "vdpbf16ps", "tdpbf16ps" or both; the processor must have them, and AVX-512. The rates are
    measured once for each model of processor.
    """
    path, model = disk_cache.folder() / _FILE, _processor_model()
    names = (*instructions, "vfmadd")
    # Machines with different processors may share the folder.
    stored = _load_rates(path)
    if set(names) <= stored.get(model, {}).keys():
        return {name: stored[model][name] for name in names}
    rates = _measure_rates(names)
    _save_rates(path, stored | {model: stored.get(model, {}) | rates})
    return rates


def _load_rates(path: Path) -> dict[str, dict[str, float]]:
    """Returns the rates in a file, by processor and instruction; {} if the file cannot be read."""
    try:
        return {
            model: {name: float(rate) for name, rate in rates.items()}
            for model, rates in json.loads(path.read_text()).items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _save_rates(path: Path, rates: dict[str, dict[str, float]]) -> None:
    """Writes the rates by processor to a file, if it can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(rates))
        scratch.replace(path)
    except OSError:
        return  # The next process measures the rates again.


def _processor_model() -> str:
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _measure_rates(names: Sequence[str]) -> dict[str, float]:
    """Returns the products per nanosecond by each of the instructions `names`."""
    # The products in one iteration of each loop.
    products = {"vfmadd": SUMS * _LANES, "vdpbf16ps": 2 * SUMS * _LANES, "tdpbf16ps": _TILES * _TILE_PRODUCTS}
    # LLVM ends the process if it selects an instruction that it does not find in the processor.
    features = "".join(_LLVM_FEATURES[name] for name in names if name in _LLVM_FEATURES)
    library = compile_loops(instruction_loops(names), [f"{name}_loop" for name in names], "buddy_rates", features)
    memory = ctypes.create_string_buffer(2 * _TILES * _TILE_BYTES)
    loops = {
        name: ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library[f"{name}_loop"]) for name in names
    }  # fmt: skip
    # Each loop computes the same number of products as `_STEPS` iterations of `vfmadd`.
    steps = {name: max(1, _STEPS * products["vfmadd"] // products[name]) for name in names}
    seconds = dict.fromkeys(loops, float("inf"))
    for _ in range(_MEASUREMENTS):
        for name, call in loops.items():
            start = time.perf_counter()
            call(ctypes.addressof(memory), steps[name])
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return {name: 1e-9 * products[name] * steps[name] / seconds[name] for name in names}


def instruction_loops(names: Sequence[str]) -> str:
    """Returns LLVM IR with a function `NAME_loop(memory, steps)` for each of the instructions `names`."""
    calls = {"vfmadd": _FMA_CALL, "vdpbf16ps": _DOT_CALL}
    texts = [_tiles_loop() if name == "tdpbf16ps" else _products_loop(f"{name}_loop", calls[name]) for name in names]
    declarations = [_FMA_OR_DOT_DECLARATIONS, *([_TILE_DECLARATIONS] if "tdpbf16ps" in names else [])]
    return "".join([*texts, *declarations])


def _tiles_loop() -> str:
    """Returns the function `tdpbf16ps_loop`, in LLVM IR."""
    zero = "call x86_amx @llvm.x86.tilezero.internal(i16 16, i16 64)"
    load = "call x86_amx @llvm.x86.tileloadd64.internal(i16 16, i16 64, ptr"
    before = [f"  %x = {load} %sink, i64 64)", f"  %q = getelementptr i8, ptr %sink, i64 {_TILE_BYTES}"]
    before += [f"  %y = {load} %q, i64 64)"]
    before += [f"  %z{i} = {zero}" for i in range(_TILES)]
    phis = [f"  %s{i} = phi x86_amx [ %z{i}, %entry ], [ %t{i}, %loop ]" for i in range(_TILES)]
    body = [f"  %t{i} = {_TILE_CALL.format(sum=f'%s{i}')}" for i in range(_TILES)]
    stores = [
        f"  %p{i} = getelementptr i8, ptr %sink, i64 {i * _TILE_BYTES}\n"
        f"  call void @llvm.x86.tilestored64.internal(i16 16, i16 64, ptr %p{i}, i64 64, x86_amx %t{i})"
        for i in range(_TILES)
    ]
    return loop_function("tdpbf16ps_loop", "ptr %sink, i64 %steps", before, phis, body, stores)


def _products_loop(name: str, product: str) -> str:
    """Returns the function `name`, in LLVM IR, with the instruction `product` on vectors for each of `SUMS` sums."""
    vector = "<16 x float>"
    # `%x` are the factors of `vfmadd`, and `%w` the same bytes as those of `vdpbf16ps`.
    before = [f"  %x = load {vector}, ptr %sink, align 4", f"  %w = bitcast {vector} %x to <32 x bfloat>"]
    phis = [f"  %s{i} = phi {vector} [ zeroinitializer, %entry ], [ %t{i}, %loop ]" for i in range(SUMS)]
    body = [f"  %t{i} = {product.format(sum=f'%s{i}')}" for i in range(SUMS)]
    stores = [
        f"  %p{i} = getelementptr {vector}, ptr %sink, i64 {i}\n  store {vector} %t{i}, ptr %p{i}, align 4"
        for i in range(SUMS)
    ]
    return loop_function(name, "ptr %sink, i64 %steps", before, phis, body, stores)


def compile_loops(text: str, names: Sequence[str], library: str, features: str = "") -> llvm.ResourceTracker:
    """Returns the functions `names` of the LLVM IR `text`, compiled for this machine; `library` is a unique name.

    `features` are added to those that LLVM finds, such as ",+amx-bf16".
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten() + features, opt=3
    )
    builder = llvm.JITLibraryBuilder().add_ir(text).add_current_process()
    for name in names:
        builder.export_symbol(name)
    return builder.link(llvm.create_lljit_compiler(target), library)


def loop_function(
    name: str, parameters: str, before: list[str], phis: list[str], body: list[str], after: list[str]
) -> str:
    """Returns a function in LLVM IR with a loop from 0 to `%steps` over `body`, whose first instructions are `phis`.

    All lists have instructions; those of `before` and `after` run once, before and after the loop.
    """
    lines = [
        f"define void @{name}({parameters}) {{",
        "entry:",
        *before,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *body,
        "  %next = add i64 %i, 1",
        "  %done = icmp eq i64 %next, %steps",
        "  br i1 %done, label %end, label %loop",
        "end:",
        *after,
        "  ret void",
        "}\n",
    ]
    return "\n".join(lines)
