"""Compiles modules in the LLVM dialect to object files, in worker processes and in this process.

`emit_object` compiles one module by the bindings' optimiser and code generator. The workers are not threads, because
the bindings hold the GIL while LLVM runs. `compile_objects` distributes a batch of modules, the largest first.

A module that cannot be compiled ends its worker. The requester then compiles the module to get the error, unless a
signal such as SIGABRT ended the worker. A worker also ends after `IDLE_SECONDS` without requests, to free its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from buddy.compiler.codegen import machines
from buddy.compiler.mlir.bindings import execution_engine, ir
from buddy.compiler.mlir.walk import symbol_of
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit
from buddy.compiler.support.target import cores

# ---- one module ------------------------------------------------------------------------------------------------------


def new_context() -> ir.Context:
    """Creates an MLIR context for `emit_object`. Use it for many modules: to create one takes 5 ms."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)
    return context


def emit_object(bytecode: bytes, opt_level: int, path: Path, context: ir.Context) -> float:
    """Writes the object of the module in `bytecode`, which defines one function, to `path`.

    Returns the compile time in seconds. Raises `MLIRError` or `RuntimeError` if LLVM rejects the module; other errors
    of LLVM end the process.
    """
    start = time.perf_counter()
    with context, ir.Location.unknown():
        module = ir.Module.parse(bytecode)
        engine = execution_engine.ExecutionEngine(module, opt_level=opt_level, shared_libs=[])
    functions = [op.operation for op in module.body if op.operation.name == "llvm.func"]
    declared = [symbol_of(function) for function in functions if not function.regions[0].blocks]
    for name in (*declared, *machines.SOFT_FLOAT_NAMES):
        engine.raw_register_runtime(name, ctypes.cast(_placeholder_function(), ctypes.c_void_p))
    (defined,) = (function for function in functions if function.regions[0].blocks)
    engine.raw_lookup(symbol_of(defined))
    engine.dump_to_object_file(str(path))
    return time.perf_counter() - start


def defined_function(bytecode: bytes, context: Any) -> str:
    """Returns the name of the function that the module in `bytecode` defines."""
    with context, ir.Location.unknown():
        functions = (op.operation for op in ir.Module.parse(bytecode).body if op.operation.name == "llvm.func")
        return next(symbol_of(function) for function in functions if function.regions[0].blocks)


@lru_cache(maxsize=1)
def _placeholder_function() -> ctypes._FuncPointer:
    """Returns a function whose address stands for symbols that are resolved when the object is linked."""
    return ctypes.CFUNCTYPE(None)(lambda: None)


# ---- worker processes ------------------------------------------------------------------------------------------------


# Each worker takes about 150 MB until it ends.
MAX_WORKERS = 3


class CompileObject(Message, frozen=True):
    """Requests to compile the module in the file `path`; answered by `ObjectCompiled`.

    The object is written to the file `path` with `.o` appended.
    """

    module_number: int
    opt_level: int
    path: str


class ObjectCompiled(Message, frozen=True):
    """Answers the request for module `module_number`: its object has been written, in `seconds`."""

    module_number: int
    seconds: float


class ObjectWorker(BlockingWorker):
    """The connection to one worker. `pending` has the numbers of its uncompiled modules, in order of the requests.

    The thread that uses the worker holds `in_use_lock`, since several threads may compile.
    """

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.in_use_lock = threading.Lock()
        super().__init__("buddy.compiler.codegen.objects.workers:serve", ObjectCompiled)

    def ask(self, module_number: int, opt_level: int, path: str) -> bool:
        """Sends a request; returns false if the process has ended."""
        try:
            # A request is far shorter than a pipe's buffer, so this never blocks.
            self.send(CompileObject(module_number, opt_level, path))
        except OSError:
            return False
        self.pending.append(module_number)
        return True

    def take_answers(self) -> list[tuple[int, float]]:
        """Reads answers, and removes their modules from `pending`; returns the number and the seconds of each.

        Call it when the pipe is readable. Raises `BrokenPipeError` if there is no answer because the process has ended.
        """
        self.pipe.read_available()
        finished = {}
        while self.pipe.holds_message:
            answer = self.receive()
            finished[answer.module_number] = answer.seconds
        if not finished and self.pipe.at_end:
            raise BrokenPipeError("the process has ended")
        self.pending = [number for number in self.pending if number not in finished]
        return list(finished.items())

    def discard(self, patience: float = 0.0) -> int:
        """Drops pending requests, waits up to `patience` seconds until the process exits, and then kills it.

        Returns its exit status.
        """
        self.pending = []
        return self.end(patience)


_workers: list[ObjectWorker] = []
_start_lock = threading.Lock()


def start_workers() -> None:
    """Starts workers until one runs for each core but one, or `MAX_WORKERS` run."""
    with _start_lock:
        _workers[:] = running_workers()
        with contextlib.suppress(OSError):
            while len(_workers) < min(cores() - 1, MAX_WORKERS):
                _workers.append(ObjectWorker())


def running_workers() -> list[ObjectWorker]:
    """Returns the running workers."""
    return [worker for worker in list(_workers) if worker.alive]


def take_idle_workers() -> list[ObjectWorker]:
    """Returns the free workers, reserved for the caller until it releases `in_use_lock`."""
    return [worker for worker in running_workers() if worker.in_use_lock.acquire(blocking=False)]


def _drop_workers() -> None:
    """Forgets the workers in a fork of this process: they belong to the parent."""
    global _start_lock
    _start_lock = threading.Lock()  # a thread that does not exist here may hold the old lock
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_workers)


# ---- in the worker ---------------------------------------------------------------------------------------------------

IDLE_SECONDS = 60.0


@serves(CompileObject)
def serve(channel: Channel) -> None:
    """Compiles requested modules until the channel is closed, or until no request has come for `IDLE_SECONDS`."""
    context = new_context()
    # The imported modules are not garbage: the garbage collector need not visit them.
    gc.freeze()
    exit_timer = _start_exit_timer()
    while (request := channel.receive()) is not None:
        exit_timer.cancel()
        seconds = emit_object(Path(request.path).read_bytes(), request.opt_level, Path(request.path + ".o"), context)
        channel.send(ObjectCompiled(request.module_number, seconds))
        exit_timer = _start_exit_timer()
    exit_timer.cancel()


def _start_exit_timer() -> threading.Timer:
    timer = threading.Timer(IDLE_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    return timer


# ---- batches of modules ----------------------------------------------------------------------------------------------


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
        start_workers()
    with scratch_folder("objects") as folder:
        return _Batch(modules, opt_level, Path(folder)).run()


# The crashes of workers, by the identity of the module and the optimisation level.
_crashed: dict[bytes, ObjectCrash] = {}


def _identity(module: bytes, opt_level: int) -> bytes:
    return hashlib.sha256(bytes([opt_level]) + module).digest()


class _Batch:
    """The modules of one call of `compile_objects`.

    `_waiting` has the numbers of the modules that nothing compiles yet, the largest first. `_workers` are the reserved
    workers that still run.
    """

    def __init__(self, modules: Sequence[bytes], opt_level: int, folder: Path) -> None:
        self._modules, self._opt_level, self._folder = modules, opt_level, folder
        self._waiting = deque(sorted(range(len(modules)), key=lambda number: -len(modules[number])))
        self._workers = take_idle_workers()
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
        """Ends `worker`, whose modules others will compile. Raises `ObjectCrash` if a module has crashed the worker.

        Waits up to `patience` seconds for the worker to exit by itself.
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
