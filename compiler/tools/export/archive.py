"""Writes static libraries: objects in one file, with an index of the symbols that they define.

The format is that of System V and GNU (`ar(5)` of binutils): members with headers of 60 bytes, of which the first, `/`,
is the symbol index for linkers, and the second, `//`, holds names of more than 15 characters.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

from elftools.elf.elffile import ELFFile

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
