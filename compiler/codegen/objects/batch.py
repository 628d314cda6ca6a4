"""Compiles many modules at once: the largest first, each in a free worker."""

from __future__ import annotations

import hashlib
import selectors
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.codegen.objects import workers
from buddy.compiler.codegen.objects.emit import emit, function_of, new_context
from buddy.compiler.codegen.objects.workers import ObjectWorker
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.lifetime import describe_exit

# Starts workers for this many modules or more: starting one takes as long as about ten modules.
MANY = 16
# A worker gets its next module in advance, since this process may be busy with its own.
DEEP = 2
# A function takes about 0.1 s; a worker without output for this long hangs, and this process does its work.
SILENT = 60.0
# The signals of a process that ends by a fault of its own. Their reason may be the module, so this process must not
# compile it. The system sends SIGKILL, and an idle worker exits with 0.
_CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
# Seconds until a process that has closed its pipe exits: writing a core file comes first.
_EXITS = 10.0


class ObjectCrash(Exception):
    """LLVM ended the worker that compiled `function`: `how`."""

    def __init__(self, function: str, how: str) -> None:
        super().__init__(f"LLVM ended its process while it compiled @{function} ({how})")
        self.function, self.how = function, how


class CompiledObject(NamedTuple):
    """An object, and the seconds that it took to compile."""

    data: bytes
    seconds: float


def objects_of(modules: Sequence[bytes], opt_level: int) -> list[CompiledObject]:
    """Returns the object of each module (bytecode of the LLVM dialect with one function defined), in order.

    This process compiles modules that the workers have no time for or raise an error on, but after a crash only if no
    worker runs. Raises what `emit` raises, and `ObjectCrash` for a module that a worker crashed on, also before.
    """
    if not modules:
        return []
    for module in modules if _crashed else ():
        if crash := _crashed.get(_identity(module, opt_level)):
            raise ObjectCrash(crash.function, crash.how)
    if len(modules) >= MANY or _crashed:
        workers.start()
    with scratch_folder("objects") as folder:
        return _Batch(modules, opt_level, Path(folder)).run()


# By module and level: what crashed.
_crashed: dict[bytes, ObjectCrash] = {}


def _identity(module: bytes, opt_level: int) -> bytes:
    return hashlib.sha256(bytes([opt_level]) + module).digest()


class _Batch:
    def __init__(self, modules: Sequence[bytes], opt_level: int, folder: Path) -> None:
        self._modules, self._level, self._folder = modules, opt_level, folder
        self._waiting = deque(sorted(range(len(modules)), key=lambda number: -len(modules[number])))
        self._workers = workers.take_idle_workers()
        self._objects: dict[int, CompiledObject] = {}
        self._context = new_context()

    def run(self) -> list[CompiledObject]:
        taken = list(self._workers)
        try:
            with selectors.DefaultSelector() as selector:
                for worker in self._workers:
                    selector.register(worker.pipe, selectors.EVENT_READ, worker)
                while self._waiting or any(worker.pending for worker in self._workers):
                    self._step(selector)
        finally:
            for worker in taken:
                if worker.pending:
                    worker.lose()
                worker.taken.release()
        return [self._objects[number] for number in range(len(self._modules))]

    def _step(self, selector: selectors.BaseSelector) -> None:
        for worker in self._workers:
            while self._waiting and len(worker.pending) < DEEP and self._hand_over(worker):
                pass
        busy = not self._waiting or bool(_crashed and self._workers)
        if not busy:
            number = self._waiting.popleft()
            seconds = emit(self._modules[number], self._level, self._path(number), self._context)
            self._take(number, seconds)
        ready = selector.select(SILENT if busy else 0) if self._workers else []
        for key, _ in ready:
            self._read(key.data, selector)
        if busy and not ready:
            for worker in list(self._workers):
                self._lose(worker, selector, 0.0)

    def _hand_over(self, worker: ObjectWorker) -> bool:
        number = self._waiting[0]
        path = self._path(number).with_suffix("")
        path.write_bytes(self._modules[number])
        if not worker.ask(number, self._level, str(path)):
            return False
        self._waiting.popleft()
        return True

    def _read(self, worker: ObjectWorker, selector: selectors.BaseSelector) -> None:
        try:
            for number, seconds in worker.answers():
                self._take(number, seconds)
        except OSError:
            self._lose(worker, selector, _EXITS)

    def _lose(self, worker: ObjectWorker, selector: selectors.BaseSelector, patience: float) -> None:
        """Ends `worker` after `patience` seconds, and reassigns its modules. Raises `ObjectCrash` if it crashed."""
        selector.unregister(worker.pipe)
        self._workers.remove(worker)
        pending = worker.pending
        status = worker.lose(patience)
        if pending and -status in _CRASHES:
            module = self._modules[pending[0]]  # it compiles them in order
            crash = ObjectCrash(function_of(module, self._context), describe_exit(status))
            _crashed[_identity(module, self._level)] = crash
            raise crash
        self._waiting.extendleft(pending)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.o"

    def _take(self, number: int, seconds: float) -> None:
        self._objects[number] = CompiledObject(self._path(number).read_bytes(), seconds)
