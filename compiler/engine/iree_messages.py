"""The messages between the engine and the IREE worker, in the common framing."""

from __future__ import annotations

from buddy.compiler.protocol.catalogue import DeviceInfo, FlagInfo
from buddy.compiler.protocol.worker_messages import CompileDone, CompilerNote, FailureReply, Message, Ready, Reply


class CompileByIree(Message, frozen=True):
    """Compile a program with IREE. Answered by a `StageNote` per phase, then `CompileDone`.

    `first` is the number of the first phase's stage. The artifact is an `IreeArtifact`. `known_texts` names the texts
    that the engine already has.
    """

    program: bytes
    flags: tuple[str, ...]
    known_texts: tuple[str, ...]
    first: int = 0


class DescribeIree(Message, frozen=True):
    """Describe IREE's flags and devices; answered by `IreeDescribed`."""


class CheckIreeFlags(Message, frozen=True):
    """Check whether IREE accepts these flags; answered by `IreeFlagsChecked`."""

    flags: tuple[str, ...]


class IreeDescribed(Reply, frozen=True):
    """The fields are those of `protocol.BackendDescribed`."""

    versions: dict[str, str]
    flags: tuple[FlagInfo, ...]
    defaults: tuple[str, ...]
    targets: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]


class IreeFlagsChecked(Reply, frozen=True):
    """`problem` is IREE's error message, "" if it accepts the flags."""

    problem: str


IreeRequest = CompileByIree | DescribeIree | CheckIreeFlags
IreeMessage = Ready | CompilerNote | CompileDone | IreeDescribed | IreeFlagsChecked | FailureReply
