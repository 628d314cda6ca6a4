"""The plan of a benchmark: subjects, sides and threads. Imports neither torch nor MLIR.

A subject is a program that is timed; a side is a compiler or runtime that runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import ONNX_RUNTIME, OPENVINO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# This compiler's sides: with weights read in place, and with weights as constants.
OURS, OURS_FROZEN = "buddy", "buddy-frozen"
EAGER = "eager"
INDUCTOR, FREEZING, MAX_AUTOTUNE, CPP_WRAPPER = "inductor", "freezing", "max-autotune", "cpp-wrapper"
TORCHSCRIPT, ZENTORCH, IREE = "torchscript", "zentorch", "iree"
SIDES = {
    OURS: "torch.compile with this compiler, with its defaults: weights are read in place at each call",
    OURS_FROZEN: "torch.compile with this compiler's option `freeze`: weights are constants, packed once",
    EAGER: "PyTorch without compilation",
    INDUCTOR: "torch.compile as PyTorch ships it, which reads weights in place",
    FREEZING: "torch.compile with inductor's option `freezing`, which packs weights",
    MAX_AUTOTUNE: "inductor with `freezing` and `max_autotune`, which times kernels for each product",
    CPP_WRAPPER: "inductor with `freezing` and `cpp_wrapper`, which calls kernels from C++",
    TORCHSCRIPT: "a frozen trace of TorchScript with oneDNN's fusion",
    ZENTORCH: "torch.compile with AMD's backend, for CPUs with AVX-512 (extra `zentorch`)",
    IREE: "IREE for this CPU, from torch-mlir's import (extra `iree`)",
    ONNX_RUNTIME: "ONNX Runtime with all optimisations, from PyTorch's export to ONNX (extra `bench`)",
    OPENVINO: "OpenVINO with one stream and the hint LATENCY, from the same export (extra `bench`)",
}
# Sides that compile by `torch.compile` with Inductor.
INDUCTOR_SIDES = (INDUCTOR, FREEZING, MAX_AUTOTUNE, CPP_WRAPPER)
# The sides of a benchmark for which the user names no sides.
DEFAULT_SIDES = (OURS, OURS_FROZEN, EAGER, INDUCTOR, FREEZING, IREE)
# The name that stands for all sides on the command line.
ALL_SIDES = "all"
# Sides that treat weights as constants and pack them before the calls; they are only compared with one another.
CONSTANT_WEIGHTS = frozenset(SIDES) - {OURS, EAGER, INDUCTOR}

BenchPrecision = Literal["f32", "bf16", "int8-dynamic", "int8-static", "int8-weights", "int4-weights"]
BENCH_PRECISIONS: tuple[BenchPrecision, ...] = get_args(BenchPrecision)
# What a call computes: the results of one input, those of several inputs whose sizes differ, or a training step.
Task = Literal["inference", "dynamic", "training"]
# The time that is measured: the duration of a call, or the CPU time of the process in the call, on all threads.
Clock = Literal["wall", "cpu"]
# The tables of a report, in order, with their titles.
TABLES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "int8": "8-bit integers",
    "int4": "4-bit weights",
    "decode": "Decoding, one token",
    "dynamic": "Dynamic shapes, float32",
    "training": "Training steps, float32",
}
# The group of subjects that decode one token. One separate table has these subjects in all precisions.
DECODE_GROUP = "decode"
# The group of subjects that geometric means do not include.
OP_GROUP = "op"


class BenchSubject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program to time: a script that defines `model` and `example_inputs`, with its arguments.

    The program is measured once in each of the `precisions`. For the task "dynamic", `example_inputs` is a list of
    inputs, whose sizes may differ. For "training", the model returns a tensor, or a script's `loss(*results)` does, and
    a call is a step of the script's `optimizer` (default: SGD).
    """

    name: str
    source: str
    arguments: tuple[str, ...] = ()
    group: str = "model"
    task: Task = "inference"
    precisions: tuple[BenchPrecision, ...] = ("f32",)

    def table(self, precision: str) -> str:
        """Returns the key in `TABLES` of the table with this subject in `precision`."""
        if self.task != "inference":
            return self.task
        return DECODE_GROUP if self.group == DECODE_GROUP else precision.partition("-")[0]


class BenchCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement of a benchmark: a subject in a precision, on a number of threads."""

    subject: BenchSubject
    precision: BenchPrecision
    threads: int

    @property
    def key(self) -> tuple[str, str, int]:
        """The subject's name, the precision and the number of threads, which a result has too."""
        return self.subject.name, self.precision, self.threads

    def __str__(self) -> str:
        return f"{self.subject.name} in {self.precision}, {self.threads} thread{'s' * (self.threads != 1)}"


class BenchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that one run of the benchmark measures.

    A subject is timed in `rounds` rounds; no round starts after `seconds`, except the first `session.MIN_ROUNDS`. A
    side that is not ready after `prepare_seconds` is not timed. With the `clock` "cpu", times are CPU times, which do
    not include waits for a core that other programs use.
    """

    subjects: tuple[BenchSubject, ...]
    sides: tuple[str, ...] = DEFAULT_SIDES
    threads: tuple[int, ...] = (1,)
    rounds: int = 15
    seconds: float = 60.0
    prepare_seconds: float = 900.0
    clock: Clock = "wall"

    @property
    def cases(self) -> tuple[BenchCase, ...]:
        """All measurements, in order."""
        return tuple(
            BenchCase(subject, precision, threads)
            for threads in self.threads
            for subject in self.subjects
            for precision in subject.precisions
        )


class BenchPlanError(BuddyError):
    """A suite is invalid, or a side or precision is unknown; the text is the reason, with the file of a suite."""


class _Suite(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the TOML file of a suite."""

    subject: list[BenchSubject]


def read_suite(path: Path) -> tuple[BenchSubject, ...]:
    """Returns the subjects of a TOML file: tables `[[subject]]` with the fields of `BenchSubject`.

    Sources are relative to the file. Raises `BenchPlanError`.
    """
    try:
        suite = msgspec.convert(tomllib.loads(path.read_text()), _Suite)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BenchPlanError(f"{path}: {error}") from error
    for subject in suite.subject:
        if subject.task != "inference" and subject.precisions != ("f32",):
            raise BenchPlanError(f"{path}: subject {subject.name!r} of task {subject.task!r} is measured in f32 only")
    return tuple(
        msgspec.structs.replace(subject, source=str((path.parent / subject.source).resolve()))
        for subject in suite.subject
    )


def resolve_sides(names: Sequence[str]) -> tuple[str, ...]:
    """Returns this compiler's side and the sides `names`, each once; the name `ALL_SIDES` stands for all sides.

    Raises `BenchPlanError` for an unknown side.
    """
    names = [side for name in names for side in (SIDES if name == ALL_SIDES else (name,))]
    for name in names:
        if name not in SIDES:
            raise BenchPlanError(f"unknown side {name!r}; the sides are {', '.join(SIDES)}")
    return tuple(dict.fromkeys((OURS, *names)))


def with_precisions(subjects: Sequence[BenchSubject], names: Sequence[str]) -> tuple[BenchSubject, ...]:
    """Returns the subjects with the precisions `names` instead of those of the suite, unless `names` is empty.

    Subjects with another task than inference are not changed: they are measured in float32 only. Raises
    `BenchPlanError` for an unknown precision.
    """
    precisions = []
    for name in names:
        if name not in BENCH_PRECISIONS:
            raise BenchPlanError(f"unknown precision {name!r}; the precisions are {', '.join(BENCH_PRECISIONS)}")
        precisions.append(name)
    if not precisions:
        return tuple(subjects)
    return tuple(
        msgspec.structs.replace(subject, precisions=tuple(precisions)) if subject.task == "inference" else subject
        for subject in subjects
    )


# ---- what sides support ----------------------------------------------------------------------------------------------


def unsupported_reason(side: str, case: BenchCase) -> str:
    """Returns the reason why a side supports no case with this task and precision, "" if it may support this case."""
    task, precision = case.subject.task, case.precision
    if task == "training":
        if side in (ZENTORCH, IREE, ONNX_RUNTIME, OPENVINO):
            return f"{side} has no training"
        return "training changes weights, which are constants here" if side in _SIDES_WITH_CONSTANTS else ""
    if task == "dynamic" and side in (TORCHSCRIPT, IREE):
        return f"{side} compiles for the sizes of one input here"
    if precision not in _PRECISIONS_BY_SIDE.get(side, BENCH_PRECISIONS):
        return f"{side} has no {precision}: {_REASONS_WITHOUT_PRECISION.get(side, 'its models here are float32')}"
    return ""


# Sides whose weights are constants, which a training step would change.
_SIDES_WITH_CONSTANTS = (OURS_FROZEN, FREEZING, TORCHSCRIPT)
# The precisions of the sides that do not have all of them, and the reasons why they do not have the others.
_PRECISIONS_BY_SIDE: dict[str, tuple[BenchPrecision, ...]] = {
    TORCHSCRIPT: ("f32", "bf16", "int8-dynamic"),
    ZENTORCH: ("f32", "bf16"),
    IREE: ("f32",),
    ONNX_RUNTIME: ("f32", "int8-dynamic", "int8-static", "int8-weights", "int4-weights"),
    **dict.fromkeys((EAGER, *INDUCTOR_SIDES), ("f32", "bf16", "int8-dynamic", "int8-static", "int8-weights")),
}
_REASONS_WITHOUT_PRECISION = {
    ONNX_RUNTIME: "its kernels for CPUs have no bfloat16",
    TORCHSCRIPT: "a trace has no such model",
    ZENTORCH: "it reads models that AMD Quark quantised",
    **dict.fromkeys((EAGER, *INDUCTOR_SIDES), "torchao has no 4-bit weights for CPUs"),
}
