"""Disassembles the objects of compiled functions, and finds the nodes that each instruction comes from."""

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

# Capstone's architecture and mode by the machine of an ELF file.
_CAPSTONE_MODES = {
    "EM_X86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
    "EM_AARCH64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
    "EM_RISCV": (capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC),
}


@dataclass(frozen=True)
class _Code:
    """One function of an object: its lines of text, and for each its row in the line table and its machine code.

    The row is 0 for a line without an entry. `bytes` is empty if the function could not be disassembled.
    """

    lines: tuple[str, ...]
    rows: tuple[int, ...]
    bytes: tuple[bytes, ...] = ()


def print_assembly(objects: Sequence[FunctionObject], locations: LocationSets) -> StageText:
    """Disassembles `objects`, one after another. For an object that is not ELF, the text has only the name.

    An instruction without an entry in the line table, such as those of a prologue, belongs to the location set of the
    whole function.
    """
    lines: list[str] = []
    sets: list[int] = []
    machine_code: list[bytes] = []
    for function in objects:
        code = _disassemble(function.name, function.data)
        line_sets = [function.sets[row - 1] if 0 < row <= len(function.sets) else 0 for row in code.rows]
        lines += [*code.lines, ""]
        sets += [function.group, *(number or function.group for number in line_sets[1:]), 0]
        machine_code += [*(code.bytes or [b""] * len(code.lines)), b""]
    weights: Counter[int] = Counter()
    for number, code_of_line in zip(sets, machine_code, strict=True):
        weights[number] += len(code_of_line)
    return stage_text(lines, sets, locations, weights, machine_code)


@lru_cache(maxsize=512)
def _disassemble(name: str, data: bytes) -> _Code:
    """Returns the code of function `name` in an object file. Raises `ValueError` if the object does not define it."""
    if not data.startswith(b"\x7fELF"):
        return _Code((f"{name}:", "  # not an ELF object: disassembly is not supported on this platform"), (0, 0))
    elf = ELFFile(io.BytesIO(data))
    mode = _CAPSTONE_MODES.get(elf["e_machine"])
    if mode is None:
        return _Code((f"{name}:", f"  # no disassembler for {elf['e_machine']}"), (0, 0))
    section, start, size = _find_function(elf, name)
    code = elf.get_section(section).data()[start : start + size]
    return _format(name, start, code, mode, _relocations(elf, section), _line_table(elf))


def _find_function(elf: Any, name: str) -> tuple[int, int, int]:
    """Returns section number, offset and size of a function. Raises `ValueError` if the object does not define it."""
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            for symbol in section.get_symbol_by_name(name) or ():
                return symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
    raise ValueError(f"the object defines no {name}")


def _relocations(elf: Any, index: int) -> list[tuple[int, str]]:
    """Returns the offsets in section `index` that the linker fills, each with its symbol or section, in order."""
    relocations = []
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] == index:
            symbols = elf.get_section(section["sh_link"])
            for relocation in section.iter_relocations():
                symbol = symbols.get_symbol(relocation["r_info_sym"])
                name = symbol.name or elf.get_section(symbol["st_shndx"]).name
                relocations.append((relocation["r_offset"], name))
    return sorted(relocations)


def _line_table(elf: Any) -> tuple[list[int], list[int]]:
    """Returns the line table as sorted addresses, and the line that starts at each address."""
    rows = []
    if elf.has_dwarf_info():
        # Each file has one unit, at offset 0 of its section, so no relocation is needed. pyelftools does not support
        # all kinds of relocations.
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            rows += [(e.state.address, e.state.line) for e in program.get_entries() if e.state] if program else []
    rows.sort(key=lambda row: row[0])
    return [address for address, _ in rows], [line for _, line in rows]


def _format(
    name: str, start: int, code: bytes, mode: tuple[int, int], relocations: list[tuple[int, str]],
    line_table: tuple[list[int], list[int]],
) -> _Code:  # fmt: skip
    """Disassembles `code`, which is at offset `start` of its section; adds labels and the symbols of relocations."""
    instructions = list(capstone.Cs(*mode).disasm_lite(code, start))
    addresses = {address for address, *_ in instructions}
    targets = {t for _, _, _, operands in instructions if (t := _target(operands)) in addresses}
    lines, rows, bytes_ = [f"{name}:"], [0], [b""]
    next_relocation = 0
    for address, size, mnemonic, operands in instructions:
        if address in targets:
            lines.append(f".L{address - start:x}:")
            rows.append(0)
            bytes_.append(b"")
        if _target(operands) in targets and mnemonic.startswith(("j", "b", "cb", "tb", "loop")):
            operands = f".L{_target(operands) - start:x}"
        symbols = []
        while next_relocation < len(relocations) and relocations[next_relocation][0] < address + size:
            if relocations[next_relocation][0] >= address:
                symbols.append(relocations[next_relocation][1])
            next_relocation += 1
        comment = f"  # {', '.join(symbols)}" if symbols else ""
        lines.append(f"  {address - start:6x}  {mnemonic:<14} {operands}{comment}".rstrip())
        entry = bisect_right(line_table[0], address) - 1
        rows.append(line_table[1][entry] if entry >= 0 else 0)
        bytes_.append(code[address - start : address - start + size])
    return _Code(tuple(lines), tuple(rows), tuple(bytes_))


def _target(operands: str) -> int:
    """Returns the address in a single immediate operand, or -1."""
    text = operands.lstrip("#")
    try:
        return int(text, 16) if text.startswith("0x") else -1
    except ValueError:
        return -1
