"""The messages of a coverage run: with its warm process, and between that and its forks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.tools.coverage.plan import CallResult, CoveragePlan, Listing, OpDtypePair, PairResult


class ListPairs(Message, frozen=True):
    """Start under `plan`; answered by `PairsListed`."""

    plan: CoveragePlan


class PairsListed(Message, frozen=True):
    listing: Listing


class CheckPair(Message, frozen=True):
    """Check a pair under the plan; answered by `PairChecked`."""

    pair: OpDtypePair


class PairChecked(Message, frozen=True):
    result: PairResult


class CoverageJob(Message, frozen=True):
    """Check a pair in a fork. Calls in `known` are left out; with `joint`, all calls are tried in one program first.

    Answered by `CallStarted` before each program, `CallChecked` after it, and `JobDone`.
    """

    pair: OpDtypePair
    samples: int
    options: Mapping[str, Any]
    joint: bool = True
    known: frozenset[int] = frozenset()
    backward: bool = False


class CallStarted(Message, frozen=True):
    """The program of call `number` starts."""

    number: int
    text: str


class CallChecked(Message, frozen=True):
    number: int
    result: CallResult


class JobDone(Message, frozen=True):
    """The pair is done; `skipped` says why there was no call, "" if there was one."""

    skipped: str = ""
