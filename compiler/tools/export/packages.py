"""Writes the binary formats of an export: static and shared libraries, weights as safetensors, and wheels.

Static libraries have the format of System V and GNU (`ar(5)` of binutils), safetensors that of its README
(https://github.com/huggingface/safetensors), and wheels the binary distribution format
(https://packaging.python.org/specifications/binary-distribution-format). Outputs are deterministic. The installed C
compiler builds the loader.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import NamedTuple

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from buddy.compiler.codegen.machines import Machine, this_machine
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.lifetime import run_owned
from buddy.compiler.tools.export.interface import ExportError
from buddy.compiler.tools.export.texts import c_source

# ---- static libraries ------------------------------------------------------------------------------------------------

_ARCHIVE_MAGIC = b"!<arch>\n"
_MEMBER_HEADER_BYTES = 60


def make_archive(members: Mapping[str, bytes]) -> bytes:
    """Returns a static library of ELF objects, given by file name.

    The first member of the archive, `/`, is the symbol index for linkers; the second one, `//`, has the file names, to
    which the headers of the objects refer by offset.
    """
    names = b"".join(f"{name}/\n".encode() for name in members)
    symbols = {name: _defined_symbols(data) for name, data in members.items()}
    # The number of symbols in 4 bytes; for each symbol, the offset of its member in 4 bytes, and its name with NUL.
    index_bytes = 4 + sum(4 + len(symbol) + 1 for defined in symbols.values() for symbol in defined)
    # The sizes of members are rounded up to even numbers.
    body_offset = len(_ARCHIVE_MAGIC)
    body_offset += _MEMBER_HEADER_BYTES + index_bytes + index_bytes % 2
    body_offset += _MEMBER_HEADER_BYTES + len(names) + len(names) % 2
    offsets, body, name_offset = dict[str, int](), b"", 0
    for name, data in members.items():
        offsets[name] = body_offset + len(body)
        body += _member(f"/{name_offset}", data, mode=b"644")
        name_offset += len(f"{name}/\n".encode())
    entries = [(offsets[name], symbol) for name, defined in symbols.items() for symbol in defined]
    index = len(entries).to_bytes(4, "big") + b"".join(offset.to_bytes(4, "big") for offset, _ in entries)
    index += b"".join(symbol.encode() + b"\0" for _, symbol in entries)
    return _ARCHIVE_MAGIC + _member("/", index) + _member("//", names) + body


def _member(name: str, data: bytes, mode: bytes = b"0") -> bytes:
    """Returns a member of an archive: a header without times and owners, and the data."""
    fields = [name.encode().ljust(16), b"0".ljust(12), b"0".ljust(6), b"0".ljust(6), mode.ljust(8)]
    return b"".join([*fields, str(len(data)).encode().ljust(10), b"`\n", data, b"\n" * (len(data) % 2)])


def _defined_symbols(data: bytes) -> list[str]:
    """Returns the global symbols that an object defines."""
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    defined = (symbol for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
    return [symbol.name for symbol in defined if symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")]


# ---- safetensors -----------------------------------------------------------------------------------------------------

_ALIGNMENT_BYTES = 64  # the data begin at a cache line


class StoredTensor(NamedTuple):
    """A tensor: its element type as safetensors names it, the bytes per element, its shape, and its data."""

    dtype: str
    element_bytes: int
    shape: Sequence[int]
    data: memoryview


def write_safetensors(path: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file with `tensors` and `metadata`. Raises `OSError`.

    Like safetensors' own writer, sorts tensors by element size, type and name, so that each is aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_bytes, tensors[name].dtype, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].data)


# ---- wheels ----------------------------------------------------------------------------------------------------------

# The version of the Python package in a wheel: an exported program has no version of its own.
_WHEEL_VERSION = "0.1.0"
# The earliest timestamp of a zip file, so that the output is deterministic.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def wheel_name(name: str, machine: Machine) -> str:
    """Returns the file name of the wheel of the program `name` for `machine`."""
    return f"{name}-{_WHEEL_VERSION}-{_tag(machine)}.whl"


def write_wheel(path: Path, name: str, machine: Machine, library: bytes, weights: Path, summary: str) -> None:
    """Writes the wheel of the program `name`. Raises `OSError`.

    `library` is the shared library, `weights` the safetensors file, and `summary` the line of the package's metadata.
    """
    folder, records = f"{name}-{_WHEEL_VERSION}.dist-info", list[str]()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:

        def add(file: str, data: bytes, compression: int = zipfile.ZIP_DEFLATED) -> None:
            info = zipfile.ZipInfo(file, _TIMESTAMP)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, compression)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{file},sha256={digest},{len(data)}")

        add(f"{name}/__init__.py", c_source("package.py.txt", name).encode())
        add(f"{name}/lib{name}.so", library)
        # Compressing weights gains too little for the time it takes.
        add(f"{name}/{name}.safetensors", weights.read_bytes(), zipfile.ZIP_STORED)
        add(f"{folder}/METADATA", _metadata(name, summary).encode())
        add(f"{folder}/WHEEL", _wheel(machine).encode())
        records.append(f"{folder}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{folder}/RECORD", _TIMESTAMP), "\n".join([*records, ""]))


def _tag(machine: Machine) -> str:
    """Returns the wheel's tag for any Python 3 on Linux of that architecture.

    The required version of the C library depends on the C compiler, so the tag does not name one.
    """
    return f"py3-none-linux_{machine.architecture}"


def _metadata(name: str, summary: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {_WHEEL_VERSION}", f"Summary: {summary}"]
    return "\n".join([*lines, "Requires-Python: >=3.10", "Requires-Dist: numpy", ""])


def _wheel(machine: Machine) -> str:
    lines = ["Wheel-Version: 1.0", "Generator: buddy-tui", "Root-Is-Purelib: false", f"Tag: {_tag(machine)}"]
    return "\n".join([*lines, ""])


# ---- builds by the C compiler ----------------------------------------------------------------------------------------


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
