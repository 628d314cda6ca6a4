"""The flags and values of IREE's compiler, its targets, and the devices that its runtime finds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from buddy.compiler.codegen.iree import flags as iree_flags
from buddy.compiler.codegen.iree.compiling import IreeError, compile_phases
from buddy.compiler.codegen.iree.installed import IreeMissingError, compiler
from buddy.compiler.protocol.backends import DeviceInfo, FlagInfo
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait

_FLAG = re.compile(r"^ {2,4}-{1,2}(?P<name>[a-z][\w.-]*)(?:=<(?P<kind>[^>]+)>)?(?: +- (?P<summary>.*))?$")
_VALUE = re.compile(r"^ {4,8}=(?P<value>\S+)(?: +- +(?P<summary>.*))?$")
_TARGET = re.compile(r"^ +(\S+)$")
_TIMEOUT = 60.0
_EMPTY_FUNCTION = "func.func @nothing() {\n  return\n}\n"


def flags() -> tuple[FlagInfo, ...]:
    """Returns the flags of `iree-compile` that a recipe may use, from its help. Raises `IreeMissingError`."""
    found = parsed_help(_output_of([str(compiler()), "--help"]))
    return tuple(flag for flag in found if not iree_flags.flag_problem(f"--{flag.name}"))


def parsed_help(text: str) -> list[FlagInfo]:
    """Parses flags, their types of values, the values to choose from if listed, and their descriptions."""
    found: list[FlagInfo] = []
    for line in text.splitlines():
        if flag := _FLAG.match(line):
            found.append(FlagInfo(flag["name"], flag["kind"] or "", (), (flag["summary"] or "").strip()))
        elif (value := _VALUE.match(line)) and found:
            last = found[-1]
            found[-1] = FlagInfo(last.name, last.kind, (*last.values, value["value"]), last.summary)
    return found


def flag_problem(given: Sequence[str]) -> str:
    """Returns IREE's error for `given` flags, "" if it accepts them; compiles an empty function.

    Raises `IreeMissingError`.
    """
    try:
        compile_phases(_EMPTY_FUNCTION, given, lambda _phase: None)
    except (IreeError, ValueError) as error:
        return str(error)
    return ""


def targets() -> tuple[str, ...]:
    """Returns the targets of IREE's compiler. Raises `IreeMissingError`."""
    lines = _output_of([str(compiler()), "--iree-hal-list-target-backends"]).splitlines()
    return tuple(match[1] for match in map(_TARGET.match, lines) if match)


def devices() -> tuple[DeviceInfo, ...]:
    """Returns the devices that IREE's runtime finds; empty if it fails.

    Drivers load libraries of their vendors, so a separate process looks for them.
    """
    try:
        return call_and_wait(f"{__name__}:find_devices", None, tuple[DeviceInfo, ...], _TIMEOUT)
    except (TookTooLong, CallFailed, OSError):
        return ()


def find_devices() -> tuple[DeviceInfo, ...]:
    """Asks IREE's runtime, in a one-shot process; skips a driver whose libraries are missing."""
    import iree.runtime as runtime

    rows = []
    for driver in runtime.query_available_drivers():
        try:
            devices = runtime.get_driver(driver).query_available_devices()
        except Exception:
            continue
        rows += [DeviceInfo(driver, str(device.get("path", "")), str(device.get("name", ""))) for device in devices]
    return tuple(rows)


def _output_of(command: list[str]) -> str:
    """Returns the output of a command, "" if it fails or times out."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return ""


__all__ = ["IreeMissingError", "devices", "flag_problem", "flags", "parsed_help", "targets"]
