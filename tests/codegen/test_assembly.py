"""Disassembled code has labels where jumps go, and nowhere else; no instruction of it is left out."""

from __future__ import annotations

import pytest

from buddy.compiler.codegen.assembly import _CAPSTONE_MODES, _disassemble_code, _unknown_instruction_size

# By machine: the code, where it starts, its relocations, and its text.
CODE: dict[str, tuple[str, int, list[tuple[int, str]], str]] = {
    # Addresses below 10 are printed without 0x. What the linker fills in, here in `call` and the second `jmp`, has 0.
    "EM_X86_64": (
        "eb01 90 7402 eb00 e800000000 e900000000 e3f5 c3", 0, [(8, "callee"), (13, "tail")],
        "jmp .L3; nop; .L3: je .L7; jmp .L7; .L7: call 0xc # callee; jmp 0x11 # tail; jrcxz 8; ret",
    ),
    "EM_AARCH64": (
        "600000b4 1f2003d5 40001836 c0035fd6 000020d4 60ffff54 faffff17 01000094 c0035fd6", 0x100, [],
        ".L0: cbz x0, .Lc; nop; tbz w0, #3, .L10; .Lc: ret; .L10: brk #0; b.eq .L0; b .L0; bl #0x120; ret",
    ),
    "EM_RISCV": (
        "63060500 e34eb5fe 6f008000 13000000 ef004000 6ff0dffe 11c1 e5fd 03250500", 0x10, [],
        ".L0: beqz a0, .Lc; blt a0, a1, .L0; j .L10; .Lc: nop; .L10: jal 4; j .L0; c.beqz a0, .L1c; c.bnez a1, -8;"
        " .L1c: lw a0, 0(a0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("machine", CODE)
def test_labels_are_the_targets_of_jumps(machine: str) -> None:
    code, start, relocations, expected = CODE[machine]
    found = _disassemble_code("f", start, bytes.fromhex(code), _CAPSTONE_MODES[machine], relocations, ([], []))
    words = (line.split() if line.startswith(".") else [*line.split()[1:], ";"] for line in found.lines[1:])
    assert " ".join(word for line in words for word in line).replace(" ;", ";").rstrip(";") == expected
    assert b"".join(found.machine_code) == bytes.fromhex(code)


# By machine: the code, and the text of what follows the instructions that Capstone does not know.
UNKNOWN = {
    # vpdpbusd of AVX-VNNI with registers, with memory, and vaddph of AVX512-FP16.
    "EM_X86_64": ("c4e27550c2 c4e27550848800010000 62f5744858c2 90 c3", [5, 10, 6, 1, 1]),
    "EM_AARCH64": ("ffffffff c0035fd6", [4, 4]),
    # vsetvli and vadd.vv, and what no extension has in 2 bytes.
    "EM_RISCV": ("57700508 57804002 0080 13000000", [4, 4, 2, 4]),
}


@pytest.mark.parametrize("machine", UNKNOWN)
def test_an_unknown_instruction_is_shown_as_bytes(machine: str) -> None:
    code, sizes = UNKNOWN[machine]
    found = _disassemble_code("f", 0, bytes.fromhex(code), _CAPSTONE_MODES[machine], [], ([], []))
    assert b"".join(found.machine_code) == bytes.fromhex(code)
    assert [len(part) for part in found.machine_code[1:]] == sizes
    texts = [" ".join(line.split()[1:]) for line in found.lines[1:]]
    assert texts[0] == ".byte " + ", ".join(f"{byte:#04x}" for byte in found.machine_code[1])
    assert texts[-1] in ("ret", "nop")


@pytest.mark.parametrize(
    "code",
    [
        "c4e27550c2", "c4e27550848800010000", "c4e275500c2510000000", "c4e2755045f0", "c5f572d003", "c5f558c2",
        "c4e37d19c201", "62f5744858c2", "62f2755050840800010000", "62f3754823c202",
    ],
)  # fmt: skip
def test_the_size_of_an_unknown_vector_instruction(code: str) -> None:
    machine = _CAPSTONE_MODES["EM_X86_64"][0]
    assert _unknown_instruction_size(machine, bytes.fromhex(code) + b"\xc3") == len(bytes.fromhex(code))
    assert _unknown_instruction_size(machine, bytes.fromhex(code)[:3]) == 1
