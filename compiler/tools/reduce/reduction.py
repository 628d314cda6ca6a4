"""Searches for a minimal module that fails: delta debugging on its ops, then single steps up to a fixpoint."""

from __future__ import annotations

import hashlib
import os
import queue
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.delta_debugging import smallest_failing_by
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.tools.reduce import steps
from buddy.compiler.tools.reduce.failure import (
    CommandExecution,
    Failure,
    Form,
    GenericPrinted,
    ModuleTried,
    PrintGeneric,
    TryModule,
    describe,
    execute,
    is_crash,
    shows_failure,
    with_message,
)
from buddy.compiler.tools.reduce.generic_ir import GenericFormError, GenericModule, parse

_WORKER = "buddy.compiler.tools.reduce.failure:serve"
# A worker that has not answered this long after the time limit of the command has been stopped from outside.
_EXTRA_SECONDS = 30.0
# The time that a new worker may take to import MLIR before its first answer.
_WORKER_START_SECONDS = 60.0
Item = TypeVar("Item")


class ReductionError(BuddyError):
    """A reduction cannot start; `diagnostic` says why and what to do."""


@dataclass
class ReductionProgress:
    """The state of a reduction: the sizes of the original and of the smallest module so far, in `unit`, and its costs.

    `tests` counts the commands that were run, `rejected` the candidates that the bindings found invalid, and `hits` the
    candidates that had been tried before. `form` describes the representation of the module, `step` the current step;
    `seconds` have passed since the start.
    """

    original: int
    current: int
    unit: str
    form: str
    tests: int = 0
    rejected: int = 0
    hits: int = 0
    step: str = ""
    seconds: float = 0.0


class ReducibleModule(Protocol):
    """A module that can be reduced: its text, its size, and the items that can be removed from it.

    Instances do not change; each reduction step returns another one.
    """

    @property
    def text(self) -> str: ...
    @property
    def size(self) -> int: ...

    def levels(self) -> int:
        """Returns the number of levels of nesting, from the outside."""

    def items(self, level: int) -> Sequence[int]:
        """Returns the numbers of the items on a level that may be removed."""

    def without(self, numbers: Sequence[int]) -> ReducibleModule | None:
        """Returns a copy without the items with these numbers, `None` if they cannot be removed."""

    def single_steps(self) -> Iterator[Iterator[Attempt]]:
        """Yields the single steps on the module, an iterator for each kind of step."""


class Attempt(NamedTuple):
    """A single step: its description, and a function that returns the changed copy, or `None` if it does not apply."""

    what: str
    make: Callable[[], ReducibleModule | None]


class ReducibleIr:
    """A module in generic form."""

    unit = "ops"

    def __init__(self, module: GenericModule) -> None:
        self.module, self.text = module, str(module)

    @property
    def size(self) -> int:
        return self.module.op_count

    def levels(self) -> int:
        return len(steps.removable_by_depth(self.module))

    def items(self, level: int) -> Sequence[int]:
        levels = steps.removable_by_depth(self.module)
        return levels[level] if level < len(levels) else []

    def without(self, numbers: Sequence[int]) -> ReducibleModule | None:
        return self._after(steps.ReductionStep("", partial(steps.remove_ops, numbers)))

    def single_steps(self) -> Iterator[Iterator[Attempt]]:
        for kind in steps.STEP_KINDS:
            yield (Attempt(step.what, partial(self._after, step)) for step in kind(self.module))

    def _after(self, step: steps.ReductionStep) -> ReducibleModule | None:
        """Returns the module after a step, `None` if the step does not apply."""
        module = steps.apply_step(self.module, step)
        return None if module is None else ReducibleIr(module)


