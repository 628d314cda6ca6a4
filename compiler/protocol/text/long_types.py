"""The long types of an MLIR text that a view may abbreviate, in order of appearance.

The text itself is unchanged: only the view draws short names in place of types.
"""

from __future__ import annotations

import re

from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.regex import INSIDE
from buddy.compiler.protocol.text.lines import IndexedText

# Shorter types, such as `tensor<1x128x768xf32>`, are more readable than a name.
SHORTEST = 32
# A type that occurs only once gains nothing from a name.
LEAST_USES = 2
# More names would be indistinguishable; the most frequent types are kept.
MOST = 500
_BODY = rf"(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>)*>)*"
_TYPE = re.compile(rf"(?:\b(?:memref|tensor|vector|tuple|complex)|![A-Za-z_][\w.]*)<{_BODY}>")
_DEFINITION = re.compile(r"^[#!][\w$.\-]+ = .*", re.MULTILINE)


def long_types(text: IndexedText) -> list[LongType]:
    """The types of at least `SHORTEST` characters that occur in `text` more than once, in order of appearance.

    Of nested types the outermost counts; lines that define an alias do not.
    """
    uses: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, piece in text.chunks():
        # Alias definitions are blanked, not removed, so that line numbers stay valid.
        for match in _TYPE.finditer(_DEFINITION.sub("", piece)):
            found = match[0]
            if len(found) < SHORTEST:
                continue
            if found not in uses:
                first[found] = number + match.string.count("\n", 0, match.start())
            uses[found] = uses.get(found, 0) + 1
    repeated = sorted((name for name, count in uses.items() if count >= LEAST_USES), key=lambda name: -uses[name])
    kept = sorted(repeated[:MOST], key=lambda name: first[name])
    return [LongType(name, uses[name], first[name]) for name in kept]
