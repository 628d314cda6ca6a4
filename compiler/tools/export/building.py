"""Builds libraries from a compiled program and its loader, with the installed C compiler."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import NamedTuple

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from buddy.compiler.codegen.machines import Machine, this_machine
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.lifetime import run_owned
from buddy.compiler.tools.export.errors import ExportError
from buddy.compiler.tools.export.packages import make_archive

# The C compiler's flags for the loader, and the time limit for one call of it.
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden")
_TIMEOUT_SECONDS = 300.0
_SCRATCH_KIND = "library"
# The permitted dependencies of a shared library: the C library with its linker and libm, and an OpenMP runtime.
_ALLOWED_LIBRARIES = ("libc.so", "libm.so", "ld-linux", "ld-musl", "libgomp.so", "libomp.so", "libiomp5.so")


class BuildSources(NamedTuple):
    """The inputs of a build of the program `name`: the texts of its header and loader, and the program's object."""

    name: str
    header: str
    loader: str
    object: bytes


def static_library(sources: BuildSources, machine: Machine, openmp: bool) -> bytes:
    """Returns the program and its loader as a static library. Raises `ExportError` if no C compiler can build it."""
    with scratch_folder(_SCRATCH_KIND) as folder:
        loader = _compile(sources, machine, Path(folder), openmp)
        return make_archive({f"{sources.name}.o": sources.object, f"{sources.name}_loader.o": loader.read_bytes()})


def shared_library(sources: BuildSources, machine: Machine, openmp: bool) -> bytes:
    """Returns the program and its loader as a shared library.

    Raises `ExportError` if no C compiler can build it, if the library would depend on more than libc, libm and OpenMP,
    or if it would export more than its public functions.
    """
    with scratch_folder(_SCRATCH_KIND) as folder_name:
        folder = Path(folder_name)
        loader = _compile(sources, machine, folder, openmp)
        (folder / "program.o").write_bytes(sources.object)
        output = folder / f"lib{sources.name}.so"
        flags = ["-shared", f"-Wl,-soname,{output.name}", "-Wl,-z,defs", "-Wl,--as-needed", *["-fopenmp"] * openmp]
        _run([*compiler_for(machine), *flags, "-o", str(output), str(folder / "program.o"), str(loader), "-lm"])
        data = output.read_bytes()
    _check_library(data, sources.name)
    return data


def compiler_for(machine: Machine) -> list[str]:
    """Returns the command of a C compiler for `machine`: that in the variable `CC`, else an installed compiler.

    Raises `ExportError` if no compiler is installed, or `CC` is not a command.
    """
    if (variable := os.environ.get("CC", "")).strip():
        try:
            return shlex.split(variable)
        except ValueError as error:
            message = f"the variable CC is not a command: {error} in {variable!r}"
            raise ExportError(message, "building the library", "set CC to a C compiler") from error
    is_native = machine.architecture == this_machine().architecture
    names = ["cc", "gcc", "clang"] if is_native else [f"{machine.architecture}-linux-gnu-gcc"]
    for name in names:
        if path := shutil.which(name):
            return [path]
    if util.find_spec("ziglang") is not None:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine.architecture}-linux-gnu"]
        # By default, Zig checks for undefined behaviour with functions of its runtime.
        return [*command, "-fno-sanitize=undefined"]
    raise ExportError(
        f"no C compiler for {machine.architecture} is installed ({', '.join(names)}, or the wheel ziglang)",
        "building the library",
        "set the variable CC to a C compiler, or export with --kind object and build the sources on another machine",
    )


def _compile(sources: BuildSources, machine: Machine, folder: Path, openmp: bool) -> Path:
    """Compiles the loader in `folder`; returns the path of the object."""
    (folder / f"{sources.name}.h").write_text(sources.header, encoding="utf-8")
    loader = folder / f"{sources.name}.c"
    loader.write_text(sources.loader, encoding="utf-8")
    output = loader.with_name("loader.o")
    _run([*compiler_for(machine), *_FLAGS, *["-fopenmp"] * openmp, "-c", str(loader), "-o", str(output)])
    return output


def _run(command: list[str]) -> None:
    """Runs a C compiler. Raises `ExportError` if it does not start, fails, or exceeds the time limit."""
    try:
        completed = run_owned(command, _TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(
            f"{command[0]} does not run: {error}", "building the library", "set CC to a C compiler"
        ) from error
    if completed.returncode:
        printed = (completed.stderr or completed.stdout).strip()
        reason = next((line for line in printed.splitlines() if "error" in line), printed[:200])
        todo = "set CC to another C compiler, or export with --kind object and build the sources on another machine"
        raise ExportError(f"{Path(command[0]).name} failed: {reason}", "building the library", todo, printed)


def needed_libraries(data: bytes) -> list[str]:
    """Returns the dependencies of a shared library, by the names that the dynamic linker looks for."""
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]


def exported_symbols(data: bytes) -> list[str]:
    """Returns the symbols that a shared library exports."""
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".dynsym")
    defined = (symbol for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
    return sorted(symbol.name for symbol in defined if symbol.name)


def _check_library(data: bytes, name: str) -> None:
    """Raises `ExportError` if a shared library has forbidden dependencies, or exports other symbols than `name`_…."""
    forbidden = [library for library in needed_libraries(data) if not library.startswith(_ALLOWED_LIBRARIES)]
    foreign = [symbol for symbol in exported_symbols(data) if not symbol.startswith(f"{name}_")]
    if forbidden:
        raise ExportError(f"the library would need {', '.join(forbidden)}", "linking", "set CC to a plain C compiler")
    if foreign:
        raise ExportError(f"the library would export {', '.join(foreign)}", "linking", "set CC to a plain C compiler")