class ReducibleLines:
    """A text whose lines can be removed, one by one or with the lines up to the closing bracket."""

    unit = "lines"

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines()

    @property
    def size(self) -> int:
        return sum(bool(line.strip()) for line in self._lines)

    def levels(self) -> int:
        return max((depth for depth in self._depths()), default=-1) + 1

    def items(self, level: int) -> Sequence[int]:
        depths = self._depths()
        return [n for n, depth in enumerate(depths) if depth == level and not self._lines[n].lstrip().startswith("}")]

    def without(self, numbers: Sequence[int]) -> ReducibleModule | None:
        depths, removed = self._depths(), set[int]()
        for number in numbers:
            removed.add(number)
            end = number + 1
            while end < len(depths) and depths[end] > depths[number]:
                end += 1
            if end > number + 1 or self._lines[number].rstrip().endswith("{"):
                closes = end < len(depths) and self._lines[end].lstrip().startswith("}")
                removed |= set(range(number, end + closes))
        return ReducibleLines("\n".join([line for n, line in enumerate(self._lines) if n not in removed] + [""]))

    def single_steps(self) -> Iterator[Iterator[Attempt]]:
        numbers = range(len(self._lines) - 1, -1, -1)
        yield (Attempt(f"remove lines from {n + 1}", partial(self.without, [n])) for n in numbers)
        yield (Attempt(f"remove line {n + 1}", partial(self._without_line, n)) for n in numbers)

    def _without_line(self, number: int) -> ReducibleModule:
        return ReducibleLines("\n".join([*self._lines[:number], *self._lines[number + 1 :], ""]))

    def _depths(self) -> list[int]:
        """Returns the depth of each line in curly brackets; a closing bracket at the start of a line is outside."""
        depths, depth = [], 0
        for line in self._lines:
            depth -= line.lstrip().startswith("}")
            depths.append(depth)
            depth += line.count("{") - line.count("}") + line.lstrip().startswith("}")
        return depths


# ---- trials ----------------------------------------------------------------------------------------------------------


class _WorkerPool:
    """At most `count` workers that try modules in parallel.

    A worker starts with its first request. A worker that crashes or hangs is replaced; its module counts as one without
    the failure.
    """

    def __init__(self, failure: Failure, count: int) -> None:
        self.failure = failure
        self._idle: queue.SimpleQueue[BlockingWorker | None] = queue.SimpleQueue()
        self._workers: set[BlockingWorker] = set()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(count, "reduce")
        self._closed = False
        for _ in range(count):
            self._idle.put(None)

    def submit(self, request: TryModule | PrintGeneric) -> Future[ModuleTried | GenericPrinted | None]:
        """Returns the future answer, which is `None` if the worker crashes or hangs, or the pool is closed."""
        return self._executor.submit(self._ask, request)

    def _ask(self, request: TryModule | PrintGeneric) -> ModuleTried | GenericPrinted | None:
        """Waits for an idle worker, and returns its answer (see `submit`)."""
        worker = self._idle.get()
        try:
            if self._closed:
                return None
            if worker is None or not worker.alive:
                worker = self._start()
            worker.send(request)
            answer: ModuleTried | GenericPrinted | None = worker.receive(
                self.failure.timeout + _EXTRA_SECONDS + _WORKER_START_SECONDS
            )
        except (OSError, TimeoutError):
            answer = None
        if answer is None and worker is not None:
            worker.end()
            worker = None
        self._idle.put(worker)
        return answer

    def _start(self) -> BlockingWorker:
        worker = BlockingWorker(_WORKER, ModuleTried | GenericPrinted)
        with self._lock:
            self._workers.add(worker)
        return worker

    def close(self) -> None:
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for worker in self._workers:
                worker.kill()
        self._executor.shutdown(wait=True)
        for worker in self._workers:
            worker.end()


