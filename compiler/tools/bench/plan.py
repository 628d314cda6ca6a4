"""The plan of a benchmark: subjects, sides and threads. Imports neither torch nor MLIR.

A subject is a program that is timed; a side is a compiler or runtime that runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import ONNX_RUNTIME, OPENVINO, RUNTIMES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# This compiler's sides.
OURS, OURS_FROZEN = "buddy", "buddy-frozen"
EAGER = "eager"
SIDES = {
    OURS: "torch.compile with this compiler, with its defaults: weights are read in place at each call",
    OURS_FROZEN: "torch.compile with this compiler's option `freeze`: weights are constants, packed once",
    EAGER: "PyTorch without compilation",
    "inductor": "torch.compile as PyTorch ships it, which reads weights in place",
    "freezing": "torch.compile with inductor's option `freezing`, which packs weights",
    "iree": "IREE for this CPU, from torch-mlir's import (extra `iree`)",
    ONNX_RUNTIME: "ONNX Runtime, from PyTorch's export to ONNX (extra `runtimes`)",
    OPENVINO: "OpenVINO in float32, from the same export (extra `runtimes`)",
}
# The sides of a benchmark that names none: other runtimes are not among them.
DEFAULT_SIDES = tuple(name for name in SIDES if name not in RUNTIMES)
# Sides that treat weights as constants and pack them before the calls; they are only compared with one another.
CONSTANT_WEIGHTS = frozenset({OURS_FROZEN, "freezing", "iree", *RUNTIMES})


class BenchSubject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program to time: a script that defines `model` and `example_inputs`, with its arguments.

    The geometric mean includes only subjects of the `group` "model".
    """

    name: str
    source: str
    arguments: tuple[str, ...] = ()
    group: str = "model"


class BenchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that one run of the benchmark measures."""

    subjects: tuple[BenchSubject, ...]
    sides: tuple[str, ...] = DEFAULT_SIDES
    threads: tuple[int, ...] = (1,)
    rounds: int = 15
    seconds: float = 60.0
    """The rounds of a subject end after this many seconds, but it has at least `MIN_ROUNDS` rounds."""


class BenchPlanError(BuddyError):
    """An invalid suite, or an unknown side; the text says what is wrong, and where."""


class _Suite(msgspec.Struct, forbid_unknown_fields=True):
    subject: list[BenchSubject]


def read_suite(path: Path) -> tuple[BenchSubject, ...]:
    """Returns the subjects of a TOML file: tables `[[subject]]` with the fields of `BenchSubject`.

    Sources are relative to the file. Raises `BenchPlanError`.
    """
    try:
        suite = msgspec.convert(tomllib.loads(path.read_text()), _Suite)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BenchPlanError(f"{path}: {error}") from error
    return tuple(
        msgspec.structs.replace(subject, source=str((path.parent / subject.source).resolve()))
        for subject in suite.subject
    )


def check_sides(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the sides `names`, after this compiler's. Raises `BenchPlanError` for an unknown side."""
    for name in names:
        if name not in SIDES:
            raise BenchPlanError(f"unknown side {name!r}; the sides are {', '.join(SIDES)}")
    return tuple(dict.fromkeys((OURS, *names)))
