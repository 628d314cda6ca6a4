"""Runs passes of the user's `mlir-opt` in its own process, on the text of a module.

`mlir_tool` finds the executable. Its version of the IR may differ from the bindings'; if one cannot parse the other's
output, the error is reported as it is.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.mlir_tool import MlirTool, ToolError, tool
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.passes.replace_ir import become
from buddy.compiler.protocol.plain_values import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.support.processes.lifetime import describe_exit, run_owned

# Time limit of one pass in the tool, in seconds.
_SECONDS = 300.0
# An entry of LLVM's option lists: its indentation, name, argument and description.
_ENTRY = re.compile(r"^( +)--([\w-]+)(?:=<([^>]*)>)?\s+- +(.*)$")
_SECTIONS = ("Passes:", "Pass Pipelines:")
_ERROR = re.compile(r"(?:^|\s)error: (.*)")
_PLACE = re.compile(r'"?' + FILE + r'"?:(\d+):\d+')
_OWN_PLACE = re.compile(r"^loc\((?:[^()]|\([^()]*\))*\): ")


def passes() -> tuple[PassInfo, ...]:
    """Returns the passes that the tool lists, with its descriptions; empty if there is no tool, or it fails."""
    try:
        found = tool()
        return tuple(_listed(found).values()) if found is not None else ()
    except ToolError:
        return ()


def has(name: str) -> bool:
    """True if the tool lists a pass of that name."""
    return any(info.name == name for info in passes())


def problem() -> str:
    """Returns why the configured tool cannot be used, or ""."""
    try:
        found = tool()
        if found is not None:
            _listed(found)
    except ToolError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4)
def _listed(found: MlirTool) -> dict[str, PassInfo]:
    """Returns the passes that the executable lists. Raises `ToolError` if it does not list passes."""
    try:
        done = subprocess.run([found.path, "--help"], capture_output=True, text=True, timeout=60, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{found.path} does not list its passes: {error}") from error
    listed = {info.name: info for info in _passes_in(done.stdout, found.name)}
    if not listed:
        raise ToolError(f"{found.path} lists no passes (`{found.name} --help`): it is not an mlir-opt")
    return listed


def _passes_in(text: str, origin: str) -> Iterator[PassInfo]:
    """Yields the passes in a help text, each with its options, which are indented below it."""
    depth, listing, info = 0, False, None
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if line.strip() in _SECTIONS:
            listing = True
        elif entry is not None and listing:
            depth = depth or len(entry[1])
            listing = len(entry[1]) >= depth
            option = OptionInfo(entry[2], "", entry[4].strip())
            if len(entry[1]) > depth and info is not None:
                info = msgspec.structs.replace(info, options=(*info.options, option))
            elif listing:
                yield from [info] if info is not None else []
                info = PassInfo(entry[2], "mlir", option.summary.rstrip("."), origin=origin)
    yield from [info] if info is not None else []


def run(operation: Any, step: PassStep, locations: LocationSets) -> None:
    """Runs `step` in the tool's process on a module, in place. If it raises `ToolError`, the module is unchanged."""
    found = tool()
    assert found is not None
    text = operation.get_asm(print_generic_op_form=True, enable_debug_info=True, assume_verified=True)
    nested = step.spelling() if step.anchor == "builtin.module" else f"{step.anchor}({step.spelling()})"
    flags = ["--mlir-print-debuginfo", "--mlir-print-op-generic", "--allow-unregistered-dialect"]
    command = [found.path, f"--pass-pipeline=builtin.module({nested})", *flags, "-o", "-", "-"]
    try:
        done = run_owned(command, _SECONDS, text)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{found.name} was stopped after {_SECONDS:g} s") from error
    except OSError as error:
        raise ToolError(f"{found.path} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise _refusal(found, done)
    try:
        become(operation, ir.Module.parse(done.stdout, operation.context).operation)
    except (ir.MLIRError, ValueError) as error:
        first = next((line for line in str(error).splitlines() if "error" in line), str(error).partition("\n")[0])
        what = f"the bindings, of another version, cannot read what {found.name} printed: {first.strip()}"
        raise ToolError(what, str(error)) from error


def _refusal(found: MlirTool, done: subprocess.CompletedProcess[str]) -> ToolError:
    """Returns the tool's first error message, and the nodes that it refers to."""
    for line in done.stderr.splitlines():
        said = _ERROR.search(line)
        if said is not None:
            place = _PLACE.search(line)
            message = _OWN_PLACE.sub("", said[1])
            return ToolError(message, done.stderr, int(place[1]) if place else 0)
    first = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
    return ToolError(f"{found.name} {describe_exit(done.returncode)}: {first.strip()}", done.stderr)
