"""IREE's compiler: runs it in a separate process, and lists its flags, targets and devices."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.codegen.iree import options as iree_flags
from buddy.compiler.codegen.iree.installed import IreeMissingError, compiler
from buddy.compiler.mlir.provenance import FILE
from buddy.compiler.protocol.catalogue import DeviceInfo, FlagInfo
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait
from buddy.compiler.support.processes.lifetime import describe_exit, start_owned

_POLL = 0.02
_NAME = "program"
# Limits on printed constants (elements) and resources (characters), which include machine code. They do not affect what
# `iree-compile` compiles.
_PRINTING = (
    "--mlir-print-debuginfo",
    "--mlir-elide-elementsattrs-if-larger=64",
    "--mlir-elide-resource-strings-if-larger=64",
)
_PLACE = re.compile(rf'"?{FILE}"?:(\d+):\d+')
_ERROR = re.compile(r"^(?P<where>.*?):? ?error: (?P<what>.*)$")
_OWN_ERROR = re.compile(r"^iree-compile: (?:for the (?P<flag>\S+) option: )?(?P<what>.+)$")
_TRY = re.compile(r" *Try: '.*?'")
# After its messages IREE prints the op in generic form, which may take pages.
_DETAIL = 4000


class IreePhase(NamedTuple):
    """A finished phase: its name in IREE, the module after it with location marks, and its seconds.

    The seconds include printing the module.
    """

    name: str
    text: str
    seconds: float


class IreeError(Exception):
    """`iree-compile` failed, after phase `after` ("" for none). `place` is the set of nodes that it names, else 0."""

    def __init__(self, message: str, after: str, place: int = 0, detail: str = "") -> None:
        super().__init__(message)
        self.message, self.after, self.place, self.detail = message, after, place, detail


def compile_phases(text: str, flags: Sequence[str], on_phase: Callable[[IreePhase], None]) -> bytes:
    """Compiles MLIR `text` with `flags` and the defaults; returns the module for IREE's runtime.

    Calls `on_phase` after each phase. Raises `IreeMissing`, `IreeError`, and `ValueError` for a flag that is not
    allowed.
    """
    if problem := next(filter(None, map(iree_flags.flag_problem, flags)), ""):
        raise ValueError(problem)
    with scratch_folder("iree") as place:
        folder = Path(place)
        source, module, phases = folder / f"{_NAME}.mlir", folder / "module.vmfb", folder / "phases"
        source.write_text(text, encoding="utf-8")
        phases.mkdir()
        command = [str(compiler()), str(source), "-o", str(module), f"--dump-compilation-phases-to={phases}"]
        follower = _Follower(phases, on_phase)
        with start_owned([*command, *_PRINTING, *iree_flags.merge_flags(flags)], folder / "errors") as process:
            while process.poll() is None:
                follower.look(ended=False)
                time.sleep(_POLL)
        follower.look(ended=process.returncode == 0)
        if process.returncode != 0:
            said = (folder / "errors").read_text(encoding="utf-8", errors="replace")
            raise _failure(said, process.returncode, follower.last)
        return module.read_bytes()


class _Follower:
    """Reports the phases in a folder when their files are complete: once the next one exists."""

    def __init__(self, folder: Path, on_phase: Callable[[IreePhase], None]) -> None:
        self._folder, self._on_phase = folder, on_phase
        self._since = time.time()
        self._told = 0
        self.last = ""

    def look(self, ended: bool) -> None:
        """Reports what is complete by now; the last file only if the compiler has `ended` successfully."""
        files = sorted(self._folder.iterdir(), key=_number)
        whole = files if ended else files[:-1]
        for file in whole[self._told :]:
            until = file.stat().st_mtime
            self.last = _phase_name(file)
            text = file.read_text(encoding="utf-8", errors="replace")
            self._on_phase(IreePhase(self.last, text, max(0.0, until - self._since)))
            self._since = until
        self._told = max(self._told, len(whole))


def _number(file: Path) -> int:
    """Returns the number in a file name such as `program.3.preprocessing.mlir`."""
    return int(file.name.split(".")[1])


def _phase_name(file: Path) -> str:
    return file.name.split(".")[2]


def _failure(said: str, status: int, after: str) -> IreeError:
    """Returns the error in the output of the compiler."""
    for line in said.splitlines():
        if found := _ERROR.match(line):
            place = _PLACE.search(found["where"])
            return IreeError(found["what"], after, int(place[1]) if place else 0, said[:_DETAIL])
    if status < 0:
        return IreeError(f"crashed: {describe_exit(status)}", after, detail=said[:_DETAIL])
    own = [found for line in said.splitlines() if (found := _OWN_ERROR.match(line))]
    if own:
        named = f"{own[0]['flag']}: " if own[0]["flag"] else ""
        words = " ".join(_TRY.sub("", found["what"]).strip() for found in own)
        return IreeError(named + words, after, detail=said[:_DETAIL])
    lines = [line for line in said.splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    return IreeError(f"{describe_exit(status)}{last}", after, detail=said[:_DETAIL])


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
