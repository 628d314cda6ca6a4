"""Disassembles the objects of compiled functions, and finds the nodes that each instruction comes from."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import capstone
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from buddy.compiler.codegen.functions import FunctionObject
from buddy.compiler.mlir.printing import stage_text
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.text.lines import StageText

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE
    from elftools.dwarf.dwarfinfo import DWARFInfo
    from elftools.dwarf.lineprogram import LineProgram, LineState
    from elftools.elf.sections import Symbol


# Capstone's architecture and mode by the machine of an ELF file.
_CAPSTONE_MODES = {
    "EM_X86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
    "EM_AARCH64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
    "EM_RISCV": (capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC),
}
# The mnemonics of jumps, by Capstone's architecture. Calls are not jumps.
_JUMPS = {
    capstone.CS_ARCH_X86: re.compile(r"j\w+|loop\w*"),
    capstone.CS_ARCH_ARM64: re.compile(r"b|bc?\.\w+|[ct]bn?z"),
    capstone.CS_ARCH_RISCV: re.compile(r"(?:c\.)?(?:j|b(?:eq|ne|lt|ge|gt|le)[uz]?)"),
}

# At least the maximum size of an instruction in bytes: 15 on x86, 4 on AArch64 and RISC-V.
_MAX_INSTRUCTION_BYTES = 16
# The opcodes of map 1 with VEX or EVEX that have an immediate: shifts, shuffles, comparisons, inserts and extracts.
_OPCODES_WITH_IMMEDIATE = frozenset({0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6})


class _InlinedCall(NamedTuple):
    """The addresses `start` to `end` (excluded) of code that was inlined, and the line of the call."""

    start: int
    end: int
    line: int


@dataclass(frozen=True)
class _FunctionCode:
    """One function of an object: the lines of its text, and the number in the line table and machine code of each line.

    The number is 0 for a line without an entry. `machine_code` is empty if the function could not be disassembled.
    """

    lines: tuple[str, ...]
    line_numbers: tuple[int, ...]
    machine_code: tuple[bytes, ...] = ()


def assembly_text(objects: Sequence[FunctionObject], locations: LocationSets) -> StageText:
    """Disassembles `objects`, one after another.

    For an object that is not ELF, or of a machine that Capstone lacks, the text has only the name and a comment. An
    instruction without an entry in the line table, such as those of a prologue, belongs to the location set of the
    whole function.
    """
    lines: list[str] = []
    set_numbers: list[int] = []
    machine_code: list[bytes] = []
    for function in objects:
        code = _read_function(function.name, function.data)
        line_sets = [function.sets[n - 1] if 0 < n <= len(function.sets) else 0 for n in code.line_numbers]
        lines += [*code.lines, ""]
        set_numbers += [function.function_set, *(number or function.function_set for number in line_sets[1:]), 0]
        machine_code += [*(code.machine_code or [b""] * len(code.lines)), b""]
    bytes_by_set: Counter[int] = Counter()
    for set_number, code_of_line in zip(set_numbers, machine_code, strict=True):
        bytes_by_set[set_number] += len(code_of_line)
    return stage_text(lines, set_numbers, locations, bytes_by_set, machine_code)


@lru_cache(maxsize=512)
def _read_function(name: str, data: bytes) -> _FunctionCode:
    """Returns the code of function `name` in an object file. Raises `ValueError` if the object does not define it."""
    if not data.startswith(b"\x7fELF"):
        return _FunctionCode(
            (f"{name}:", "  # not an ELF object: disassembly is not supported on this platform"), (0, 0)
        )
    elf = ELFFile(io.BytesIO(data))
    mode = _CAPSTONE_MODES.get(elf["e_machine"])
    if mode is None:
        return _FunctionCode((f"{name}:", f"  # no disassembler for {elf['e_machine']}"), (0, 0))
    section_number, start, size = _find_function(elf, name)
    code = elf.get_section(section_number).data()[start : start + size]
    return _disassemble_code(name, start, code, mode, _relocations(elf, section_number), _line_table(elf))


def read_library(path: str, name: str) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yields the lines of each function of a shared library that is called `name` or `name.…`.

    The body of a parallel region is such a function, `kernel._omp_fn.0`. Each line has its text, its number in the
    file that the library was compiled from, and its machine code. For code that was inlined from other files, the
    number is that of the call, or 0. Yields nothing for a library of an unknown machine.
    """
    with open(path, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return
        elf = ELFFile(file)
        mode = _CAPSTONE_MODES.get(elf["e_machine"])
        if mode is None:
            return
        line_table = _line_table(elf, Path(path).stem)
        for symbol in _functions(elf, name):
            section = elf.get_section(symbol["st_shndx"])
            start, size = symbol["st_value"], symbol["st_size"]
            offset = start - section["sh_addr"]
            data = section.data()[offset : offset + size]
            code = _disassemble_code(symbol.name, start, data, mode, [], line_table)
            yield list(zip(code.lines, code.line_numbers, code.machine_code, strict=True))


def _functions(elf: ELFFile, name: str) -> list[Symbol]:
    """Returns the symbols of the functions called `name` or `name.…`: `name` first, the others by address."""
    symbols = {}
    for section in elf.iter_sections():
        for symbol in section.iter_symbols() if isinstance(section, SymbolTableSection) else ():
            is_function = symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_size"]
            if is_function and (symbol.name == name or symbol.name.startswith(f"{name}.")):
                symbols[symbol["st_value"]] = symbol
    return sorted(symbols.values(), key=lambda symbol: (symbol.name != name, symbol["st_value"]))


def _find_function(elf: ELFFile, name: str) -> tuple[int, int, int]:
    """Returns section number, offset and size of a function. Raises `ValueError` if the object does not define it."""
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            for symbol in section.get_symbol_by_name(name) or ():
                return symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
    raise ValueError(f"the object defines no {name}")


def _relocations(elf: ELFFile, section_number: int) -> list[tuple[int, str]]:
    """Returns the offsets in a section that the linker fills, each with its symbol or section, in order."""
    relocations = []
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] == section_number:
            symbols = elf.get_section(section["sh_link"])
            for relocation in section.iter_relocations():
                symbol = symbols.get_symbol(relocation["r_info_sym"])
                name = symbol.name or elf.get_section(symbol["st_shndx"]).name
                relocations.append((relocation["r_offset"], name))
    return sorted(relocations)


