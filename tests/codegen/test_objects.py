"""Objects made in processes beside this one: the same bytes, and all of them whatever becomes of those processes."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from buddy.compiler.codegen.objects import ObjectCrash, compile_objects, workers
from buddy.compiler.codegen.objects.workers import ObjectWorker
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.support import disk_cache

# Sums of a vector's first elements: modules of different sizes.
_MODULE = """
llvm.func @sum(%source: !llvm.ptr, %target: !llvm.ptr) {{
  %x0 = llvm.load %source : !llvm.ptr -> f32
  {body}
  llvm.call @further(%target) : (!llvm.ptr) -> ()
  llvm.store %x{last}, %target : f32, !llvm.ptr
  llvm.return
}}
llvm.func @further(!llvm.ptr)
"""


def bytecode(terms: int) -> bytes:
    steps = (
        f"%p{i} = llvm.getelementptr %source[{i}] : (!llvm.ptr) -> !llvm.ptr, f32\n"
        f"%v{i} = llvm.load %p{i} : !llvm.ptr -> f32\n"
        f"%x{i} = llvm.fadd %x{i - 1}, %v{i} : f32"
        for i in range(1, terms + 1)
    )
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(_MODULE.format(body="\n".join(steps), last=terms))
        written = io.BytesIO()
        module.operation.write_bytecode(written)
    return written.getvalue()


MODULES = [bytecode(terms) for terms in (1, 5, 2, 9, 3, 7)]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ObjectWorker]]:
    """Two processes beside this one, which no other test sees."""
    found: list[ObjectWorker] = []
    monkeypatch.setattr(workers, "_workers", found)
    monkeypatch.setattr(workers, "_crashed", {})
    monkeypatch.setattr(workers, "cores", lambda: 3)
    workers.start_workers()
    yield found
    for worker in found:
        worker.end()


@pytest.fixture(scope="module")
def alone() -> list[bytes]:
    return [image for module in MODULES for image in images([module])]


def images(modules: list[bytes]) -> list[bytes]:
    made = compile_objects(modules, 2)
    assert all(found.seconds > 0 for found in made)
    return [found.data for found in made]


def test_the_bytes_do_not_tell_who_made_them(beside: list[ObjectWorker], alone: list[bytes]) -> None:
    assert len(beside) == 2
    assert images(MODULES) == alone
    assert len(workers.running_workers()) == 2


def test_a_process_has_a_part_in_it(
    beside: list[ObjectWorker], alone: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []
    answers = ObjectWorker.take_answers
    monkeypatch.setattr(ObjectWorker, "take_answers", lambda self: answered.extend(found := answers(self)) or found)
    assert images(MODULES * 3) == alone * 3
    assert answered


def end_when_asked(monkeypatch: pytest.MonkeyPatch, by: signal.Signals) -> None:
    """Ends each process by a signal when it gets its first module."""
    ask = ObjectWorker.ask

    def ask_and_end(worker: ObjectWorker, number: int, level: int, path: str) -> bool:
        os.kill(worker.pid, signal.SIGSTOP)
        taken = ask(worker, number, level, path)
        os.kill(worker.pid, by)
        os.kill(worker.pid, signal.SIGCONT)
        return taken

    monkeypatch.setattr(ObjectWorker, "ask", ask_and_end)


@pytest.mark.parametrize("when", ["before", "while it is at work"])
def test_what_a_process_does_not_live_to_do_is_done_here(
    beside: list[ObjectWorker], alone: list[bytes], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "before":
        for worker in beside:
            os.kill(worker.pid, signal.SIGKILL)
    else:
        end_when_asked(monkeypatch, signal.SIGKILL)
    assert images(MODULES) == alone
    assert not workers.running_workers()


@pytest.mark.parametrize("modules", [MODULES[:1], MODULES, MODULES * 3], ids=len)
def test_a_module_that_a_process_crashed_on_is_not_compiled_here(
    beside: list[ObjectWorker], alone: list[bytes], modules: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        end_when_asked(patch, signal.SIGABRT)
        with pytest.raises(ObjectCrash, match=r"@sum .*SIGABRT"):
            compile_objects(modules, 2)
    (crashed,) = [module for module in MODULES if workers._identity(module, 2) in workers._crashed]
    monkeypatch.setattr(workers, "emit_object", lambda *_: pytest.fail("this process compiles"))
    with pytest.raises(ObjectCrash, match=r"@sum .*SIGABRT"):
        compile_objects([crashed], 2)
    others = [module for module in MODULES if module != crashed]
    assert images(others) == [alone[MODULES.index(module)] for module in others]


def test_a_graph_that_llvm_crashes_on_runs_in_eager_with_one_warning(
    beside: list[ObjectWorker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    end_when_asked(monkeypatch, signal.SIGABRT)
    monkeypatch.setattr(workers, "emit_object", lambda *_: pytest.fail("this process compiles"))
    x = torch.linspace(-1, 1, 12)
    with pytest.warns(UserWarning, match=r"runs in eager: LLVM crashed .*SIGABRT.* machine code of @") as told:
        found = torch.compile(lambda x: (x * 3).sin() + 1, backend="buddy")(x)
    assert len(told) == 1
    torch.testing.assert_close(found, (x * 3).sin() + 1)


def test_a_module_that_llvm_refuses_is_an_error_and_leaves_no_question_open(beside: list[ObjectWorker]) -> None:
    with ir.Context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        written = io.BytesIO()
        module = ir.Module.parse('llvm.func @f() { "nobodys.op"() : () -> () \n llvm.return }')
        module.operation.write_bytecode(written)
    with pytest.raises((ir.MLIRError, RuntimeError)):
        compile_objects([*MODULES, written.getvalue()], 2)
    assert all(not worker.pending for worker in beside)


def test_two_threads_do_not_take_each_others_answers(beside: list[ObjectWorker], alone: list[bytes]) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(images, [MODULES * 3, [*MODULES, *MODULES[::-1]] * 2]))
    assert found == [alone * 3, [*alone, *alone[::-1]] * 2]
    assert [worker.in_use_lock.locked() for worker in beside] == [False, False]


def test_a_fork_knows_no_processes(beside: list[ObjectWorker]) -> None:
    child = os.fork()
    if not child:
        os._exit(len(workers.running_workers()))
    assert os.waitpid(child, 0)[1] == 0
    assert len(workers.running_workers()) == 2
