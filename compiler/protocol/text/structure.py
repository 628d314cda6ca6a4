"""The structure of a text: symbols and regions of printed IR, and the kinds of lines and the blocks of Python code.

In IR, a region starts after a line that ends in `{` and ends before the next line of the same or lower indentation that
starts with `}`. In assembly a function extends from its label to the next one.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from buddy.compiler.protocol.provenance import LineKind, PythonBlock, PythonStructure
from buddy.compiler.protocol.text.lines import IndexedText

# ---- symbols and regions of IR ---------------------------------------------------------------------------------------


SymbolKind = Literal["function", "global", "graph", "module"]

_MLIR_DECLARATION = re.compile(
    r'^\s*(?:(?P<custom>(?:[a-z_][\w.]*\.)?module|[a-z_][\w.]*\.(?:func|global))\b|"(?P<generic>[\w.]+)"\()'
)
_SYMBOL_REFERENCE = re.compile(r'@([\w$.\-]+|"[^"\n]*")')
_SYMBOL_NAME = re.compile(r'sym_name = "([^"]*)"')
_LLVM_FUNCTION = re.compile(r'^(?:define|declare)\b[^@\n]*@([\w$.\-]+|"[^"\n]*")')
_ASM_LABEL = re.compile(r"^([A-Za-z_$][\w$.@]*):")
_GRAPH_HEADER = re.compile(r"^graph (\S+) \{")
# Only the first line of a function: PTX has its parameters, and the brace after them, on separate lines.
_PTX_FUNCTION = re.compile(r"^(?:\.\w+ )*\.(?:entry|func)\b(?: \([^)]*\))? ([\w$]+)\(")
# The comment above each kernel of Inductor.
_CPP_KERNEL = re.compile(r"^// (\w+)$")
# A label that stands at the indentation of its function's header: of a block in LLVM's IR and in PTX.
_BLOCK_LABEL = re.compile(r"(?:[\w$.\-]+|\"[^\"\n]*\"):(?:\s|$)")
_HLO_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+)(?: \(.*\) -> .*)? \{$")
_FUNCTION_HEADERS = {"llvm": _LLVM_FUNCTION, "ptx": _PTX_FUNCTION, "cpp": _CPP_KERNEL, "hlo": _HLO_COMPUTATION}


class TextSymbol(NamedTuple):
    """A named part of a text: its first and last line, counted from 0."""

    name: str
    kind: SymbolKind
    first: int
    last: int


def symbols(text: IndexedText, language: str) -> list[TextSymbol]:
    """Returns the functions, globals and graphs of a text, in order."""
    declarations = _find_labels(text) if language == "asm" else _find_declarations(text, language)
    if declarations and language in ("asm", "ptx", "cpp"):
        ends = [*(line - 1 for _, _, line in declarations[1:]), text.line_count - 1]
        return [TextSymbol(*declaration, end) for declaration, end in zip(declarations, ends, strict=True)]
    return [TextSymbol(name, kind, line, _end_of(text, line)) for name, kind, line in declarations]


def region_at(text: IndexedText, line: int) -> tuple[int, int] | None:
    """Returns the lines that open and close the region at `line`: the region that it opens, or the enclosing one."""
    if not 0 <= line < text.line_count:
        return None
    if _opens_region(text.line(line)):
        return line, _end_of(text, line)
    # Searches upwards for the opening of the enclosing region.
    max_indent = _max_indent_of_opening(text, line)
    while line > 0 and max_indent >= 0:
        line -= 1
        above = text.line(line)
        if _opens_region(above) and _indent(above) <= max_indent:
            return line, _end_of(text, line)
        if above.lstrip().startswith("}"):
            # This region has ended: only one that is opened farther left can contain the line.
            max_indent = min(max_indent, _indent(above) - 1)
    return None


def _max_indent_of_opening(text: IndexedText, line: int) -> int:
    """Returns the largest indentation of a line above that can open the region around `line`.

    A blank line is in the region of the next line that is not.
    """
    while line + 1 < text.line_count and not text.line(line).strip():
        line += 1
    content = text.line(line).strip()
    is_at_opening = content.startswith(("}", "^")) or _BLOCK_LABEL.match(content) is not None
    return _indent(text.line(line)) - (0 if is_at_opening else 1)


def _end_of(text: IndexedText, first: int) -> int:
    """Returns the line that closes the region that line `first` opens.

    It is `first` if the line opens no region, and the last line of the text if no line closes the region.
    """
    start = text.line(first)
    if not _opens_region(start):
        return first
    depth = _indent(start)
    for number in range(first + 1, text.line_count):
        line = text.line(number)
        if line.lstrip().startswith("}") and _indent(line) <= depth:
            return number
    return text.line_count - 1


def _opens_region(line: str) -> bool:
    """Returns whether a region starts after `line`."""
    return line.rstrip().endswith("{")


def _indent(line: str) -> int:
    """Returns the number of spaces at the start of a line."""
    return len(line) - len(line.lstrip(" "))


def _find_labels(text: IndexedText) -> list[tuple[str, SymbolKind, int]]:
    """Returns the functions of an assembly text with their line numbers."""
    labels: list[tuple[str, SymbolKind, int]] = []
    for number, line in _numbered_lines(text):
        if line[:1] not in (" ", "\n", "") and (match := _ASM_LABEL.match(line)):
            labels.append((match[1], "function", number))
    return labels


def _find_declarations(text: IndexedText, language: str) -> list[tuple[str, SymbolKind, int]]:
    """Returns the symbols that a text declares with their line numbers."""
    declarations: list[tuple[str, SymbolKind, int]] = []
    for number, line in _numbered_lines(text):
        if language == "mlir" and (symbol := _mlir_symbol(line)):
            declarations.append((*symbol, number))
        elif language in _FUNCTION_HEADERS and (match := _FUNCTION_HEADERS[language].match(line)):
            declarations.append((match[1], "function", number))
        elif language == "buddy" and (match := _GRAPH_HEADER.match(line)):
            declarations.append((match[1], "graph", number))
    return declarations


def _mlir_symbol(line: str) -> tuple[str, SymbolKind] | None:
    """Returns the symbol that a line of MLIR declares, in custom or generic form."""
    match = _MLIR_DECLARATION.match(line)
    if match is None:
        return None
    op = match["custom"] or match["generic"]
    name = _SYMBOL_REFERENCE.search(line) if match["custom"] else _SYMBOL_NAME.search(line)
    if name is None or not op.endswith(("func", "global", "module")):
        return None
    kinds: dict[str, SymbolKind] = {"global": "global", "module": "module"}
    return name[1], kinds.get(op.rpartition(".")[2], "function")


def _numbered_lines(text: IndexedText) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text with their numbers."""
    for first, chunk in text.chunks():
        yield from enumerate(chunk.removesuffix("\n").split("\n"), first)


