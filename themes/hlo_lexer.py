"""A Pygments lexer for the text of XLA's HLO. It can lex each line separately."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

NAME = r"%?[A-Za-z_][\w.\-]*"
TYPES = r"(?:pred|token|opaque|[suf]\d+|bf16|c64|c128|f8e\d\w*|f4e2m1fn|u?int\d+)"
# Keys whose value is the name of a computation.
CALLS = r"(?:calls|to_apply|body|condition|branch_computations|called_computations|true_computation|false_computation)"


class HloLexer(RegexLexer):
    """HLO as `--xla_dump_to` writes it: one instruction a line, `%name = type opcode(operands), attributes`."""

    name = "HLO"
    aliases: ClassVar[list[str]] = ["hlo"]
    filenames: ClassVar[list[str]] = ["*.hlo"]

    tokens: ClassVar[dict] = {
        "root": [
            (r"\s+", Text),
            (r"/\*.*?\*/|//.*", Comment.Single),
            (r'"(?:[^"\\\n]|\\.)*"?', String),
            (r"^(?:HloModule|ENTRY|FileNames|FunctionNames|FileLocations|StackFrames)\b", Keyword),
            (rf"^({NAME})(\s+)(?=\()", bygroups(Name.Function, Text)),
            (r"ROOT\b", Keyword),
            (rf"({CALLS})(=)(%[\w.\-]+)?", bygroups(Name.Attribute, Operator, Name.Function)),
            (r"[A-Za-z_]\w*(?==)", Name.Attribute),
            (rf"{TYPES}(?=\[)|{TYPES}\b", Keyword.Type),
            (r"%[\w.\-]+", Name.Variable),
            # An opcode follows a type and opens the list of its operands.
            (r"[a-z][a-z0-9\-]*(?=\()", Name.Builtin),
            (rf"{NAME}(?=\s*[=:])", Name.Variable),
            (r"-?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+(?:e[-+]?\d+)?|inf|nan)\b", Number),
            (r"(?:true|false)\b", Keyword),
            (r"[A-Za-z_][\w.\-]*", Text),
            (r"->|[=*|!+?/]+", Operator),
            (r"[(){}\[\]<>,:;]+", Punctuation),
            (r".", Text),
        ]
    }