def _line_table(elf: ELFFile, stem: str = "") -> tuple[list[int], list[int]]:
    """Returns the line table as sorted addresses, and the line that starts at each address.

    With `stem`, which is for a shared library, lines are those of the file with that stem: for code of other files,
    the line whose call was inlined, or 0.
    """
    rows: list[tuple[int, int]] = []
    if elf.has_dwarf_info():
        # No relocation is needed: an object of this compiler has one compile unit, and its function starts at offset 0
        # of its section; a shared library is already relocated. pyelftools does not support all kinds of relocations.
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            states = [entry.state for entry in program.get_entries() if entry.state] if program is not None else []
            if not stem:
                rows += [(state.address, state.line) for state in states]
            elif states:
                rows += _lines_of_file(states, _own_files(program, stem), dwarf, unit)
    rows.sort(key=lambda row: row[0])
    return [address for address, _ in rows], [line for _, line in rows]


def _own_files(program: LineProgram, stem: str) -> set[int]:
    """Returns the numbers of the files of a line table whose name up to its first dot equals that of `stem`."""
    first = 0 if program.header["version"] >= 5 else 1
    names = [entry.name.decode(errors="replace") for entry in program.header["file_entry"]]
    own_stem = stem.partition(".")[0]
    return {number for number, name in enumerate(names, start=first) if Path(name).name.partition(".")[0] == own_stem}