# ---- Python code -----------------------------------------------------------------------------------------------------


# Longer code is not parsed: the parser would block its process.
MAX_PARSED_CHARACTERS = 2 << 20


def decode_python(data: bytes) -> str:
    """Decodes the bytes of a Python file by its declared encoding, with `\\n` after each line, as Python's parser does.

    Bytes that are invalid in the encoding are replaced.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        encoding = "utf-8"
    text = codecs.decode(data, encoding, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def python_structure(content: str) -> PythonStructure:
    """Returns the structure of code whose lines end with `\\n`."""
    if len(content) > MAX_PARSED_CHARACTERS:
        return PythonStructure()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return PythonStructure()
    kinds = bytearray(_kind_of_text(line) for line in content.split("\n"))
    blocks: list[PythonBlock] = []
    pending = [(statement, "") for statement in tree.body]
    while pending:
        statement, scope = pending.pop()
        _set_line_kinds(statement, kinds)
        blocks += _blocks_of(statement, scope)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}{statement.name}."
        pending += [(child, scope) for child in _statements_in(statement)]
    return PythonStructure(bytes(kinds), tuple(sorted(blocks, key=lambda block: (block.first, -block.last))))


def _kind_of_text(line: str) -> int:
    """Returns the kind of a line that no statement changes: blank, comment or code."""
    text = line.strip()
    if not text:
        return LineKind.BLANK
    return LineKind.COMMENT if text.startswith("#") else LineKind.CODE


def _statements_in(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yields the statements directly inside a statement."""
    parts = (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    for part in parts:
        for name in ("body", "orelse", "finalbody"):
            yield from getattr(part, name, ())


def _set_line_kinds(statement: ast.stmt, kinds: bytearray) -> None:
    """Sets the kinds of the lines of a statement that is a string, an import or the header of a definition."""
    first, last = _lines_of(statement)
    if isinstance(statement, ast.Import | ast.ImportFrom):
        kind = LineKind.IMPORT
    elif _is_string(statement):
        kind = LineKind.STRING
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        # A body on the same line belongs to the header.
        kind, last = LineKind.HEADER, max(first, statement.body[0].lineno - 2)
    else:
        return
    for line in range(first, last + 1):
        if kind == LineKind.STRING or kinds[line] == LineKind.CODE:
            kinds[line] = kind


def _is_string(statement: ast.stmt) -> bool:
    """Returns whether a statement is only a string, such as a docstring; `...` is not."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str | bytes)
    )


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    """Returns the first and the last line of a statement with its decorators, from 0."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    return first, (statement.end_lineno or statement.lineno) - 1


def _blocks_of(statement: ast.stmt, scope: str) -> Iterator[PythonBlock]:
    """Yields the blocks that a statement in `scope` starts, without those inside them."""
    first, last = _lines_of(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield PythonBlock(first, last, "function", scope + statement.name)
    elif isinstance(statement, ast.ClassDef):
        yield PythonBlock(first, last, "class", scope + statement.name)
    elif isinstance(statement, ast.If):
        yield _branch(statement.body, "if", first)
        is_elif = len(statement.orelse) == 1 and isinstance(statement.orelse[0], ast.If)
        if statement.orelse and not is_elif:
            yield _branch(statement.orelse, "else", first)
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
        yield _branch(statement.body, "while" if isinstance(statement, ast.While) else "for", first)
        if statement.orelse:
            yield _branch(statement.orelse, "else", first)
    elif handlers := getattr(statement, "handlers", ()):  # of `try`, or of a statement with `except*`
        for handler in handlers:
            yield _branch(handler.body, "except", handler.lineno - 1)
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            yield _branch(case.body, "case", case.pattern.lineno - 1)
    elif last > first and not hasattr(statement, "body"):
        yield PythonBlock(first, last, "statement")


def _branch(body: Sequence[ast.stmt], keyword: str, head: int) -> PythonBlock:
    """Returns the block of the branch with this body. The line `head` decides whether the branch runs."""
    return PythonBlock(_lines_of(body[0])[0], _lines_of(body[-1])[1], "branch", keyword, head)
