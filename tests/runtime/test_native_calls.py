"""Calls of compiled code by the native function: what it takes itself, what it passes to Python, threads, errors."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import BuiltinFunctionType

import pytest
import torch

from buddy.compiler.protocol.artifact import Argument, Artifact, EagerCall, TensorSpec
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.buffers import MIN_POOLED_BYTES
from buddy.compiler.runtime.native_calls import native_call_problem, native_function_address
from tests.runtime.objects import compile_object

pytestmark = pytest.mark.skipif(
    not native_function_address(), reason=f"calls go through Python: {native_call_problem()}"
)


def _double(type_: str, add: str = "arith.addf") -> str:
    return f"""
func.func @main(%a: memref<3x4x{type_}>, %out: memref<3x4x{type_}>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c0 to %c3 step %c1 {{
    scf.for %j = %c0 to %c4 step %c1 {{
      %x = memref.load %a[%i, %j] : memref<3x4x{type_}>
      %y = {add} %x, %x : {type_}
      memref.store %y, %out[%i, %j] : memref<3x4x{type_}>
    }}
  }}
  return
}}
"""


def _program(type_: str = "f32", add: str = "arith.addf", streamed: bool = False) -> LoadedProgram:
    spec = TensorSpec((3, 4), type_)
    objects = (compile_object(_double(type_, add)),)
    return LoadedProgram(Artifact("main", objects, (Argument(0, spec, streamed=streamed),), (spec,)))


@pytest.fixture(scope="module")
def double() -> LoadedProgram:
    return _program()


def _asked(program: LoadedProgram, tensor: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The result of a native call, and the tensors that the native function passed to Python."""
    assert program._native is not None
    (argument,) = program._native._arguments
    asked: list[torch.Tensor] = []

    def take(source: torch.Tensor) -> torch.Tensor:
        asked.append(source)
        return argument.take(source)

    program._native._arguments = [type(argument)(argument.source, argument.shape, argument.dtype, argument.use, take)]
    try:
        function = program.native_function((0,), lambda error, _: pytest.fail(str(error)))
    finally:
        program._native._arguments = [argument]
    assert isinstance(function, BuiltinFunctionType)
    (result,) = function(tensor)
    return result, asked


def _inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.nn.Parameter(torch.randn(3, 4)),
        torch.randn(3, 4, requires_grad=True) * 1,
        torch.randn(5, 4)[2:],
        _inference_tensor(),
    ],
    ids=["plain", "parameter", "with gradient", "view", "inference"],
)
def test_dense_tensors_are_not_passed_to_python(double: LoadedProgram, tensor: torch.Tensor) -> None:
    result, asked = _asked(double, tensor)
    assert not asked
    assert type(result) is torch.Tensor
    assert not result.requires_grad
    torch.testing.assert_close(result, tensor.detach() * 2, rtol=0, atol=0)


class _Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3).t(),
        torch.randn(3, 8)[:, ::2],
        torch.randn(3, 1).expand(3, 4),
        torch.randn(3, 4, dtype=torch.complex64).conj().imag,
        torch.randn(3, 4).as_subclass(_Subclass),
    ],
    ids=["transposed", "strided", "expanded", "negated", "subclass"],
)
def test_other_tensors_are_passed_to_python(double: LoadedProgram, tensor: torch.Tensor) -> None:
    result, asked = _asked(double, tensor)
    assert len(asked) == 1
    assert asked[0] is tensor
    torch.testing.assert_close(torch.Tensor(result), (tensor * 2).as_subclass(torch.Tensor), rtol=0, atol=0)


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(4, 3), torch.randn(3, 5), torch.randn(12), torch.randn(3, 4, 1), torch.randn(3, 4).double()],
    ids=["transposed shape", "shape", "rank 1", "rank 3", "dtype"],
)
def test_another_form_is_refused(double: LoadedProgram, tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="compiled for 3x4xf32"):
        double([tensor])


def test_what_is_no_tensor_is_refused(double: LoadedProgram) -> None:
    assert double._call is not None
    for value in (None, 3, "text", [torch.randn(3, 4)]):
        with pytest.raises(AttributeError):
            double._call(value)
    with pytest.raises(TypeError, match="more inputs"):
        double._call()


@pytest.mark.parametrize(("type_", "dtype"), [("i32", torch.int32), ("i64", torch.int64), ("i8", torch.int8)])
def test_element_types(type_: str, dtype: torch.dtype) -> None:
    values = torch.arange(12, dtype=dtype).reshape(3, 4)
    result, asked = _asked(_program(type_, "arith.addi"), values)
    assert not asked
    assert torch.equal(result, values * 2)


def test_a_streamed_weight_is_passed_to_python_only_at_a_new_address() -> None:
    program, weight = _program(streamed=True), torch.randn(3, 4)
    assert program._native is not None
    function = program.native_function((0,), lambda error, _: pytest.fail(str(error)))
    assert function is not None
    moved = program._arguments[0]._moved  # type: ignore[union-attr]
    for tensor in (weight, weight, weight.clone(), weight):
        torch.testing.assert_close(function(tensor)[0], tensor * 2, rtol=0, atol=0)
    assert len(moved) == 2


