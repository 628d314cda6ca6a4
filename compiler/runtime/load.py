"""Loads an artifact for the CPU of this process or for a GPU."""

from __future__ import annotations

from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.on_device import DeviceLoaded

Loaded = LoadedProgram | DeviceLoaded


def load(artifact: Artifact, frozen: bool = False) -> Loaded:
    """Returns the program, callable on torch tensors as a `LoadedProgram`. Raises what it and `DeviceLoaded` raise."""
    return LoadedProgram(artifact, frozen) if artifact.device is None else DeviceLoaded(artifact)
