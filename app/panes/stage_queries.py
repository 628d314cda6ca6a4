"""Queries about stage texts. If a query fails, the reason is shown, and the result is `None` or empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.requests import Requester
from buddy.compiler import protocol as p


class StageQueries(Requester):
    """One method per query. `text` is the name of a text in the engine. Cancelling a caller cancels its request."""

    async def load_lines(self, text: str, start: int, count: int) -> bool:
        """Load lines into the cache. Returns whether the request succeeded."""

        async def load() -> bool:
            await self._session.cache.load(text, start, count)
            return True

        return await self.await_answer(load()) is not None

    async def compare(
        self, before: str, after: str, how: Literal["line", "structural"], language: str
    ) -> p.Compared | None:
        """The differences between the texts `before` and `after`."""
        return await self.request(p.Compare(0, before, after, how, language))

    async def find_main_line(self, text: str, node: str, fallback_nodes: tuple[str, ...] = ()) -> int:
        """The main line of the node in `text`, else of the first of `otherwise` that has one; -1 without one."""
        line = await self.await_answer(self._session.find_main_line(text, node, fallback_nodes)) if node else None
        return -1 if line is None else line

    async def find_lines(self, text: str, node: str) -> tuple[int, int] | None:
        """The first line of `text` that comes from `node` (0 if none does), and the number of lines of `text`."""
        page = await self.request(p.FetchLines(0, text, 0, 1))
        answer = await self.request(p.FindNode(0, text, node)) if node and page else None
        return ((answer.lines[0] if answer and answer.lines else 0), page.line_count) if page else None

    async def lines_of_node(self, text: str, node: str) -> tuple[int, ...]:
        """The lines of `text` that come from `node`."""
        answer = await self.request(p.FindNode(0, text, node)) if node else None
        return answer.lines if answer is not None else ()

    async def fetch_text(self, text: str) -> str | None:
        """The full text, with all constants."""
        return await self.await_answer(self._session.fetch_text(text))

    async def search(self, text: str, pattern: Pattern) -> p.SearchResult | None:
        """The lines of a text that match a pattern."""
        return await self.request(p.Search(0, text, pattern.source, pattern.regex, pattern.ignore_case))

    async def search_each(
        self, texts: Sequence[str], pattern: Pattern, on_frame: Callable[[Any], object] = lambda _frame: None
    ) -> p.FoundEach | None:
        """The lines of each of several texts that match a pattern. Repeated texts are searched once.

        `on_frame` is called with the progress of a long search.
        """
        frame = p.SearchEach(0, tuple(texts), pattern.source, pattern.regex, pattern.ignore_case)
        return await self.request(frame, on_frame)

    async def symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """The functions, globals and graphs of a text."""
        answer = await self.request(p.ListSymbols(0, text, language))
        return answer.symbols if answer is not None else ()

    async def types(self, text: str) -> tuple[p.LongType, ...] | None:
        """The long types of an MLIR text."""
        answer = await self.request(p.ListTypes(0, text))
        return answer.types if answer is not None else None

    async def region(self, text: str, line: int) -> p.Region | None:
        """The region that a line opens, or the region that contains it."""
        return await self.request(p.FindRegion(0, text, line))

    async def jumps(self, text: str, line: int) -> p.Jumps | None:
        """The jumps of the assembly function that contains a line."""
        return await self.request(p.FindJumps(0, text, line))

    async def origins(self, text: str, first: int, last: int) -> tuple[p.LineOrigins, ...]:
        """The nodes that the lines `first` to `last` come from, the node with the most lines first."""
        answer = await self.request(p.FindOrigins(0, text, first, last))
        return answer.origins if answer is not None else ()

    async def characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """The `count` characters from `start` on of a line with its constants in full."""
        return await self.request(p.FetchCharacters(0, text, line, start, count))

    async def reprint(self, text: str) -> p.Reprinted | None:
        """Prints an MLIR text in the generic form. The result names the new text."""
        return await self.request(p.Reprint(0, text))

    async def describe_op(self, name: str) -> str | None:
        """The documentation of an op from its dialect."""
        answer = await self.request(p.DescribeOp(0, name))
        return answer.text if answer is not None else None
