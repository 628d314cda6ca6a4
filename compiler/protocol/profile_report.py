"""Where the time of a run went, as plain values that frames carry."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.run_report import Load, Timing


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
    """What the machine can do at most, in billions a second, a multiply-add being two operations: of operations in f32,
    of bytes read, of operations in f64 and in i32. 0 where it was not measured."""

    gflops: float = 0.0
    gbytes: float = 0.0
    gflops_f64: float = 0.0
    giops_i32: float = 0.0

    def arithmetic(self, dtype: str) -> float:
        """The most in an element type, by the name that rows have for it. Halves are computed in f32 here, and wider
        integers are at most as fast as those of 32 bits."""
        if dtype == "f64":
            return self.gflops_f64
        return self.giops_i32 if dtype.lstrip("u").startswith("i") else self.gflops


class HotSpot(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instruction, `offset` bytes into a function, at which `samples` found a thread.

    The engine adds what stands there (`text`), in which line of the assembly (`line`, -1 where that is not known), and
    of which nodes. It may have been the instruction before that took the time.
    """

    function: str
    offset: int
    samples: int
    text: str = ""
    line: int = -1
    nodes: tuple[str, ...] = ()


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where threads were at `hertz` samples a second of their time in user space, in the code without counters.

    Of `samples`, so many were `inside` compiled code; `spots` are its instructions with most of them, `elsewhere` the
    files whose code had the others ("" for code that is generated, as trampolines are). `problem` says why there are
    none.
    """

    samples: int = 0
    inside: int = 0
    hertz: int = 0
    spots: tuple[HotSpot, ...] = ()
    elsewhere: tuple[tuple[str, int], ...] = ()
    problem: str = ""
    lost: int = 0


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
    sampling: Sampling = Sampling()
    notes: tuple[str, ...] = ()
    load: Load | None = None
