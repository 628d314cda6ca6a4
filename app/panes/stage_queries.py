"""Questions about stage texts that panes put to the engine; `None` where there is no answer, which has been said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from buddy.app.reports.text.patterns import Pattern
from buddy.app.session.requests import Requester
from buddy.compiler import protocol as p


class StageQueries(Requester):
    """One method a question; the engine stops working on what nobody waits for any more."""

    async def load_lines(self, text: str, start: int, count: int) -> bool:
        """Whether the lines are at hand."""

        async def loaded() -> bool:
            await self._session.cache.load(text, start, count)
            return True

        return await self.answered(loaded()) is not None

    async def compare(
        self, before: str, after: str, how: Literal["line", "structural"], language: str
    ) -> p.Compared | None:
        """Where the text `after` differs from `before`."""
        return await self.request(p.Compare(0, before, after, how, language))

    async def find_place(self, text: str, node: str) -> int:
        """The line of `text` that is most the node's own, or -1: a function comes from all of its nodes."""
        found = await self.answered(self._session.find_place(text, node)) if node else None
        return -1 if found is None else found

    async def find_lines(self, text: str, node: str) -> tuple[int, int] | None:
        """The first line of `text` that comes from `node`, or 0, and how many lines there are."""
        page = await self.request(p.FetchLines(0, text, 0, 1))
        found = await self.request(p.FindNode(0, text, node)) if node and page else None
        return ((found.lines[0] if found and found.lines else 0), page.total) if page else None

    async def whole_text(self, text: str) -> str | None:
        """All of a text."""
        return await self.answered(self._session.whole_text(text))

    async def search(self, text: str, pattern: Pattern) -> p.Found | None:
        """Lines that hold a pattern."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self.request(p.Search(0, text, source, regex, relaxed))

    async def search_each(self, texts: Sequence[str], pattern: Pattern) -> p.FoundEach | None:
        """Lines of several texts that hold a pattern, equal texts searched once."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self.request(p.SearchEach(0, tuple(texts), source, regex, relaxed))

    async def symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """The functions, globals and graphs of a text; none where there is no answer."""
        found = await self.request(p.ListSymbols(0, text, language))
        return found.symbols if found is not None else ()

    async def types(self, text: str) -> tuple[p.LongType, ...] | None:
        """The long types of a text of MLIR."""
        found = await self.request(p.ListTypes(0, text))
        return found.types if found is not None else None

    async def region(self, text: str, line: int) -> p.Region | None:
        """The region that a line opens, or else is in."""
        return await self.request(p.FindRegion(0, text, line))

    async def jumps(self, text: str, line: int) -> p.Jumps | None:
        """The jumps of the function of assembly that a line is in."""
        return await self.request(p.FindJumps(0, text, line))

    async def origins(self, text: str, first: int, last: int) -> tuple[p.Origin, ...]:
        """The nodes that some lines come from, those of most lines first; none where there is no answer."""
        found = await self.request(p.FindOrigins(0, text, first, last))
        return found.origins if found is not None else ()

    async def characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """Characters of a line as it is, constants and all."""
        return await self.request(p.FetchCharacters(0, text, line, start, count))

    async def reprint(self, text: str) -> p.Reprinted | None:
        """A text in MLIR's generic form."""
        return await self.request(p.Reprint(0, text))

    async def describe_op(self, name: str) -> str | None:
        """What the dialect's documentation says of an op."""
        found = await self.request(p.DescribeOp(0, name))
        return found.text if found is not None else None
