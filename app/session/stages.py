"""The stages of one graph, and a cache of their lines, fetched by pages in the background.

A view requests a line to draw and gets it, or `None` and a later call of `arrived`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from buddy.app.workspace.session_file import Key as Key
from buddy.compiler.protocol import Lines, Stage
from buddy.compiler.protocol.recipe import PassStep

PAGE = 256
KEEP = 48
WANTED = 4
AHEAD = 100
# On a slow connection, the lines that a held key passes meanwhile are prefetched: 30 screens per second.
SCROLL = 1500
LANES = 3

Fetch = Callable[[str, int, int], Awaitable[Lines]]


class UnavailableError(Exception):
    """The engine has no answer. The text is the reason; `cancelled` is true if the request was cancelled."""

    def __init__(self, why: str, cancelled: bool = False) -> None:
        super().__init__(why)
        self.cancelled = cancelled


class AnnotatedLine(NamedTuple):
    """The text of a line, and the stable names of the nodes that it comes from, directly or `derived`.

    `machine` is its machine code in hexadecimal; `full` means that nothing is abbreviated.
    """

    text: str
    nodes: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    machine: str = ""
    full: bool = False


class LineCache:
    """A cache of the engine's texts.

    `fetch(text, start, count)` returns lines or raises `UnavailableError`; `arrived(text)` is called afterwards.
    """

    def __init__(self, fetch: Fetch, arrived: Callable[[str], None]) -> None:
        self._fetch = fetch
        self._arrived = arrived
        self._pages: OrderedDict[tuple[str, int], list[AnnotatedLine]] = OrderedDict()
        self._wanted: list[tuple[str, int]] = []
        self._missed: set[tuple[str, int]] = set()
        self._loading: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._totals: dict[str, int] = {}
        self._prefetch_lines = AHEAD

    def get(self, text: str, index: int) -> AnnotatedLine | None:
        """Line `index` of `text` if it is cached; otherwise fetches it. Its neighbours are prefetched."""
        number, offset = divmod(index, PAGE)
        page = self._pages.get((text, number))
        if page is None:
            self._missed.add((text, number))
            self._enqueue((text, number))
            return None
        self._prefetch_around(text, number, index)
        return page[offset] if offset < len(page) else AnnotatedLine("")

    def _prefetch_around(self, text: str, number: int, index: int) -> None:
        """Prefetch the pages that scrolling would reach before their lines could arrive, the nearest first."""
        last = min(index + self._prefetch_lines, self._totals[text] - 1) // PAGE
        first = max(0, index - self._prefetch_lines) // PAGE
        for other in (*range(first, number), *range(last, number, -1)):
            self._enqueue((text, other))

    def ahead(self, text: str, index: int) -> None:
        """Prefetch line `index` of `text`."""
        self._enqueue((text, index // PAGE))

    async def load(self, text: str, start: int, count: int) -> None:
        """Wait until lines `start` to `start + count` are cached."""
        numbers = range(start // PAGE, (start + max(count, 1) - 1) // PAGE + 1)
        missing = [(text, number) for number in numbers if (text, number) not in self._pages]
        await asyncio.gather(*map(self._fetch_page, missing))

    def take(self, lines: Lines) -> None:
        """Cache a page from another answer."""
        self._store((lines.text, lines.start // PAGE), lines)

    def forget(self) -> None:
        """Clear the cache after the engine has exited."""
        self._pages.clear()
        self._wanted.clear()
        self._missed.clear()

    def _enqueue(self, key: tuple[str, int]) -> None:
        if key in self._pages or key in self._loading:
            return
        if key in self._wanted:
            self._wanted.remove(key)
        self._wanted = [*self._wanted[-WANTED:], key]
        if len(self._tasks) < LANES:
            task = asyncio.get_running_loop().create_task(self._fetch_wanted())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch_wanted(self) -> None:
        while self._wanted:
            key = self._wanted.pop()
            if key in self._pages or key in self._loading:
                continue
            try:
                await self._fetch_page(key)
            except UnavailableError:
                self._wanted.clear()
                return
            if key in self._missed:
                self._missed.discard(key)
                self._arrived(key[0])

    async def _fetch_page(self, key: tuple[str, int]) -> None:
        text, number = key
        self._loading.add(key)
        started = time.monotonic()
        try:
            lines = await self._fetch(text, number * PAGE, PAGE)
        finally:
            self._loading.discard(key)
        self._prefetch_lines = round(min(2 * PAGE, max(AHEAD, (time.monotonic() - started) * SCROLL)))
        self._store(key, lines)

    def _store(self, key: tuple[str, int], lines: Lines) -> None:
        self._pages[key] = _lines(lines)
        self._totals[lines.text] = lines.total
        self._pages.move_to_end(key)
        while len(self._pages) > KEEP:
            (gone, _), _ = self._pages.popitem(last=False)
            if all(name != gone for name, _ in self._pages):
                self._totals.pop(gone, None)


def _lines(frame: Lines) -> list[AnnotatedLine]:
    marked = frozenset(frame.derived)
    sets = [(node_names(frame, nodes), node_names(frame, marked.intersection(nodes))) for nodes in frame.nodes]
    sets += [((), ())] * (len(frame.lines) - len(sets))
    machine = frame.machine or ("",) * len(frame.lines)
    return [AnnotatedLine(text, *nodes, code) for text, nodes, code in zip(frame.lines, sets, machine, strict=True)]


def node_names(frame: Lines, places: Iterable[int]) -> tuple[str, ...]:
    """The nodes at these indices of a frame's names."""
    return tuple(frame.names[place] for place in places)


