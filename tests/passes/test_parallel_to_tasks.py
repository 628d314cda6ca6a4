"""`parallel-to-tasks` and `convert-tasks-to-llvm`: what becomes of shared loops, in the IR and in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from buddy.compiler.codegen import functions
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.parallel_to_tasks import ParallelToTasks
from buddy.compiler.passes.pass_runner import run_pass
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime.executable import call_block_function
from buddy.compiler.runtime.linker import SEQUENTIAL, ForkDefinition, Library, torch_fork
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled

_FIRST = "parallel-to-tasks"


class Shared:
    """A module whose function `@f` takes memrefs; loops in it are shared by `threads` threads.

    It is compiled as the default preset does it, from this pass on.
    """

    def __init__(self, text: str, threads: int, nodes: Sequence[str] = ()) -> None:
        steps = [step for step in default_recipe().steps if step.enabled]
        steps = steps[[step.name for step in steps].index(_FIRST) :]
        self.locations = LocationSets()
        for node in nodes:
            self.locations.intern([node])
        self.texts: dict[str, str] = {}
        context = ir.Context()
        context.enable_multithreading(False)
        with context, self.locations.unmapped_location(context):
            self.module = ir.Module.parse(text)
            pass_context = PassContext(self.locations, threads=threads)
            for step in steps:
                run_pass(self.module.operation, step, pass_context)
                self.texts[step.name] = str(self.module)
        self.remarks = [remark.text for remark in pass_context.remarks if remark.pass_name == _FIRST]
        self._linked: dict[int, Library] = {}

    def __call__(self, *tensors: torch.Tensor, fork: ForkDefinition | None = None) -> None:
        """Call `@f` on `tensors`, which it may write to."""
        found = fork or torch_fork()
        if id(found) not in self._linked:
            with self.module.context:
                objects = functions.compile_functions(self.module.operation, self.locations, 3)
            images = [each.data for each in objects]
            self._linked[id(found)] = Library(images, {"f": len(tensors)}, found.symbols, found.ir)
        call_block_function(self._linked[id(found)]["f"], tensors)


# out[number of the iteration] += x[...] * s, over any bounds and steps of two dims.
NEST = """
func.func @f(%x: memref<1024xf32>, %scale: memref<f32>, %out: memref<1024xf32>) {{
  %s = memref.load %scale[] : memref<f32>
  %l0 = arith.constant {0} : index
  %u0 = arith.constant {1} : index
  %s0 = arith.constant {2} : index
  %l1 = arith.constant {3} : index
  %u1 = arith.constant {4} : index
  %s1 = arith.constant {5} : index
  %c32 = arith.constant 32 : index
  scf.parallel (%i, %j) = (%l0, %l1) to (%u0, %u1) step (%s0, %s1) {{
    %row = arith.muli %i, %c32 : index
    %at = arith.addi %row, %j : index
    %a = memref.load %x[%at] : memref<1024xf32>
    %b = memref.load %out[%at] : memref<1024xf32>
    %c = arith.mulf %a, %s : f32
    %d = arith.addf %b, %c : f32
    memref.store %d, %out[%at] : memref<1024xf32>
    scf.reduce
  }}
  return
}}
"""


SMALL_NEST = NEST.format(0, 3, 1, 2, 10, 2)
BOUNDS_OF_EIGHT = """
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index"""


def shared_loop(counter: str, body: str, end: str = "%c8") -> str:
    return f"""
      scf.parallel ({counter}) = (%c0) to ({end}) step (%c1) {{
        {body}
        scf.reduce
      }}"""


# out[8 i + j] = 1 for each j.
ROW_OF_ONES = shared_loop(
    "%j",
    """%r = arith.muli %i, %c8 : index
        %at = arith.addi %r, %j : index
        memref.store %one, %out[%at] : memref<64xf32>""",
)


def expected(x: torch.Tensor, scale: float, bounds: tuple[int, ...]) -> torch.Tensor:
    out = torch.zeros(32, 32)
    rows, columns = slice(*bounds[:3]), slice(*bounds[3:])
    out[rows, columns] = x.view(32, 32)[rows, columns] * scale
    return out.view(-1)


def test_the_body_becomes_a_function_of_a_run_of_iterations() -> None:
    filecheck(
        Shared(SMALL_NEST, 2).texts["parallel-to-tasks"],
        """
        CHECK:      func.func private @f_task(%[[BEGIN:.*]]: index, %[[END:.*]]: index,
        CHECK-SAME:   %[[X:.*]]: memref<1024xf32>, %[[OUT:.*]]: memref<1024xf32>, %[[S:.*]]: f32)
        CHECK-SAME:   attributes {buddy.threads = 2 : i64}
        CHECK:        scf.for %[[N:.*]] = %[[BEGIN]] to %[[END]] step %c1
        CHECK:          arith.remui %[[N]], %c4
        CHECK:          arith.divui %[[N]], %c4
        CHECK:          memref.load %[[X]]
        CHECK:          arith.mulf %{{.*}}, %[[S]]
        CHECK:          memref.store %{{.*}}, %[[OUT]]
        CHECK:      func.func @f(%[[A:.*]]: memref<1024xf32>, %{{.*}}: memref<f32>, %[[B:.*]]: memref<1024xf32>)
        CHECK-NOT:    scf.
        CHECK:        call @f_task(%c0{{.*}}, %c12{{.*}}, %[[A]], %[[B]], %{{.*}})
        """,
    )


def test_a_task_asks_for_its_share_and_callers_fork() -> None:
    filecheck(
        Shared(SMALL_NEST, 2).texts["convert-tasks-to-llvm"],
        """
        CHECK:      llvm.func @f_task(%[[DATA:.*]]: !llvm.ptr, %[[THREAD:.*]]: i32, %[[THREADS:.*]]: i32)
        CHECK:        llvm.getelementptr %[[DATA]][0, 4]
        CHECK:        llvm.zext %[[THREAD]]
        CHECK:        llvm.udiv
        CHECK:      llvm.func @f(
        CHECK:        llvm.alloca
        CHECK:        %[[TASK:.*]] = llvm.mlir.addressof @f_task
        CHECK:        %[[COUNT:.*]] = llvm.mlir.constant(2 : i32)
        CHECK:        llvm.call @buddy_fork(%[[TASK]], %{{.*}}, %[[COUNT]])
        CHECK:      llvm.func @buddy_fork(!llvm.ptr, !llvm.ptr, i32)
        """,
    )


def test_on_one_thread_loops_stay_loops() -> None:
    shared = Shared(SMALL_NEST, 1)
    assert "scf.parallel" in shared.texts["parallel-to-tasks"]
    assert "buddy_fork" not in shared.texts["convert-tasks-to-llvm"]
    assert shared.remarks == []


BOUNDS = [
    (0, 1, 1, 0, 1, 1),
    (0, 1, 1, 5, 7, 1),
    (0, 32, 1, 0, 32, 1),
    (3, 30, 4, 1, 32, 5),
    (0, 0, 1, 0, 32, 1),
    (31, 32, 7, 0, 3, 1),
]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_each_iteration_runs_once_whatever_the_number_of_threads(bounds: tuple[int, ...], threads: int) -> None:
    shared, x = Shared(NEST.format(*bounds), threads), torch.randn(1024)
    for fork in (torch_fork(), SEQUENTIAL):
        out = torch.zeros(1024)
        shared(x, torch.tensor(3.0), out, fork=fork)
        assert torch.equal(out, expected(x, 3.0, bounds))


def test_a_task_gets_the_base_of_a_view_and_its_dynamic_numbers() -> None:
    view = "memref<?x8xf32, strided<[?, 2], offset: ?>>"
    loop = shared_loop(
        "%i",
        f"""%count = memref.dim %view, %c0 : {view}
        %last = arith.subi %count, %c1 : index
        %a = memref.load %view[%last, %i] : {view}
        memref.store %a, %out[%i] : memref<8xf32>""",
    )
    text = f"""
    func.func @f(%x: memref<1024xf32>, %numbers: memref<3xindex>, %out: memref<8xf32>) {{{BOUNDS_OF_EIGHT}
      %c2 = arith.constant 2 : index
      %at = memref.load %numbers[%c0] : memref<3xindex>
      %rows = memref.load %numbers[%c1] : memref<3xindex>
      %stride = memref.load %numbers[%c2] : memref<3xindex>
      %view = memref.reinterpret_cast %x to offset: [%at], sizes: [%rows, 8], strides: [%stride, 2]
        : memref<1024xf32> to {view}
      {loop}
      return
    }}"""
    shared, x, out = Shared(text, 2), torch.arange(1024.0), torch.zeros(8)
    filecheck(
        shared.texts["parallel-to-tasks"],
        """
        CHECK:      func.func private @f_task(
        CHECK-SAME:   %[[BASE:[^ ]+]]: memref<f32>, %[[OFFSET:[^ ]+]]: index, %[[ROWS:[^ ]+]]: index,
        CHECK-SAME:   %[[STRIDE:[^ ]+]]: index, %{{[^ ]+}}: memref<8xf32>)
        CHECK:        memref.reinterpret_cast %[[BASE]] to offset: [%[[OFFSET]]], sizes: [%[[ROWS]], 8]
        CHECK-SAME:     strides: [%[[STRIDE]], 2]
        """,
    )
    shared(x, torch.tensor([5, 3, 100]), out, fork=torch_fork())
    assert torch.equal(out, x[205:221:2])


def test_scratch_memory_in_the_body_is_each_threads_own() -> None:
    """Each iteration fills 4096 numbers with its own and adds them up: with shared memory, threads would meet there."""
    text = """
    func.func @f(%out: memref<64xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %c4096 = arith.constant 4096 : index
      %zero = arith.constant 0.0 : f32
      scf.parallel (%i) = (%c0) to (%c64) step (%c1) {
        %scratch = memref.alloc() : memref<4096xf32>
        %number = arith.index_cast %i : index to i32
        %value = arith.sitofp %number : i32 to f32
        scf.for %j = %c0 to %c4096 step %c1 {
          memref.store %value, %scratch[%j] : memref<4096xf32>
        }
        %sum = scf.for %j = %c0 to %c4096 step %c1 iter_args(%s = %zero) -> f32 {
          %a = memref.load %scratch[%j] : memref<4096xf32>
          %t = arith.addf %s, %a : f32
          scf.yield %t : f32
        }
        memref.store %sum, %out[%i] : memref<64xf32>
        scf.reduce
      }
      return
    }"""
    shared = Shared(text, 2)
    filecheck(
        shared.texts["plan-memory"],
        """
        CHECK: @f_task({{.*}}memref<64xf32>, %[[ARENA:.*]]: memref<32768xi8>)
        CHECK-SAME: buddy.slot = 16384 : i64
        CHECK-NOT: memref.alloc
        CHECK: memref.view %[[ARENA]]
        CHECK: func.func @f
        """,
    )
    for _ in range(50):
        out = torch.full((64,), -1.0)
        shared(out)
        assert torch.equal(out, torch.arange(64) * 4096.0)


def test_what_an_op_comes_from_moves_with_it() -> None:
    text = """
    func.func @f(%out: memref<8xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      scf.parallel (%i) = (%c0) to (%c8) step (%c1) {
        %a = memref.load %out[%i] : memref<8xf32> loc("graph":1:0)
        %b = arith.addf %a, %a : f32 loc("graph":2:0)
        memref.store %b, %out[%i] : memref<8xf32> loc("graph":2:0)
        scf.reduce loc("graph":2:0)
      } loc("graph":2:0)
      return loc("graph":2:0)
    } loc("graph":2:0)"""
    shared = Shared(text, 2, nodes=["first", "second"])
    with shared.module.context:
        found = shared.module.operation.get_asm(enable_debug_info=True, print_generic_op_form=False)
    task = found[found.index("llvm.func @f_task") : found.index("llvm.func @f(")]
    assert found.count('"graph":1:0') == 1
    first = found.split('"graph":1:0')[0].rsplit("#loc", 1)[1].split(" ")[0]
    assert f"loc(#loc{first})" in task.split("llvm.load")[-1].splitlines()[0]


REFUSED = [
    (
        "%x: memref<8xf32, affine_map<(d0) -> (d0 floordiv 2)>>, %out: memref<8xf32>",
        "%a = memref.load %x[%i] : memref<8xf32, affine_map<(d0) -> (d0 floordiv 2)>>",
        "which has no strides",
    ),
    ("%n: index, %out: memref<8xf32>", "%a = memref.load %out[%i] : memref<8xf32>", "its bounds are dynamic"),
    ("%v: vector<8xf32>, %out: memref<8xf32>", "%a = vector.extract %v[%i] : f32 from vector<8xf32>", "from outside"),
]


@pytest.mark.parametrize(("arguments", "line", "reason"), REFUSED)
def test_a_loop_that_no_task_can_do_stays_and_says_why(arguments: str, line: str, reason: str) -> None:
    loop = shared_loop("%i", f"{line}\nmemref.store %a, %out[%i] : memref<8xf32>", "%n" if "%n" in arguments else "%c8")
    text = f"""
    func.func @f({arguments}) {{{BOUNDS_OF_EIGHT}{loop}
      return
    }}"""
    compiled = Compiled(text, [ParallelToTasks(threads=2)])
    assert "scf.parallel" in compiled.text
    assert "_task" not in compiled.text
    (remark,) = compiled.remarks
    assert reason in remark


def test_iterations_that_are_summed_up_stay_on_one_thread() -> None:
    text = f"""
    func.func @f(%x: memref<8xf32>, %out: memref<f32>) {{{BOUNDS_OF_EIGHT}
      %zero = arith.constant 0.0 : f32
      %sum = scf.parallel (%i) = (%c0) to (%c8) step (%c1) init (%zero) -> f32 {{
        %a = memref.load %x[%i] : memref<8xf32>
        scf.reduce(%a : f32) {{
          ^bb0(%l: f32, %r: f32):
            %s = arith.addf %l, %r : f32
            scf.reduce.return %s : f32
        }}
      }}
      memref.store %sum, %out[] : memref<f32>
      return
    }}"""
    shared, x, out = Shared(text, 2), torch.randn(8), torch.zeros(())
    assert shared.remarks == ["a loop stays on one thread: it has a reduction"]
    shared(x, out)
    torch.testing.assert_close(out, x.sum())


def test_a_loop_in_a_shared_loop_is_not_shared_again() -> None:
    text = f"""
    func.func @f(%out: memref<64xf32>) {{{BOUNDS_OF_EIGHT}
      %one = arith.constant 1.0 : f32
      {shared_loop("%i", ROW_OF_ONES)}
      return
    }}"""
    shared, out = Shared(text, 2), torch.zeros(64)
    assert shared.remarks == ["8 iterations shared by 2 threads"]
    assert shared.texts["parallel-to-tasks"].count("scf.parallel") == 1
    shared(out)
    assert torch.equal(out, torch.ones(64))


def test_a_function_that_a_shared_loop_calls_shares_no_loop_of_its_own() -> None:
    """Threads that are all at work have nobody to share with, and would need scratch memory for threads of threads."""
    call_between = "func.call @between(%out, %i) : (memref<64xf32>, index) -> ()"
    text = f"""
    func.func private @inner(%out: memref<64xf32>, %i: index) {{{BOUNDS_OF_EIGHT}
      %one = arith.constant 1.0 : f32
      {ROW_OF_ONES}
      return
    }}
    func.func private @between(%out: memref<64xf32>, %i: index) {{
      call @inner(%out, %i) : (memref<64xf32>, index) -> ()
      return
    }}
    func.func @f(%out: memref<64xf32>) {{{BOUNDS_OF_EIGHT}
      {shared_loop("%i", call_between)}
      return
    }}"""
    shared, out = Shared(text, 2), torch.zeros(64)
    assert shared.remarks == [
        "a loop stays on one thread: its function is called in a parallel loop",
        "8 iterations shared by 2 threads",
    ]
    shared(out)
    assert torch.equal(out, torch.ones(64))
