"""Lexers of the languages of IR and of Python, and the names in the `[syntax]` table of a theme for their tokens."""

from __future__ import annotations

import re
from functools import lru_cache

from pygments.lexer import Lexer
from pygments.token import Token, _TokenType

# The entry of `[syntax]` for a token and its subtypes.
SYNTAX: dict[_TokenType, str] = {
    Token.Name.Builtin: "operation",
    Token.Name.Builtin.Pseudo: "value",
    Token.Name.Class: "symbol",
    Token.Name.Decorator: "attribute",
    Token.Name.Exception: "type",
    Token.Name.Function: "symbol",
    Token.Name.Variable: "value",
    Token.Name.Variable.Global: "symbol",
    Token.Name.Attribute: "attribute",
    Token.Name.Label: "label",
    Token.Keyword.Type: "type",
    Token.Keyword: "keyword",
    Token.Literal.Number: "number",
    Token.Literal.String: "string",
    Token.Comment: "comment",
    Token.Punctuation: "punctuation",
    Token.Operator: "punctuation",
    Token.Operator.Word: "keyword",
}


@lru_cache(maxsize=256)
def syntax_name(token: _TokenType) -> str:
    """The entry of `[syntax]` for `token` or its closest ancestor with an entry; "" for plain text."""
    while token is not Token:
        if token in SYNTAX:
            return SYNTAX[token]
        token = token.parent
    return ""


@lru_cache(maxsize=8)
def lexer_for(language: str) -> Lexer:
    """The lexer of a stage's language (fx, buddy, mlir, llvm, asm, ptx, hlo, python, cpp or text).

    It can lex each line separately, except for lines inside a string of Python (see `open_string`). Raises `ValueError`
    for an unknown language.
    """
    if language in ("fx", "buddy"):
        from buddy.themes.graph_lexer import GraphLexer

        return GraphLexer()
    if language == "mlir":
        from buddy.themes.mlir_lexer import MlirLexer

        return MlirLexer()
    if language == "llvm":
        from buddy.themes.llvm_lexer import LlvmIrLexer

        return LlvmIrLexer()
    if language == "asm":
        from buddy.themes.assembly_lexer import AssemblyLexer

        return AssemblyLexer()
    if language == "ptx":
        from buddy.themes.ptx_lexer import PtxLexer

        return PtxLexer()
    if language == "hlo":
        from buddy.themes.hlo_lexer import HloLexer

        return HloLexer()
    if language == "text":
        from pygments.lexers.special import TextLexer

        return TextLexer()
    if language == "python":
        from pygments.lexers.python import PythonLexer

        return PythonLexer()
    if language == "cpp":
        from pygments.lexers.c_cpp import CppLexer

        return CppLexer()
    known = "fx, buddy, mlir, llvm, asm, ptx, hlo, python, cpp, text"
    raise ValueError(f"unknown language {language!r}; known: {known}")


def spans(language: str, line: str) -> list[tuple[str, str]]:
    """Splits `line` into runs of (syntax name, text). Adjacent tokens with the same name are one run."""
    runs: list[tuple[str, str]] = []
    for _, token, text in lexer_for(language).get_tokens_unprocessed(line):
        name = syntax_name(token)
        if runs and (runs[-1][0] == name or text.isspace()):
            runs[-1] = (runs[-1][0], runs[-1][1] + text)
        else:
            runs.append((name, text))
    return runs


# A comment or the start of a string of Python: three quotes, or a string that ends on the line.
_PYTHON_STRING = re.compile(r"""#.*|\"{3}|'{3}|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?""")


def open_string(line: str, quotes: str = "") -> str:
    """The quotes of the string of Python that is open at the end of `line`, "" for none.

    `quotes` are those of the string that is open at the start of the line.
    """
    at = 0
    while True:
        if quotes:
            at = _string_end(line, quotes, at)
            if at < 0:
                return quotes
            quotes = ""
        match = _PYTHON_STRING.search(line, at)
        if match is None:
            return ""
        at = match.end()
        if match[0] in ('"""', "'''"):
            quotes = match[0]


def _string_end(line: str, quotes: str, start: int) -> int:
    """The position after the closing `quotes`, or -1."""
    match = re.compile(rf"(?:\\.|(?!{quotes})[^\\])*{quotes}").match(line, start)
    return match.end() if match else -1


def python_spans(line: str, quotes: str = "") -> list[tuple[str, str]]:
    """`spans` of a line of Python that starts inside a string with `quotes`, if these are not ""."""
    if not quotes:
        return spans("python", line)
    end = _string_end(line, quotes, 0)
    return [("string", line[:end]), *spans("python", line[end:])] if end >= 0 else [("string", line)]
