"""Writes LLVM IR as text: converts floats for older versions of LLVM, and emits trampolines to functions.

LLVM 24 and later print floats as their shortest decimals, or as the bits of their type (`f0x3F80`). LLVM 23 and earlier
versions cannot parse this.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

_FLOAT_TYPES = re.compile(r"\b(half|bfloat|float|double)\b")
# A float as bits or as a decimal, or infinity and NaN. Excludes parts of names (`%1.5`, `@f.2`).
_FLOAT_LITERAL = re.compile(
    r"(?<![\w.%@$\"-])(?:f0x(?P<bits>[0-9A-Fa-f]+)|(?P<decimal>-?\d+\.\d+(?:e[+-]?\d+)?)"
    r"|(?P<sign>[+-])(?P<special>inf|qnan|nan\(0x[0-9A-Fa-f]+\)|snan\(0x[0-9A-Fa-f]+\)))(?![\w.])"
)
# By type: its width in bits, its `struct` format, and the bits of its fraction.
_FORMATS = {"half": (16, "e", 10), "bfloat": (16, "", 7), "float": (32, "f", 23), "double": (64, "d", 52)}
_EXPONENT_BITS = {"half": 5, "bfloat": 8, "float": 8, "double": 11}


def for_older_llvm(text: str) -> str:
    """Returns the module `text` with its floats in the notation that all versions of LLVM accept."""
    return "\n".join(
        _FLOAT_LITERAL.sub(_as_hex, line) if _may_contain_floats(line) else line for line in text.split("\n")
    )


def _may_contain_floats(line: str) -> bool:
    """Returns whether a line may contain floats. Lines with a string constant (`c"a float 1.5"`) contain none."""
    return _FLOAT_TYPES.search(line) is not None and ' c"' not in line


def _as_hex(literal: re.Match[str]) -> str:
    """Returns a literal as hexadecimal bits: of a double for floats and doubles, otherwise of its type.

    The type is the last one before the literal in its line.
    """
    types = _FLOAT_TYPES.findall(literal.string, 0, literal.start())
    if not types:
        return literal[0]
    bits = _bits(literal, types[-1])
    if types[-1] == "half":
        return f"0xH{bits:04X}"
    if types[-1] == "bfloat":
        return f"0xR{bits:04X}"
    return f"0x{_as_double(bits) if types[-1] == 'float' else bits:016X}"


def _bits(literal: re.Match[str], type_: str) -> int:
    """Returns the bits of a literal of `type_`."""
    if literal["bits"]:
        return int(literal["bits"], 16)
    if literal["decimal"]:
        return _round_to(float(literal["decimal"]), type_)
    width, _, fraction_bits = _FORMATS[type_]
    exponent = ((1 << _EXPONENT_BITS[type_]) - 1) << fraction_bits
    kind, _, payload_text = literal["special"].partition("(")
    payload = int(payload_text.rstrip(")"), 16) if payload_text else 0
    quiet_bit = 1 << (fraction_bits - 1)
    fraction = {"inf": 0, "snan": payload}.get(kind, payload | quiet_bit)
    return (literal["sign"] == "-") << (width - 1) | exponent | fraction


def _round_to(value: float, type_: str) -> int:
    """Returns the bits of `value` in `type_`, rounded to nearest."""
    if type_ == "bfloat":
        (bits,) = struct.unpack(">I", struct.pack(">f", value))
        # Keeps the upper half of the float's bits; the addition rounds to nearest, ties to even.
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    width, code, _ = _FORMATS[type_]
    return int.from_bytes(struct.pack(f">{code}", value), "big") & ((1 << width) - 1)


def _as_double(bits: int) -> int:
    """Converts a float's bits to those of the equal double; a NaN keeps its fraction."""
    sign, exponent, fraction = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign << 63 | 0x7FF << 52 | fraction << 29
    (value,) = struct.unpack(">f", bits.to_bytes(4, "big"))
    return int.from_bytes(struct.pack(">d", value), "big")


# ---- trampolines -----------------------------------------------------------------------------------------------------

_POINTER_BYTES = 8


def trampoline_name(name: str) -> str:
    """Returns the name of the trampoline to function `name`."""
    return f"buddy_block_{name}"


def trampolines(arities: Mapping[str, int]) -> str:
    """Returns the LLVM IR of a trampoline for each function in `arities`, which maps names to numbers of arguments.

    A trampoline loads the arguments, which are pointers, from the array that its only argument points to.
    """
    return "\n".join(_trampoline(name, arity) for name, arity in arities.items())


def _trampoline(name: str, arity: int) -> str:
    pointers = [f"%p{i}" for i in range(arity)]
    lines = []
    for i, pointer in enumerate(pointers):
        lines.append(f"  %a{i} = getelementptr i8, ptr %block, i64 {i * _POINTER_BYTES}")
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
