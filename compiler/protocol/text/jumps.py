"""The jumps inside a function of printed assembly: from which line to which."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\s+[0-9a-f]+\s+\S+\s+(?:.*\s)?(\.L\w+)\s*(?:#.*)?$")


def jumps(lines: Sequence[str], first: int = 0) -> list[tuple[int, int]]:
    """Pairs of lines, a jump and its target label, in order; `lines` are numbered from `first`."""
    labels = {found[1]: number for number, line in enumerate(lines, first) if (found := _LABEL.match(line))}
    matches = ((number, _JUMP.match(line)) for number, line in enumerate(lines, first))
    return [(number, labels[match[1]]) for number, match in matches if match and match[1] in labels]
