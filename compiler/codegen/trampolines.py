"""Trampolines in LLVM IR, by which functions of any number of pointers are called with one block of arguments."""

from __future__ import annotations

from collections.abc import Mapping

_WORD = 8


def trampoline_name(name: str) -> str:
    return f"buddy_block_{name}"


def trampolines(arities: Mapping[str, int]) -> str:
    """Returns a function for each of `arities`, which loads that number of pointers from the block at its argument."""
    return "\n".join(_trampoline(name, arity) for name, arity in arities.items())


def _trampoline(name: str, arity: int) -> str:
    pointers = [f"%p{i}" for i in range(arity)]
    lines = []
    for i, pointer in enumerate(pointers):
        lines.append(f"  %a{i} = getelementptr i8, ptr %block, i64 {i * _WORD}")
        lines.append(f"  {pointer} = load ptr, ptr %a{i}")
    types, arguments = ", ".join("ptr" for _ in pointers), ", ".join(f"ptr {pointer}" for pointer in pointers)
    return "\n".join(
        [
            f"declare void @{name}({types})",
            f"define void @{trampoline_name(name)}(ptr %block) {{",
            *lines,
            f"  call void @{name}({arguments})",
            "  ret void",
            "}",
        ]
    )
