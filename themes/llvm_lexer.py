"""A Pygments lexer for LLVM IR. It can lex each line separately."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

NAME = r'(?:[\w$.\-]+|"[^"\n]*")'
OPERATIONS = (
    r"(?:ret|br|switch|invoke|unreachable|(?:tail |musttail |notail )?call|f?neg|f?add|f?sub|f?mul|[usf]div|[usf]rem|"
    r"shl|[la]shr|and|or|xor|extractelement|insertelement|shufflevector|extractvalue|insertvalue|alloca|load|store|"
    r"fence|cmpxchg|atomicrmw|getelementptr|trunc|[zs]ext|fptrunc|fpext|fpto[us]i|[us]itofp|ptrtoint|inttoptr|"
    r"bitcast|addrspacecast|[if]cmp|phi|select|freeze|va_arg|landingpad)\b"
)
KEYWORDS = (
    r"(?:define|declare|target|datalayout|triple|source_filename|attributes|global|constant|type|private|internal|"
    r"external|linkonce|weak|dso_local|local_unnamed_addr|unnamed_addr|to|nuw|nsw|exact|inbounds|volatile|align|"
    r"fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|eq|ne|[us][lg][te]|o[lg][te]|oeq|one|ord|u[lg][te]|ueq|une|uno|"
    r"true|false|null|undef|poison|zeroinitializer|noundef|nonnull|noalias|nocapture|captures|readonly|writeonly|"
    r"returned|disjoint|nneg|distinct|addrspace|section|comdat|x)\b"
)


class LlvmIrLexer(RegexLexer):
    """LLVM IR. Unlike the `LlvmLexer` of Pygments, it distinguishes operations from keywords."""

    name = "LLVM IR"
    aliases: ClassVar[list[str]] = ["llvm-ir"]
    filenames: ClassVar[list[str]] = ["*.ll"]

    tokens: ClassVar[dict] = {
        "root": [
            (r"\s+", Text),
            (r";.*", Comment.Single),
            (r'c?"(?:[^"\\\n]|\\.)*"?', String),
            (r"^[\w$.\-]+:", Name.Label),
            (rf"%{NAME}", Name.Variable),
            (rf"@{NAME}", Name.Function),
            (r"![\w.$]+|#\d+", Name.Attribute),
            (r"(?:i\d+|half|bfloat|float|double|fp128|x86_fp80|void|ptr|label|token|metadata|opaque)\b", Keyword.Type),
            (OPERATIONS, Name.Builtin),
            (KEYWORDS, Keyword),
            (r"-?(?:0x[KLMHR]?[0-9A-Fa-f]+|\d+\.\d*(?:[eE][-+]?\d+)?|\d+)", Number),
            (r"[A-Za-z_][\w$.]*", Text),
            (r"[=*|!+]+", Operator),
            (r"[(){}\[\]<>,:]+", Punctuation),
            (r".", Text),
        ]
    }
