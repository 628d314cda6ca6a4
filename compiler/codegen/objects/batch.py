"""Compiles a batch of modules, the largest first, in the free workers and in this process."""

from __future__ import annotations

import hashlib
import selectors
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.codegen.objects import workers
from buddy.compiler.codegen.objects.emit import defined_function, emit_object, new_context
from buddy.compiler.codegen.objects.workers import ObjectWorker
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.lifetime import describe_exit

# Workers are started for a batch of at least this many modules: to start one takes as long as about ten modules.
_MIN_MODULES_FOR_WORKERS = 16
# The number of requests that a worker has at once: it gets its next module in advance, since this process may be busy.
_REQUESTS_PER_WORKER = 2
# A function takes about 0.1 s. A worker without output for this long hangs, and its modules are compiled elsewhere.
_HANG_SECONDS = 60.0
# The signals of a process that ends by its own fault, which the module may cause, so this process must not compile it.
# Other ends are not crashes: the system sends SIGKILL, and an idle worker exits with 0.
_CRASH_SIGNALS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
# The maximum time between the end of a worker's output and its exit: it may write a core file.
_EXIT_SECONDS = 10.0


class ObjectCrash(BuddyError):
    """LLVM ended the worker that compiled `function`; `how` describes the end, such as its signal."""

    def __init__(self, function: str, how: str) -> None:
        super().__init__(f"LLVM ended its process while it compiled @{function} ({how})")
        self.function, self.how = function, how


class CompiledObject(NamedTuple):
    """An object, and the seconds that it took to compile."""

    data: bytes
    seconds: float


def compile_objects(modules: Sequence[bytes], opt_level: int) -> list[CompiledObject]:
    """Returns the object of each module (bytecode of the LLVM dialect with one function defined), in order.

    Workers and this process compile them. Once a module has crashed a worker, this process compiles only if no worker
    runs. Raises the errors of `emit_object`, and `ObjectCrash` for a module that crashes a worker, now or before.
    """
    if not modules:
        return []
    for module in modules if _crashed else ():
        if crash := _crashed.get(_identity(module, opt_level)):
            raise ObjectCrash(crash.function, crash.how)
    if len(modules) >= _MIN_MODULES_FOR_WORKERS or _crashed:
        workers.start_workers()
    with scratch_folder("objects") as folder:
        return _Batch(modules, opt_level, Path(folder)).run()


# The crashes of workers, by the identity of the module and the optimisation level.
_crashed: dict[bytes, ObjectCrash] = {}


def _identity(module: bytes, opt_level: int) -> bytes:
    return hashlib.sha256(bytes([opt_level]) + module).digest()


class _Batch:
    """The modules of one call of `compile_objects`.

    `_waiting` has the numbers of those that nothing compiles yet, the largest first, and `_workers` the reserved
    workers that still run.
    """

    def __init__(self, modules: Sequence[bytes], opt_level: int, folder: Path) -> None:
        self._modules, self._opt_level, self._folder = modules, opt_level, folder
        self._waiting = deque(sorted(range(len(modules)), key=lambda number: -len(modules[number])))
        self._workers = workers.take_idle_workers()
        self._objects: dict[int, CompiledObject] = {}
        self._context = new_context()

    def run(self) -> list[CompiledObject]:
        reserved = list(self._workers)
        try:
            with selectors.DefaultSelector() as selector:
                for worker in self._workers:
                    selector.register(worker.pipe, selectors.EVENT_READ, worker)
                while self._waiting or any(worker.pending for worker in self._workers):
                    self._step(selector)
        finally:
            for worker in reserved:
                if worker.pending:
                    worker.discard()
                worker.in_use_lock.release()
        return [self._objects[number] for number in range(len(self._modules))]

    def _step(self, selector: selectors.BaseSelector) -> None:
        """Sends requests to workers, compiles one module in this process, and reads the answers that have arrived.

        If this process has nothing to compile, waits for answers, and ends all workers if none comes in time.
        """
        for worker in self._workers:
            while self._waiting and len(worker.pending) < _REQUESTS_PER_WORKER and self._request(worker):
                pass
        # Once a module has crashed a worker, this process compiles nothing while workers run.
        only_waits = not self._waiting or bool(_crashed and self._workers)
        if not only_waits:
            number = self._waiting.popleft()
            seconds = emit_object(self._modules[number], self._opt_level, self._path(number), self._context)
            self._read_object(number, seconds)
        ready = selector.select(_HANG_SECONDS if only_waits else 0) if self._workers else []
        for key, _ in ready:
            self._read_answers(key.data, selector)
        if only_waits and not ready:
            for worker in list(self._workers):
                self._discard(worker, selector, 0.0)

    def _request(self, worker: ObjectWorker) -> bool:
        """Sends the next module to `worker`; returns `False` if its process has ended."""
        number = self._waiting[0]
        path = self._path(number).with_suffix("")
        path.write_bytes(self._modules[number])
        if not worker.ask(number, self._opt_level, str(path)):
            return False
        self._waiting.popleft()
        return True

    def _read_answers(self, worker: ObjectWorker, selector: selectors.BaseSelector) -> None:
        try:
            for number, seconds in worker.take_answers():
                self._read_object(number, seconds)
        except OSError:
            self._discard(worker, selector, _EXIT_SECONDS)

    def _discard(self, worker: ObjectWorker, selector: selectors.BaseSelector, patience: float) -> None:
        """Ends `worker`, whose modules others will compile. Raises `ObjectCrash` if a module crashed it.

        Waits up to `patience` seconds for it to exit by itself.
        """
        selector.unregister(worker.pipe)
        self._workers.remove(worker)
        pending = worker.pending
        status = worker.discard(patience)
        if pending and -status in _CRASH_SIGNALS:
            module = self._modules[pending[0]]  # a worker compiles its modules in order
            crash = ObjectCrash(defined_function(module, self._context), describe_exit(status))
            _crashed[_identity(module, self._opt_level)] = crash
            raise crash
        self._waiting.extendleft(pending)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.o"

    def _read_object(self, number: int, seconds: float) -> None:
        self._objects[number] = CompiledObject(self._path(number).read_bytes(), seconds)
