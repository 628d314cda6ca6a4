"""What the engine and the worker that has IREE say to each other, framed as all messages are."""

from __future__ import annotations

from buddy.compiler.protocol.backends import DeviceInfo, FlagInfo
from buddy.compiler.protocol.worker_messages import CompileDone, CompilerNote, Message, Ready, Refused, Reply


class CompileByIree(Message, frozen=True):
    """Compile a program for IREE: a `StageNote` a phase, the first numbered `first`, then `CompileDone`.

    The artifact is an `IreeArtifact`. `known` names the texts that the engine holds.
    """

    program: bytes
    flags: tuple[str, ...]
    known: tuple[str, ...]
    first: int = 0


class DescribeIree(Message, frozen=True):
    """What IREE takes and finds: `IreeDescribed`."""


class CheckIreeFlags(Message, frozen=True):
    """Whether IREE takes these flags: `IreeFlagsChecked`."""

    flags: tuple[str, ...]


class IreeDescribed(Reply, frozen=True):
    versions: dict[str, str]
    flags: tuple[FlagInfo, ...]
    defaults: tuple[str, ...]
    targets: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]


class IreeFlagsChecked(Reply, frozen=True):
    problem: str


IreeRequest = CompileByIree | DescribeIree | CheckIreeFlags
IreeMessage = Ready | CompilerNote | CompileDone | IreeDescribed | IreeFlagsChecked | Refused
