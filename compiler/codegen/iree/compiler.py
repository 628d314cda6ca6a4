"""Runs IREE's compiler in a separate process, and lists its flags and targets, and the devices of IREE's runtime."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from buddy.compiler.codegen.iree import options as iree_flags
from buddy.compiler.codegen.iree.options import IreeMissingError, compiler_path
from buddy.compiler.mlir.provenance import FILE
from buddy.compiler.protocol.catalogue import DeviceInfo, FlagInfo
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait
from buddy.compiler.support.processes.lifetime import describe_exit, start_owned

_POLL_SECONDS = 0.02
_SOURCE_NAME = "program"
# Limits on printed constants (elements) and resources (characters, including machine code). The limits do not affect
# the compiled code.
_PRINTING_FLAGS = (
    "--mlir-print-debuginfo",
    "--mlir-elide-elementsattrs-if-larger=64",
    "--mlir-elide-resource-strings-if-larger=64",
)
# A location of this compiler, with the number of a set of nodes.
_NODE_SET = re.compile(rf'"?{FILE}"?:(\d+):\d+')
_ERROR = re.compile(r"^(?P<where>.*?):? ?error: (?P<what>.*)$")
# An error of the executable itself, such as for an unknown flag.
_DRIVER_ERROR = re.compile(r"^iree-compile: (?:for the (?P<flag>\S+) option: )?(?P<what>.+)$")
_SUGGESTION = re.compile(r" *Try: '.*?'")
# The maximum number of characters of the output in an error: after its messages, IREE prints the op in generic form.
_MAX_DETAIL_LENGTH = 4000


class IreePhase(NamedTuple):
    """A finished phase: its name in IREE, the text of the module after it, with locations, and its seconds.

    The seconds include the printing of the module.
    """

    name: str
    text: str
    seconds: float


class IreeError(BuddyError):
    """`iree-compile` failed after it had finished phase `after` ("" for none).

    `node_set` is the number of the set of nodes that the message refers to, 0 if unknown. `detail` is the start of the
    compiler's output.
    """

    def __init__(self, message: str, after: str, node_set: int = 0, detail: str = "") -> None:
        super().__init__(message)
        self.message, self.after, self.node_set, self.detail = message, after, node_set, detail


def compile_phases(text: str, flags: Sequence[str], on_phase: Callable[[IreePhase], None]) -> bytes:
    """Compiles MLIR `text` with `flags` and the defaults; returns the module for IREE's runtime.

    Calls `on_phase` after each phase. Raises `IreeMissingError` if IREE is not installed, `IreeError` if the compiler
    fails, and `ValueError` for a flag that is not allowed.
    """
    if problem := next(filter(None, map(iree_flags.flag_problem, flags)), ""):
        raise ValueError(problem)
    with scratch_folder("iree") as scratch:
        folder = Path(scratch)
        source, module, phases = folder / f"{_SOURCE_NAME}.mlir", folder / "module.vmfb", folder / "phases"
        source.write_text(text, encoding="utf-8")
        phases.mkdir()
        command = [str(compiler_path()), str(source), "-o", str(module), f"--dump-compilation-phases-to={phases}"]
        reporter = _PhaseReporter(phases, on_phase)
        with start_owned([*command, *_PRINTING_FLAGS, *iree_flags.merge_flags(flags)], folder / "errors") as process:
            while process.poll() is None:
                reporter.report(has_succeeded=False)
                time.sleep(_POLL_SECONDS)
        reporter.report(has_succeeded=process.returncode == 0)
        if process.returncode != 0:
            output = (folder / "errors").read_text(encoding="utf-8", errors="replace")
            raise _failure(output, process.returncode, reporter.last)
        return module.read_bytes()


class _PhaseReporter:
    """Reports the phases whose files in `folder` are complete. A file is complete once the next one exists.

    `last` is the name of the last reported phase.
    """

    def __init__(self, folder: Path, on_phase: Callable[[IreePhase], None]) -> None:
        self._folder, self._on_phase = folder, on_phase
        self._last_time = time.time()
        self._reported_count = 0
        self.last = ""

    def report(self, has_succeeded: bool) -> None:
        """Reports new complete phases; the last file counts only if the compiler `has_succeeded`."""
        files = sorted(self._folder.iterdir(), key=_phase_number)
        complete = files if has_succeeded else files[:-1]
        for file in complete[self._reported_count :]:
            end_time = file.stat().st_mtime
            self.last = _phase_name(file)
            text = file.read_text(encoding="utf-8", errors="replace")
            self._on_phase(IreePhase(self.last, text, max(0.0, end_time - self._last_time)))
            self._last_time = end_time
        self._reported_count = max(self._reported_count, len(complete))


def _phase_number(file: Path) -> int:
    """Returns the number in a file name such as `program.3.preprocessing.mlir`."""
    return int(file.name.split(".")[1])


def _phase_name(file: Path) -> str:
    return file.name.split(".")[2]


def _failure(output: str, status: int, after: str) -> IreeError:
    """Returns the error in the output of the compiler, which exited with `status` after phase `after`."""
    detail = output[:_MAX_DETAIL_LENGTH]
    for line in output.splitlines():
        if error := _ERROR.match(line):
            node_set = _NODE_SET.search(error["where"])
            return IreeError(error["what"], after, int(node_set[1]) if node_set else 0, detail)
    if status < 0:
        return IreeError(f"crashed: {describe_exit(status)}", after, detail=detail)
    errors = [error for line in output.splitlines() if (error := _DRIVER_ERROR.match(line))]
    if errors:
        flag = f"{errors[0]['flag']}: " if errors[0]["flag"] else ""
        message = " ".join(_SUGGESTION.sub("", error["what"]).strip() for error in errors)
        return IreeError(flag + message, after, detail=detail)
    lines = [line for line in output.splitlines() if line.strip()]
    last_line = f": {lines[-1]}" if lines else ""
    return IreeError(f"{describe_exit(status)}{last_line}", after, detail=detail)


# The lines of `iree-compile --help` with a flag and with one of its values, and of its list of targets.
_FLAG = re.compile(r"^ {2,4}-{1,2}(?P<name>[a-z][\w.-]*)(?:=<(?P<kind>[^>]+)>)?(?: +- (?P<summary>.*))?$")
_VALUE = re.compile(r"^ {4,8}=(?P<value>\S+)(?: +- +(?P<summary>.*))?$")
_TARGET = re.compile(r"^ +(\S+)$")
_TIMEOUT_SECONDS = 60.0
_EMPTY_FUNCTION = "func.func @nothing() {\n  return\n}\n"


def list_flags() -> tuple[FlagInfo, ...]:
    """Returns the flags of `iree-compile` that a recipe may use, from its help.

    Raises `IreeMissingError` if IREE is not installed.
    """
    all_flags = parse_help(_output_of([str(compiler_path()), "--help"]))
    return tuple(flag for flag in all_flags if not iree_flags.flag_problem(f"--{flag.name}"))


def parse_help(text: str) -> list[FlagInfo]:
    """Parses the flags in a help text: name, type of the value, listed values to choose from, and description."""
    infos: list[FlagInfo] = []
    for line in text.splitlines():
        if flag := _FLAG.match(line):
            infos.append(FlagInfo(flag["name"], flag["kind"] or "", (), (flag["summary"] or "").strip()))
        elif (value := _VALUE.match(line)) and infos:
            last = infos[-1]
            infos[-1] = FlagInfo(last.name, last.kind, (*last.values, value["value"]), last.summary)
    return infos


def flag_problem(flags: Sequence[str]) -> str:
    """Returns IREE's error for `flags`, "" if it accepts them: compiles an empty function.

    Raises `IreeMissingError` if IREE is not installed.
    """
    try:
        compile_phases(_EMPTY_FUNCTION, flags, lambda _phase: None)
    except (IreeError, ValueError) as error:
        return str(error)
    return ""


def list_targets() -> tuple[str, ...]:
    """Returns the targets of IREE's compiler. Raises `IreeMissingError` if IREE is not installed."""
    lines = _output_of([str(compiler_path()), "--iree-hal-list-target-backends"]).splitlines()
    return tuple(match[1] for match in map(_TARGET.match, lines) if match)


def list_devices() -> tuple[DeviceInfo, ...]:
    """Returns the devices that IREE's runtime finds; empty if it fails.

    A separate process searches for them, because drivers load the libraries of their vendors.
    """
    try:
        return call_and_wait(f"{__name__}:find_devices", None, tuple[DeviceInfo, ...], _TIMEOUT_SECONDS)
    except (TookTooLong, CallFailed, OSError):
        return ()


def find_devices() -> tuple[DeviceInfo, ...]:
    """Returns the devices of IREE's runtime, in a one-shot process; leaves out drivers whose libraries are missing."""
    import iree.runtime as runtime

    infos = []
    for driver in runtime.query_available_drivers():
        try:
            devices = runtime.get_driver(driver).query_available_devices()
        except Exception:
            continue
        infos += [DeviceInfo(driver, str(device.get("path", "")), str(device.get("name", ""))) for device in devices]
    return tuple(infos)


def _output_of(command: list[str]) -> str:
    """Returns the output of a command, "" if it fails or times out."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return ""


__all__ = ["IreeMissingError", "flag_problem", "list_devices", "list_flags", "list_targets", "parse_help"]
