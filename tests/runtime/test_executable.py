"""Linking, calling, packing and callbacks, on objects compiled from small MLIR modules."""

from __future__ import annotations

import math
import time

import pytest
import torch

from buddy.compiler.protocol.artifact import Argument, Artifact, EagerCall, TensorSpec
from buddy.compiler.runtime import LinkError, LoadedProgram, executable, measure, packed_weights
from buddy.compiler.runtime.native_calls import native_function_address
from buddy.compiler.runtime.torch_values import dense_bytes
from tests.runtime.objects import compile_object

ADD = """
func.func @main(%a: memref<3x4xf32>, %b: memref<f32>, %out: memref<3x4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %y = memref.load %b[] : memref<f32>
  scf.for %i = %c0 to %c3 step %c1 {
    scf.for %j = %c0 to %c4 step %c1 {
      %x = memref.load %a[%i, %j] : memref<3x4xf32>
      %t = math.tanh %x : f32
      %s = arith.addf %t, %y : f32
      memref.store %s, %out[%i, %j] : memref<3x4xf32>
    }
  }
  return
}
"""

PACKED = """
func.func @pack(%a: memref<2x3xf32>, %b: memref<3x2xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  scf.for %i = %c0 to %c2 step %c1 {
    scf.for %j = %c0 to %c3 step %c1 {
      %x = memref.load %a[%i, %j] : memref<2x3xf32>
      memref.store %x, %b[%j, %i] : memref<3x2xf32>
    }
  }
  return
}
func.func @main(%a: memref<3x2xf32>, %out: memref<f32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %x = memref.load %a[%c1, %c0] : memref<3x2xf32>
  memref.store %x, %out[] : memref<f32>
  return
}
"""

CALLBACK = """
func.func private @eager_0(memref<4xf32>, memref<4xf32>, memref<4xi64>)
func.func @main(%a: memref<4xf32>, %v: memref<4xf32>, %i: memref<4xi64>) {
  call @eager_0(%a, %v, %i) : (memref<4xf32>, memref<4xf32>, memref<4xi64>) -> ()
  return
}
"""

MATRIX, SCALAR = TensorSpec((3, 4), "f32"), TensorSpec((), "f32")


@pytest.fixture(scope="module")
def add() -> LoadedProgram:
    return LoadedProgram(
        Artifact("main", (compile_object(ADD),), (Argument(0, MATRIX), Argument(1, SCALAR)), (MATRIX,))
    )


def test_matrices_and_scalars_go_in_and_out(add: LoadedProgram) -> None:
    x, y = torch.randn(3, 4), torch.tensor(2.0)
    (result,) = add([x, y])
    torch.testing.assert_close(result, torch.tanh(x) + y)


def test_inputs_of_any_layout_are_read_right(add: LoadedProgram) -> None:
    x = torch.randn(4, 6)[:, ::2].t()
    (result,) = add([x, torch.tensor(0.0)])
    torch.testing.assert_close(result, torch.tanh(x))


def test_results_belong_to_the_caller(add: LoadedProgram) -> None:
    first = add([torch.ones(3, 4), torch.tensor(0.0)])[0]
    kept = first.clone()
    add([torch.zeros(3, 4), torch.tensor(5.0)])
    assert torch.equal(first, kept)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 4), ()])
