"""Frames that request a profile of a run, and its report."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice, MachineLoad, Timing


class NodeTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of one node in a run.

    `seconds` is the time of all code that comes from it. Code of several nodes has one time, which is reported for the
    node with the most work; the others are `fused`, and their `into` names that node. `operations` and `bytes` are the
    minimum work and traffic of the node with everything fused into it, by shapes alone; -1 if unknown. `regions` is the
    number of its timed regions.
    """

    node: str
    seconds: float = 0.0
    into: str = ""
    fused: tuple[str, ...] = ()
    operations: float = -1.0
    bytes: float = -1.0
    regions: int = 0


class RegionTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time of a part of a function in a run, as described by `artifact.Region`; calls include their callees."""

    nodes: tuple[str, ...]
    function: str
    what: str
    seconds: float
    parent: int = -1


class Peak(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine's peak rates in 1e9 per second, with a multiply-add as two operations: f32 operations, bytes read,
    f64 and i32 operations. 0 if not measured.
    """

    gflops: float = 0.0
    gbytes: float = 0.0
    gflops_f64: float = 0.0
    giops_i32: float = 0.0

    def arithmetic(self, dtype: str) -> float:
        """Returns the peak for an element type, by the name that rows use for it.

        Here, half precision is computed in f32, and wider integers are at most as fast as those of 32 bits.
        """
        if dtype == "f64":
            return self.gflops_f64
        return self.giops_i32 if dtype.lstrip("u").startswith("i") else self.gflops


class HotSpot(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instruction, `offset` bytes into a function, at which `samples` found a thread.

    The engine adds its text (`text`), its line in the assembly (`line`, -1 if unknown), and its nodes. The time may
    belong to the previous instruction.
    """

    function: str
    offset: int
    samples: int
    text: str = ""
    line: int = -1
    nodes: tuple[str, ...] = ()


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples of the code without counters, at `hertz` samples per second of user time of its threads.

    Of `samples`, `inside` were in compiled code; `spots` are the instructions with the most of them, `elsewhere` the
    files whose code had the others ("" for generated code, such as trampolines). `problem` is the reason if there are
    no samples.
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

    `plain` are runs of the code without counters, `counted` those with them, interleaved; `overhead` is the relative
    slowdown of the faster half of `counted` against the faster half of `plain` (0.01: 1 %). Times of nodes and regions
    are means over the faster half of `counted`, so that they add up: `whole` is the duration of these runs, `inside`
    the time of all nodes in them, `outside` the time of compiled code that belongs to no node: function calls. `same`
    says whether both gave bitwise equal results.
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

    The compilation on the screen is not replaced. With `peak`, the machine's peak rates are measured, once.
    """

    recipe: Recipe
    repeats: int = 10
    timeout: float = 120.0
    inputs: InputChoice = InputChoice()
    peak: bool = True


class Profiled(Frame, frozen=True):
    request: int
    report: ProfileReport
