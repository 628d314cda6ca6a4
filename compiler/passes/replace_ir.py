"""`replace-ir`: replaces the module by a text. A recipe stores hand-edited IR in this way.

As an ordinary pass it can be undone, disabled, moved and replayed. Ops on lines that are also in the replaced module
keep their graph nodes; those on changed lines get the nodes of the lines that they replace.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import marked_text, print_mlir
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register
from buddy.compiler.protocol.pass_facts import REPLACE_IR
from buddy.compiler.protocol.text.diff import difference

# The parser's notation of a location in a text without a file.
_PLACE = re.compile(r'loc\("-":(\d+):\d+\)')
_MESSAGE = re.compile(r'"-":(\d+):(\d+): (.*)')


@register
@dataclass(frozen=True)
class ReplaceIr(MlirPass):
    """`text` is the module, as the workbench prints it."""

    text: str = ""

    name: ClassVar[str] = REPLACE_IR
    summary: ClassVar[str] = "replace the module by the text in the option, such as hand-edited IR"

    def run(self, root: Any, context: PassContext) -> None:
        if not self.text.strip():
            context.remark(self.name, root.location, "the text is empty, so nothing is replaced")
            return
        try:
            edited = ir.Module.parse(self.text).operation
            numbers = line_numbers(root, self.text, context.locations)
            marked = edited.get_asm(enable_debug_info=True, assume_verified=True)
            located = ir.Module.parse(_PLACE.sub(lambda found: _location(numbers, int(found[1])), marked)).operation
        except (ir.MLIRError, ValueError) as error:
            raise PassError(parse_problem(error)[2]) from error
        become(root, located)


def line_numbers(root: Any, text: str, locations: LocationSets) -> list[int]:
    """Returns, for each line of `text`, an edit of `root`'s text, the number of the set of nodes that it comes from."""
    before = print_mlir(marked_text(root, locations).text, locations)
    sets = list(before.line_sets)
    numbers: list[int] = []
    place = 0
    for start, removed, after, added in difference(before.content, text).hunks:
        numbers += sets[place : place + after - len(numbers)]
        numbers += [locations.united(sets[start : start + removed])] * added
        place = start + removed
    return numbers + sets[place:]


def _location(numbers: Sequence[int], line: int) -> str:
    number = numbers[line - 1] if 0 < line <= len(numbers) else 0
    return f'loc("{FILE}":{number}:0)'


def become(target: Any, source: Any) -> None:
    """Moves the contents of `source`, of the same context, to the module `target`."""
    block, new = target.regions[0].blocks[0], source.regions[0].blocks[0]
    for op in reversed(list(block.operations)):
        op.erase()
    for op in list(new.operations):
        op.detach_from_parent()
        block.append(op)
    for key in [attribute.name for attribute in target.attributes]:
        del target.attributes[key]
    for attribute in source.attributes:
        target.attributes[attribute.name] = attribute.attr


def parse_problem(error: Exception) -> tuple[int, int, str]:
    """Returns line and column, from 1 (0 if the parser gives none), and the error there."""
    found = _MESSAGE.search(str(error))
    if found is None:
        return 0, 0, str(error).strip().partition("\n")[0]
    return int(found[1]), int(found[2]), f"line {found[1]}, column {found[2]}: {found[3]}"
