"""Finds the structure of Python code: the kind of each line, and the functions, branches and long statements."""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence

from buddy.compiler.protocol.provenance import LineKind, PythonBlock, PythonStructure

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
    return LineKind.BLANK if not text else LineKind.COMMENT if text.startswith("#") else LineKind.CODE


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
    """Returns the block of a branch: `keyword` starts it, and line `head` starts its statement."""
    return PythonBlock(_lines_of(body[0])[0], _lines_of(body[-1])[1], "branch", keyword, head)
