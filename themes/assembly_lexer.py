"""A Pygments lexer for assembly in GNU style, for any target. It can lex each line separately."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

# Registers of x86, Arm and RISC-V.
REGISTER = (
    r"(?:%[\w()]+|[re]?(?:ax|bx|cx|dx|si|di|bp|sp|ip)\b|[abcd][lh]\b|r\d+[dwb]?\b|[xyz]mm\d+\b|k[0-7]\b|"
    r"[xwvqdsbhz]\d+(?:\.\d*[bhsdq])?\b|[atsf]\d+\b|sp\b|lr\b|xzr\b|wzr\b|zero\b|ra\b)"
)

# An address before the mnemonic, as in a disassembly. Some mnemonics are also valid hexadecimal numbers.
ADDRESS = r"^(\s+)(?!(?:adc|add|dec|fadd)\b)([0-9a-f]+)(\s{2,})(?=[a-z][\w.]*(?:\s|$))"


class AssemblyLexer(RegexLexer):
    """Assembly for any target. An address before the mnemonic has the token `Number`."""

    name = "Assembly"
    aliases: ClassVar[list[str]] = ["buddy-asm"]
    filenames: ClassVar[list[str]] = ["*.s"]

    tokens: ClassVar[dict] = {
        "root": [
            (r"^[^\s:#;]+:", Name.Label),
            (r"^(\s*)(0x[0-9a-fA-F]+|[0-9a-fA-F]+)(:)", bygroups(Text, Number, Punctuation), "operation"),
            (ADDRESS, bygroups(Text, Number, Text), "operation"),
            (r"\s+", Text, "operation"),
            (r"(?=.)", Text, "operation"),
        ],
        "operation": [
            (r"\s+", Text),
            (r"[#;].*|//.*|@\s.*", Comment.Single, "operands"),
            (r"\.[\w.]+", Keyword, "operands"),
            (r"[A-Za-z][\w.]*", Name.Builtin, "operands"),
            (r"(?=.)", Text, "operands"),
        ],
        "operands": [
            (r"\s+", Text),
            (r"#(?=-?\d)", Punctuation),
            (r"[#;].*|//.*", Comment.Single),
            (r'"(?:[^"\\\n]|\\.)*"?', String),
            (REGISTER, Name.Variable),
            (r"(?:[xyz]mmword|[dq]?word|byte|ptr|lsl|lsr|asr)\b", Keyword.Type),
            (r"[$-]*(?:0x[0-9a-fA-F]+|\d+\.?\d*)\b", Number),
            (r"@?[A-Za-z_.$][\w.$@]*", Name.Function),
            (r"[-+*/=!]+", Operator),
            (r"[(){}\[\]<>,:]+", Punctuation),
            (r".", Text),
        ],
    }
