"""The stages of one graph, and a cache of their lines, which are fetched by pages in the background.

A view gets a line from the cache, or `None`. In this case, the cache calls `arrived` when it has fetched the line.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from buddy.app.workspace.session_file import StageKey as Key
from buddy.compiler.protocol import Lines, SearchResult, Stage
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.plain_values import LANGUAGES
from buddy.compiler.protocol.recipe import PassStep

if TYPE_CHECKING:
    import asyncio

PAGE_LINES = 256
MAX_PAGES = 48
# At most this many pages wait to be fetched besides the newest one; older ones are dropped.
MAX_WAITING_PAGES = 4
MAX_PARALLEL_FETCHES = 3
PREFETCH_LINES = 100
# With a held key: 30 screens per second. A slow connection prefetches the lines that are scrolled during a fetch.
SCROLLED_LINES_PER_SECOND = 1500

Fetch = Callable[[str, int, int], Awaitable[Lines]]
# Searches a text for a pattern, a regular expression if the first flag is set; with the second, the case is ignored.
FindLines = Callable[[str, str, bool, bool], Awaitable[SearchResult]]


class UnavailableError(BuddyError):
    """The engine has no answer. The text is the reason; `cancelled` is true if the request was cancelled."""

    def __init__(self, reason: str, cancelled: bool = False) -> None:
        super().__init__(reason)
        self.cancelled = cancelled


@dataclass(frozen=True)
class AnnotatedLine:
    """The text of a line, and the stable names of the nodes that it comes from.

    `derived` are those of `nodes` that were derived, because a pass had dropped the location. `machine` is the machine
    code in hexadecimal; `full` means that nothing is abbreviated.
    """

    text: str
    nodes: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    machine: str = ""
    full: bool = False

    # The next three are computed once for each line: the line of a function may come from hundreds of nodes, and each
    # step of the cursor asks every line on the screen for them.

    @cached_property
    def own_nodes(self) -> tuple[str, ...]:
        """The nodes that the line names itself, without the derived ones."""
        derived = frozenset(self.derived)
        return tuple(node for node in self.nodes if node not in derived) if derived else self.nodes

    @cached_property
    def node_set(self) -> frozenset[str]:
        """The nodes that the line comes from."""
        return frozenset(self.nodes)

    @cached_property
    def own_node_set(self) -> frozenset[str]:
        """The nodes that the line names itself."""
        return frozenset(self.own_nodes)


class LineCache:
    """A cache of lines of the engine's texts, by pages.

    `fetch(text, start, count)` returns lines or raises `UnavailableError`. `arrived(text)` is called when a page has
    been fetched that `get` did not find. `find` searches a whole text, and raises `UnavailableError` too.
    """

    def __init__(self, fetch: Fetch, arrived: Callable[[str], None], find: FindLines | None = None) -> None:
        self._fetch = fetch
        self._find = find
        self._arrived = arrived
        self._pages: OrderedDict[tuple[str, int], list[AnnotatedLine]] = OrderedDict()
        self._waiting: list[tuple[str, int]] = []
        self._missed: set[tuple[str, int]] = set()
        self._loading: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._line_counts: dict[str, int] = {}
        self._prefetch_lines = PREFETCH_LINES

    def get(self, text: str, index: int) -> AnnotatedLine | None:
        """Line `index` of `text`, and prefetch the lines around it; if it is not cached, `None`, and fetch it."""
        number, offset = divmod(index, PAGE_LINES)
        page = self._pages.get((text, number))
        if page is None:
            self._missed.add((text, number))
            self._enqueue((text, number))
            return None
        self._prefetch_around(text, number, index)
        return page[offset] if offset < len(page) else AnnotatedLine("")

    def _prefetch_around(self, text: str, number: int, index: int) -> None:
        """Prefetch the pages that scrolling would reach before they arrive. The nearest, enqueued last, is first."""
        last = min(index + self._prefetch_lines, self._line_counts[text] - 1) // PAGE_LINES
        first = max(0, index - self._prefetch_lines) // PAGE_LINES
        for other in (*range(first, number), *range(last, number, -1)):
            self._enqueue((text, other))

    def prefetch(self, text: str, index: int) -> None:
        """Prefetch line `index` of `text`."""
        self._enqueue((text, index // PAGE_LINES))

    async def load(self, text: str, start: int, count: int) -> None:
        """Wait until `count` lines from line `start` are cached. Raises `UnavailableError`."""
        numbers = range(start // PAGE_LINES, (start + max(count, 1) - 1) // PAGE_LINES + 1)
        missing = [(text, number) for number in numbers if (text, number) not in self._pages]
        import asyncio  # headless verbs import this module for its functions on stages

        await asyncio.gather(*map(self._fetch_page, missing))

    async def find(self, text: str, pattern: str, regex: bool, ignore_case: bool) -> SearchResult:
        """The lines of `text` that match a pattern. Raises `UnavailableError`."""
        if self._find is None:
            raise UnavailableError("this text cannot be searched")
        return await self._find(text, pattern, regex, ignore_case)

    def add(self, lines: Lines) -> None:
        """Cache a page that was part of the answer to another request."""
        self._store((lines.text, lines.start // PAGE_LINES), lines)

    def clear(self) -> None:
        self._pages.clear()
        self._waiting.clear()
        self._missed.clear()

    def _enqueue(self, key: tuple[str, int]) -> None:
        """Fetch the page `key` (text and page number) next, unless it is cached or being fetched."""
        if key in self._pages or key in self._loading:
            return
        if key in self._waiting:
            self._waiting.remove(key)
        self._waiting = [*self._waiting[-MAX_WAITING_PAGES:], key]
        if len(self._tasks) < MAX_PARALLEL_FETCHES:
            import asyncio

            task = asyncio.get_running_loop().create_task(self._fetch_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch_waiting(self) -> None:
        """Fetch the waiting pages, the newest first."""
        while self._waiting:
            key = self._waiting.pop()
            if key in self._pages or key in self._loading:
                continue
            try:
                await self._fetch_page(key)
            except UnavailableError:
                self._waiting.clear()
                return
            if key in self._missed:
                self._missed.discard(key)
                self._arrived(key[0])

    async def _fetch_page(self, key: tuple[str, int]) -> None:
        text, number = key
        self._loading.add(key)
        start_time = time.monotonic()
        try:
            lines = await self._fetch(text, number * PAGE_LINES, PAGE_LINES)
        finally:
            self._loading.discard(key)
        scrolled_lines = (time.monotonic() - start_time) * SCROLLED_LINES_PER_SECOND
        self._prefetch_lines = round(min(2 * PAGE_LINES, max(PREFETCH_LINES, scrolled_lines)))
        self._store(key, lines)

    def _store(self, key: tuple[str, int], lines: Lines) -> None:
        """Store a page, and drop the oldest pages beyond `MAX_PAGES`."""
        self._pages[key] = _annotated_lines(lines)
        self._line_counts[lines.text] = lines.line_count
        self._pages.move_to_end(key)
        while len(self._pages) > MAX_PAGES:
            (dropped_text, _), _ = self._pages.popitem(last=False)
            if all(text != dropped_text for text, _ in self._pages):
                self._line_counts.pop(dropped_text, None)


def _annotated_lines(frame: Lines) -> list[AnnotatedLine]:
    derived = frozenset(frame.derived)
    names = [(node_names(frame, nodes), node_names(frame, derived.intersection(nodes))) for nodes in frame.nodes]
    names += [((), ())] * (len(frame.lines) - len(names))
    machine = frame.machine or ("",) * len(frame.lines)
    return [AnnotatedLine(text, *nodes, code) for text, nodes, code in zip(frame.lines, names, machine, strict=True)]


def node_names(frame: Lines, indices: Iterable[int]) -> tuple[str, ...]:
    """The nodes at these indices of a frame's names."""
    return tuple(frame.names[index] for index in indices)


