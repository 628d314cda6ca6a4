"""Frames that list passes, ops and presets, and that describe other backends."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.plain_values import (
    BackendInfo,
    BindingsInfo,
    DialectInfo,
    OpInfo,
    PassInfo,
    PluginInfo,
    Preset,
)
from buddy.compiler.protocol.recipe import INDUCTOR, IREE, PluginFile

# The phases of `iree-compile`, by its names and in its order: each is a stage of a recipe whose backend is IREE.
IREE_PHASES = (
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
)


# The stages of Inductor, each with its language. The first three are FX graphs, `scheduler` and `fused` its loops
# before and after fusion, `fusions` the decisions about pairs of loops.
INDUCTOR_PHASES = (
    ("pre-grad", "python"),
    ("joint", "python"),
    ("post-grad", "python"),
    ("scheduler", "python"),
    ("fused", "python"),
    ("fusions", "text"),
    ("wrapper", "python"),
    ("kernels", "cpp"),
    ("asm", "asm"),
)
# The phases of the backends that are other compilers, each with its language.
PHASES_OF_COMPILERS: dict[str, tuple[tuple[str, str], ...]] = {
    IREE: tuple((name, "mlir") for name in IREE_PHASES),
    INDUCTOR: INDUCTOR_PHASES,
}
# The names of these backends in messages.
COMPILER_NAMES = {IREE: "IREE", INDUCTOR: "Inductor"}


class DescribeBackend(Request["BackendDescribed"], frozen=True):
    """Describe backend `name`; answered by `BackendDescribed`."""

    name: str


class CheckFlags(Request["FlagsChecked"], frozen=True):
    """Check whether backend `name` accepts `flags`; answered by `FlagsChecked`."""

    name: str
    flags: tuple[str, ...]


class FlagInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A flag without its dashes; `kind` is the type of its value ("" if it has none), `values` the valid ones."""

    name: str
    kind: str = ""
    values: tuple[str, ...] = ()
    summary: str = ""


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device that the backend's runtime finds: its driver, its path in the driver ("" for the only one), its name."""

    driver: str
    path: str
    name: str


class BackendDescribed(Frame, frozen=True):
    """The description of backend `name`: its packages' versions, and its flags, targets and devices.

    `defaults` are the flags that are used unless a recipe replaces them.
    """

    request: int
    name: str
    versions: dict[str, str]
    flags: tuple[FlagInfo, ...]
    defaults: tuple[str, ...]
    targets: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]


class FlagsChecked(Frame, frozen=True):
    """`problem` is the backend's error message, "" if it accepts the flags."""

    request: int
    problem: str = ""


class ListPasses(Request["Passes"], frozen=True):
    """List the passes, with those of `plugins`, whose paths are relative to `directory`; answered by `Passes`."""

    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class ListOps(Request["Ops"], frozen=True):
    """List the ops that can be compiled, with those of `plugins`; answered by `Ops`."""

    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class ListPresets(Request["Presets"], frozen=True):
    """List the presets, with those of the installed plug-ins and of `plugins`; answered by `Presets`."""

    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class Passes(Frame, frozen=True):
    """The available passes, dialects and backends, the origin of the MLIR bindings, and the installed plug-ins."""

    request: int
    passes: tuple[PassInfo, ...]
    notes: tuple[str, ...] = ()
    dialects: tuple[DialectInfo, ...] = ()
    bindings: BindingsInfo | None = None
    backends: tuple[BackendInfo, ...] = ()
    plugins: tuple[PluginInfo, ...] = ()


class Ops(Frame, frozen=True):
    """The ops that can be compiled; `notes` are errors of plug-ins."""

    request: int
    ops: tuple[OpInfo, ...]
    notes: tuple[str, ...] = ()


class Presets(Frame, frozen=True):
    """The presets; `notes` are errors of plug-ins."""

    request: int
    presets: tuple[Preset, ...]
    notes: tuple[str, ...] = ()