def _lines_of_file(
    states: Sequence[LineState], own_files: set[int], dwarf: DWARFInfo, unit: CompileUnit
) -> Iterator[tuple[int, int]]:
    """Yields the rows of a line table, with the line of the inlined call for code of files not in `own_files`."""
    calls = sorted(_inlined_calls(dwarf, unit, own_files))
    # A row starts at each border of an inlined call too, because its code may be in the middle of a row.
    lines = {state.address: state.line if state.file in own_files else 0 for state in states}
    starts = sorted(lines)
    for border in {border for call in calls for border in (call.start, call.end)} - lines.keys():
        before = bisect_right(starts, border) - 1
        if before >= 0:
            lines[border] = lines[starts[before]]
    enclosing_calls: list[_InlinedCall] = []
    next_call = 0
    for address in sorted(lines):
        while next_call < len(calls) and calls[next_call].start <= address:
            enclosing_calls.append(calls[next_call])
            next_call += 1
        enclosing_calls = [call for call in enclosing_calls if call.end > address]
        yield address, lines[address] or (enclosing_calls[-1].line if enclosing_calls else 0)


def _inlined_calls(dwarf: DWARFInfo, unit: CompileUnit, own_files: set[int]) -> Iterator[_InlinedCall]:
    """Yields the calls in `own_files` that were inlined; one for each of its address ranges."""
    for debug_entry in unit.iter_DIEs():
        attributes = debug_entry.attributes
        file, line = attributes.get("DW_AT_call_file"), attributes.get("DW_AT_call_line")
        is_inlined = debug_entry.tag == "DW_TAG_inlined_subroutine"
        if is_inlined and file is not None and line is not None and file.value in own_files:
            for start, end in _address_ranges(debug_entry, dwarf, unit):
                yield _InlinedCall(start, end, line.value)


def _address_ranges(debug_entry: DIE, dwarf: DWARFInfo, unit: CompileUnit) -> Iterator[tuple[int, int]]:
    """Yields the first address and the end of each address range of a debug entry."""
    attributes = debug_entry.attributes
    if "DW_AT_ranges" in attributes:
        unit_start = unit.get_top_DIE().attributes.get("DW_AT_low_pc")
        base = unit_start.value if unit_start is not None else 0
        for address_range in dwarf.range_lists().get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if hasattr(address_range, "base_address"):  # the base of the ranges after this entry
                base = address_range.base_address
                continue
            offset = 0 if getattr(address_range, "is_absolute", False) else base
            yield offset + address_range.begin_offset, offset + address_range.end_offset
    elif "DW_AT_low_pc" in attributes and "DW_AT_high_pc" in attributes:
        low, high = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        yield low, high.value if high.form == "DW_FORM_addr" else low + high.value


def _disassemble_code(
    name: str, start: int, code: bytes, mode: tuple[int, int], relocations: list[tuple[int, str]],
    line_table: tuple[list[int], list[int]],
) -> _FunctionCode:  # fmt: skip
    """Disassembles `code`; adds labels and the symbols of relocations.

    `mode` is a value of `_CAPSTONE_MODES`, `line_table` a result of `_line_table`, and `relocations` of `_relocations`.
    The code starts at the address `start`, which is an offset in the section if the code is of an object.
    """
    architecture, _ = mode
    row_addresses, row_lines = line_table
    instructions = list(_instructions(start, code, mode))
    symbols = _symbols_by_address(instructions, relocations)
    addresses = {address for address, *_ in instructions}
    # The target of a jump with a relocation is unknown: the linker fills it in.
    jumps = {
        address: target
        for address, _, mnemonic, operands in instructions
        if address not in symbols and (target := _jump_target(architecture, address, mnemonic, operands)) in addresses
    }
    targets = set(jumps.values())
    lines, line_numbers, machine_code = [f"{name}:"], [0], [b""]
    for address, size, mnemonic, operands in instructions:
        if address in targets:
            lines.append(f".L{address - start:x}:")
            line_numbers.append(0)
            machine_code.append(b"")
        if address in jumps:  # replaces the last operand, the target, by its label
            operands = operands[: operands.rfind(" ") + 1] + f".L{jumps[address] - start:x}"
        comment = f"  # {', '.join(symbols[address])}" if address in symbols else ""
        lines.append(f"  {address - start:6x}  {mnemonic:<14} {operands}{comment}".rstrip())
        row = bisect_right(row_addresses, address) - 1
        line_numbers.append(row_lines[row] if row >= 0 else 0)
        machine_code.append(code[address - start : address - start + size])
    return _FunctionCode(tuple(lines), tuple(line_numbers), tuple(machine_code))


