"""Keys by which the lines of two printed texts are compared: a line without its names, comments and locations.

Two texts are structurally equal if their lines have equal keys and a one-to-one renaming turns the names of one into
those of the other. Names are SSA values, block labels, numbered metadata and local labels of assembly. An alias of an
attribute or a type counts as its definition, whatever its name. Locations, addresses, comments and the order of
MLIR's attributes are not part of a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_SSA = r"%[\w$.\-]+"
# Names in a line, by language.
_NAMES: dict[str, str] = {
    "mlir": rf"{_SSA}|\^[\w$.\-]+|#[A-Za-z_]\w*\b(?![.<])",
    "llvm": rf"{_SSA}|!\d+\b|#\d+\b",
    "asm": r"\.L[\w$.]+",
    "ptx": r"%[a-z]+\d+\b|\$L_[\w$]+",
    "fx": _SSA,
    "buddy": _SSA,
    "python": r"\b(?:buf|op)\d+\b",
    "cpp": r"\b(?:tmp|in_ptr|out_ptr|in_out_ptr)\d+\b",
    # The buffers and operations of Inductor's scheduler and its wrapper.
    "text": r"\b(?:buf|op)\d+\b",
    "hlo": r"%[\w.\-]+",
}
# The start of a comment, by language. In other languages, comments are part of the key.
_COMMENTS: dict[str, str] = {"mlir": "//", "llvm": ";", "ptx": "//", "python": "#", "cpp": "//"}
_HLO_LOCATION = re.compile(r",? metadata=\{[^{}]*\}")
_STRING_LITERAL = re.compile(r'("(?:[^"\\]|\\.)*")')
_LLVM_DEBUG_INFO = re.compile(r",\s*!dbg !\d+|\b(?:line|column): \d+,?\s*")
_ASM_ADDRESS = re.compile(r"^\s+[0-9a-f]+\s\s")
_LLVM_LABEL = re.compile(r"^([\w$.\-]+):")
_FUNCTION_START = re.compile(r'\s*"?(?:(?:func|llvm|gpu)\.func|define)\b')
# Where a value is defined: results, block and function arguments, induction variables.
_DEFINITIONS = re.compile(
    rf"(?P<name>{_SSA})(?=:\d+\s*[=,]|:\s|:$|\s=\s)"
    rf"|(?P<list>{_SSA}(?:,\s*{_SSA})*)(?=\)\s*(?:=|in)\s|\s*=\s)"
    r"|^\s*(?P<label>\^[\w$.\-]+)(?=[:(])"
    r"|^(?P<alias>[#!][\w]+)(?=\s=\s)"
    r"|^(?P<local_label>\.L[\w$.]+)(?=:)"
)
_NAME_OF_VALUE = re.compile(_SSA)


# The definition of an alias, and an alias in other text, by language.
_ALIASES: dict[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    "mlir": (re.compile(r"([#!][A-Za-z_]\w*) = (.+)"), re.compile(r"[#!][A-Za-z_]\w*\b(?![.<])")),
    "llvm": (re.compile(r"attributes (#\d+) = (.+)"), re.compile(r"#\d+\b")),
}
_DEFINITION_STARTS = ("#", "!", "attributes #")


class LineKey(NamedTuple):
    """A line without its names (`key`), the names in order, and whether the line starts a function, a new scope."""

    key: str
    names: tuple[str, ...]
    starts_scope: bool = False


class AliasTable:
    """The aliases that a text defines. `key_of_alias` maps each name to its replacement in the keys of lines.

    Equal definitions have the same replacement in all texts whose tables share `definition_numbers`, which each table
    extends.
    """

    def __init__(self, lines: Sequence[str], language: str, definition_numbers: dict[str, int]) -> None:
        self.key_of_alias: dict[str, str] = {}
        # The first characters of all aliases: a text without them contains no alias.
        self._sigils: set[str] = set()
        self._patterns = _ALIASES.get(language)
        if self._patterns is None:
            return
        comment = _COMMENTS.get(language, "")
        for line in lines:
            if line.startswith(_DEFINITION_STARTS) and (
                match := self._patterns[0].match(_normalized(line, language, comment))
            ):
                # A definition uses only aliases that are defined before it.
                definition = "".join(map(self.expand, _STRING_LITERAL.split(match[2])))
                number = definition_numbers.setdefault(definition, len(definition_numbers))
                self.key_of_alias[match[1]] = f"${number}"
                self._sigils.add(match[1][0])

    def expand(self, text: str) -> str:
        """Returns `text` with keys in place of aliases; a string literal unchanged. Other text contains no literals."""
        if self._patterns is not None and not text.startswith('"'):
            for sigil in self._sigils:
                if sigil in text:
                    return self._patterns[1].sub(lambda match: self.key_of_alias.get(match[0], match[0]), text)
        return text

    def defined_key(self, normalized: str) -> str:
        """Returns the key of the alias that a normalized line defines, "" for other lines."""
        if self._patterns is None:
            return ""
        match = self._patterns[0].match(normalized)
        return self.key_of_alias.get(match[1], "") if match else ""


def line_keys(lines: Iterable[str], language: str, aliases: AliasTable | None = None) -> Iterator[LineKey]:
    """Yields the key of each line, with its names.

    The key of a line that defines one of `aliases` is the alias's key. Other aliases are names.
    """
    name = re.compile(_NAMES.get(language, _SSA))
    comment = _COMMENTS.get(language, "")
    aliases = aliases or AliasTable((), language, {})
    has_aliases = bool(aliases.key_of_alias)
    for line in lines:
        plain = _normalized(line, language, comment)
        may_start_scope = "func" in plain or "define" in plain
        definition = aliases.defined_key(plain) if has_aliases and plain.startswith(_DEFINITION_STARTS) else ""
        if definition:
            yield LineKey(definition, ())
        elif '"' in plain:
            yield _key_with_strings(plain, name, aliases, may_start_scope and bool(_FUNCTION_START.match(plain)))
        else:
            expanded = aliases.expand(plain) if has_aliases else plain
            key, names = name.sub("%", expanded), tuple(name.findall(expanded))
            yield LineKey(key, names, may_start_scope and bool(_FUNCTION_START.match(plain)))


def defined_names(line: str) -> set[str]:
    """Returns the names that `line` defines: its results, its block's arguments, its label."""
    names: set[str] = set()
    for match in _DEFINITIONS.finditer(line):
        # Exactly one group of the pattern matches.
        names.update(_NAME_OF_VALUE.findall(match["list"]) if match["list"] else [match[match.lastgroup or 0]])
    return names


