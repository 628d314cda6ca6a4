"""IR as text with the nodes that each line comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from buddy.compiler.provenance import LocationSets
from buddy.compiler.text.stage_text import StageText

_LOCATION = re.compile(r" loc\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_ALIAS = re.compile(r"^#loc\d* = loc\((.*)\)$")
_NAMED = re.compile(r"^(#loc\d*) = ")
_REFERENCE = re.compile(r"#loc\d*")
_DEBUG = re.compile(r",? !dbg !(\d+)")
_LINE = re.compile(r"^!(\d+) = !DILocation\(line: (\d+),")
_METADATA = re.compile(r"^!(\d+|llvm\.\S+) = ")
_DEBUG_ALIASES = ("#loc", "#di_")


def marked_text(operation: Any, locations: LocationSets) -> str:
    """The module as `mlir-opt` prints it, location marks included.

    Ops that a pass left without a location are given one first (see `LocationSets.fill`).
    """
    marked = operation.get_asm(enable_debug_info=True, assume_verified=True)
    if "loc(unknown)" in marked:
        locations.fill(operation)
        marked = operation.get_asm(enable_debug_info=True, assume_verified=True)
    return marked


def print_mlir(marked: str, locations: LocationSets) -> StageText:
    """A module's `marked_text` with the location marks taken off and kept as sets of nodes."""
    lines = marked.splitlines()
    aliases = _aliases(lines, locations)
    content: list[str] = []
    sets: list[int] = []
    open_regions: list[int] = []
    for line in lines:
        if line.startswith(_DEBUG_ALIASES):
            continue
        text, body = _unmarked(line)
        number = (aliases[body] if body in aliases else locations.number_in(body)) if body else 0
        if text.lstrip().startswith("}") and open_regions:
            # An op with a region carries its location at the end: its first line gets it too, or its first two lines
            # where the region's arguments stand on one of their own.
            opened = open_regions.pop()
            first = opened - content[opened].lstrip().startswith("(%")
            for place in range(first, opened + 1):
                sets[place] = sets[place] or number
        if text.endswith("{"):
            open_regions.append(len(content))
            number = 0
        content.append(text)
        sets.append(number)
    return StageText("\n".join([*content, ""]), tuple(sets), tuple(locations.sets))


def _unmarked(line: str) -> tuple[str, str]:
    """A line without its location marks, and what the last of them says; block arguments have marks of their own."""
    if " loc(" not in line:
        return line, ""
    start = line.rfind(" loc(")
    text, body = line[:start], line[start + 5 : -1]
    if line.endswith(")") and " loc(" not in text and "(" not in body:
        return text, body
    found = _LOCATION.findall(line)
    return _LOCATION.sub("", line), found[-1] if found else ""


def _aliases(lines: Sequence[str], locations: LocationSets) -> dict[str, int]:
    """The set behind each `#locN`, references between them followed."""
    bodies = {}
    for line in lines:
        match = _ALIAS.match(line)
        if match:
            name = _NAMED.match(line)
            assert name is not None
            bodies[name.group(1)] = match.group(1)
    return {name: locations.number_in(_expanded(body, bodies, 0)) for name, body in bodies.items()}


def _expanded(body: str, bodies: dict[str, str], depth: int) -> str:
    if depth > 8 or "#loc" not in body:
        return body
    return _REFERENCE.sub(lambda m: _expanded(bodies.get(m.group(), ""), bodies, depth + 1), body)


def print_llvm(text: str, locations: LocationSets) -> StageText:
    """LLVM IR without its debug metadata, which says where each line comes from."""
    lines = text.splitlines()
    numbers = {m.group(1): int(m.group(2)) for m in map(_LINE.match, lines) if m}
    content, sets = [], []
    for line in lines:
        if _METADATA.match(line):
            continue
        found = _DEBUG.search(line)
        number = int(numbers.get(found.group(1), 0)) if found else 0
        content.append(_DEBUG.sub("", line))
        sets.append(number if number < len(locations.sets) else 0)
    while content and not content[-1]:
        content.pop()
        sets.pop()
    return StageText("\n".join([*content, ""]), tuple(sets), tuple(locations.sets))


_OP = re.compile(r"^ *(?:%[\w:#, %]+ = )?\"?([a-z_]\w*(?:\.\w+)*)", re.MULTILINE)


def op_counts(content: str) -> Counter[str]:
    """How many ops of each name the printed module holds."""
    return Counter(_OP.findall(content))
