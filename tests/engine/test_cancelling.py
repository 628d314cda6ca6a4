"""A cancelled request is answered in time, once, and its task still ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from buddy.compiler.protocol import Failed
from buddy.compiler.support.processes.jobs import CANCEL_SECONDS, Job, RequestJobs


async def test_a_request_that_takes_long_to_end_is_answered_before() -> None:
    sent: list[Any] = []
    ended = asyncio.Event()

    async def work(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(CANCEL_SECONDS * 5)
            ended.set()

    jobs = RequestJobs(sent.append)
    jobs.start(7, work)
    await asyncio.sleep(0)
    start = time.monotonic()
    jobs.cancel(0)
    while not sent:
        await asyncio.sleep(0.005)
    assert time.monotonic() - start < CANCEL_SECONDS * 4
    assert not ended.is_set()
    await asyncio.wait_for(ended.wait(), 60)
    await asyncio.sleep(0.01)
    assert [(answer.request, answer.cancelled) for answer in sent] == [(7, True)], "there is one answer"


async def test_a_replaced_request_that_takes_long_to_end_is_answered_before() -> None:
    sent: list[Any] = []
    ended = asyncio.Event()

    async def work(job: Job) -> None:
        if job.request == 7:
            try:
                await asyncio.Event().wait()
            finally:
                await ended.wait()

    jobs = RequestJobs(sent.append)
    jobs.start(7, work, slot="graph 0")
    await asyncio.sleep(0)
    jobs.start(8, work, slot="graph 0")
    await asyncio.sleep(CANCEL_SECONDS * 4)
    assert [(answer.request, answer.diagnostic.what) for answer in sent] == [(7, "replaced by a newer edit")]
    ended.set()
    await jobs.close()
    assert len(sent) == 1, "there is one answer"


async def test_a_request_that_ends_at_once_is_answered_then() -> None:
    sent: list[Any] = []
    jobs = RequestJobs(sent.append)
    jobs.start(7, lambda job: asyncio.Event().wait())  # type: ignore[arg-type, return-value]
    await asyncio.sleep(0)
    jobs.cancel(7)
    await asyncio.sleep(0.01)
    assert [type(answer) for answer in sent] == [Failed]
    await asyncio.sleep(CANCEL_SECONDS * 1.5)
    assert len(sent) == 1


async def test_a_request_that_ends_with_its_answer_all_the_same_gets_no_other() -> None:
    sent: list[Any] = []

    async def work(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            sent.append("the answer")

    jobs = RequestJobs(sent.append)
    jobs.start(7, work)
    await asyncio.sleep(0)
    jobs.cancel(7)
    await asyncio.sleep(CANCEL_SECONDS * 1.5)
    assert sent == ["the answer"]
