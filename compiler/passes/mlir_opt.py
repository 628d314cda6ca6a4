"""Runs passes of the user's `mlir-opt` in its own process, on the text of a module.

`mlir_tool` finds the executable. The tool and the bindings may have different versions of MLIR; if one cannot parse the
text that the other prints, the parser's error is reported.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.mlir_tool import MlirTool, ToolError, find_tool
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.passes.replace_ir import replace_contents
from buddy.compiler.protocol.plain_values import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.support.processes.lifetime import describe_exit, run_owned

# Time limits of one pass in the tool, and of the list of passes.
_PASS_SECONDS = 300.0
_HELP_SECONDS = 60.0
# An entry of LLVM's option lists: its indentation, name, argument and description.
_HELP_ENTRY = re.compile(r"^( +)--([\w-]+)(?:=<([^>]*)>)?\s+- +(.*)$")
_HELP_SECTIONS = ("Passes:", "Pass Pipelines:")
_ERROR = re.compile(r"(?:^|\s)error: (.*)")
# A location of this compiler, with the number of a set of nodes; and a location before the text of an error.
_NODE_SET = re.compile(r'"?' + FILE + r'"?:(\d+):\d+')
_LOCATION_PREFIX = re.compile(r"^loc\((?:[^()]|\([^()]*\))*\): ")


def passes() -> tuple[PassInfo, ...]:
    """Returns the passes that the tool lists, with its descriptions; empty if there is no tool, or it fails."""
    try:
        mlir_opt = find_tool()
        return tuple(_list_passes(mlir_opt).values()) if mlir_opt is not None else ()
    except ToolError:
        return ()


def has(name: str) -> bool:
    """True if the tool lists a pass of that name."""
    return any(info.name == name for info in passes())


def problem() -> str:
    """Returns why the tool cannot be used; "" if it can, or if there is no tool."""
    try:
        mlir_opt = find_tool()
        if mlir_opt is not None:
            _list_passes(mlir_opt)
    except ToolError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4)
def _list_passes(mlir_opt: MlirTool) -> dict[str, PassInfo]:
    """Returns the passes that the executable lists. Raises `ToolError` if it does not list passes."""
    command = [mlir_opt.path, "--help"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_HELP_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{mlir_opt.path} does not list its passes: {error}") from error
    infos = {info.name: info for info in _parse_help(result.stdout, mlir_opt.name)}
    if not infos:
        raise ToolError(f"{mlir_opt.path} lists no passes (`{mlir_opt.name} --help`): it is not an mlir-opt")
    return infos


def _parse_help(text: str, origin: str) -> Iterator[PassInfo]:
    """Yields the passes in a help text, each with its options, which are indented more than the pass.

    `origin` is the name of the tool, for `PassInfo.origin`.
    """
    pass_indent, is_in_section, info = 0, False, None
    for line in text.splitlines():
        entry = _HELP_ENTRY.match(line)
        if line.strip() in _HELP_SECTIONS:
            is_in_section = True
        elif entry is not None and is_in_section:
            indent, name, description = len(entry[1]), entry[2], entry[4].strip()
            pass_indent = pass_indent or indent
            is_in_section = indent >= pass_indent
            if indent > pass_indent and info is not None:
                info = msgspec.structs.replace(info, options=(*info.options, OptionInfo(name, "", description)))
            elif is_in_section:
                if info is not None:
                    yield info
                info = PassInfo(name, "mlir", description.rstrip("."), origin=origin)
    if info is not None:
        yield info


def run(operation: ir.Operation, step: PassStep, locations: LocationSets) -> None:
    """Runs `step` on a module in the tool's process, and replaces the module by the result.

    Raises `ToolError` if the pass fails or its output cannot be read; the module is then unchanged.
    """
    mlir_opt = find_tool()
    assert mlir_opt is not None
    text = operation.get_asm(print_generic_op_form=True, enable_debug_info=True, assume_verified=True)
    nested = step.spelling() if step.anchor == "builtin.module" else f"{step.anchor}({step.spelling()})"
    flags = ["--mlir-print-debuginfo", "--mlir-print-op-generic", "--allow-unregistered-dialect"]
    command = [mlir_opt.path, f"--pass-pipeline=builtin.module({nested})", *flags, "-o", "-", "-"]
    try:
        result = run_owned(command, _PASS_SECONDS, text)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{mlir_opt.name} was stopped after {_PASS_SECONDS:g} s") from error
    except OSError as error:
        raise ToolError(f"{mlir_opt.path} cannot be started: {error.strerror}") from error
    if result.returncode:
        raise _failure(mlir_opt, result)
    try:
        replace_contents(operation, ir.Module.parse(result.stdout, operation.context).operation)
    except (ir.MLIRError, ValueError) as error:
        lines = str(error).splitlines()
        first = next((line for line in lines if "error" in line), str(error).partition("\n")[0])
        message = f"the bindings, of another version, cannot read the output of {mlir_opt.name}: {first.strip()}"
        raise ToolError(message, str(error)) from error


def _failure(mlir_opt: MlirTool, result: subprocess.CompletedProcess[str]) -> ToolError:
    """Returns the first error message that the tool printed, with the number of the set of nodes that it refers to.

    Without such a message, returns how the process ended and the first line that it printed.
    """
    for line in result.stderr.splitlines():
        error = _ERROR.search(line)
        if error is not None:
            node_set = _NODE_SET.search(line)
            message = _LOCATION_PREFIX.sub("", error[1])
            return ToolError(message, result.stderr, int(node_set[1]) if node_set else 0)
    first = next((line for line in result.stderr.splitlines() if line.strip()), "no message")
    return ToolError(f"{mlir_opt.name} {describe_exit(result.returncode)}: {first.strip()}", result.stderr)