class StageRow(NamedTuple):
    """A stage, its key (pass name and number of earlier stages of that pass), and why it is outdated.

    The reason is empty for a stage of the current recipe.
    """

    stage: Stage
    key: Key
    outdated_reason: str = ""


class PassRow(NamedTuple):
    """A pass of the recipe, whose index in `Recipe.steps` is `number`, or a built-in step with the number -1.

    A row with `folded` stands for these passes, which are disabled and hidden; it is not a step.
    """

    name: str
    number: int
    step: PassStep | None
    stage: StageRow | None
    folded: tuple[str, ...] = ()


class StagePosition(NamedTuple):
    """A line, from 0, of the stage with that key."""

    key: Key
    line: int


def key_stages(stages: Iterable[Stage]) -> list[tuple[Key, Stage]]:
    """The stages with their keys, which stay the same if passes with other names are inserted, removed or moved."""
    counts: Counter[str] = Counter()
    pairs = []
    for stage in stages:
        pairs.append(((stage.name, counts[stage.name]), stage))
        counts[stage.name] += 1
    return pairs


def align_stages(before: Sequence[Stage], after: Sequence[Stage]) -> list[tuple[Stage | None, Stage | None]]:
    """Pairs the stages of two compilations, in order: those of the same pass in the same phase.

    Of several runs of a pass in a phase, those between the same passes are a pair. A stage that the other compilation
    lacks has `None` in the other's place.
    """
    names_before, names_after = ([(stage.name, stage.phase) for stage in stages] for stages in (before, after))
    pairs: list[tuple[Stage | None, Stage | None]] = []
    only_after: list[Stage] = []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, names_before, names_after, autojunk=False).get_opcodes():
        if kind == "equal":
            pairs += zip(before[i:i_end], after[j:j_end], strict=True)
        else:
            pairs += [(stage, None) for stage in before[i:i_end]] + [(None, stage) for stage in after[j:j_end]]
            only_after += after[j:j_end]
    return _pair_moved_lines(pairs, only_after)


