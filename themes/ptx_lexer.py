"""A Pygments lexer for PTX, the assembly language of NVIDIA GPUs. It can lex each line separately."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

TYPES = r"(?:pred|[busf](?:8|16|32|64)|b128|f16x2|bf16(?:x2)?|tf32)"


class PtxLexer(RegexLexer):
    """PTX. A mnemonic with its suffixes, such as `ld.global.f32`, is one operation."""

    name = "PTX"
    aliases: ClassVar[list[str]] = ["ptx"]
    filenames: ClassVar[list[str]] = ["*.ptx"]

    tokens: ClassVar[dict] = {
        "root": [
            (r"\s+", Text),
            (r"//.*", Comment.Single),
            (r'"(?:[^"\\\n]|\\.)*"?', String),
            (r"[$\w]+:", Name.Label),
            (rf"\.{TYPES}\b", Keyword.Type),
            (r"\.[A-Za-z_]\w*", Keyword),
            (r"@!?%\w+", Name.Attribute),
            (r"%[\w.]+", Name.Variable),
            (r"0[fFdD][0-9A-Fa-f]+|-?(?:0[xX][0-9A-Fa-f]+|\d+(?:\.\d+)?)\b", Number),
            (r"[a-z][a-z0-9]*(?:\.[\w:]+)+|(?:ret|exit|trap)\b", Name.Builtin),
            (r"(?:sm_\d+\w*|debug)\b", Keyword),
            (r"[A-Za-z_$][\w$]*", Name.Function),
            (r"[-+=!|]+", Operator),
            (r"[(){}\[\]<>,;:]+", Punctuation),
            (r".", Text),
        ]
    }