def test_bytes_of_tensors_with_other_strides(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(2.0 * math.prod(shape)).reshape(*shape, 2)[..., 1]
    assert bytes(dense_bytes(tensor)) == tensor.clone(memory_format=torch.contiguous_format).numpy().tobytes()


def test_another_shape_is_refused_with_both_named(add: LoadedProgram) -> None:
    with pytest.raises(ValueError, match="input 0 is 4x3xfloat32, but the program was compiled for 3x4xf32"):
        add([torch.ones(4, 3), torch.tensor(0.0)])


def _packed_program(frozen: bool = True) -> LoadedProgram:
    argument = Argument(0, TensorSpec((3, 2), "f32"), pack="pack")
    return LoadedProgram(Artifact("main", (compile_object(PACKED),), (argument,), (SCALAR,)), frozen)


def test_packed_weights_follow_their_source() -> None:
    program, weight = _packed_program(), torch.arange(6.0).reshape(2, 3)
    assert program([weight])[0] == 1
    weight[0, 1] = 7
    assert program([weight])[0] == 7
    assert program([torch.full((2, 3), 9.0)])[0] == 9


@pytest.mark.skipif(not native_function_address(), reason="calls go through Python")
def test_the_copy_of_a_frozen_weight_is_passed_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a weight in another state, or of a form that the native function does not know, is passed to Python."""
    asked: list[torch.Tensor] = []

    def weight_state(source: torch.Tensor) -> tuple[object, ...]:
        asked.append(source)
        return packed_weights.weight_state(source)

    monkeypatch.setattr(executable, "weight_state", weight_state)
    program, weight = _packed_program(), torch.arange(6.0).reshape(2, 3)
    assert [float(program([weight])[0]) for _ in range(3)] == [1, 1, 1]
    assert len(asked) == 1
    weight[0, 1] = 7
    assert [float(program([weight])[0]) for _ in range(2)] == [7, 7]
    assert len(asked) == 2
    other = torch.full((2, 3), 9.0)
    assert [float(program([value])[0]) for value in (other, weight, other)] == [9, 7, 9]
    assert len(asked) == 5
    transposed = torch.arange(6.0).reshape(3, 2).t()
    assert [float(program([transposed])[0]) for _ in range(2)] == [2, 2]
    assert len(asked) == 7
    with torch.inference_mode():
        uncounted = torch.full((2, 3), 4.0)
    assert [float(program([uncounted])[0]) for _ in range(2)] == [4, 4]
    assert len(asked) == 9
    program([weight])
    program([weight.view(3, 2)])
    assert len(asked) == 11


def test_uncounted_writes_to_frozen_weights_are_seen_after_refreeze() -> None:
    program, weight = _packed_program(), torch.arange(6.0).reshape(2, 3)
    program([weight])
    weight.data[0, 1] = 7
    assert program([weight])[0] == 1
    program.refreeze()
    assert program([weight])[0] == 7


def test_memory_of_a_frozen_weight_is_kept_while_its_copy_is() -> None:
    program, weight = _packed_program(), torch.arange(6.0).reshape(2, 3)
    program([weight])
    for value in (7.0, 8.0, 9.0):
        weight.data = torch.zeros(2, 3)
        weight.data = torch.full((2, 3), value)
        assert program([weight])[0] == value


def test_another_layout_of_the_same_memory_is_another_weight() -> None:
    program, weight = _packed_program(), torch.arange(6.0).reshape(2, 3)
    assert [program([weight])[0] for _ in range(2)] == [1, 1]
    weight.data = weight.data.as_strided((2, 3), (1, 2))
    assert [program([weight])[0] for _ in range(2)] == [2, 2]


def test_frozen_weights_made_in_inference_mode_are_packed_once() -> None:
    program = _packed_program()
    with torch.inference_mode():
        weight = torch.arange(6.0).reshape(2, 3)
        assert program([weight])[0] == 1
        weight[0, 1] = 7  # not counted
        assert program([weight])[0] == 1
        assert program([torch.full((2, 3), 9.0)])[0] == 9


def test_weights_that_are_not_frozen_are_packed_at_each_call() -> None:
    program, weight = _packed_program(frozen=False), torch.arange(6.0).reshape(2, 3)
    assert program([weight])[0] == 1
    weight.data[0, 1] = 7
    assert program([weight])[0] == 7
    assert program.packed_bytes == 0


def test_weights_made_in_inference_mode() -> None:
    program = _packed_program(frozen=False)
    with torch.inference_mode():
        weight = torch.arange(6.0).reshape(2, 3)
        program([weight])
        weight[0, 1] = 7
        assert program([weight])[0] == 7


def _sort_program(target: str = "sort.default") -> LoadedProgram:
    results = (TensorSpec((4,), "f32"), TensorSpec((4,), "i64"))
    call = EagerCall("eager_0", target, ({"t": 0},), {"dim": 0}, (TensorSpec((4,), "f32"),), results)
    image = compile_object(CALLBACK, externals=("eager_0",))
    return LoadedProgram(Artifact("main", (image,), (Argument(0, TensorSpec((4,), "f32")),), results, (call,)))


def test_an_op_in_eager_reads_its_inputs_and_fills_its_results() -> None:
    x = torch.randn(4)
    values, indices = _sort_program()([x])
    expected = torch.sort(x)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


def test_an_exception_inside_compiled_code_reaches_the_caller() -> None:
    program = _sort_program("cumsum.default")
    with pytest.raises(ValueError, match="zip"):
        program([torch.randn(4)])


def test_an_unresolved_symbol_is_named() -> None:
    text = ADD.replace("math.tanh %x : f32", "func.call @nowhere(%x) : (f32) -> f32")
    image = compile_object(text + "func.func private @nowhere(f32) -> f32\n", externals=("nowhere",))
    with pytest.raises(LinkError, match="nowhere") as error:
        LoadedProgram(Artifact("main", (image,), (Argument(0, MATRIX), Argument(1, SCALAR)), (MATRIX,)))
    assert error.value.diagnostic.where == "linking the objects"


def test_more_arguments_than_ctypes_takes() -> None:
    count = 1500
    arguments = ", ".join(f"%a{i}: memref<1xf32>" for i in range(count))
    text = f"""
func.func @main({arguments}, %out: memref<1xf32>) {{
  %c0 = arith.constant 0 : index
  %x = memref.load %a{count - 1}[%c0] : memref<1xf32>
  memref.store %x, %out[%c0] : memref<1xf32>
  return
}}
"""
    one = TensorSpec((1,), "f32")
    artifact = Artifact("main", (compile_object(text),), tuple(Argument(i, one) for i in range(count)), (one,))
    assert LoadedProgram(artifact)([torch.tensor([float(i)]) for i in range(count)])[0] == count - 1


def test_a_thousand_runs_do_not_grow_the_process(add: LoadedProgram) -> None:
    x, y = torch.ones(3, 4), torch.tensor(1.0)
    for _ in range(200):
        add([x, y])
    # What leaks does so each time; now and then the kernel makes a huge page of pages, most of which nobody uses.
    grown = []
    for _ in range(3):
        before = _resident_kib()
        for _ in range(1000):
            result = add([x, y])
        grown.append(_resident_kib() - before)
    assert math.isclose(float(result[0][0, 0]), math.tanh(1) + 1, rel_tol=1e-6)
    assert min(grown) < 1024


def _resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize(("repeats", "seconds", "rounds"), [(0, 0.0, 10), (0, 0.15, 3), (7, 0.05, 7)])
def test_slow_programs_are_timed_less_often_unless_a_number_is_given(
    repeats: int, seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "ENOUGH_SECONDS", 0.2)
    calls = [lambda: measure.time_call(lambda: time.sleep(seconds))[1]]
    found = measure.time_interleaved(calls, repeats, lambda _what, _done: None)
    assert [len(side) for side in found] == [rounds]
