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
from buddy.compiler.tools.export.packages import archive

_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden")
_PATIENCE = 300.0
_SCRATCH = "library"
# The permitted dependencies of a shared library: the C library with its linker and libm, and an OpenMP runtime.
_ALLOWED = ("libc.so", "libm.so", "ld-linux", "ld-musl", "libgomp.so", "libomp.so", "libiomp5.so")


class BuildSources(NamedTuple):
    """The inputs of a build: by file name, the header and the loader; and the program's object."""

    name: str
    header: str
    loader: str
    object: bytes


def static_library(sources: BuildSources, machine: Machine, openmp: bool) -> bytes:
    """The program and its loader as `libNAME.a`. Raises `ExportError` if no C compiler can build it."""
    with scratch_folder(_SCRATCH) as folder:
        loader = _compile(sources, machine, Path(folder), openmp)
        return archive({f"{sources.name}.o": sources.object, f"{sources.name}_loader.o": loader.read_bytes()})


def shared_library(sources: BuildSources, machine: Machine, openmp: bool) -> bytes:
    """The program and its loader as `libNAME.so`.

    Raises `ExportError` if no C compiler can build it, if the library would depend on more than libc, libm and OpenMP,
    or if it would export more than its public functions.
    """
    with scratch_folder(_SCRATCH) as text:
        folder = Path(text)
        loader = _compile(sources, machine, folder, openmp)
        (folder / "program.o").write_bytes(sources.object)
        made = folder / f"lib{sources.name}.so"
        flags = ["-shared", f"-Wl,-soname,{made.name}", "-Wl,-z,defs", "-Wl,--as-needed", *["-fopenmp"] * openmp]
        _run([*compiler_for(machine), *flags, "-o", str(made), str(folder / "program.o"), str(loader), "-lm"])
        data = made.read_bytes()
    _check(data, sources.name)
    return data


def compiler_for(machine: Machine) -> list[str]:
    """The command of a C compiler for `machine`: `CC`, else a native or a cross compiler.

    Raises `ExportError` if none is installed.
    """
    if (named := os.environ.get("CC", "")).strip():
        try:
            return shlex.split(named)
        except ValueError as error:
            what = f"the variable CC is not a command: {error} in {named!r}"
            raise ExportError(what, "building the library", "set CC to a C compiler") from error
    here = machine.architecture == this_machine().architecture
    names = ["cc", "gcc", "clang"] if here else [f"{machine.architecture}-linux-gnu-gcc"]
    for name in names:
        if found := shutil.which(name):
            return [found]
    if util.find_spec("ziglang") is not None:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine.architecture}-linux-gnu"]
        # By default, Zig checks for undefined behaviour with functions of its runtime.
        return [*command, "-fno-sanitize=undefined"]
    raise ExportError(
        f"there is no C compiler for {machine.architecture} here ({', '.join(names)}, or the wheel ziglang)",
        "building the library",
        "name one by the variable CC, or export with --kind object, whose sources are built where there is one",
    )


def _compile(sources: BuildSources, machine: Machine, folder: Path, openmp: bool) -> Path:
    (folder / f"{sources.name}.h").write_text(sources.header, encoding="utf-8")
    loader = folder / f"{sources.name}.c"
    loader.write_text(sources.loader, encoding="utf-8")
    made = loader.with_name("loader.o")
    _run([*compiler_for(machine), *_FLAGS, *["-fopenmp"] * openmp, "-c", str(loader), "-o", str(made)])
    return made


def _run(command: list[str]) -> None:
    try:
        done = run_owned(command, _PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(
            f"{command[0]} does not run: {error}", "building the library", "set CC to a C compiler"
        ) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        what = next((line for line in said.splitlines() if "error" in line), said[:200])
        todo = "set CC to another C compiler, or build elsewhere what --kind object gives"
        raise ExportError(f"{Path(command[0]).name} failed: {what}", "building the library", todo, said)


def needed_libraries(data: bytes) -> list[str]:
    """The dependencies of a shared library, by the names the dynamic linker looks for."""
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]


def exported_symbols(data: bytes) -> list[str]:
    """The symbols that a shared library exports."""
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".dynsym")
    found = (symbol for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
    return sorted(symbol.name for symbol in found if symbol.name)


def _check(data: bytes, name: str) -> None:
    more = [library for library in needed_libraries(data) if not library.startswith(_ALLOWED)]
    shown = [symbol for symbol in exported_symbols(data) if not symbol.startswith(f"{name}_")]
    if more:
        raise ExportError(f"the library would need {', '.join(more)}", "linking", "set CC to a plain C compiler")
    if shown:
        raise ExportError(f"the library would export {', '.join(shown)}", "linking", "set CC to a plain C compiler")
