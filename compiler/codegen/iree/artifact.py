"""The inputs of IREE's compiler and of its runtime, as plain values. Imports neither torch nor MLIR."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec

ENTRY = "buddy_entry"
# The scope of parameters: the runtime gets one provider, of this name.
SCOPE = "model"


class IreeConvention(msgspec.Struct, frozen=True):
    """The signature of the entry `ENTRY`: the graph's `inputs` (numbers of placeholders), then an `i64` per symbol.

    It returns those of `results` that have elements. `parameters` are weights by the module's key (numbers of
    placeholders): the runtime reads them in place, so they are neither in the text nor in the module. `unchecked` are
    ops whose data eager checks, and IREE does not.
    """

    inputs: tuple[int, ...]
    parameters: dict[str, int]
    results: tuple[TensorSpec, ...]
    symbols: tuple[ArtifactSymbol, ...] = ()
    unchecked: tuple[str, ...] = ()


class IreeProgram(msgspec.Struct, frozen=True):
    """A module for `iree-compile`; `sets` and `derived` are the sets of its locations (`LocationSets`)."""

    text: str
    convention: IreeConvention
    sets: tuple[tuple[str, ...], ...]
    derived: dict[int, tuple[str, ...]]


class IreeArtifact(msgspec.Struct, frozen=True):
    """A module for IREE's runtime, compiled with `flags` (all of them)."""

    module: bytes
    convention: IreeConvention
    flags: tuple[str, ...]


def to_bytes(value: IreeProgram | IreeArtifact) -> bytes:
    return msgspec.msgpack.encode(value)


def program_from(data: bytes) -> IreeProgram:
    return msgspec.msgpack.decode(data, type=IreeProgram)


def artifact_from(data: bytes) -> IreeArtifact:
    return msgspec.msgpack.decode(data, type=IreeArtifact)
