"""Finds IREE's packages, and has the inputs of its compiler and runtime as plain values.

These are the flags of a recipe, the program and the artifact. Importing this module does not import IREE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec
from buddy.compiler.protocol.errors import BuddyError

# ---- IREE's packages -------------------------------------------------------------------------------------------------


NOT_INSTALLED = "IREE is not installed"
INSTALL_COMMAND = "pip install 'buddy-tui[iree]'"


class IreeMissingError(BuddyError):
    """IREE's compiler or its runtime is not installed."""


def missing_packages() -> str:
    """Returns a message with the packages of IREE that are not installed, "" if all are installed."""
    absent = [name for name in ("iree.compiler", "iree.runtime") if not _is_importable(name)]
    return f"{NOT_INSTALLED} ({' and '.join(absent)})" if absent else ""


def compiler_path() -> Path:
    """Returns the path of `iree-compile`. Raises `IreeMissingError` if a package or the executable is missing."""
    if problem := missing_packages():
        raise IreeMissingError(problem)
    from iree.compiler.tools.binaries import find_tool

    try:
        return Path(find_tool("iree-compile"))
    except ValueError as error:
        raise IreeMissingError(str(error)) from error


def versions() -> dict[str, str]:
    """Returns the versions of IREE's installed packages."""
    installed = {}
    for package in ("iree-base-compiler", "iree-base-runtime"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# ---- flags and messages ----------------------------------------------------------------------------------------------


# With IREE's default limit of 32 KiB on stack allocation, larger models fail with "exceeded stack allocation limit" at
# O2. At O3, BERT fails even with 256 KiB.
DEFAULT_FLAGS = (
    "--iree-hal-target-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O2",
    "--iree-llvmcpu-stack-allocation-limit=262144",
)

# The flags that select a target: any of them replaces the default target.
_TARGET_FLAGS = ("iree-hal-target-backends", "iree-hal-target-device")
# The compiler's names of targets and devices that run on the host.
_HOST_TARGETS = ("llvm-cpu", "vmvx", "vmvx-inline", "local")
# The runtime's drivers by the compiler's names of targets and devices; "local" is one of two drivers for the host.
_DRIVERS = {
    **dict.fromkeys(_HOST_TARGETS, "local"),
    "cuda": "cuda",
    "rocm": "hip",
    "hip": "hip",
    "amdgpu": "hip",
    "vulkan-spirv": "vulkan",
    "vulkan": "vulkan",
    "metal-spirv": "metal",
    "metal": "metal",
}

_SET_BY_WORKBENCH = "the workbench sets the phases and the output itself"
# The flags that a recipe must not have, with the reason.
_RESERVED = {
    **dict.fromkeys(
        ("o", "compile-to", "compile-from", "compile-mode", "dump-compilation-phases-to", "output-format"),
        _SET_BY_WORKBENCH,
    ),
    **dict.fromkeys(("help", "help-hidden", "help-list", "help-list-hidden", "version"), "it compiles nothing"),
    "mlir-print-debuginfo": "the workbench needs the locations",
}


def flag_name(flag: str) -> str:
    """Returns the name of a flag, without dashes and value."""
    return flag.lstrip("-").partition("=")[0]


def normalise_flag(flag: str) -> str:
    """Returns the flag with two leading dashes."""
    return f"--{flag.strip().lstrip('-')}"


def flag_problem(flag: str) -> str:
    """Returns why a flag is not allowed, "" if it is allowed. Does not check that IREE has the flag."""
    name = flag_name(flag)
    if not name or not flag.startswith("-"):
        return f"{flag!r} is not a flag: write --NAME or --NAME=VALUE"
    if name in _RESERVED:
        return f"--{name} is not allowed: {_RESERVED[name]}"
    if any(not character.isprintable() for character in flag):
        return f"--{name} contains characters that cannot be printed"
    return ""


def merge_flags(flags: Sequence[str]) -> list[str]:
    """Returns all flags of a compilation: `flags`, and the defaults that they do not replace."""
    replaced = {flag_name(flag) for flag in flags}
    if replaced.intersection(_TARGET_FLAGS):
        replaced.update(_TARGET_FLAGS)
    return [*(flag for flag in DEFAULT_FLAGS if flag_name(flag) not in replaced), *flags]


def selected_targets(flags: Iterable[str]) -> list[str]:
    """Returns the targets that `flags` select, by IREE's names."""
    values = [flag.partition("=")[2] for flag in flags if flag_name(flag) in _TARGET_FLAGS]
    return [target.partition("[")[0] for value in values for target in value.split(",") if target]


def runtime_driver(flags: Sequence[str], threads: int) -> str:
    """Returns the runtime's driver for the first target that `flags` select, with `threads` threads on the host.

    `flags` includes the defaults.
    """
    target = next(iter(selected_targets(flags)), "local")
    name = _DRIVERS.get(target, target)
    if name != "local":
        return name
    return "local-sync" if threads == 1 else "local-task"


WRAPPER_NAME = "buddy_entry"
# The scope of parameters: the runtime gets one provider, of this name.
PARAMETER_SCOPE = "model"


class IreeConvention(msgspec.Struct, frozen=True):
    """The signature of the wrapper: the graph's `inputs` (numbers of placeholders), then an `i64` per symbol.

    The wrapper returns those of `results` that have elements. `parameters` maps the key of each weight in the module to
    the number of its placeholder: the runtime reads weights in place, so the module does not contain them. `unchecked`
    has the names of the ops whose input data eager PyTorch checks, but IREE does not.
    """

    inputs: tuple[int, ...]
    parameters: dict[str, int]
    results: tuple[TensorSpec, ...]
    symbols: tuple[ArtifactSymbol, ...] = ()
    unchecked: tuple[str, ...] = ()


class IreeProgram(msgspec.Struct, frozen=True):
    """A module for `iree-compile`; `sets` and `derived` are those of the `LocationSets` of its locations."""

    text: str
    convention: IreeConvention
    sets: tuple[tuple[str, ...], ...]
    derived: dict[int, tuple[str, ...]]


class IreeArtifact(msgspec.Struct, frozen=True):
    """A module for IREE's runtime, compiled with `flags`, which include the defaults."""

    module: bytes
    convention: IreeConvention
    flags: tuple[str, ...]


def to_bytes(value: IreeProgram | IreeArtifact) -> bytes:
    return msgspec.msgpack.encode(value)


def program_from(data: bytes) -> IreeProgram:
    return msgspec.msgpack.decode(data, type=IreeProgram)


def artifact_from(data: bytes) -> IreeArtifact:
    return msgspec.msgpack.decode(data, type=IreeArtifact)
