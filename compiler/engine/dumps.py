"""Opens dumps of other compilers: indexes them in the background, and serves their stages like those of a program.

The texts are read from the files when needed. No worker is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from buddy.compiler.importers.dumps.locations import all_source_lines, find_source_lines, source_line_rows
from buddy.compiler.importers.dumps.pipeline import StepNumbers
from buddy.compiler.importers.dumps.reading import DumpScan, indexed_text, read_text
from buddy.compiler.importers.dumps.records import TEXT_PREFIX, Dump, DumpStage, client_stage
from buddy.compiler.mlir import mlir_tool
from buddy.compiler.protocol import (
    Captured,
    Compile,
    Compiled,
    Diagnostic,
    GraphInfo,
    Open,
    Progress,
    Reopened,
    Stage,
    StageDone,
)
from buddy.compiler.protocol.dump_files import DESCRIPTIONS, DumpFormat, dump_format
from buddy.compiler.protocol.recipe import DUMP, Recipe
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.tools.dumps.rerun import Rerun, RerunError, Rerunner

if TYPE_CHECKING:
    from buddy.compiler.protocol import NodeRow
    from buddy.compiler.protocol.connection import Frame


# If indexing a dump takes longer than this, the stages that are found by then are sent before the rest.
_EARLY_SECONDS = 0.25
_PROGRESS_SECONDS = 0.2
# The interval in seconds at which new stages are sent while the dump is indexed, and the time that each stage adds to
# the interval: the client draws all stages again after each update.
_UPDATE_SECONDS, _SECONDS_PER_STAGE = 0.3, 1 / 5000
# The interval in seconds at which a followed log is checked for growth.
_FOLLOW_SECONDS = 0.5
# The maximum number of stages that are listed for a graph.
MAX_STAGES = 20_000
# The number of re-runs of a dump that are kept, such as those before and after an edit. Older ones are deleted.
_MAX_RERUNS = 6
# The memory for texts that have been read from dumps, in bytes.
_TEXT_BYTES = 96 << 20
# The rows of a graph are the source lines in its first stages. Limits: the number of stages that are read per graph,
# the seconds for all graphs, the length of a text, and the number of rows per graph.
_ROW_STAGES, _ROW_SECONDS, _ROW_BYTES, _MAX_ROWS = 4, 1.0, 4 << 20, 5000


_T = TypeVar("_T")


class _OpenedDump:
    """A dump, its latest re-runs, and an event that is set when the first scan of the dump has ended."""

    def __init__(self, scan: DumpScan) -> None:
        self.scan = scan
        self.has_ended = asyncio.Event()
        # The keys consist of the user's `mlir-opt`, the number of stages in the dump, and the skipped steps.
        self.reruns: dict[tuple[object, ...], Rerun] = {}
        self._rerunner: Rerunner | None = None

    @property
    def dump(self) -> Dump:
        return self.scan.dump

    async def rerun(self, skipped: tuple[int, ...], report: Callable[[str], object]) -> Rerun:
        """Returns a run of the dump's passes without the `skipped` steps; `report` gets texts about the progress.

        Raises `RerunError`.
        """
        key = mlir_tool.tool_identity(), len(self.dump.stages), skipped
        if key not in self.reruns:
            if self._rerunner is None or len(self.dump.stages) != self._rerunner.count:
                self._rerunner = Rerunner(self.dump)
            self.reruns[key] = await self._rerunner.run(skipped, report)
            while len(self.reruns) > _MAX_RERUNS:
                self.reruns.pop(next(iter(self.reruns))).folder.cleanup()
        return self.reruns[key]

    def replace(self, scan: DumpScan) -> None:
        """Replaces the dump by the scan of its rewritten file."""
        self.close()
        self.scan, self._rerunner = scan, None

    def close(self) -> None:
        """Deletes the logs of re-runs."""
        while self.reruns:
            self.reruns.popitem()[1].folder.cleanup()


class DumpHandler:
    """Opens and lists dumps; `is_dump` says whether the program that was opened last is one."""

    def __init__(self, send: Callable[[Frame], None], store: TextStore) -> None:
        self._send, self._store = send, store
        # The keys are source and arguments, as in `Open`.
        self._opened: dict[tuple[str, tuple[str, ...]], _OpenedDump] = {}
        self.is_dump = False
        self._following: asyncio.Task[None] | None = None
        store.add_reader(TEXT_PREFIX, self)

    def detect_format(self, frame: Open) -> DumpFormat | None:
        """Returns the format of the dump that `frame` opens; `None` if it opens something else.

        Called for each `Open`: sets `is_dump`, and stops following the log that was opened before.
        """
        path = Path(frame.directory, frame.source)
        try:
            detected = dump_format(path)
            if detected is None and frame.follows and path.is_file():
                detected = "log"  # nothing has been printed yet
        except (OSError, ValueError):
            detected = None
        self.is_dump = detected is not None
        self._stop_following()
        return detected

    def close(self) -> None:
        """Stops following a log, and deletes temporary files."""
        self._stop_following()
        for opened in self._opened.values():
            opened.close()

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    def is_dump_of(self, recipe: Recipe) -> bool:
        """Returns whether the program of `recipe` is a dump."""
        return (recipe.source, recipe.arguments) in self._opened

    # ---- opening ---------------------------------------------------------------------------------------------------

    async def open(self, frame: Open, file_format: DumpFormat, job: Job) -> None:
        """Indexes a dump. Sends the graphs that are found within a moment, then all graphs."""
        job.started = True
        started_at = time.monotonic()
        path = Path(frame.directory, frame.source)
        key = frame.source, frame.arguments
        previous = self._opened.get(key)
        scan = None
        if previous is not None:
            if previous.scan.is_current() or previous.scan.can_continue():
                scan = previous.scan
            previous.close()
        opened = self._opened[key] = _OpenedDump(scan if scan is not None else DumpScan(path, file_format))
        self._store.limit = min(self._store.limit, _TEXT_BYTES)
        try:
            if not opened.scan.is_current():
                await self._index(opened, job.request)
            while frame.follows and not opened.dump.stages:
                self._send(Progress(job.request, f"waiting for IR in {frame.source}"))
                await asyncio.sleep(_FOLLOW_SECONDS)
                await self._index(opened, job.request)
            await self._send_graphs(opened.dump, job.request, started_at)
        except OSError as error:
            what = f"{frame.source} cannot be read: {error.strerror or error}"
            raise JobFailed(Diagnostic(what, frame.source, "check the file and its permissions")) from error
        finally:
            opened.has_ended.set()
        if not opened.dump.stages:
            what = f"{frame.source} is {DESCRIPTIONS[file_format]}, but no IR was found in it"
            raise JobFailed(Diagnostic(what, frame.source, "check that the compiler printed IR into it"))
        if frame.follows:
            self._following = asyncio.create_task(self._follow(opened, job.request))

    async def _send_graphs(self, dump: Dump, request: int, started_at: float) -> None:
        """Sends the graphs of a dump with their rows; sends nothing if the dump has no stages."""
        graphs = await asyncio.to_thread(_graphs_with_rows, dump)
        files = tuple(str(file.absolute()) for file in dump.files)
        notes = (DESCRIPTIONS[dump.format], *dump.notes, *_limit_notes(dump))
        if dump.stages:
            self._send(Captured(request, graphs, notes, time.monotonic() - started_at, files=files))

    async def _follow(self, opened: _OpenedDump, request: int) -> None:
        """Sends the graphs of a log again whenever it has changed: indexes the new part, or all of a rewritten log."""
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS + len(opened.dump.stages) * _SECONDS_PER_STAGE)
            scan = opened.scan
            try:
                if scan.is_current():
                    continue
                if not scan.can_continue():
                    scan = DumpScan(scan.dump.path, scan.dump.format)
                chunks = scan.index()
                while await asyncio.to_thread(_advance, chunks):
                    pass
                if scan is not opened.scan and scan.dump.stages:
                    opened.replace(scan)
                await self._send_graphs(scan.dump, request, time.monotonic())
            except OSError:
                return  # The file was deleted: its stages stay on the screen.

    async def _index(self, opened: _OpenedDump, request: int) -> None:
        """Indexes a dump; sends the progress, and after `_EARLY_SECONDS` the graphs that are found by then."""
        dump, chunks = opened.dump, opened.scan.index()
        start = reported_at = time.monotonic()
        has_sent = False
        while await asyncio.to_thread(_advance, chunks):
            now = time.monotonic()
            if now - reported_at >= _PROGRESS_SECONDS:
                reported_at = now
                done = dump.scanned / dump.size if dump.size else 1.0
                what = f"indexing {dump.path.name}: {len(dump.stages):,} stages"
                self._send(Progress(request, what, min(done, 1.0)))
            if not has_sent and dump.stages and now - start >= _EARLY_SECONDS:
                has_sent = True
                self._send(Reopened(request, _graphs(dump)))

    # ---- stages ----------------------------------------------------------------------------------------------------

    async def compile(self, frame: Compile, job: Job) -> None:
        """Sends the stages of a graph, including those that are indexed while the request runs."""
        job.started = True
        started_at = time.monotonic()
        opened, graph = self._opened[frame.recipe.source, frame.recipe.arguments], frame.recipe.graph
        if frame.recipe.skipped_steps:
            await self._send_rerun(opened, frame.recipe, job, started_at)
            return
        dump, step_numbers = opened.dump, StepNumbers()
        stages: list[Stage] = []
        n_listed = 0  # the number of the dump's stages that have been visited
        while True:
            has_ended = opened.has_ended.is_set()
            n_known = len(dump.stages)
            name = dump.graph_name(graph)
            for record in dump.stages[n_listed:n_known]:
                record.step = step_numbers.add(record)
                if len(stages) < MAX_STAGES and record.is_of(name):
                    stages.append(client_stage(record, len(stages)))
                    self._send(StageDone(job.request, graph, stages[-1]))
            n_listed = n_known
            if has_ended:
                break
            update_seconds = _UPDATE_SECONDS + len(stages) * _SECONDS_PER_STAGE
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(opened.has_ended.wait(), update_seconds)
        self._send(Compiled(job.request, graph, tuple(stages), time.monotonic() - started_at))

    async def _send_rerun(self, opened: _OpenedDump, recipe: Recipe, job: Job, started_at: float) -> None:
        """Sends the stages of a graph without the skipped steps; the steps after the first skipped one run again.

        Raises `JobFailed`.
        """
        await opened.has_ended.wait()
        try:
            rerun = await opened.rerun(recipe.skipped_steps, lambda what: self._send(Progress(job.request, what)))
        except RerunError as error:
            raise JobFailed(error.diagnostic) from error
        name = opened.dump.graph_name(recipe.graph)
        records = [record for record in rerun.dump.stages if record.is_of(name)]
        stages = tuple(client_stage(record, index) for index, record in enumerate(records[:MAX_STAGES]))
        for stage in stages:
            self._send(StageDone(job.request, recipe.graph, stage))
        if rerun.problem is not None:
            raise JobFailed(rerun.problem, stages)
        self._send(Compiled(job.request, recipe.graph, stages, time.monotonic() - started_at, notes=rerun.notes))

    def read(self, name: str) -> IndexedText | None:
        """Returns the text with that name, with the source lines of its ops; `None` if no dump has it.

        Raises `JobFailed`.
        """
        return self._from_file(name, indexed_text)

    def content(self, name: str) -> str | None:
        """Like `read`, without the source lines."""
        return self._from_file(name, read_text)

    def _from_file(self, name: str, read: Callable[[Dump, DumpStage], _T]) -> _T | None:
        """Returns the result of `read` for the stage whose text has this name, or `None`. Raises `JobFailed`."""
        dump = next((dump for dump in self._dumps() if name in dump.by_text), None)
        if dump is None:
            return None
        try:
            return read(dump, dump.by_text[name])
        except OSError as error:
            what = f"the stage cannot be read: {error}"
            raise JobFailed(Diagnostic(what, str(dump.path), "open the dump again")) from error

    def _dumps(self) -> Iterator[Dump]:
        """Yields all dumps with their re-runs, the latest dump first."""
        for opened in reversed(self._opened.values()):
            yield opened.dump
            yield from [rerun.dump for rerun in opened.reruns.values()]


_NO_MORE_CHUNKS = object()


def _advance(chunks: Iterator[None]) -> bool:
    """Indexes one more chunk of a dump. Returns whether there may be more."""
    return next(chunks, _NO_MORE_CHUNKS) is not _NO_MORE_CHUNKS


def _graphs(dump: Dump, rows: tuple[NodeRow, ...] = ()) -> tuple[GraphInfo, ...]:
    """Returns the graphs of a dump, each with `rows`."""
    return tuple(GraphInfo(name, rows, entry_phase=DUMP, compared=False) for name in dump.graph_names)


def _graphs_with_rows(dump: Dump) -> tuple[GraphInfo, ...]:
    """Returns the graphs of a dump. The rows of a graph are the source lines that its first stages name."""
    graphs = []
    deadline = time.monotonic() + _ROW_SECONDS
    for number, name in enumerate(dump.graph_names):
        source_lines: set[str] = set()
        texts: set[str] = set()
        for record in dump.stages_of(number):
            if len(texts) >= _ROW_STAGES or time.monotonic() > deadline:
                break
            if record.text in texts:
                continue
            texts.add(record.text)
            if record.length < _ROW_BYTES:
                source_lines |= all_source_lines(find_source_lines(read_text(dump, record), record.language))
        rows = source_line_rows(sorted(source_lines)[:_MAX_ROWS])
        graphs.append(GraphInfo(name, rows, entry_phase=DUMP, compared=False))
    return tuple(graphs)


def _limit_notes(dump: Dump) -> Iterator[str]:
    """Yields a note for each part of the dump that is not listed."""
    if len(dump.stages) > MAX_STAGES:
        yield f"the first {MAX_STAGES:,} of {len(dump.stages):,} stages are listed; a function's graph has its own list"