@dataclass
class Reduction:
    """One reduction of the module `text`. `best` is the smallest module so far that shows the failure.

    `jobs` is the number of workers, 0 for one per CPU. `generic` returns the module in generic form, printed by the
    user's tool, or "". `report` is called with the progress after each trial. Call `start`, then `run`, which may be
    interrupted; `minimal` is True if it has ended. Leaving the context ends the workers.
    """

    text: str
    failure: Failure
    jobs: int = 0
    generic: Callable[[], str] = lambda: ""
    report: Callable[[ReductionProgress], None] = lambda progress: None
    best: str = field(init=False, default="")
    minimal: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.jobs = self.jobs or os.cpu_count() or 1
        self._pool = _WorkerPool(self.failure, self.jobs)
        # Whether a module that has been tried fails, by the hash of its text.
        self._fails_by_text: dict[bytes, bool] = {}
        self._start_time = time.monotonic()
        self.progress = ReductionProgress(0, 0, "", "")
        self._form: Form = "plain"

    def __enter__(self) -> Reduction:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    # ---- start ----

    def start(self, original: CommandExecution) -> None:
        """Chooses the representation in which the module still fails. `original` is the command's result on `text`.

        Raises `ReductionError` if the command does not fail again on the same text.
        """
        self.failure = self._pool.failure = with_message(self.failure, original)
        for name, form, subject in self._representations():
            self._form = form
            tried = self._pool.submit(TryModule(subject.text, form, self.failure)).result()
            self.progress.tests += 1
            if isinstance(tried, ModuleTried) and tried.fails:
                self._subject: ReducibleModule = subject
                self.best = tried.written
                size, unit = subject.size, getattr(subject, "unit", "")
                self.progress.original = self.progress.current = size
                self.progress.unit, self.progress.form = unit, name
                self._report("")
                return
        raise ReductionError(
            "the failure does not occur again on the same file", "the command",
            "check that the command does not depend on chance, the time, or the name of the file",
        )  # fmt: skip

    def _representations(self) -> Iterator[tuple[str, Form, ReducibleModule]]:
        """Yields the representations of the module with a description and a form: first those that simplify most."""
        answer = self._pool.submit(PrintGeneric(self.text)).result()
        if isinstance(answer, GenericPrinted) and answer.text:
            module = self._parse(answer.text)
            if module is not None:
                yield "MLIR, read by the bindings", "printed", module
                yield "MLIR in generic form, checked by the bindings", "checked", module
        for name, text in (("printed by the tool", self.generic), ("as it is in the file", lambda: self.text)):
            module = self._parse(text())
            if module is not None:
                yield f"MLIR in generic form, {name}", "plain", module
        yield (
            "lines of text: neither the bindings nor the tool print this file in generic form",
            "plain",
            ReducibleLines(self.text),
        )

    @staticmethod
    def _parse(text: str) -> ReducibleIr | None:
        try:
            return ReducibleIr(parse(text)) if text else None
        except GenericFormError:
            return None

    # ---- search ----

    def run(self) -> None:
        """Reduces until no single step preserves the failure; then `minimal` is True."""
        level = 0
        while level < self._subject.levels():
            self._remove_on_level(level)
            level += 1
        while self._take_single_steps():
            pass
        self.minimal = True
        self._report("minimal")

    def _remove_on_level(self, level: int) -> None:
        """Removes items of one level by delta debugging."""
        subject = self._subject
        items = list(subject.items(level))
        if not items:
            return
        what = f"remove from {len(items)} {self.progress.unit} at depth {level}"

        def first_failing(subsets: Iterable[Sequence[int]]) -> Sequence[int] | None:
            def attempts() -> Iterator[tuple[Attempt, Sequence[int]]]:
                for subset in subsets:
                    removed = sorted(set(items) - set(subset))
                    yield Attempt(what, partial(subject.without, removed)), subset

            failing = self._first_failing(attempts())
            return failing[1] if failing is not None else None

        if first_failing([[]]) is None:
            smallest_failing_by(items, first_failing)

    def _take_single_steps(self) -> bool:
        """Takes each single step that preserves the failure; returns whether any step was taken."""
        has_changed = False
        kind_count = len(list(self._subject.single_steps()))
        for kind in range(kind_count):
            # After a step, the same kind continues at its position: the steps before it do not preserve the failure.
            position = 0
            while True:
                # The steps depend on the module, which a successful step changes.
                attempts = next(islice(self._subject.single_steps(), kind, None))
                numbered = ((attempt, n) for n, attempt in enumerate(attempts) if n >= position)
                failing = self._first_failing(numbered)
                if failing is None:
                    break
                has_changed, position = True, failing[1]
        return has_changed

    def _first_failing(self, attempts: Iterable[tuple[Attempt, Item]]) -> tuple[Attempt, Item] | None:
        """Tries `attempts` in parallel; the module of the first one that shows the failure becomes the current one.

        Each attempt comes with an item. Returns that attempt with its item, `None` if no module shows the failure.
        """
        waiting: deque[tuple[Attempt, Item, ReducibleModule, Future[ModuleTried | GenericPrinted | None]]] = deque()
        source = iter(attempts)
        try:
            while True:
                while len(waiting) < self.jobs + 1:
                    attempt, item = next(source, (None, None))
                    if attempt is None:
                        break
                    if (job := self._submit(attempt)) is not None:
                        waiting.append((attempt, item, *job))  # type: ignore[arg-type]
                if not waiting:
                    return None
                attempt, item, subject, future = waiting.popleft()
                if self._fails(subject, future):
                    self._subject = subject
                    self.progress.current = subject.size
                    self._report(attempt.what)
                    return attempt, item
                self._report(attempt.what)
        finally:
            for *_, future in waiting:
                future.cancel()

    def _submit(self, attempt: Attempt) -> tuple[ReducibleModule, Future[ModuleTried | GenericPrinted | None]] | None:
        """Starts a test of the changed module, unless the step changes nothing or the result is known."""
        subject = attempt.make()
        if subject is None or subject.text == self._subject.text:
            return None
        if self._fails_by_text.get(_key(subject.text)) is False:
            self.progress.hits += 1
            return None
        return subject, self._pool.submit(TryModule(subject.text, self._form, self.failure))

    def _fails(self, subject: ReducibleModule, future: Future[ModuleTried | GenericPrinted | None]) -> bool:
        """Waits for a trial, counts and records it; returns whether the module shows the failure."""
        tried = future.result()
        fails = isinstance(tried, ModuleTried) and tried.fails
        if isinstance(tried, ModuleTried) and tried.execution is None:
            self.progress.rejected += 1
        else:
            self.progress.tests += 1
        self._fails_by_text[_key(subject.text)] = fails
        if fails:
            assert isinstance(tried, ModuleTried)
            self.best = tried.written
        return fails

    def _report(self, step: str) -> None:
        self.progress.step, self.progress.seconds = step, time.monotonic() - self._start_time
        self.report(self.progress)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def original_execution(text: str, failure: Failure, folder: str, name: str) -> CommandExecution:
    """Returns the result of the command on the original module, called `name` in messages.

    Raises `ReductionError` if it does not show the failure, and `OSError` if the command cannot run.
    """
    result = execute_on(text, failure, folder)
    if failure.kind == "verifier" and is_crash(result):
        raise ReductionError(
            f"the command crashes on {name}, instead of reporting an error: {result.describe()}",
            shlex.join(failure.words(name)),
            "reduce it as a crash",
        )
    if not shows_failure(failure, result):
        raise ReductionError(
            f"{name} does not show the failure: {describe(failure)} is expected, but the command {result.describe()}",
            shlex.join(failure.words(name)),
            "run this command; check the options for the failure",
        )
    return result


def execute_on(text: str, failure: Failure, folder: str) -> CommandExecution:
    """Runs the command on a file with `text` in `folder`. Raises `OSError`."""
    path = os.path.join(folder, "candidate.mlir")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return execute(failure, path)
