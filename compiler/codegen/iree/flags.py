"""The flags of `iree-compile` in a recipe: what they may be, which stand unless others are given, what they run on.

Imports neither IREE nor anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Larger models fail with "exceeded stack allocation limit" at IREE's default of 32 KiB, at O2 already; at O3 BERT does
# with 256 KiB, too.
DEFAULTS = (
    "--iree-hal-target-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O2",
    "--iree-llvmcpu-stack-allocation-limit=262144",
)

# Each of these says what to compile for; one that is given takes the place of the others.
_TARGETS = ("iree-hal-target-backends", "iree-hal-target-device")
_LOCAL = ("llvm-cpu", "vmvx", "vmvx-inline", "local")
# The runtime's drivers by the compiler's words for targets and devices.
_DRIVERS = {
    **dict.fromkeys(_LOCAL, "local"),
    "cuda": "cuda",
    "rocm": "hip",
    "hip": "hip",
    "amdgpu": "hip",
    "vulkan-spirv": "vulkan",
    "vulkan": "vulkan",
    "metal-spirv": "metal",
    "metal": "metal",
}

_OURS = "the workbench asks for every phase and for the module itself"
_RESERVED = {
    **dict.fromkeys(
        ("o", "compile-to", "compile-from", "compile-mode", "dump-compilation-phases-to", "output-format"), _OURS
    ),
    **dict.fromkeys(("help", "help-hidden", "help-list", "help-list-hidden", "version"), "it compiles nothing"),
    "mlir-print-debuginfo": "the workbench needs locations, and takes them out of the text itself",
}


def name_of(flag: str) -> str:
    """What a flag is called, without dashes and value."""
    return flag.lstrip("-").partition("=")[0]


def normal(flag: str) -> str:
    """The flag with two dashes in front."""
    return f"--{flag.strip().lstrip('-')}"


def problem(flag: str) -> str:
    """What keeps a flag from being passed on, "" where nothing does; whether IREE knows it, IREE says."""
    name = name_of(flag)
    if not name or not flag.startswith("-"):
        return f"{flag!r} is no flag: write --NAME or --NAME=VALUE"
    if name in _RESERVED:
        return f"--{name} cannot be given: {_RESERVED[name]}"
    if any(not character.isprintable() for character in flag):
        return f"--{name} holds characters that cannot be printed"
    return ""


def merged(flags: Sequence[str]) -> list[str]:
    """All flags of a compilation: `flags`, and the defaults that they leave."""
    given = {name_of(flag) for flag in flags}
    if given.intersection(_TARGETS):
        given.update(_TARGETS)
    return [*(flag for flag in DEFAULTS if name_of(flag) not in given), *flags]


def targets(flags: Iterable[str]) -> list[str]:
    """What a compilation with `flags` is for, in IREE's words."""
    values = [flag.partition("=")[2] for flag in flags if name_of(flag) in _TARGETS]
    return [word.partition("[")[0] for value in values for word in value.split(",") if word]


def driver(flags: Sequence[str], threads: int) -> str:
    """The runtime's driver for what `flags` (all of them) compile for, on so many threads of the host."""
    found = next(iter(targets(flags)), "local")
    name = _DRIVERS.get(found, found)
    if name != "local":
        return name
    return "local-sync" if threads == 1 else "local-task"