def _instructions(start: int, code: bytes, mode: tuple[int, int]) -> Iterator[tuple[int, int, str, str]]:
    """Yields address, size, mnemonic and operands of each instruction; one that Capstone does not know is `.byte`."""
    architecture, _ = mode
    disassembler = capstone.Cs(*mode)
    offset = 0
    while offset < len(code):
        for address, size, mnemonic, operands in disassembler.disasm_lite(code[offset:], start + offset):
            yield address, size, mnemonic, operands
            offset = address - start + size
        if offset < len(code):
            size = _unknown_instruction_size(architecture, code[offset : offset + _MAX_INSTRUCTION_BYTES])
            unknown = code[offset : offset + size]
            yield start + offset, len(unknown), ".byte", ", ".join(f"{byte:#04x}" for byte in unknown)
            offset += len(unknown)


def _unknown_instruction_size(architecture: int, code: bytes) -> int:
    """Returns the size of the first instruction of `code`, which Capstone does not know.

    On x86, only instructions with a VEX or EVEX prefix, such as those of AVX-VNNI, are measured; the others count as 1.
    """
    if architecture == capstone.CS_ARCH_X86:
        return _vex_instruction_size(code)
    # The two low bits of a RISC-V instruction of 2 bytes are not both set.
    return 2 if architecture == capstone.CS_ARCH_RISCV and code[0] & 3 != 3 else 4


def _vex_instruction_size(code: bytes) -> int:
    """Returns the size of an x86 instruction that starts with a VEX or EVEX prefix; 1 for another or a truncated one.

    The prefix, with the map of its opcodes, is followed by the opcode, ModRM, SIB, a displacement and an immediate.
    """
    # The first bytes of the two VEX prefixes and of EVEX, with the size of each prefix.
    prefix_size = {0xC5: 2, 0xC4: 3, 0x62: 4}.get(code[0], 0)
    if not prefix_size or len(code) < prefix_size + 3:
        return 1
    opcode_map = 1 if prefix_size == 2 else code[1] & (0x1F if prefix_size == 3 else 0x07)
    opcode, modrm = code[prefix_size], code[prefix_size + 1]
    mod, rm = modrm >> 6, modrm & 7
    has_sib = mod != 3 and rm == 4
    displacement = {1: 1, 2: 4}.get(mod, 0)
    if mod == 0 and (rm == 5 or (has_sib and code[prefix_size + 2] & 7 == 5)):
        displacement = 4
    has_immediate = opcode_map == 3 or (opcode_map == 1 and opcode in _OPCODES_WITH_IMMEDIATE)
    return prefix_size + 2 + has_sib + displacement + has_immediate


def _symbols_by_address(
    instructions: Sequence[tuple[int, int, str, str]], relocations: Sequence[tuple[int, str]]
) -> dict[int, list[str]]:
    """Returns the symbols of the relocations within instructions, by the instruction's address."""
    starts = [address for address, *_ in instructions]
    symbols: dict[int, list[str]] = {}
    for offset, symbol in relocations:
        index = bisect_right(starts, offset) - 1
        if index < 0:
            continue
        address, size, *_ = instructions[index]
        if offset < address + size:
            symbols.setdefault(address, []).append(symbol)
    return symbols


def _jump_target(architecture: int, address: int, mnemonic: str, operands: str) -> int:
    """Returns the address to which the instruction at `address` jumps.

    Returns -1 for another instruction, or if the target is in a register or in memory. The target is the last operand:
    an address on x86 and AArch64, the distance from `address` on RISC-V.
    """
    if not _JUMPS[architecture].fullmatch(mnemonic):
        return -1
    try:
        target = int(operands.rpartition(" ")[2].lstrip("#"), 0)
    except ValueError:
        return -1
    return address + target if architecture == capstone.CS_ARCH_RISCV else target
