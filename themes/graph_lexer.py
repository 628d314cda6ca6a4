"""A Pygments lexer for graphs as text: FX graphs as `print_tabular` prints them, and Buddy graphs."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

OPCODES = r"(placeholder|call_function|call_method|call_module|get_attr|output)\b"
TYPE = r"(?:bf16|[fiu]\d+|bool|index|tensor|torch\.\w+)"


class GraphLexer(RegexLexer):
    """FX and Buddy graphs. The name of a node is the second column of the FX table, or the text before `=`."""

    name = "Buddy graph"
    aliases: ClassVar[list[str]] = ["buddy-graph"]
    filenames: ClassVar[list[str]] = ["*.fx"]

    tokens: ClassVar[dict] = {
        "root": [
            (r"^(opcode)(\s+name\s+target.*)", bygroups(Comment, Comment)),
            (r"^[-\s]+$", Comment),
            (r"^" + OPCODES + r"(\s+)(\S+)", bygroups(Keyword, Text, Name.Variable)),
            (r"^(graph|func)\b(\s+)([\w.]+)", bygroups(Keyword, Text, Name.Function)),
            (r"^(\s*)(%?\w+)(\s*=)", bygroups(Text, Name.Variable, Operator)),
            (r"\s+", Text),
            (r"#.*", Comment.Single),
            (r"\"[^\"\n]*\"?|'[^'\n]*'?", String),
            (r"<[^>\n]*>", Name.Builtin),
            (r"(?:aten|prims|torch|operator|math|buddy)(?:\.\w+)+|\w+Op\b", Name.Builtin),
            (TYPE + r"\b", Keyword.Type),
            (r"(?:\d+x)+(?=[a-z])", Number),
            (r"(?:None|True|False|return)\b", Keyword),
            (r"%[\w.]+", Name.Variable),
            (r"[A-Za-z_]\w*(?=\s*[=:])", Name.Attribute),
            (r"-?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+(?:[eE][-+]?\d+)?)\b", Number),
            (r"[A-Za-z_][\w.]*", Text),
            (r"->|[=:+*/|-]+", Operator),
            (r"[(){}\[\]<>,]+", Punctuation),
            (r".", Text),
        ]
    }
