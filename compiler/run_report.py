"""What running a graph gave beside eager, as plain values that frames carry."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.recipe import NATIVE, Backend


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
    """One output compared with eager. `where` is the first index that differs beyond tolerance.

    `mean` and `deviation` are those of finite values. `map` holds the greatest absolute differences of the blocks of
    the output, laid out as rows of its last dim.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    verdict: Literal["ok", "mismatch", "missing", "unchecked"]
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


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What running a graph gave, beside eager; without it (`compared`), outputs have figures and no verdict."""

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

    @property
    def ok(self) -> bool:
        """Whether every output was compared and is right."""
        return self.compared and self.inputs_unchanged and all(output.verdict == "ok" for output in self.outputs)

    @property
    def wrong(self) -> bool:
        """Whether something is known to be wrong. A run without anything to compare with is neither right nor wrong."""
        return not self.inputs_unchanged or any(output.verdict not in ("ok", "unchecked") for output in self.outputs)
