"""Long types and attributes in short: what is behind a type's shape, and dictionaries. No Textual."""

from __future__ import annotations

import re

# What is shorter says more than an ellipsis saves.
LONGEST = 16
_INNER = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:[^<>\n]|->|<(?:[^<>\n]|->|<(?:[^<>\n]|->)*>)*>){{{LONGEST},}}>"
)
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * LONGEST},}}\}}")


def abbreviated(line: str, ellipsis: str) -> str:
    """`line` with layouts, struct types, inline maps and dictionaries of attributes cut to their names."""
    if line[:1] in "#!":
        # What an alias stands for is there to be read.
        return line
    short = _INNER.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)
