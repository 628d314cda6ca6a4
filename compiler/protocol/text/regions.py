"""Regions and symbols of a printed text, determined from its indentation, for folding and for the outline.

A region starts after a line that ends in `{` and ends before the next line of the same or lower indentation that begins
with `}`. In assembly a function extends from its label to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from buddy.compiler.protocol.text.lines import IndexedText

SymbolKind = Literal["function", "global", "graph"]

_MLIR = re.compile(
    r'^\s*(?:(?P<custom>[a-z_][\w.]*\.(?:func|global)|memref\.global|module|builtin\.module)\b|"(?P<generic>[\w.]+)"\()'
)
_AT = re.compile(r'@([\w$.\-]+|"[^"\n]*")')
_SYMBOL_NAME = re.compile(r'sym_name = "([^"]*)"')
_DEFINE = re.compile(r'^(?:define|declare)\b[^@\n]*@([\w$.\-]+|"[^"\n]*")')
_LABEL = re.compile(r"^([A-Za-z_$][\w$.@]*):")
_GRAPH = re.compile(r"^graph (\S+) \{")
# The parameters are on separate lines, and so is the brace after them.
_PTX = re.compile(r"^(?:\.\w+ )*\.(?:entry|func)\b(?: \([^)]*\))? ([\w$]+)\(")
_FUNCTIONS = {"llvm": _DEFINE, "ptx": _PTX}


class TextSymbol(NamedTuple):
    """A named part of a text: its first and last line, counted from 0."""

    name: str
    kind: SymbolKind
    first: int
    last: int


def symbols(text: IndexedText, language: str) -> list[TextSymbol]:
    """Functions, globals and graphs of a text, in order."""
    begins = _labels(text) if language == "asm" else _declared(text, language)
    if language in ("asm", "ptx"):
        ends = [*(line - 1 for _, _, line in begins[1:]), text.total - 1]
        return [TextSymbol(*begin, end) for begin, end in zip(begins, ends, strict=True)] if begins else []
    return [TextSymbol(name, kind, line, _end_of(text, line)) for name, kind, line in begins]


def region_at(text: IndexedText, line: int) -> tuple[int, int] | None:
    """The lines that open and close the region at `line`: the region that it opens, or the enclosing one."""
    if not 0 <= line < text.total:
        return None
    if _opens(text.line(line)):
        return line, _end_of(text, line)
    depth = _indent(text.line(line)) - (not text.line(line).lstrip().startswith(("}", "^")))
    while line > 0 and depth >= 0:
        line -= 1
        above = text.line(line)
        if _opens(above) and _indent(above) <= depth:
            return line, _end_of(text, line)
    return None


def _end_of(text: IndexedText, first: int) -> int:
    """The line that closes what line `first` opens; `first` if it opens nothing, the last line if nothing closes it."""
    start = text.line(first)
    if not _opens(start):
        return first
    depth = _indent(start)
    for number in range(first + 1, text.total):
        line = text.line(number)
        if line.lstrip().startswith("}") and _indent(line) <= depth:
            return number
    return text.total - 1


def _opens(line: str) -> bool:
    return line.rstrip().endswith("{")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _labels(text: IndexedText) -> list[tuple[str, SymbolKind, int]]:
    found: list[tuple[str, SymbolKind, int]] = []
    for number, line in _lines(text):
        if line[:1] not in (" ", "\n", "") and (match := _LABEL.match(line)):
            found.append((match[1], "function", number))
    return found


def _declared(text: IndexedText, language: str) -> list[tuple[str, SymbolKind, int]]:
    found: list[tuple[str, SymbolKind, int]] = []
    for number, line in _lines(text):
        if language == "mlir" and (symbol := _mlir_symbol(line)):
            found.append((*symbol, number))
        elif language in _FUNCTIONS and (match := _FUNCTIONS[language].match(line)):
            found.append((match[1], "function", number))
        elif language == "buddy" and (match := _GRAPH.match(line)):
            found.append((match[1], "graph", number))
    return found


def _mlir_symbol(line: str) -> tuple[str, SymbolKind] | None:
    """The symbol that a line of MLIR declares, in custom or generic form."""
    match = _MLIR.match(line)
    if match is None:
        return None
    op = match["custom"] or match["generic"]
    name = _AT.search(line) if match["custom"] else _SYMBOL_NAME.search(line)
    if name is None or not op.endswith(("func", "global", "module")):
        return None
    return name[1], "global" if op.endswith("global") else "function"


def _lines(text: IndexedText) -> Iterator[tuple[int, str]]:
    for first, piece in text.chunks():
        yield from enumerate(piece.removesuffix("\n").split("\n"), first)
