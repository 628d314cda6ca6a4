"""Disassembled code has labels where jumps go, and nowhere else."""

from __future__ import annotations

import pytest

from buddy.compiler.codegen.assembly import _CAPSTONE_MODES, _disassemble_code

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
    assert b"".join(found.bytes) == bytes.fromhex(code)
