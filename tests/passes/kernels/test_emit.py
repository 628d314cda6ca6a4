"""`KernelEmitter.parallel`: each iteration once; one `scf.parallel` where it is worth a fork, plain loops elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from buddy.compiler.mlir.bindings import arith, ir, passmanager
from buddy.compiler.passes.base import MlirPass, PassContext
from buddy.compiler.passes.kernels.emit import KernelEmitter, estimate_nanoseconds
from buddy.compiler.support.target import MIN_PARALLEL_NANOSECONDS
from tests.support.mlir_jit import LOWER, Compiled

PLENTY, LITTLE = 10 * MIN_PARALLEL_NANOSECONDS, MIN_PARALLEL_NANOSECONDS / 10
Emit = Callable[[KernelEmitter, Any], None]


@dataclass(frozen=True)
class Emitted(MlirPass):
    """Fills the body of the only function with what `emit(emitter, its first argument)` emits."""

    emit: Emit

    def run(self, root: Any, context: PassContext) -> None:
        entry = root.regions[0].blocks[0].operations[0].regions[0].blocks[0]
        end = entry.operations[len(entry.operations) - 1]
        with ir.InsertionPoint(end):
            self.emit(KernelEmitter(entry), entry.arguments[0])


def compiled(count: int, emit: Emit) -> Compiled:
    text = f"func.func @f(%out: memref<{count}xf32>) attributes {{llvm.emit_c_interface}} {{\n return\n}}"
    return Compiled(text, [Emitted(emit)])


def count_up(e: KernelEmitter, flat: Any, at: Any, by: int = 1) -> None:
    """Add `by` to an element, so that each visit shows."""
    element = flat.type.element_type
    e.store_scalar(arith.addf(e.load_scalar(flat, at), e.splat(element, by)), flat, at)


def strides(sizes: Sequence[int]) -> list[int]:
    return [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]


def visits(sizes: Sequence[int], work: float) -> Emit:
    return lambda e, flat: e.parallel(sizes, lambda at: count_up(e, flat, e.dot(at, strides(sizes))), work)


@pytest.mark.parametrize("sizes", [[1], [7], [3, 5], [1, 4, 1, 3], [1, 1]])
@pytest.mark.parametrize("work", [LITTLE, PLENTY])
def test_each_iteration_runs_once(sizes: list[int], work: float) -> None:
    count = int(np.prod(sizes))
    found = compiled(count, visits(sizes, work))
    assert ("scf.parallel" in found.text) == (work == PLENTY and count > 1)
    out = np.zeros(count, np.float32)
    found("f", out)
    np.testing.assert_array_equal(out, np.ones(count))


def test_no_iterations_do_nothing() -> None:
    found = compiled(4, visits([3, 0], PLENTY))
    assert "memref.store" not in found.text
    assert "scf.parallel" not in found.text


def test_inside_a_shared_loop_another_is_a_plain_one() -> None:
    def emit(e: KernelEmitter, flat: Any) -> None:
        e.parallel([3], lambda i: e.parallel([4], lambda j: count_up(e, flat, e.dot([*i, *j], [4, 1])), PLENTY), PLENTY)

    found = compiled(12, emit)
    assert found.text.count("scf.parallel") == 1
    out = np.zeros(12, np.float32)
    found("f", out)
    np.testing.assert_array_equal(out, np.ones(12))


@pytest.mark.parametrize("sizes", [[1, 1], [4, 8], [5, 3], [9, 16], [2, 17], [11, 23]])
@pytest.mark.parametrize("work", [LITTLE, PLENTY])
def test_blocks_know_how_much_of_them_there_is(sizes: list[int], work: float) -> None:
    blocks = [4, 8]

    def emit(e: KernelEmitter, flat: Any) -> None:
        def body(numbers: list[Any], active: list[int]) -> None:
            start = e.dot(numbers, [blocks[0] * sizes[1], blocks[1]])
            e.nest(active, lambda at: count_up(e, flat, e.dot(at, [sizes[1], 1], start), active[0] * 100 + active[1]))

        e.parallel_blocks(sizes, blocks, body, work)

    found = compiled(sizes[0] * sizes[1], emit)
    out = np.zeros(sizes, np.float32)
    found("f", out.reshape(-1))
    rows, columns = ([min(b, s - i // b * b) for i in range(s)] for s, b in zip(sizes, blocks, strict=True))
    np.testing.assert_array_equal(out, np.add.outer(100 * np.array(rows), np.array(columns)))


def test_in_sequence_it_is_the_same_machine_ir_as_a_nest() -> None:
    """On one thread nothing is paid: both lower to the same blocks and branches."""

    def lowered(emit: Emit) -> str:
        found = compiled(15, emit)
        with found.context, ir.Location.unknown():
            passmanager.PassManager.parse(LOWER).run(found.module.operation)
        return str(found.module)

    def nest(e: KernelEmitter, flat: Any) -> None:
        e.nest([3, 5], lambda at: count_up(e, flat, e.dot(at, [5, 1])))

    assert lowered(visits([3, 5], PLENTY)) == lowered(nest)


def test_work_is_the_longer_of_arithmetic_and_traffic() -> None:
    assert estimate_nanoseconds(flop=6400, moved=16) == 100
    assert estimate_nanoseconds(flop=64, moved=1600) == 100