def test_a_call_leaves_the_reference_counts_of_its_inputs(double: LoadedProgram) -> None:
    assert double._call is not None
    dense, strided = torch.randn(3, 4), torch.randn(4, 3).t()
    before = sys.getrefcount(dense), sys.getrefcount(strided), sys.getrefcount(None)
    for _ in range(100):
        double._call(dense)
        double._call(strided)
        with pytest.raises(ValueError, match="compiled for"):
            double._call(dense[:2])
    after = sys.getrefcount(dense), sys.getrefcount(strided)
    assert after == before[:2]
    result = weakref.ref(double._call(dense)[0])
    assert result() is None


def test_a_function_keeps_its_program_and_no_cycle_does() -> None:
    program = _program()
    reference = weakref.ref(program)
    function = program.native_function((0,), lambda error, _: pytest.fail(str(error)))
    assert function is not None
    gc.disable()
    try:
        del program
        assert reference() is not None
        values = torch.randn(3, 4)
        torch.testing.assert_close(function(values)[0], values * 2, rtol=0, atol=0)
        del function
        assert reference() is None
    finally:
        gc.enable()


def test_memory_of_large_results_is_reused() -> None:
    rows = MIN_POOLED_BYTES // 4
    text = f"""
func.func @main(%a: memref<{rows}xf32>, %out: memref<{rows}xf32>) {{
  memref.copy %a, %out : memref<{rows}xf32> to memref<{rows}xf32>
  return
}}
"""
    spec = TensorSpec((rows,), "f32")
    program = LoadedProgram(Artifact("main", (compile_object(text),), (Argument(0, spec),), (spec,)))
    values = torch.randn(rows)
    (first,) = program([values])
    address = first.data_ptr()
    assert torch.equal(first, values)
    del first
    assert program([values])[0].data_ptr() == address


_WAIT = """
func.func private @eager_0(memref<4xf32>, memref<4xf32>)
func.func @main(%a: memref<4xf32>, %out: memref<4xf32>, %arena: memref<4xf32>) {
  memref.copy %a, %arena : memref<4xf32> to memref<4xf32>
  call @eager_0(%arena, %out) : (memref<4xf32>, memref<4xf32>) -> ()
  %c0 = arith.constant 0 : index
  %x = memref.load %arena[%c0] : memref<4xf32>
  memref.store %x, %out[%c0] : memref<4xf32>
  return
}
"""


def _program_with_arena(target: str) -> LoadedProgram:
    spec = TensorSpec((4,), "f32")
    calls = (EagerCall("eager_0", target, ({"t": 0},), {}, (spec,), (spec,)),)
    objects = (compile_object(_WAIT, externals=["eager_0"]),)
    return LoadedProgram(Artifact("main", objects, (Argument(0, spec),), (spec,), calls, arena=64))


def test_threads_that_call_at_the_same_time_have_separate_arenas() -> None:
    barrier = threading.Barrier(2, timeout=30)
    with torch.library._scoped_library("buddy_native_test", "FRAGMENT") as library:
        library.define("meet(Tensor x) -> Tensor")

        def meet(x: torch.Tensor) -> torch.Tensor:
            barrier.wait()  # both calls have written to their arenas
            return x.clone()

        library.impl("meet", meet, "CPU")
        program = _program_with_arena("buddy_native_test.meet.default")
        results: dict[int, torch.Tensor] = {}

        def run(number: int) -> None:
            for _ in range(20):
                results[number] = program([torch.full((4,), float(number))])[0]
                assert torch.equal(results[number], torch.full((4,), float(number)))

        threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(results) == [1, 2]
    assert program._arena.words[1] == 0


def test_an_error_of_an_op_in_eager_is_raised_once() -> None:
    program = _program_with_arena("linalg_inv.default")  # of a vector: refused
    values = torch.randn(4)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="at least 2 dimensions"):
            program([values])
    assert program._arena.words[1] == 0
    function = program.native_function((0,), lambda error, arguments: [str(error), *arguments])
    assert function is not None
    message, argument = function(values)
    assert "at least 2 dimensions" in str(message)
    assert argument is values


def test_other_threads_run_during_a_long_call() -> None:
    """The second call of slow code releases the interpreter lock, so that another thread counts during it."""
    rounds = 1 << 27
    text = f"""
func.func @main(%a: memref<1xf32>, %out: memref<1xf32>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant {rounds} : index
  scf.for %i = %c0 to %n step %c1 {{
    %x = memref.load %a[%c0] : memref<1xf32>
    %y = memref.load %out[%c0] : memref<1xf32>
    %s = arith.addf %x, %y : f32
    memref.store %s, %out[%c0] : memref<1xf32>
  }}
  return
}}
"""
    spec = TensorSpec((1,), "f32")
    program = LoadedProgram(Artifact("main", (compile_object(text),), (Argument(0, spec),), (spec,)))
    started, finished, count = threading.Event(), threading.Event(), 0

    def call() -> None:
        started.set()
        program([torch.zeros(1)])
        finished.set()

    thread = threading.Thread(target=call)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        started.wait(30)
        while not finished.is_set():
            count += 1
            finished.wait(0.001)
    finally:
        sys.setswitchinterval(interval)
        thread.join(60)
    assert count > 5
