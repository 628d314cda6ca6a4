"""Regular expressions are searched for in a process of their own, which can be killed.

Python's `re` holds the GIL for the whole of a match, and some patterns take longer than anybody waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

import msgspec

from buddy.compiler.engine.lifeline import die_with_parent
from buddy.compiler.engine.process import safe_path
from buddy.compiler.text.lines import IndexedText
from buddy.compiler.text.search import search

TIMEOUT = 10.0


class SearchTooLong(Exception):
    """A pattern was given up."""


@dataclass(frozen=True)
class Question:
    """A search for a regular expression, as it is handed to the process."""

    pattern: str
    ignore_case: bool
    limit: int
    content: str


async def search_apart(question: Question, timeout: float = TIMEOUT) -> tuple[list[int], bool]:
    """What `buddy.compiler.text.search.search` gives for the question; the loop is never held up.

    Raises `SearchTooLong` after `timeout` seconds. Cancelling ends the process.
    """
    command = [sys.executable, *safe_path(), "-m", __name__, str(os.getpid())]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        answer, _ = await asyncio.wait_for(process.communicate(msgspec.msgpack.encode(question)), timeout)
        return msgspec.msgpack.decode(answer, type=tuple[list[int], bool])
    except asyncio.TimeoutError:
        raise SearchTooLong(f"the pattern has not been matched against every line in {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Question)
    text = IndexedText(question.content)
    found = search(text, question.pattern, regex=True, ignore_case=question.ignore_case, limit=question.limit)
    sys.stdout.buffer.write(msgspec.msgpack.encode(found))


if __name__ == "__main__":
    main()
