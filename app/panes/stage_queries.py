"""Queries of panes about stage texts. A failed query returns `None` and shows the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from buddy.app.reports.text.patterns import Pattern
from buddy.app.session.lines import UnavailableError
from buddy.compiler import protocol as p

if TYPE_CHECKING:
    from buddy.app.session.session import Session

Answer = TypeVar("Answer")


class StageQueries:
    """One method per query. If the caller is cancelled, the engine cancels the request."""

    def __init__(self, session: Session, say: Callable[[str], object]) -> None:
        self._session, self._say = session, say

    async def answered(self, request: Awaitable[Answer]) -> Answer | None:
        """The answer to a request of the session."""
        try:
            return await request
        except UnavailableError as error:
            self._say(str(error))
            return None

    async def ask(self, make: Callable[[int], Any], answer: type[Answer]) -> Answer | None:
        """The engine's answer to the frame that is made with a request number."""
        return await self.answered(self._session.ask(make, answer))

    async def load_lines(self, text: str, start: int, count: int) -> bool:
        """Load lines into the cache. Returns whether it succeeded."""
        try:
            await self._session.cache.load(text, start, count)
        except UnavailableError as error:
            self._say(str(error))
            return False
        return True

    async def compare(
        self, before: str, after: str, how: Literal["line", "structural"], language: str
    ) -> p.Compared | None:
        """The differences between the texts `before` and `after`."""
        return await self.answered(self._session.compare(before, after, how, language))

    async def find_place(self, text: str, node: str) -> int:
        """The main line of the node in `text`, or -1. A function line comes from all nodes."""
        found = await self.answered(self._session.find_place(text, node)) if node else None
        return -1 if found is None else found

    async def find_lines(self, text: str, node: str) -> tuple[int, int] | None:
        """The first line of `text` that comes from `node`, or 0, and the number of such lines."""
        page = await self.ask(lambda number: p.FetchLines(number, text, 0, 1), p.Lines)
        found = await self.answered(self._session.find_node(text, node)) if node and page else None
        return ((found.lines[0] if found and found.lines else 0), page.total) if page else None

    async def whole_text(self, text: str) -> str | None:
        """The full text."""
        return await self.answered(self._session.whole_text(text))

    async def search(self, text: str, pattern: Pattern) -> p.Found | None:
        """The lines that match a pattern."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self.ask(lambda number: p.Search(number, text, source, regex, relaxed), p.Found)

    async def search_each(self, texts: Sequence[str], pattern: Pattern) -> p.FoundEach | None:
        """The lines of several texts that match a pattern. Equal texts are searched once."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self.ask(lambda number: p.SearchEach(number, tuple(texts), source, regex, relaxed), p.FoundEach)

    async def symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """The functions, globals and graphs of a text; empty without an answer."""
        found = await self.ask(lambda number: p.ListSymbols(number, text, language), p.Symbols)
        return found.symbols if found is not None else ()

    async def types(self, text: str) -> tuple[p.LongType, ...] | None:
        """The long types of an MLIR text."""
        found = await self.ask(lambda number: p.ListTypes(number, text), p.Types)
        return found.types if found is not None else None

    async def region(self, text: str, line: int) -> p.Region | None:
        """The region that a line opens, or the region that contains it."""
        return await self.ask(lambda number: p.FindRegion(number, text, line), p.Region)

    async def jumps(self, text: str, line: int) -> p.Jumps | None:
        """The jumps of the assembly function that contains a line."""
        return await self.ask(lambda number: p.FindJumps(number, text, line), p.Jumps)

    async def origins(self, text: str, first: int, last: int) -> tuple[p.Origin, ...]:
        """The nodes that some lines come from, those with the most lines first; empty without an answer."""
        found = await self.ask(lambda number: p.FindOrigins(number, text, first, last), p.OriginsFound)
        return found.origins if found is not None else ()

    async def characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """Characters of the full line, including constants."""
        return await self.ask(lambda number: p.FetchCharacters(number, text, line, start, count), p.Characters)

    async def reprint(self, text: str) -> p.Reprinted | None:
        """A text in MLIR's generic form."""
        return await self.ask(lambda number: p.Reprint(number, text), p.Reprinted)

    async def describe_op(self, name: str) -> str | None:
        """The documentation of an op from its dialect."""
        found = await self.ask(lambda number: p.DescribeOp(number, name), p.OpSummary)
        return found.text if found is not None else None
