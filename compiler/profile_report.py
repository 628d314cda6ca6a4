"""Where the time of a run went, as plain values that frames carry."""

from __future__ import annotations

import msgspec

from buddy.compiler.run_report import Timing


class NodeTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one node took in a run.

    `seconds` are those of all code that comes from it. Code that comes from several nodes has one time, which is told
    at the node that works most; the others are `fused`, and their own `into` names that node. `operations` and `bytes`
    are what it has to do and to move at least, with all that is fused into it, by shapes alone; -1 where that is not
    known. `regions` are how many parts of the code that is.
    """

    node: str
    seconds: float = 0.0
    into: str = ""
    fused: tuple[str, ...] = ()
    operations: float = -1.0
    bytes: float = -1.0
    regions: int = 0


class RegionTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a part of a function took in a run, as `artifact.Region` describes it; calls include what they call."""

    nodes: tuple[str, ...]
    function: str
    what: str
    seconds: float
    parent: int = -1


class Peak(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the machine can do at most: billions of operations a second in f32, a multiply-add being two, and of bytes
    read. 0 where it was not measured."""

    gflops: float = 0.0
    gbytes: float = 0.0


class ProfileReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a graph's runs went.

    `plain` are runs of the code without counters, `counted` of that with them, taken in turn; `overhead` is by how much
    the faster half of the latter takes longer than that of the former (0.01: a hundredth). Times of nodes and regions
    are the means of the faster half of the latter, so that they add up: `whole` is what these runs took, `inside` what
    all nodes took in them, `outside` what of compiled code belongs to none: calls of functions. Results of both are the
    same bits where `same`.
    """

    graph: int
    nodes: tuple[NodeTime, ...]
    regions: tuple[RegionTime, ...]
    plain: Timing
    counted: Timing
    overhead: float
    whole: float
    inside: float
    outside: float = 0.0
    peak: Peak = Peak()
    counter: str = ""
    ticks_per_second: float = 0.0
    same: bool = True
    notes: tuple[str, ...] = ()
