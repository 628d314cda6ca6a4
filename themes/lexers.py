"""Lexers of the languages of IR, and the names in the `[syntax]` table of a theme for their tokens."""

from __future__ import annotations

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.token import Token, _TokenType

# The entry of `[syntax]` for a token and its subtypes.
SYNTAX: dict[_TokenType, str] = {
    Token.Name.Builtin: "operation",
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
    """The lexer of a stage's language: fx, buddy, mlir, llvm, asm or ptx. It can lex each line separately.

    Raises `ValueError` for an unknown language.
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
    raise ValueError(f"unknown language {language!r}; known: fx, buddy, mlir, llvm, asm, ptx")


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