_SUFFIXES = {"fx": ".txt", "buddy": ".txt", "mlir": ".mlir", "llvm": ".ll", "asm": ".s", "ptx": ".ptx"}


class StageRow(NamedTuple):
    """A stage, its key (pass name and number of earlier ones with it), and why it is outdated (empty if it is not)."""

    stage: Stage
    key: Key
    stale: str = ""


class PassRow(NamedTuple):
    """A pass of the recipe (`number` is its index in `steps`), or a built-in step (`number` is -1)."""

    name: str
    number: int
    step: PassStep | None
    stage: StageRow | None


class StagePosition(NamedTuple):
    """A line of the stage with that key."""

    key: Key
    line: int


def key_stages(stages: Iterable[Stage]) -> list[tuple[Key, Stage]]:
    """Stages with keys that do not change when steps are renumbered."""
    seen: Counter[str] = Counter()
    pairs = []
    for stage in stages:
        pairs.append(((stage.name, seen[stage.name]), stage))
        seen[stage.name] += 1
    return pairs


class StageBoard:
    """Collects the stages of a compilation, and keeps the stages of the last one until they are replaced."""

    def __init__(self) -> None:
        self._current: list[Stage] = []
        self._outdated: list[Stage] = []
        self._complete: list[Stage] = []
        self._previous_complete: list[Stage] = []
        self._reason = ""
        self._is_compiling = False
        self._last_time = 0.0

    def begin(self, reason: str) -> None:
        """Start a compilation. The current stages are outdated for `reason` until they are replaced."""
        self._outdated = [row.stage for row in self.rows() if row.stage.state != "failed"]
        self._current, self._reason, self._is_compiling = [], reason, True
        self._last_time = time.monotonic()

    def add(self, stage: Stage) -> None:
        if self._is_compiling:
            self._current.append(stage)
            self._last_time = time.monotonic()

    def finish(self, stages: Sequence[Stage]) -> None:
        """Mark the compilation as complete."""
        if [stage.text for stage in stages] != [stage.text for stage in self._complete]:
            self._previous_complete, self._complete = self._complete, list(stages)
        self._current, self._outdated, self._is_compiling = list(stages), [], False

    def seconds_left(self) -> float | None:
        """The time that the missing stages took last time; `None` if there are none, or their time is unknown."""
        later = [row.stage.milliseconds for row in self.rows() if row.stale] if self._is_compiling else []
        return max(0.0, sum(later) / 1e3 - (time.monotonic() - self._last_time)) if later else None

    def before_edit(self, key: Key) -> Stage | None:
        """The stage with that key in the last complete compilation with different texts."""
        whole = [stage.text for stage in self._current] == [stage.text for stage in self._complete]
        return dict(key_stages(self._previous_complete if whole else self._complete)).get(key)

    def fail(self, stages: Sequence[Stage], reason: str) -> None:
        """End the compilation with `stages` (up to the failure). Later stages stay outdated for `reason`."""
        if not self._is_compiling:
            self.begin(reason)
        known = {(stage.index, stage.text) for stage in self._current}
        self._current += [stage for stage in stages if (stage.index, stage.text) not in known]
        self._reason, self._is_compiling = reason, False

    @property
    def failed(self) -> Stage | None:
        return next((stage for stage in reversed(self._current) if stage.state == "failed"), None)

    def rows(self) -> list[StageRow]:
        """All stages in order, with outdated stages after the current ones."""
        current = key_stages(self._current)
        rows = [StageRow(stage, key) for key, stage in current]
        return rows + [
            StageRow(stage, key, self._reason) for key, stage in self._outdated_rows({key for key, _ in current})
        ]

    def _outdated_rows(self, done: set[Key]) -> list[tuple[Key, Stage]]:
        last = key_stages(self._outdated)
        reached = max((place for place, (key, _) in enumerate(last) if key in done), default=-1)
        return last[reached + 1 :]


def phase_of(rows: Sequence[StageRow], index: int) -> str:
    """The phase of row `index`; a step without a phase has the phase of the previous stage."""
    for row in reversed(rows[: index + 1]):
        if row.stage.phase:
            return row.stage.phase
    return ""


def file_name(stage: Stage) -> str:
    """A file name that sorts in stage order: `07-canonicalize.mlir`."""
    failed = ".failed" * (stage.state == "failed")
    return f"{stage.index:02}-{stage.name}{failed}{_SUFFIXES[stage.language]}"
