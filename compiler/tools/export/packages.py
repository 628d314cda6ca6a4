"""Packs an exported program: static libraries, weights as safetensors, and wheels.

Libraries have the format of System V and GNU (`ar(5)` of binutils): 60-byte headers, a symbol index `/` for linkers,
and `//` for names of more than 15 characters. Tensors have that of https://github.com/huggingface/safetensors, sorted
by element size and name, so that each is aligned to its element's size. Wheels follow
packaging.python.org/specifications/binary-distribution-format.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile

from buddy.compiler.codegen.machines import Machine
from buddy.compiler.tools.export.texts import source

_MAGIC = b"!<arch>\n"
_HEADER = 60


def archive(members: Mapping[str, bytes]) -> bytes:
    """The library of ELF objects by file name; the output is deterministic."""
    names = b"".join(f"{name}/\n".encode() for name in members)
    symbols = {name: _defined(data) for name, data in members.items()}
    index_size = 4 + sum(4 + len(s) + 1 for found in symbols.values() for s in found)
    offset = len(_MAGIC) + _HEADER + index_size + index_size % 2 + _HEADER + len(names) + len(names) % 2
    places, body, start = dict[str, int](), b"", 0
    for name, data in members.items():
        places[name] = offset + len(body)
        body += _member(f"/{start}", data, mode=b"644")
        start += len(name.encode()) + 2
    entries = [(places[name], symbol) for name, found in symbols.items() for symbol in found]
    index = len(entries).to_bytes(4, "big") + b"".join(place.to_bytes(4, "big") for place, _ in entries)
    index += b"".join(symbol.encode() + b"\0" for _, symbol in entries)
    return _MAGIC + _member("/", index) + _member("//", names) + body


def _member(name: str, data: bytes, mode: bytes = b"0") -> bytes:
    fields = [name.encode().ljust(16), b"0".ljust(12), b"0".ljust(6), b"0".ljust(6), mode.ljust(8)]
    return b"".join([*fields, str(len(data)).encode().ljust(10), b"`\n", data, b"\n" * (len(data) % 2)])


def _defined(data: bytes) -> list[str]:
    """The global symbols that an object defines."""
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    found = (symbol for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF")
    return [symbol.name for symbol in found if symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")]


_ALIGNMENT = 64  # bytes: the data begin at a cache line


class StoredTensor(NamedTuple):
    """A tensor: safetensors' name of its element type, bytes per element, its shape, and its data."""

    dtype: str
    element: int
    shape: Sequence[int]
    data: memoryview


def write(path: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> None:
    """Writes `tensors` by name, and texts about them. Raises `OSError`."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element, tensors[name].dtype, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in order:
        found = tensors[name]
        end = offset + found.data.nbytes
        header[name] = {"dtype": found.dtype, "shape": list(found.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].data)


VERSION = "0.1.0"
# The earliest timestamp of a zip file, so that the output is deterministic.
_MOMENT = (1980, 1, 1, 0, 0, 0)


def wheel_name(name: str, machine: Machine) -> str:
    return f"{name}-{VERSION}-{_tag(machine)}.whl"


def write_wheel(path: Path, name: str, machine: Machine, library: bytes, weights: Path, summary: str) -> None:
    """Writes the wheel of the program `name`. Raises `OSError`."""
    folder, records = f"{name}-{VERSION}.dist-info", list[str]()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:

        def add(file: str, data: bytes, compression: int = zipfile.ZIP_DEFLATED) -> None:
            info = zipfile.ZipInfo(file, _MOMENT)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, compression)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{file},sha256={digest},{len(data)}")

        add(f"{name}/__init__.py", source("package.py.txt", name).encode())
        add(f"{name}/lib{name}.so", library)
        # Compressing weights gains too little for the time it takes.
        add(f"{name}/{name}.safetensors", weights.read_bytes(), zipfile.ZIP_STORED)
        add(f"{folder}/METADATA", _metadata(name, summary).encode())
        add(f"{folder}/WHEEL", _wheel(machine).encode())
        records.append(f"{folder}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{folder}/RECORD", _MOMENT), "\n".join([*records, ""]))


def _tag(machine: Machine) -> str:
    """Any Python 3 on Linux of that architecture; the required C library depends on the compiler that linked it."""
    return f"py3-none-linux_{machine.architecture}"


def _metadata(name: str, summary: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {VERSION}", f"Summary: {summary}"]
    return "\n".join([*lines, "Requires-Python: >=3.10", "Requires-Dist: numpy", ""])


def _wheel(machine: Machine) -> str:
    lines = ["Wheel-Version: 1.0", "Generator: buddy-tui", "Root-Is-Purelib: false", f"Tag: {_tag(machine)}"]
    return "\n".join([*lines, ""])
