"""Frames that request a profile of a run, and its report."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice, MachineLoad, Timing


class NodeTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of one node in a run.

    `seconds` is the time of all code that comes from the node. Code that comes from several nodes is timed as a whole
    and reported for the node with the most work. The `fused` of this node are the other nodes, whose `into` names it.
    `operations` and `bytes` are the minimum work and memory traffic of the node with everything fused into it, derived
    from shapes; -1 if unknown. `regions` is the number of its timed regions.
    """

    node: str
    seconds: float = 0.0
    into: str = ""
    fused: tuple[str, ...] = ()
    operations: float = -1.0
    bytes: float = -1.0
    regions: int = 0


class RegionTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of an `artifact.TimedRegion` in a run; the time of a call includes that of its callee."""

    nodes: tuple[str, ...]
    function: str
    label: str
    seconds: float
    parent: int = -1


class Peak(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine's peak rates in 1e9 per second: of f32 operations, bytes read, f64 operations and i32 operations.

    A multiply-add counts as two operations. A rate that was not measured is 0.
    """

    gflops: float = 0.0
    gbytes: float = 0.0
    gflops_f64: float = 0.0
    giops_i32: float = 0.0

    def arithmetic(self, dtype: str) -> float:
        """Returns the peak rate of operations on element type `dtype`, named as in `NodeRow.dtype`.

        Compiled code computes half precision in f32. The rate of i32 is an upper bound for wider integers.
        """
        if dtype == "f64":
            return self.gflops_f64
        return self.giops_i32 if dtype.lstrip("u").startswith("i") else self.gflops


class HotSpot(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instruction, `offset` bytes into a function, at which `samples` samples found a thread.

    The engine adds the instruction's text, its line in the assembly (-1 if unknown) and its nodes. The sampled time may
    be that of the previous instruction.
    """

    function: str
    offset: int
    samples: int
    text: str = ""
    line: int = -1
    nodes: tuple[str, ...] = ()


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples of the code without counters, at `hertz` samples per second of user time of its threads.

    Of `samples`, `inside` were in compiled code; `spots` are the instructions with the most samples, `elsewhere` the
    files of the code that had the other samples, each with a number of samples ("" is generated code, such as
    trampolines). `lost` is the number of samples that the kernel dropped. `problem` is why no samples were taken.
    """

    samples: int = 0
    inside: int = 0
    hertz: int = 0
    spots: tuple[HotSpot, ...] = ()
    elsewhere: tuple[tuple[str, int], ...] = ()
    problem: str = ""
    lost: int = 0


class ProfileReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The profile of a graph's runs.

    `plain` are runs of the code without counters, `counted` runs with counters, interleaved; `overhead` is the relative
    slowdown of the faster half of `counted` against the faster half of `plain` (0.01: 1 %). Times of nodes and regions
    are means over the faster half of `counted`, so that they add up: `whole` is the duration of such a run, `inside`
    the time of all nodes in it, `outside` the time of compiled code that belongs to no node: function calls. `same`
    says whether the code with counters and the code without gave bitwise equal results. `counter` names the clock of
    the counters, which advances `ticks_per_second` times a second.
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
    load: MachineLoad | None = None


class Profile(Request["Profiled"], frozen=True):
    """Compile a recipe with counters in its code, and run it; answered by `Progress`, then `Profiled` or `Failed`.

    The compilation on the screen is not replaced. With `peak`, the machine's peak rates are measured, unless they are
    cached. `repeats` is the number of runs of each kind, `timeout` their limit in seconds.
    """

    recipe: Recipe
    repeats: int = 10
    timeout: float = 120.0
    inputs: InputChoice = InputChoice()
    peak: bool = True


class Profiled(Frame, frozen=True):
    """The profile of a graph's runs."""

    request: int
    report: ProfileReport
