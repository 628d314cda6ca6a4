"""Maps sampled instructions to lines of the assembly text and to nodes."""

from __future__ import annotations

import re

import msgspec

from buddy.compiler.protocol.profile_report import HotSpot, Sampling
from buddy.compiler.protocol.text.lines import IndexedText

# The format of `assembly`: a function's name at the left edge, an instruction after its offset.
_FUNCTION = re.compile(r"(\S+):$")
_INSTRUCTION = re.compile(r" +([0-9a-f]+)  (.*)")


def placed(sampling: Sampling, text: IndexedText) -> Sampling:
    """`sampling` with the text, line and nodes of each instruction, as far as `text` contains it."""
    wanted = {(spot.function, spot.offset): spot for spot in sampling.spots}
    functions = {spot.function for spot in sampling.spots}
    found: dict[tuple[str, int], HotSpot] = {}
    current = ""
    for number, line in enumerate(text.content.split("\n")):
        if begins := _FUNCTION.match(line):
            current = begins[1] if not line.startswith(".L") else current
        elif current in functions and (instruction := _INSTRUCTION.match(line)):
            key = current, int(instruction[1], 16)
            if key in wanted:
                nodes = tuple(text.nodes_of_lines(number, number))
                words = " ".join(instruction[2].split())
                found[key] = msgspec.structs.replace(wanted[key], text=words, line=number, nodes=nodes)
    spots = tuple(found.get(key, spot) for key, spot in wanted.items())
    return msgspec.structs.replace(sampling, spots=spots)
