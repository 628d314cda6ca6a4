"""Requests to the engine about the texts of stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.requests import Requester
from buddy.compiler import protocol as p


class StageQueries(Requester):
    """Sends requests about texts to the engine. `text` is the name of a text there: the hash of its content.

    If a request fails, shows the reason, and returns `None`, an empty result or -1. Cancelling the task that awaits a
    method cancels its request. The first field of a request, 0 here, is its number, which the session sets.
    """

    async def load_lines(self, text: str, start: int, count: int) -> bool:
        """Load lines into the cache. Returns whether the request succeeded."""

        async def load() -> bool:
            await self._session.cache.load(text, start, count)
            return True

        return await self.await_answer(load()) is not None

    async def compare(
        self, before: str, after: str, how: Literal["line", "structural"], language: str
    ) -> p.Compared | None:
        """Return the differences between the texts `before` and `after`."""
        return await self.request(p.Compare(0, before, after, how, language))

    async def find_main_line(self, text: str, node: str, otherwise: tuple[str, ...] = ()) -> int:
        """Return the main line of `node` in `text`; else that of the first node in `otherwise` with one; else -1."""
        line = await self.await_answer(self._session.find_main_line(text, node, otherwise)) if node else None
        return -1 if line is None else line

    async def find_first_line(self, text: str, node: str) -> tuple[int, int] | None:
        """Return the first line of `text` that comes from `node` (0 if none does), and the number of its lines."""
        page = await self.request(p.FetchLines(0, text, 0, 1))
        answer = await self.request(p.FindNode(0, text, node)) if node and page else None
        return ((answer.lines[0] if answer and answer.lines else 0), page.line_count) if page else None

    async def find_lines_of_node(self, text: str, node: str) -> tuple[int, ...]:
        """Return the lines of `text` that come from `node`."""
        answer = await self.request(p.FindNode(0, text, node)) if node else None
        return answer.lines if answer is not None else ()

    async def fetch_text(self, text: str) -> str | None:
        """Return the full text, in which no constants are elided."""
        return await self.await_answer(self._session.fetch_text(text))

    async def search(self, text: str, pattern: Pattern) -> p.SearchResult | None:
        """Return the lines of a text that match a pattern."""
        return await self.request(p.Search(0, text, pattern.source, pattern.regex, pattern.ignore_case))

    async def search_each(
        self, texts: Sequence[str], pattern: Pattern, on_frame: Callable[[Any], object] = lambda _frame: None
    ) -> p.FoundEach | None:
        """Return the lines of each of `texts` that match a pattern. Repeated texts are searched once.

        `on_frame` is called with the progress of a long search.
        """
        frame = p.SearchEach(0, tuple(texts), pattern.source, pattern.regex, pattern.ignore_case)
        return await self.request(frame, on_frame)

    async def list_symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """Return the functions, globals and graphs of a text."""
        answer = await self.request(p.ListSymbols(0, text, language))
        return answer.symbols if answer is not None else ()

    async def list_types(self, text: str) -> tuple[p.LongType, ...] | None:
        """Return the long types that an MLIR text contains several times."""
        answer = await self.request(p.ListTypes(0, text))
        return answer.types if answer is not None else None

    async def find_region(self, text: str, line: int) -> p.Region | None:
        """Return the region that a line opens, or else the innermost region that contains the line."""
        return await self.request(p.FindRegion(0, text, line))

    async def find_jumps(self, text: str, line: int) -> p.Jumps | None:
        """Return the jumps of the assembly function that contains a line."""
        return await self.request(p.FindJumps(0, text, line))

    async def find_origins(self, text: str, first: int, last: int) -> tuple[p.LineOrigins, ...]:
        """Return the nodes that the lines `first` to `last` come from (inclusive), that with the most lines first."""
        answer = await self.request(p.FindOrigins(0, text, first, last))
        return answer.origins if answer is not None else ()

    async def fetch_characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """Return `count` characters of a line, from `start` on, where the line has its constants in full."""
        return await self.request(p.FetchCharacters(0, text, line, start, count))

    async def reprint(self, text: str) -> p.Reprinted | None:
        """Print an MLIR text in the generic form. The answer names the new text."""
        return await self.request(p.Reprint(0, text))

    async def describe_op(self, name: str) -> str | None:
        """Return the documentation of an op from its dialect."""
        answer = await self.request(p.DescribeOp(0, name))
        return answer.text if answer is not None else None
