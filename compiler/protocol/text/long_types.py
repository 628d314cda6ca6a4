"""The long types of a text of MLIR: what a view may call by a short name, in the order in which they appear.

The text itself is left as it is: a view draws names in place of types, and everything else reads the types.
"""

from __future__ import annotations

import re

from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.regex import INSIDE
from buddy.compiler.protocol.text.lines import IndexedText

# Shorter types, such as `tensor<1x128x768xf32>`, say more than a name would.
SHORTEST = 32
# A type that stands there once gains nothing by a name.
LEAST_USES = 2
# More names than anybody tells apart; the types of most uses are kept.
MOST = 500
_BODY = rf"(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>)*>)*"
_TYPE = re.compile(rf"(?:\b(?:memref|tensor|vector|tuple|complex)|![A-Za-z_][\w.]*)<{_BODY}>")
_DEFINITION = re.compile(r"^[#!][\w$.\-]+ = .*", re.MULTILINE)


def long_types(text: IndexedText) -> list[LongType]:
    """The types of at least `SHORTEST` characters that stand in `text` more than once, the first one first.

    The outermost of nested types counts; lines that define an alias do not.
    """
    uses: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, piece in text.chunks():
        # Blank where an alias is defined, so that lines keep their numbers.
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
