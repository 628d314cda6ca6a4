"""`replace-ir`: replaces the module by the IR text in its option. A recipe stores hand-edited IR in this way.

Like any other pass it can be undone, disabled, moved and replayed. Ops on unchanged lines keep their graph nodes; ops
on changed lines get the nodes of the lines that they replace.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_mlir, print_with_locations
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register
from buddy.compiler.protocol.pass_facts import REPLACE_IR
from buddy.compiler.protocol.text.diff import difference

# How MLIR prints the location of an op in text that is not from a file, `loc("-":LINE:COLUMN)`, and a parse error.
_LOCATION = re.compile(r'loc\("-":(\d+):\d+\)')
_PARSE_ERROR = re.compile(r'"-":(\d+):(\d+): (.*)')


@register
@dataclass(frozen=True)
class ReplaceIr(MlirPass):
    """Replaces the module by `text`, a module as the workbench prints it."""

    text: str = ""

    name: ClassVar[str] = REPLACE_IR
    summary: ClassVar[str] = "replace the module by the text in the option, such as hand-edited IR"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        if not self.text.strip():
            context.remark(self.name, root.location, "the text is empty, so nothing is replaced")
            return
        try:
            edited = ir.Module.parse(self.text).operation
            sets = _sets_of_lines(root, self.text, context.locations)
            located = edited.get_asm(enable_debug_info=True, assume_verified=True)
            with_nodes = ir.Module.parse(_LOCATION.sub(lambda match: _location(sets, int(match[1])), located)).operation
        except (ir.MLIRError, ValueError) as error:
            _, _, message = parse_problem(error)
            raise PassError(message) from error
        replace_contents(root, with_nodes)


def _sets_of_lines(root: ir.Operation, text: str, locations: LocationSets) -> list[int]:
    """Returns the number of the set of graph nodes for each line of `text`, which is an edit of the text of `root`.

    Unchanged lines keep their sets. Lines that an edit adds get the union of the sets of the lines that it removes.
    """
    printed = print_mlir(print_with_locations(root, locations).text, locations)
    old_sets = list(printed.line_sets)
    new_sets: list[int] = []
    next_old = 0
    for old_start, removed, new_start, added in difference(printed.content, text).hunks:
        new_sets += old_sets[next_old : next_old + new_start - len(new_sets)]
        next_old = old_start + removed
        new_sets += [locations.unite(old_sets[old_start:next_old])] * added
    return new_sets + old_sets[next_old:]


def _location(sets: Sequence[int], line: int) -> str:
    """Returns the text of the MLIR location that stands for the nodes of line `line` (from 1); `sets` is by line."""
    number = sets[line - 1] if 0 < line <= len(sets) else 0
    return f'loc("{FILE}":{number}:0)'


def replace_contents(target: ir.Operation, source: ir.Operation) -> None:
    """Replaces the ops and attributes of the module `target` by those of `source`, a module of the same context.

    `source` is empty afterwards.
    """
    block, source_block = target.regions[0].blocks[0], source.regions[0].blocks[0]
    for op in reversed(list(block.operations)):
        op.erase()
    for op in list(source_block.operations):
        op.detach_from_parent()
        block.append(op)
    for name in list(target.attributes):
        del target.attributes[name]
    for name in source.attributes:
        target.attributes[name] = source.attributes[name]


def parse_problem(error: Exception) -> tuple[int, int, str]:
    """Returns the line and column of a parse error, from 1 (0 if the parser gives none), and its message."""
    match = _PARSE_ERROR.search(str(error))
    if match is None:
        return 0, 0, str(error).strip().partition("\n")[0]
    return int(match[1]), int(match[2]), f"line {match[1]}, column {match[2]}: {match[3]}"
