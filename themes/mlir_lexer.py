"""A Pygments lexer for the textual form of MLIR. It can lex each line separately."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

ELEMENT = r"(?:[su]?i\d+|bf16|tf32|f\d+\w*|index|none|complex|tensor|memref|vector|tuple)\b(?!\.\w)"
# The parameters of a type. A type with its parameters is one token, so a terminal needs fewer bytes to colour it.
TYPE_PARAMETERS = r"<(?:[^<>\n]|->|<(?:[^<>\n]|->|<(?:[^<>\n]|->)*>)*>)*>"
KEYWORDS = (
    r"(?:ins|outs|to|into|step|iter_args|attributes|module|loc|private|public|nested|strided|offset|in|from|"
    r"affine_map|affine_set|dense|dense_resource|array|unit|true|false|init|else|do|shared_outs|permutation|"
    r"dimensions|attrs|reassociation|unknown|callsite|fused)\b"
)


class MlirLexer(RegexLexer):
    """MLIR with any dialects. A name such as `dialect.op` is an operation."""

    name = "MLIR"
    aliases: ClassVar[list[str]] = ["mlir"]
    filenames: ClassVar[list[str]] = ["*.mlir"]

    tokens: ClassVar[dict] = {
        "root": [
            (r"\s+", Text),
            (r"//.*", Comment.Single),
            (r'("[\w$]+(?:\.[\w$]+)+")(\()', bygroups(Name.Builtin, Punctuation)),
            (r'"(?:[^"\\\n]|\\.)*"?', String),
            (r"%[\w$.\-]+(?::\d+)?(?:#\d+)?", Name.Variable),
            (r'@(?:[\w$.\-]+|"[^"\n]*")', Name.Function),
            (r"\^[\w$.\-]+", Name.Label),
            (r"#[A-Za-z_][\w$.\-]*", Name.Attribute),
            (rf"![A-Za-z_][\w$.\-]*(?:{TYPE_PARAMETERS})?", Keyword.Type),
            (rf"(?:tensor|memref|vector|complex|tuple){TYPE_PARAMETERS}", Keyword.Type),
            (r"0x[0-9A-Fa-f]{2,}(?!\w)", Number),
            (r"(?:(?:\d+|\?|\*|\[\d+\])x)+(?=[a-z!?\d])", Number),
            (ELEMENT, Keyword.Type),
            (r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)+", Name.Builtin),
            (r"(?:return|call)\b", Name.Builtin),
            (KEYWORDS, Keyword),
            (r"[A-Za-z_][\w$]*(?=\s*=[^=])", Name.Attribute),
            (r"-?(?:0x[0-9A-Fa-f]+|\d+\.\d*(?:[eE][-+]?\d+)?|\d+)", Number),
            (r"[A-Za-z_][\w$]*", Text),
            (r"->|::|[-=:+*/|]+", Operator),
            (r"[(){}\[\]<>,?]+", Punctuation),
            (r".", Text),
        ]
    }
