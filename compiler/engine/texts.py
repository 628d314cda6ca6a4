"""Answers about stage texts: windows of lines, whole texts, search, differences. Long work is beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from buddy.compiler.engine import comparing
from buddy.compiler.engine.comparing import Differences, DiffTooLong
from buddy.compiler.engine.jobs import Job, JobFailed
from buddy.compiler.engine.searching import Question, SearchTooLong, search_apart
from buddy.compiler.protocol import (
    Compare,
    Compared,
    Diagnostic,
    FetchLines,
    FetchText,
    FindNode,
    Found,
    Lines,
    Search,
    Text,
)
from buddy.compiler.text.lines import IndexedText
from buddy.compiler.text.search import PatternError, check, is_literal, search
from buddy.compiler.text.store import TextStore

_SMALL = 1 << 18
_MAX_WINDOW = 10_000


class Texts:
    """The store as the client sees it."""

    def __init__(self, store: TextStore, send: Callable[[Any], None]) -> None:
        self._store, self._send = store, send
        self._differences = Differences()

    async def lines(self, frame: FetchLines, job: Job) -> None:
        text = self._find(frame.text)
        if not text.indexed and len(text.content) > _SMALL:
            await asyncio.to_thread(lambda: text.ends)
        window = text.window(frame.start, min(frame.count, _MAX_WINDOW))
        answer = Lines(job.request, frame.text, window.start, window.lines, text.total, window.nodes, window.names)
        self._send(answer)

    async def text(self, frame: FetchText, job: Job) -> None:
        self._send(Text(job.request, frame.text, self._find(frame.text).content))

    async def search(self, frame: Search, job: Job) -> None:
        text = self._find(frame.text)
        try:
            lines, more = await self._searched(text, frame)
        except (PatternError, SearchTooLong) as error:
            todo = "change the pattern, or search for it as plain text"
            raise JobFailed(Diagnostic(str(error), "the search", todo)) from error
        self._send(Found(job.request, frame.text, tuple(lines), more))

    async def _searched(self, text: IndexedText, frame: Search) -> tuple[list[int], bool]:
        if not frame.regex or is_literal(frame.pattern):
            return await asyncio.to_thread(
                search, text, frame.pattern, ignore_case=frame.ignore_case, limit=frame.limit
            )
        check(frame.pattern)
        return await search_apart(Question(frame.pattern, frame.ignore_case, frame.limit, text.content))

    async def node(self, frame: FindNode, job: Job) -> None:
        text = self._find(frame.text)
        lines, more = await asyncio.to_thread(text.lines_of_node, frame.node, frame.limit)
        self._send(Found(job.request, frame.text, tuple(lines), more))

    async def compare(self, frame: Compare, job: Job) -> None:
        before, after = self._find(frame.before), self._find(frame.after)
        question = comparing.Question(before.content, after.content, frame.how, frame.language)
        try:
            found = await self._differences.of((frame.before, frame.after), question)
        except DiffTooLong as error:
            raise JobFailed(Diagnostic(str(error), "the comparison", "compare stages that are nearer")) from error
        answer = Compared(job.request, frame.before, frame.after, tuple(found.hunks), found.before, found.after)
        self._send(answer)

    def _find(self, name: str) -> IndexedText:
        text = self._store.get(name)
        if text is None:
            what = f"the text {name!r} is no longer kept"
            raise JobFailed(Diagnostic(what, "the engine's store", "compile that recipe again"))
        return text
