"""Frames that list passes, ops and presets."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.plain_values import BindingsInfo, DialectInfo, OpInfo, PassInfo, Preset
from buddy.compiler.protocol.recipe import PluginFile


class ListPasses(Request["Passes"], frozen=True):
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class ListOps(Request["Ops"], frozen=True):
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class ListPresets(Request["Presets"], frozen=True):
    """The recipes to start from: `Presets`."""


class Passes(Frame, frozen=True):
    """The available passes and dialects, and the origin of the MLIR bindings."""

    request: int
    passes: tuple[PassInfo, ...]
    notes: tuple[str, ...] = ()
    dialects: tuple[DialectInfo, ...] = ()
    bindings: BindingsInfo | None = None


class Ops(Frame, frozen=True):
    request: int
    ops: tuple[OpInfo, ...]
    notes: tuple[str, ...] = ()


class Presets(Frame, frozen=True):
    request: int
    presets: tuple[Preset, ...]
