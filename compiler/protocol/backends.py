"""Frames that ask about a backend other than this compiler's own."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.frame import Frame, Request

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
    """A device that the backend's runtime finds: its driver, its path there ("" for the only one), its name."""

    driver: str
    path: str
    name: str


class BackendDescribed(Frame, frozen=True):
    """`versions` are those of its packages; `defaults` are the flags that apply unless others are given."""

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
