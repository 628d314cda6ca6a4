"""Questions about stage texts that panes put to the engine; `None` where there is no answer, which has been said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from buddy.app.patterns import Pattern
from buddy.compiler import protocol as p

# Sends the frame that is made with a request's number, and waits for an answer of that type.
Ask = Callable[[Callable[[int], Any], type[Any]], Awaitable[Any]]


class Questions:
    """One method a question; the engine stops working on what nobody waits for any more."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def search(self, text: str, pattern: Pattern) -> p.Found | None:
        """Lines that hold a pattern."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self._ask(lambda number: p.Search(number, text, source, regex, relaxed), p.Found)

    async def search_each(self, texts: Sequence[str], pattern: Pattern) -> p.FoundEach | None:
        """Lines of several texts that hold a pattern, equal texts searched once."""
        source, regex, relaxed = pattern.source, pattern.regex, pattern.ignore_case
        return await self._ask(lambda number: p.SearchEach(number, tuple(texts), source, regex, relaxed), p.FoundEach)

    async def symbols(self, text: str, language: str) -> tuple[p.Symbol, ...]:
        """The functions, globals and graphs of a text; none where there is no answer."""
        found = await self._ask(lambda number: p.ListSymbols(number, text, language), p.Symbols)
        return found.symbols if found is not None else ()

    async def region(self, text: str, line: int) -> p.Region | None:
        """The region that a line opens, or else is in."""
        return await self._ask(lambda number: p.FindRegion(number, text, line), p.Region)

    async def jumps(self, text: str, line: int) -> p.Jumps | None:
        """The jumps of the function of assembly that a line is in."""
        return await self._ask(lambda number: p.FindJumps(number, text, line), p.Jumps)

    async def origins(self, text: str, first: int, last: int) -> tuple[p.Origin, ...]:
        """The nodes that some lines come from, those of most lines first; none where there is no answer."""
        found = await self._ask(lambda number: p.FindOrigins(number, text, first, last), p.OriginsFound)
        return found.origins if found is not None else ()

    async def characters(self, text: str, line: int, start: int, count: int) -> p.Characters | None:
        """Characters of a line as it is, constants and all."""
        return await self._ask(lambda number: p.FetchCharacters(number, text, line, start, count), p.Characters)

    async def reprint(self, text: str) -> p.Reprinted | None:
        """A text in MLIR's generic form."""
        return await self._ask(lambda number: p.Reprint(number, text), p.Reprinted)

    async def describe_op(self, name: str) -> str | None:
        """What the dialect's documentation says of an op."""
        found = await self._ask(lambda number: p.DescribeOp(number, name), p.OpSummary)
        return found.text if found is not None else None
