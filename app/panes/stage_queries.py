"""Queries of panes about stage texts. A failed query returns `None` and shows the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.requests import Requester
from buddy.compiler import protocol as p


class StageQueries(Requester):
    """One method per query. If the caller is cancelled, the engine cancels the request."""

    async def load_lines(self, text: str, start: int, count: int) -> bool:
        """Load lines into the cache. Returns whether it succeeded."""

        async def loaded() -> bool:
            await self._session.cache.load(text, start, count)
            return True

        return await self.await_answer(loaded()) is not None

    async def compare(
        self, before: str, after: str, how: Literal["line", "structural"], language: str
    ) -> p.Compared | None:
        """The differences between the texts `before` and `after`."""
        return await self.request(p.Compare(0, before, after, how, language))

    async def find_place(self, text: str, node: str) -> int:
        """The main line of the node in `text`, or -1. A function line comes from all nodes."""
        found = await self.await_answer(self._session.find_main_line(text, node)) if node else None
        return -1 if found is None else found

    async def find_lines(self, text: str, node: str) -> tuple[int, int] | None:
        """The first line of `text` that comes from `node`, or 0, and the number of such lines."""
        page = await self.request(p.FetchLines(0, text, 0, 1))
        found = await self.request(p.FindNode(0, text, node)) if node and page else None
        return ((found.lines[0] if found and found.lines else 0), page.total) if page else None

    async def whole_text(self, text: str) -> str | None:
        """The full text."""
        return await self.await_answer(self._session.fetch_text(text))

    async def search(self, text: str, pattern: Pattern) -> p.SearchResult | None:
        """The lines that match a pattern."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self.request(p.Search(0, text, source, regex, relaxed))

    async def search_each(self, texts: Sequence[str], pattern: Pattern) -> p.FoundEach | None:
        """The lines of several texts that match a pattern. Equal texts are searched once."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self.request(p.SearchEach(0, tuple(texts), source, regex, relaxed))

    async def symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """The functions, globals and graphs of a text; empty without an answer."""
        found = await self.request(p.ListSymbols(0, text, language))
        return found.symbols if found is not None else ()

    async def types(self, text: str) -> tuple[p.LongType, ...] | None:
        """The long types of an MLIR text."""
        found = await self.request(p.ListTypes(0, text))
        return found.types if found is not None else None

    async def region(self, text: str, line: int) -> p.Region | None:
        """The region that a line opens, or the region that contains it."""
        return await self.request(p.FindRegion(0, text, line))

    async def jumps(self, text: str, line: int) -> p.Jumps | None:
        """The jumps of the assembly function that contains a line."""
        return await self.request(p.FindJumps(0, text, line))

    async def origins(self, text: str, first: int, last: int) -> tuple[p.LineOrigins, ...]:
        """The nodes that some lines come from, those with the most lines first; empty without an answer."""
        found = await self.request(p.FindOrigins(0, text, first, last))
        return found.origins if found is not None else ()

    async def characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """Characters of the full line, including constants."""
        return await self.request(p.FetchCharacters(0, text, line, start, count))

    async def reprint(self, text: str) -> p.Reprinted | None:
        """A text in MLIR's generic form."""
        return await self.request(p.Reprint(0, text))

    async def describe_op(self, name: str) -> str | None:
        """The documentation of an op from its dialect."""
        found = await self.request(p.DescribeOp(0, name))
        return found.text if found is not None else None