def _normalized(line: str, language: str, comment: str) -> str:
    """Returns `line` without comment and locations, with its attributes sorted."""
    if comment and comment in line:
        line = _without_comment(line, comment)
    if language == "mlir" and ("loc(" in line or line.startswith("#loc")):
        line = without_locations(line)
    if language == "hlo" and "metadata={" in line:
        line = _HLO_LOCATION.sub("", line)
    if language == "asm":
        line = _ASM_ADDRESS.sub("", line)
    if language == "llvm":
        if "!dbg" in line or "line:" in line:
            line = _LLVM_DEBUG_INFO.sub("", line)
        # Branches refer to the label `1:` as `%1`.
        line = _LLVM_LABEL.sub(r"%\1:", line)
    if language == "mlir" and "{" in line and "," in line and "}" in line:
        # In other languages the words between braces have an order: types of LLVM, arguments of C++.
        line = _with_sorted_attributes_cached(line)
    return line


def _with_sorted_attributes_cached(line: str) -> str:
    """Returns `with_sorted_attributes(line)`. Parses equal texts between the outermost braces of lines once."""
    start, end = line.index("{"), line.rindex("}") + 1
    if end <= start or '"' in line[:start]:
        return with_sorted_attributes(line)
    return f"{line[:start]}{_cached_sorted_attributes(line[start:end])}{line[end:]}"


def _without_comment(line: str, comment: str) -> str:
    """Returns `line` up to the first `comment`, the text that starts a comment, outside of a string literal."""
    code: list[str] = []
    for index, part in enumerate(_STRING_LITERAL.split(line)):
        # Parts with odd indices are string literals.
        before, separator, _ = part.partition(comment) if index % 2 == 0 else (part, "", "")
        code.append(before)
        if separator:
            break
    return "".join(code).rstrip()


def _key_with_strings(line: str, name: re.Pattern[str], aliases: AliasTable, starts_scope: bool) -> LineKey:
    """Returns the key of a line with string literals, whose content is not searched for names."""
    parts, names = _STRING_LITERAL.split(line), []
    for index in range(0, len(parts), 2):
        part = aliases.expand(parts[index])
        names += name.findall(part)
        parts[index] = name.sub("%", part)
    return LineKey("".join(parts), tuple(names), starts_scope)


# ---- locations and attributes, token by token -----------------------------------------------------------------------

# Plain text ends at each `l`, so that `loc(` is found where it begins a word.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\bloc\s*\(|->|[\[({<]|[\])}>]|,|[^"\[\](){}<>,\-l]+|.')
_OPENING, _CLOSING = frozenset("[({<"), frozenset("])}>")
_ATTRIBUTE_ENTRY = re.compile(r"\s*(\"[^\"]*\"|[A-Za-z_][\w$.\-]*)\s*(?:=|$)")


def without_locations(line: str) -> str:
    """Returns `line` without `loc(…)`; "" for a line that defines an alias of a location."""
    if line.startswith("#loc"):
        return ""
    tokens: list[str] = []
    depth = 0
    for match in _TOKEN.finditer(line):
        token = match[0]
        if depth or token.startswith("loc"):
            depth += token.endswith("(") - (token == ")")
        else:
            tokens.append(token)
    return "".join(tokens).rstrip()


def with_sorted_attributes(line: str) -> str:
    """Returns `line` with the entries of each attribute dictionary `{a = …, b}` sorted by name, inner ones first.

    Braces that contain anything other than attributes, or that the line does not close, are unchanged.
    """
    stack: list[list[str]] = [[]]
    brackets: list[str] = []
    for match in _TOKEN.finditer(line):
        token = match[0]
        if token in _OPENING:
            brackets.append(token)
            stack.append([])
        elif token in _CLOSING and brackets:
            inside = stack.pop()
            stack[-1].append(brackets.pop() + (_sort_entries(inside) if token == "}" else "".join(inside)) + token)
        else:
            stack[-1].append(token)
    for bracket, inside in zip(brackets, stack[1:], strict=True):
        stack[0] += [bracket, *inside]
    return "".join(stack[0])


_cached_sorted_attributes = lru_cache(maxsize=4096)(with_sorted_attributes)


def _sort_entries(tokens: list[str]) -> str:
    """Returns the text of the tokens between two braces, sorted if they are the entries of an attribute dictionary."""
    commas = [-1, *(index for index, token in enumerate(tokens) if token == ","), len(tokens)]
    entries = ["".join(tokens[start + 1 : end]).strip() for start, end in pairwise(commas)]
    if len(entries) < 2 or not all(_ATTRIBUTE_ENTRY.match(entry) for entry in entries):
        return "".join(tokens)
    return ", ".join(sorted(entries, key=_attribute_name))


def _attribute_name(entry: str) -> str:
    """Returns the name in an entry of an attribute dictionary."""
    match = _ATTRIBUTE_ENTRY.match(entry)
    return match[1] if match else entry
