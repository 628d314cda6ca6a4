"""LLVM IR as text: trampolines to functions of any number of pointers, and conversion to an older LLVM.

Since LLVM 24, floats are printed as their shortest decimals, or as the bits of their own type (`f0x3F80`), which LLVM
23 and earlier versions cannot parse.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

_TYPES = re.compile(r"\b(half|bfloat|float|double)\b")
# A float as bits or as a decimal, or infinity and NaN. Excludes parts of names (`%1.5`, `@f.2`).
_LITERAL = re.compile(
    r"(?<![\w.%@$\"-])(?:f0x(?P<bits>[0-9A-Fa-f]+)|(?P<decimal>-?\d+\.\d+(?:e[+-]?\d+)?)"
    r"|(?P<sign>[+-])(?P<word>inf|qnan|nan\(0x[0-9A-Fa-f]+\)|snan\(0x[0-9A-Fa-f]+\)))(?![\w.])"
)
# Bits of a type, its `struct` format, and the bits of its fraction.
_FORMATS = {"half": (16, "e", 10), "bfloat": (16, "", 7), "float": (32, "f", 23), "double": (64, "d", 52)}
_EXPONENT_BITS = {"half": 5, "bfloat": 8, "float": 8, "double": 11}


def for_older_llvm(text: str) -> str:
    """Returns the module `text` with its floats in the notation that all versions of LLVM accept."""
    return "\n".join(_LITERAL.sub(_as_hex, line) if _holds_floats(line) else line for line in text.split("\n"))


def _holds_floats(line: str) -> bool:
    """True if a line may contain floats; the contents of strings are bytes (`c"a float 1.5"`)."""
    return _TYPES.search(line) is not None and ' c"' not in line


def _as_hex(found: re.Match[str]) -> str:
    """Returns a literal as the bits of a double (for floats and doubles), of a half or of a bfloat."""
    kinds = _TYPES.findall(found.string, 0, found.start())
    if not kinds:
        return found[0]
    bits = _bits(found, kinds[-1])
    if kinds[-1] == "half":
        return f"0xH{bits:04X}"
    if kinds[-1] == "bfloat":
        return f"0xR{bits:04X}"
    return f"0x{_as_double(bits) if kinds[-1] == 'float' else bits:016X}"


def _bits(found: re.Match[str], kind: str) -> int:
    """Returns the literal's bits in its own type."""
    if found["bits"]:
        return int(found["bits"], 16)
    if found["decimal"]:
        return _round_to(float(found["decimal"]), kind)
    width, _, fraction = _FORMATS[kind]
    special = ((1 << _EXPONENT_BITS[kind]) - 1) << fraction
    word, quiet = found["word"], 1 << (fraction - 1)
    payload = int(word.partition("(")[2].rstrip(")"), 16) if "(" in word else 0
    mantissa = 0 if word == "inf" else payload if word.startswith("snan") else payload | quiet
    return (found["sign"] == "-") << (width - 1) | special | mantissa


def _round_to(value: float, kind: str) -> int:
    """Returns the bits of `value` in type `kind`, rounded to nearest."""
    if kind == "bfloat":
        (bits,) = struct.unpack(">I", struct.pack(">f", value))
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    width, code, _ = _FORMATS[kind]
    return int.from_bytes(struct.pack(f">{code}", value), "big") & ((1 << width) - 1)


def _as_double(bits: int) -> int:
    """Converts a float's bits to those of the equal double; a NaN keeps its fraction."""
    sign, exponent, fraction = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign << 63 | 0x7FF << 52 | fraction << 29
    (value,) = struct.unpack(">f", bits.to_bytes(4, "big"))
    return int.from_bytes(struct.pack(">d", value), "big")


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
