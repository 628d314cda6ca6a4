"""Prints a module in MLIR's generic form, with the nodes that each line comes from.

The engine calls this in a one-shot process, since parsing may crash it.
"""

from __future__ import annotations

import re
from array import array

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_mlir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.one_shot_messages import GenericForm, GenericFormRequest

_POSITION = re.compile(r'"[^"]*":(\d+):\d+')


class _LineSets(LocationSets):
    """Maps locations of MLIR's parser, `"-":line:column`, to the sets of nodes of the parsed lines."""

    def __init__(self, line_sets: array[int]) -> None:
        super().__init__()
        self._line_sets = line_sets

    def number_in(self, text: str) -> int:
        match = _POSITION.search(text)
        line = int(match[1]) - 1 if match else -1
        return self._line_sets[line] if 0 <= line < len(self._line_sets) else 0

    def is_direct(self, number: int) -> bool:
        """Returns True: this process only has the numbers of the sets, and cannot recognise derived sets."""
        return True


def generic_form(request: GenericFormRequest) -> GenericForm:
    """Prints the module of a request in generic form; each line has the set of the line that its op was parsed from."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    try:
        module = ir.Module.parse(request.content, context)
    except ir.MLIRError as error:
        return GenericForm(problem=str(error).splitlines()[0])
    located = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True, assume_verified=True)
    text = print_mlir(located, _LineSets(array("I", request.line_sets)))
    return GenericForm(text.content, array("I", text.line_sets).tobytes())
