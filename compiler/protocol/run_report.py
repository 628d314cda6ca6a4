"""What running a graph gave beside eager, as plain values that frames carry."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.recipe import NATIVE, Backend


class InputChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a graph is run on: the script's own inputs, random ones by `seed`, or those that the file `title` holds.

    `content` is the file, which is the client's: a `.npy`, `.npz` or `.pt`.
    """

    kind: Literal["script", "random", "file"] = "script"
    seed: int = 0
    title: str = ""
    content: bytes = b""

    def __str__(self) -> str:
        told = {"script": "the script's own inputs", "random": f"random inputs, seed {self.seed}"}
        return told.get(self.kind, f"inputs from {self.title}")


OWN_INPUTS = InputChoice()


class OutputReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output compared with eager. `where` is the first index that differs beyond the element type's tolerance; of
    an output that is wrong within it, the index that differs most.

    The verdict `nan` is that of an output that has NaN just where eager's has, and is right otherwise, while nobody has
    said that NaN equals NaN. `nans` and `eager_nans` count them on either side; `zero_signs` are zeros that are of
    the other sign than eager's, which no comparison minds.

    `spread` is how far two correct runs of the program may be apart, as `runtime.sensitivity` measures it; -1 where
    nobody has asked, since the result is within a few roundings of eager's. `rms` and `spread_rms` are the root mean
    squares of the differences and of the spread, where there is one.

    `mean` and `deviation` are those of finite values. `map` holds the greatest absolute differences of the blocks of
    the output, laid out as rows of its last dim.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    verdict: Literal["ok", "mismatch", "missing", "unchecked", "nan"]
    tolerance: str = ""
    where: str = ""
    nans: int = 0
    infs: int = 0
    max_ulp: float = 0.0
    histogram: tuple[int, ...] = ()
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    zeros: int = 0
    map: tuple[tuple[float, ...], ...] = ()
    eager_nans: int = 0
    zero_signs: int = 0
    spread: float = -1.0
    rms: float = -1.0
    spread_rms: float = -1.0


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds over `runs` repetitions: median and the quartiles as spread."""

    median: float
    low: float
    high: float
    runs: int
    threads: int = 1


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes at the peak of one run, results among them: of compiled code, and of eager.

    `packed` are those of packed weights, which stay from run to run and are in neither figure. Weights and inputs
    themselves are nobody's.
    """

    compiled: int
    eager: int
    packed: int = 0


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """How busy the machine was while something was timed.

    `average` is that of the last minute, in processes; `others` are the cores that other processes kept at work just
    then, of `cores` that there are for this one; `waited` is the share (0..1) of the time in which threads of this
    process could have worked and had no core. All are -1 where nobody tells, `others` also where the timing took too
    short for it to be told, and `megahertz` is 0.
    """

    average: float
    others: float
    cores: int
    megahertz: float = 0.0
    waited: float = -1.0

    @property
    def disturbs(self) -> bool:
        """Whether others had a tenth of a core or more, or kept this process waiting: timings are then theirs too."""
        return self.others >= 0.1 or self.waited >= 0.02


class SideReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another compiler's code gave in the same run, timed in turn with the rest; or `problem`, why it did not."""

    name: Backend
    outputs: tuple[OutputReport, ...] = ()
    timing: Timing = Timing(0.0, 0.0, 0.0, 0)
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    problem: str = ""

    @property
    def max_abs(self) -> float:
        """The greatest difference from eager of any output."""
        return max((output.max_abs for output in self.outputs), default=0.0)

    @property
    def verdict(self) -> str:
        """The worst of its outputs' verdicts, `unchecked` where it has no outputs."""
        found = {output.verdict for output in self.outputs}
        return next((verdict for verdict in ("mismatch", "missing", "nan", "ok") if verdict in found), "unchecked")


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What running a graph gave, beside eager; without it (`compared`), outputs have figures and no verdict.

    `equal_nan` is whether NaN was to equal NaN; `load` is that of the machine while the timings were taken.
    """

    graph: int
    outputs: tuple[OutputReport, ...]
    compiled: Timing
    eager: Timing
    nodes_compiled: int
    nodes_eager: int
    compile_seconds: float
    load_seconds: float = 0.0
    ratio: float = 0.0
    inputs_unchanged: bool = True
    notes: tuple[str, ...] = ()
    memory: Memory | None = None
    backend: Backend = NATIVE
    beside: tuple[SideReport, ...] = ()
    compared: bool = True
    load: Load | None = None
    equal_nan: bool = False

    @property
    def not_compared(self) -> str:
        """Why nothing says whether the run is right, "" where something does."""
        if not self.compared:
            return "there is no eager program beside it"
        return "" if self.outputs else "the graph returns no tensor"

    @property
    def ok(self) -> bool:
        """Whether every output was compared and is right, and there is one."""
        return not self.not_compared and self.inputs_unchanged and all(each.verdict == "ok" for each in self.outputs)

    @property
    def word(self) -> str:
        """The run in a word or two."""
        if self.wrong:
            unasked = self.inputs_unchanged and all(each.verdict in ("ok", "nan") for each in self.outputs)
            return "NaN" if unasked else "MISMATCH"
        return "not compared" if self.not_compared else "ok"

    @property
    def wrong(self) -> bool:
        """Whether something is wrong, NaN that nobody asked for included. A run without anything to compare with is
        neither right nor wrong."""
        return not self.inputs_unchanged or any(output.verdict not in ("ok", "unchecked") for output in self.outputs)
