"""Measures the peak rates of this machine: multiply-adds per second in f32, f64 and i32, and bytes read per second.

`measure_peak_rates` runs in a one-shot process. The loops are LLVM IR with vectors of the target's width; ctypes
releases the interpreter lock during a call, so Python threads run them in parallel.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from buddy.compiler.support.instruction_rates import SUMS, compile_loops, loop_function
from buddy.compiler.support.target import CACHE_LINE, host

# The steps of a loop of multiplications, for some tenths of a second on a core of a few GHz.
_STEPS = 40_000_000
# The size of the buffer that is read: several times the last-level cache of common processors.
_BUFFER_BYTES = 512 << 20
# The size of the buffer for the results of a loop: more than its `SUMS` vectors.
_RESULT_BYTES = 4096
# The number of timed tries of a loop, of which the fastest counts.
_TRIES = 7
# The element types of the multiplications, by LLVM's names, with their sizes in bytes.
_ELEMENT_BYTES = {"float": 4, "double": 8, "i32": 4}


def measure_peak_rates(threads: int) -> dict[str, float]:
    """Returns the peak rates on `threads` threads, each the best of several tries, in 1e9 per second.

    They are `gflops` (f32 operations), `gflops_f64`, `giops_i32`, and `gbytes` (bytes read). A multiply-add counts as
    two operations.
    """
    lanes = host().lanes(4)
    library = compile_loops(
        "".join(map(_multiply_loop, _ELEMENT_BYTES)) + _read_loop(lanes),
        [*map(_multiply_name, _ELEMENT_BYTES), "read_loop"],
        "buddy_peak_rates",
    )
    read = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(library["read_loop"])
    result_buffers = [ctypes.create_string_buffer(_RESULT_BYTES) for _ in range(threads)]
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    # The address of the first cache line in the buffer.
    start = (ctypes.addressof(buffer) + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
    bytes_per_step = lanes * 4 * SUMS
    steps_per_thread = (_BUFFER_BYTES - CACHE_LINE) // threads // bytes_per_step

    def measure_multiplications(element: str) -> float:
        multiply = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library[_multiply_name(element)])

        def run_multiplications(number: int) -> None:
            multiply(ctypes.addressof(result_buffers[number]), _STEPS)

        multiply_adds = host().lanes(_ELEMENT_BYTES[element]) * SUMS * _STEPS * threads
        return 1e-9 * 2 * multiply_adds / _min_seconds(run_multiplications, threads)

    def run_reads(number: int) -> None:
        read(
            ctypes.addressof(result_buffers[number]),
            start + number * steps_per_thread * bytes_per_step,
            steps_per_thread,
        )

    return {
        "gflops": measure_multiplications("float"),
        "gflops_f64": measure_multiplications("double"),
        "giops_i32": measure_multiplications("i32"),
        "gbytes": 1e-9 * steps_per_thread * bytes_per_step * threads / _min_seconds(run_reads, threads),
    }


def _min_seconds(work: Callable[[int], None], threads: int) -> float:
    """Returns the seconds of the fastest try of `work` on all threads at once, after one untimed try."""
    with ThreadPoolExecutor(threads) as pool:

        def try_once() -> float:
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            return time.perf_counter() - start

        try_once()
        return min(try_once() for _ in range(_TRIES))


def _multiply_name(element: str) -> str:
    """Returns the name of the loop of multiplications of `element`, a type of LLVM."""
    return f"multiply_{element}"


def _multiply_loop(element: str) -> str:
    """Returns the function `multiply_ELEMENT(sink, steps)`: `SUMS` independent chains of multiply-adds."""
    lanes = host().lanes(_ELEMENT_BYTES[element])
    vector, suffix = f"<{lanes} x {element}>", f"v{lanes}f{8 * _ELEMENT_BYTES[element]}"
    starts, bodies, stores = [], [], []
    for i in range(SUMS):
        starts.append(f"  %s{i} = phi {vector} [ zeroinitializer, %entry ], [ %t{i}, %loop ]")
        if element == "i32":
            # The sum is also an operand of the multiplication, which LLVM would otherwise hoist out of the loop.
            bodies.append(f"  %m{i} = mul {vector} %x, %s{i}\n  %t{i} = add {vector} %m{i}, %x")
        else:
            bodies.append(f"  %t{i} = call {vector} @llvm.fma.{suffix}({vector} %x, {vector} %x, {vector} %s{i})")
        stores.append(
            f"  %p{i} = getelementptr {vector}, ptr %sink, i64 {i}\n  store {vector} %t{i}, ptr %p{i}, align 4"
        )
    load_x = [f"  %x = load {vector}, ptr %sink, align 4"]
    declaration = "" if element == "i32" else f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})\n"
    return loop_function(_multiply_name(element), "ptr %sink, i64 %steps", load_x, starts, bodies, stores) + declaration


def _read_loop(lanes: int) -> str:
    """Returns the function `read_loop(sink, source, steps)`, which reads `SUMS` vectors per step and adds them up."""
    vector = f"<{lanes} x i32>"
    starts, bodies, stores = [], [f"  %base = mul i64 %i, {SUMS}"], []
    for i in range(SUMS):
        starts.append(f"  %s{i} = phi {vector} [ zeroinitializer, %entry ], [ %t{i}, %loop ]")
        bodies.append(f"  %o{i} = add i64 %base, {i}\n  %a{i} = getelementptr {vector}, ptr %source, i64 %o{i}")
        bodies.append(f"  %v{i} = load {vector}, ptr %a{i}, align 64\n  %t{i} = add {vector} %s{i}, %v{i}")
        stores.append(
            f"  %p{i} = getelementptr {vector}, ptr %sink, i64 {i}\n  store {vector} %t{i}, ptr %p{i}, align 4"
        )
    return loop_function("read_loop", "ptr %sink, ptr %source, i64 %steps", [], starts, bodies, stores)