def _pair_moved_lines(
    pairs: Sequence[tuple[Stage | None, Stage | None]], only_after: list[Stage]
) -> list[tuple[Stage | None, Stage | None]]:
    """`pairs` with the stages of moved passes paired, which are in `only_after`, but also alone before."""
    completed: list[tuple[Stage | None, Stage | None]] = []
    for before, after in pairs:
        if before is not None and after is None:
            name = before.name, before.phase
            after = next((stage for stage in only_after if (stage.name, stage.phase) == name), None)
            only_after = [stage for stage in only_after if stage is not after]
        completed.append((before, after))
    return [(a, b) for a, b in completed if a is not None or any(b is stage for stage in only_after)]


def counterpart(stage: Stage, stages: Sequence[Stage], others: Sequence[Stage]) -> Stage | None:
    """The stage in `others` that is aligned with `stage`, which is one of `stages`; `None` without one."""
    return next((other for own, other in align_stages(stages, others) if own is stage), None)


class StageBoard:
    """The stages of a graph: those of the running compilation, followed by those that it has not replaced yet."""

    def __init__(self) -> None:
        self._current: list[Stage] = []
        self._outdated: list[Stage] = []
        self._complete: list[Stage] = []
        self._previous_complete: list[Stage] = []
        self._reason = ""
        self._is_compiling = False
        self._last_time = 0.0
        # What `rows` returns, until a stage is added or replaced: a dump may have thousands.
        self._rows: list[StageRow] | None = None

    def begin(self, reason: str) -> None:
        """Start a compilation. The current stages are outdated for `reason` until they are replaced."""
        self._outdated = [row.stage for row in self.rows() if row.stage.state != "failed"]
        self._current, self._reason, self._is_compiling = [], reason, True
        self._rows = None
        self._last_time = time.monotonic()

    def add(self, stage: Stage) -> None:
        if self._is_compiling:
            self._current.append(stage)
            self._rows = None
            self._last_time = time.monotonic()

    def finish(self, stages: Sequence[Stage]) -> None:
        """End the compilation with all its `stages`."""
        if [stage.text for stage in stages] != [stage.text for stage in self._complete]:
            self._previous_complete, self._complete = self._complete, list(stages)
        self._current, self._outdated, self._is_compiling = list(stages), [], False
        self._rows = None

    def seconds_left(self) -> float | None:
        """The estimated rest of the compilation: the time that the outdated stages took when they were compiled.

        `None` without a compilation or without outdated stages.
        """
        if not self._is_compiling:
            return None
        milliseconds = [row.stage.milliseconds for row in self.rows() if row.outdated_reason]
        if not milliseconds:
            return None
        return max(0.0, sum(milliseconds) / 1e3 - (time.monotonic() - self._last_time))

    def stage_before_edit(self, key: Key) -> Stage | None:
        """The counterpart of the stage with that key in the last complete compilation whose texts differ from the
        current ones.
        """
        stages = [row.stage for row in self.rows()]
        stage = next((row.stage for row in self.rows() if row.key == key), None)
        return counterpart(stage, stages, self._compilation_before_edit()) if stage is not None else None

    @property
    def has_compilation_before_edit(self) -> bool:
        """Whether the recipe was compiled before the last edit."""
        return bool(self._compilation_before_edit())

    def _compilation_before_edit(self) -> Sequence[Stage]:
        is_complete = [stage.text for stage in self._current] == [stage.text for stage in self._complete]
        return self._previous_complete if is_complete else self._complete

    def fail(self, stages: Sequence[Stage], reason: str) -> None:
        """End the compilation with `stages` (up to the failure). Later stages stay outdated for `reason`."""
        if not self._is_compiling:
            self.begin(reason)
        collected = {(stage.index, stage.text) for stage in self._current}
        self._current += [stage for stage in stages if (stage.index, stage.text) not in collected]
        self._reason, self._is_compiling = reason, False
        self._rows = None

    @property
    def failed(self) -> Stage | None:
        """The last failed stage, or `None`."""
        return next((stage for stage in reversed(self._current) if stage.state == "failed"), None)

    def rows(self) -> list[StageRow]:
        """The current stages, then the outdated stages that come after them in the pipeline. Not to be changed."""
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _make_rows(self) -> list[StageRow]:
        current = key_stages(self._current)
        current_keys = {key for key, _ in current}
        outdated = key_stages(self._outdated)
        last_replaced = max((index for index, (key, _) in enumerate(outdated) if key in current_keys), default=-1)
        return [
            *(StageRow(stage, key) for key, stage in current),
            *(StageRow(stage, key, self._reason) for key, stage in outdated[last_replaced + 1 :]),
        ]


def phase_of(rows: Sequence[StageRow], index: int) -> str:
    """The phase of row `index`: its stage's, or for a stage without a phase, that of the closest earlier stage."""
    return next((phase for k in range(index, -1, -1) if (phase := rows[k].stage.phase)), "")


def file_name(stage: Stage) -> str:
    """A file name that sorts in stage order: `07-canonicalize.mlir`."""
    failed = ".failed" * (stage.state == "failed")
    return f"{stage.index:02}-{stage.name}{failed}{LANGUAGES[stage.language].suffix}"
