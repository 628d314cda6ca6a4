"""Disassembles the objects of compiled functions, and finds the nodes that each instruction comes from."""

from __future__ import annotations

import io
import re
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
# The mnemonics of jumps by Capstone's architecture. Calls are not jumps.
_JUMPS = {
    capstone.CS_ARCH_X86: re.compile(r"j\w+|loop\w*"),
    capstone.CS_ARCH_ARM64: re.compile(r"b|bc?\.\w+|[ct]bn?z"),
    capstone.CS_ARCH_RISCV: re.compile(r"(?:c\.)?(?:j|b(?:eq|ne|lt|ge|gt|le)[uz]?)"),
}


@dataclass(frozen=True)
class _Code:
    """One function of an object: its lines of text, the line number of each in the line table, and its machine code.

    The line number is 0 for a line without an entry. `bytes` is empty if the function could not be disassembled.
    """

    lines: tuple[str, ...]
    line_numbers: tuple[int, ...]
    bytes: tuple[bytes, ...] = ()


def assembly_text(objects: Sequence[FunctionObject], locations: LocationSets) -> StageText:
    """Disassembles `objects`, one after another. For an object that is not ELF, or whose machine Capstone lacks, the
    text has only the name and a comment.

    An instruction without an entry in the line table, such as those of a prologue, belongs to the location set of the
    whole function.
    """
    lines: list[str] = []
    sets: list[int] = []
    machine_code: list[bytes] = []
    for function in objects:
        code = _read_function(function.name, function.data)
        line_sets = [function.sets[n - 1] if 0 < n <= len(function.sets) else 0 for n in code.line_numbers]
        lines += [*code.lines, ""]
        sets += [function.function_set, *(number or function.function_set for number in line_sets[1:]), 0]
        machine_code += [*(code.bytes or [b""] * len(code.lines)), b""]
    bytes_by_set: Counter[int] = Counter()
    for number, code_of_line in zip(sets, machine_code, strict=True):
        bytes_by_set[number] += len(code_of_line)
    return stage_text(lines, sets, locations, bytes_by_set, machine_code)


@lru_cache(maxsize=512)
def _read_function(name: str, data: bytes) -> _Code:
    """Returns the code of function `name` in an object file. Raises `ValueError` if the object does not define it."""
    if not data.startswith(b"\x7fELF"):
        return _Code((f"{name}:", "  # not an ELF object: disassembly is not supported on this platform"), (0, 0))
    elf = ELFFile(io.BytesIO(data))
    mode = _CAPSTONE_MODES.get(elf["e_machine"])
    if mode is None:
        return _Code((f"{name}:", f"  # no disassembler for {elf['e_machine']}"), (0, 0))
    section, start, size = _find_function(elf, name)
    code = elf.get_section(section).data()[start : start + size]
    return _disassemble_code(name, start, code, mode, _relocations(elf, section), _line_table(elf))


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
        # Each object has one compile unit, and its function starts at offset 0 of its section, so no relocation is
        # needed. pyelftools does not support all kinds of relocations.
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            rows += [(e.state.address, e.state.line) for e in program.get_entries() if e.state] if program else []
    rows.sort(key=lambda row: row[0])
    return [address for address, _ in rows], [line for _, line in rows]


def _disassemble_code(
    name: str, start: int, code: bytes, mode: tuple[int, int], relocations: list[tuple[int, str]],
    line_table: tuple[list[int], list[int]],
) -> _Code:  # fmt: skip
    """Disassembles `code`, which is at offset `start` of its section; adds labels and the symbols of relocations."""
    instructions = list(capstone.Cs(*mode).disasm_lite(code, start))
    symbols = _symbols_by_address(instructions, relocations)
    addresses = {address for address, *_ in instructions}
    # The target of a jump with a relocation is unknown: the linker fills it in.
    jumps = {
        address: target
        for address, _, mnemonic, operands in instructions
        if address not in symbols and (target := _jump_target(mode[0], address, mnemonic, operands)) in addresses
    }
    targets = set(jumps.values())
    lines, line_numbers, bytes_ = [f"{name}:"], [0], [b""]
    for address, size, mnemonic, operands in instructions:
        if address in targets:
            lines.append(f".L{address - start:x}:")
            line_numbers.append(0)
            bytes_.append(b"")
        if address in jumps:
            operands = operands[: operands.rfind(" ") + 1] + f".L{jumps[address] - start:x}"
        comment = f"  # {', '.join(symbols[address])}" if address in symbols else ""
        lines.append(f"  {address - start:6x}  {mnemonic:<14} {operands}{comment}".rstrip())
        entry = bisect_right(line_table[0], address) - 1
        line_numbers.append(line_table[1][entry] if entry >= 0 else 0)
        bytes_.append(code[address - start : address - start + size])
    return _Code(tuple(lines), tuple(line_numbers), tuple(bytes_))


def _symbols_by_address(
    instructions: Sequence[tuple[int, int, str, str]], relocations: Sequence[tuple[int, str]]
) -> dict[int, list[str]]:
    """Returns the symbols of the relocations within each instruction, for those that have any."""
    starts = [address for address, *_ in instructions]
    symbols: dict[int, list[str]] = {}
    for offset, symbol in relocations:
        index = bisect_right(starts, offset) - 1
        if index >= 0 and offset < starts[index] + instructions[index][1]:
            symbols.setdefault(starts[index], []).append(symbol)
    return symbols


def _jump_target(architecture: int, address: int, mnemonic: str, operands: str) -> int:
    """Returns the address to which the instruction at `address` jumps; -1 if it does not, or if a register has it.

    The target is the last operand. It is an address on x86 and AArch64, and the distance from `address` on RISC-V.
    """
    if not _JUMPS[architecture].fullmatch(mnemonic):
        return -1
    try:
        target = int(operands.rpartition(" ")[2].lstrip("#"), 0)
    except ValueError:
        return -1
    return address + target if architecture == capstone.CS_ARCH_RISCV else target
