"""Disassembles the objects of compiled functions; each instruction has the nodes that it comes from."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import capstone
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from buddy.compiler.codegen.functions import FunctionObject
from buddy.compiler.mlir.printing import stage_text
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.text.lines import StageText

_MACHINES = {
    "EM_X86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
    "EM_AARCH64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
    "EM_RISCV": (capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC),
}


@dataclass(frozen=True)
class _Code:
    """One function of an object: lines of text, the line-table entry of each (0: none), and its machine code."""

    lines: tuple[str, ...]
    rows: tuple[int, ...]
    bytes: tuple[bytes, ...] = ()


def print_assembly(objects: Sequence[FunctionObject], locations: LocationSets) -> StageText:
    """Disassembles `objects`, one after another. Objects that are not ELF are only named.

    An instruction without an entry in the line table, such as a prologue's, belongs to all nodes of its function: to
    those of a kernel's calls or, as derived nodes, to those of a part of the graph.
    """
    lines: list[str] = []
    sets: list[int] = []
    machine: list[bytes] = []
    for found in objects:
        code = _disassembled(found.name, found.data)
        known = [found.sets[row - 1] if 0 < row <= len(found.sets) else 0 for row in code.rows]
        lines += [*code.lines, ""]
        sets += [found.group, *(number or found.group for number in known[1:]), 0]
        machine += [*(code.bytes or [b""] * len(code.lines)), b""]
    weights: Counter[int] = Counter()
    for number, code_of_line in zip(sets, machine, strict=True):
        weights[number] += len(code_of_line)
    return stage_text(lines, sets, locations, weights, machine)


@lru_cache(maxsize=512)
def _disassembled(name: str, data: bytes) -> _Code:
    if not data.startswith(b"\x7fELF"):
        return _Code((f"{name}:", "  # not an ELF object: disassembly is not supported on this platform"), (0, 0))
    elf = ELFFile(io.BytesIO(data))
    machine = _MACHINES.get(elf["e_machine"])
    if machine is None:
        return _Code((f"{name}:", f"  # no disassembler for {elf['e_machine']}"), (0, 0))
    index, start, size = _symbol(elf, name)
    code = elf.get_section(index).data()[start : start + size]
    return _format(name, start, code, machine, _relocations(elf, index), _line_rows(elf))


def _symbol(elf: Any, name: str) -> tuple[int, int, int]:
    """Returns section number, offset and size of a function."""
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            for symbol in section.get_symbol_by_name(name) or ():
                return symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
    raise ValueError(f"the object defines no {name}")


def _relocations(elf: Any, index: int) -> list[tuple[int, str]]:
    """Returns offsets into section `index` that the linker fills, with the symbol or section of each."""
    found = []
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] == index:
            symbols = elf.get_section(section["sh_link"])
            for relocation in section.iter_relocations():
                symbol = symbols.get_symbol(relocation["r_info_sym"])
                name = symbol.name or elf.get_section(symbol["st_shndx"]).name
                found.append((relocation["r_offset"], name))
    return sorted(found)


def _line_rows(elf: Any) -> tuple[list[int], list[int]]:
    """Returns the line table as addresses and the line from each address on."""
    rows = []
    if elf.has_dwarf_info():
        # Each file has one unit, at offset 0 of its section, so no relocation is needed; pyelftools does not support
        # all kinds.
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            rows += [(e.state.address, e.state.line) for e in program.get_entries() if e.state] if program else []
    rows.sort(key=lambda row: row[0])
    return [address for address, _ in rows], [line for _, line in rows]


def _format(
    name: str, start: int, code: bytes, machine: tuple[int, int], relocations: list[tuple[int, str]],
    table: tuple[list[int], list[int]],
) -> _Code:  # fmt: skip
    instructions = list(capstone.Cs(*machine).disasm_lite(code, start))
    addresses = {address for address, *_ in instructions}
    targets = {t for _, _, _, operands in instructions if (t := _target(operands)) in addresses}
    lines, rows, bytes_ = [f"{name}:"], [0], [b""]
    position = 0
    for address, size, mnemonic, operands in instructions:
        if address in targets:
            lines.append(f".L{address - start:x}:")
            rows.append(0)
            bytes_.append(b"")
        if _target(operands) in targets and mnemonic.startswith(("j", "b", "cb", "tb", "loop")):
            operands = f".L{_target(operands) - start:x}"
        symbols = []
        while position < len(relocations) and relocations[position][0] < address + size:
            if relocations[position][0] >= address:
                symbols.append(relocations[position][1])
            position += 1
        note = f"  # {', '.join(symbols)}" if symbols else ""
        lines.append(f"  {address - start:6x}  {mnemonic:<14} {operands}{note}".rstrip())
        entry = bisect_right(table[0], address) - 1
        rows.append(table[1][entry] if entry >= 0 else 0)
        bytes_.append(code[address - start : address - start + size])
    return _Code(tuple(lines), tuple(rows), tuple(bytes_))


def _target(operands: str) -> int:
    """Returns the address in a single immediate operand, or -1."""
    text = operands.lstrip("#")
    try:
        return int(text, 16) if text.startswith("0x") else -1
    except ValueError:
        return -1
