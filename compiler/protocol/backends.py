"""Frames that ask what a backend other than this compiler's own takes."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.frame import Frame, Request

# What `iree-compile` goes through, in its own words and order: each is a stage of a recipe whose backend is IREE.
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
    """What backend `name` takes and finds: `BackendDescribed`."""

    name: str


class CheckFlags(Request["FlagsChecked"], frozen=True):
    """Whether backend `name` takes `flags`: `FlagsChecked`."""

    name: str
    flags: tuple[str, ...]


class FlagInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A flag without its dashes; `kind` is what its value is ("" for a flag without), `values` those to choose from."""

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
    """`versions` are those of its packages; `defaults` the flags that stand unless others are given."""

    request: int
    name: str
    versions: dict[str, str]
    flags: tuple[FlagInfo, ...]
    defaults: tuple[str, ...]
    targets: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]


class FlagsChecked(Frame, frozen=True):
    """`problem` is what the backend says against them, "" when it takes them."""

    request: int
    problem: str = ""
