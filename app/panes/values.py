"""Names on a line of IR, and search patterns for their definitions and uses. No Textual."""

from __future__ import annotations

import re

VALUE = re.compile(r"%[\w$.\-]+")
RESULTS = re.compile(r"^\s*(%[\w$.\-]+(?::\d+)?(?:,\s*%[\w$.\-]+(?::\d+)?)*)\s*=")
# Values, symbols, labels of blocks and of assembly, aliases of attributes and types. `#arith.fastmath<…>` is no alias.
NAME = re.compile(r'[%^@][\w$.\-]+|@"[^"\n]*"|\.L\w+|(?<![\w"])[#!](?!dbg)[A-Za-z_]\w*\b(?![.<])|(?<![\w"])[#!]\d+\b')
_STRING = re.compile(r'(?<!@)"(?:[^"\\\n]|\\.)*"')
_TAIL = r"(?![\w$.\-])"
_OP = re.compile(r'^\s*(?:%[\w:#, %$.\-]+\s=\s)?"?([a-z_]\w*(?:\.\w+)+|call|return|module)\b')
# Ops that are printed without their dialect.
_DEFAULT_DIALECT = {"call": "func.call", "return": "func.return", "module": "builtin.module"}


def defined_values(line: str) -> list[str]:
    """The values that the line's op defines."""
    found = RESULTS.match(line)
    return VALUE.findall(found.group(1)) if found else []


def used_values(line: str) -> list[str]:
    """The values that the line uses, each once, in order."""
    found = RESULTS.match(line)
    return list(dict.fromkeys(VALUE.findall(line[found.end() :] if found else line)))


def all_names(line: str) -> list[str]:
    """Every name on the line, each once, in order: values, symbols, labels, aliases."""
    return list(dict.fromkeys(NAME.findall(_STRING.sub("", line))))


def op_name(line: str) -> str:
    """The op of an MLIR line with its dialect, "" if there is none."""
    found = _OP.match(line)
    return _DEFAULT_DIALECT.get(found[1], found[1]) if found else ""


def definition_pattern(name: str) -> str:
    """A pattern for the op, block argument, function, block or alias that defines `name`."""
    escaped = re.escape(name)
    if name[0] == "@":
        generic = rf"sym_name = \"{re.escape(name[1:])}\""
        return rf"(\.(func|global)|\bmodule|^define|^declare)\s[^@\n]*{escaped}{_TAIL}|{generic}"
    if name[0] in "#!":
        return rf"^({escaped}|attributes {escaped}) ="
    if name[0] == "^":
        return rf"^\s*{escaped}[:(]"
    if name[0] == ".":
        return rf"^{escaped}:"
    label = rf"|^{re.escape(name[1:])}:"
    return rf"(^|[(,\s]){escaped}((:\d+)?(,\s*%[\w$.:\-]+)*\s*=|: ){label}"


def use_pattern(name: str) -> str:
    """A pattern for every occurrence of `name`."""
    return rf"{re.escape(name)}{_TAIL}"
