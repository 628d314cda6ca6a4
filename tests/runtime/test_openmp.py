"""Threads of compiled code: on torch's own runtime and no other, in forked children, and without any runtime."""

from __future__ import annotations

import threading

import msgspec
import pytest
import torch

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import LoadedProgram, executable, run_and_compare
from buddy.compiler.runtime.compare import compare
from buddy.compiler.runtime.linker import SEQUENTIAL, find_fork, torch_fork
from tests.conftest import RunPython
from tests.programs import Line

# A program with products, rows and element-wise work, large enough for its loops to be shared.
PROGRAM = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256)).eval()

x = torch.randn(128, 256)
"""


def shared(threads: int) -> Recipe:
    return msgspec.structs.replace(default_recipe(), threads=threads)


def line() -> Line:
    space: dict[str, object] = {}
    exec(PROGRAM, space)
    return Line(space["model"](), space["x"])  # type: ignore[operator,arg-type]


def test_the_same_bits_come_out_on_any_number_of_threads() -> None:
    program = line()
    artifacts = [program.compile(shared(threads)).artifact for threads in (1, 2, 3, 16)]
    assert [artifact.threads for artifact in artifacts] == [1, 2, 3, 16]
    results = [LoadedProgram(artifact)(program.program.tensors)[0] for artifact in artifacts]
    assert all(torch.equal(results[0], other) for other in results[1:])
    torch.testing.assert_close(results[0], program.program.eager(program.program.tensors)[0])


ODD = {
    "rows of a softmax": (lambda x: torch.softmax(x, -1), (131, 257)),
    "one row": (lambda x: torch.nn.functional.gelu(x), (1, 100_003)),
    "one column": (lambda x: (x * x + 1).sum(0), (100_003, 1)),
    "columns": (lambda x: x.amax(0), (513, 259)),
    "a transpose": (lambda x: (x.t() + 1).contiguous(), (301, 257)),
    "a product": (lambda x: x @ x.t(), (129, 257)),
    "a product of few rows": (lambda x: x[:3] @ x.t(), (1031, 129)),
    "batches": (lambda x: x.view(3, 43, 129) @ x.view(3, 129, 43), (129, 129)),
    "fewer planes than threads": (
        lambda x: torch.nn.functional.conv2d(x.view(1, 1, 129, 129), torch.ones(2, 1, 3, 3)),
        (129, 129),
    ),
    "nothing": (lambda x: x[:0] + 1, (129, 257)),
}


@pytest.mark.parametrize("what", ODD)
def test_sizes_that_do_not_divide_evenly_give_the_same_bits_too(what: str) -> None:
    function, shape = ODD[what]
    torch.manual_seed(0)
    program = Line(function, torch.randn(shape))
    results = [LoadedProgram(program.compile(shared(t)).artifact)(program.program.tensors)[0] for t in (1, 2, 3, 64)]
    assert all(torch.equal(results[0], other) for other in results[1:])
    # `compare`'s tolerance: a sum's error grows with its addends, however small it comes out.
    assert compare(what, results[0], program.program.eager(program.program.tensors)[0]).verdict == "ok"


def test_without_a_runtime_one_thread_does_it_all_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_fork(lambda name: 0) is None
    program = line()
    artifact = program.compile(shared(2)).artifact
    monkeypatch.setattr(executable, "torch_fork", lambda: SEQUENTIAL)
    assert LoadedProgram(artifact).threads == 1
    report = run_and_compare(
        program.program, artifact, repeats=1, threads=2, nodes=NodeCounts(4, 0), compile_seconds=0.0
    )
    assert report.ok
    assert report.compiled.threads == 1
    assert report.notes == ("compiled code runs on one thread, not 2: torch has not loaded a supported OpenMP runtime",)


def test_torch_has_a_runtime_here() -> None:
    assert torch_fork().is_parallel
    assert "omp" in torch_fork().library


def test_several_python_threads_may_call_one_program() -> None:
    """Each call works in memory of its own."""
    program = line()
    compiled = LoadedProgram(program.compile(shared(2)).artifact)
    assert compiled.arena_bytes > 0
    inputs = [[torch.randn_like(t) if t.shape == (128, 256) else t for t in program.program.tensors] for _ in range(4)]
    expected = [compiled(tensors)[0] for tensors in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(30):
            if not torch.equal(compiled(inputs[number])[0], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


_RUN = """
import msgspec
from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram

with torch.no_grad():
    (graph,) = capture(model(), (x,))
artifact = Compiler(graph.graph).compile(msgspec.structs.replace(default_recipe(), threads=2)).artifact
assert artifact.threads == 2
"""

_MAPPED = """
program = LoadedProgram(artifact)
torch.set_num_threads(2)
for _ in range(3):
    program(graph.tensors), graph.eager(graph.tensors)
import re
print(sorted({line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib[^/]*omp[^/]*$", line)}))
"""

_FORKED = """
import os, signal
torch.set_num_threads(1)
graph.eager(graph.tensors)
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(240)
        torch.set_num_threads(2)
        program = LoadedProgram(artifact)
        result = program(graph.tensors)[0]
        torch.testing.assert_close(result, graph.eager(graph.tensors)[0])
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print("done")
"""


def test_one_openmp_runtime_is_in_the_process(run_python: RunPython) -> None:
    finished = run_python("-c", PROGRAM + _RUN + _MAPPED)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("omp") == 1, finished.stdout
    assert torch_fork().library in finished.stdout


def test_children_of_a_process_that_kept_to_one_thread_may_use_more(run_python: RunPython) -> None:
    finished = run_python("-c", "import torch\ntorch.set_num_threads(1)\n" + PROGRAM + _RUN + _FORKED)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "done"
