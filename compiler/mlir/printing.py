"""Prints IR and LLVM IR as text, with the nodes that each line comes from.

The binding of the translation to LLVM IR leaks memory: it calls a function of MLIR's C API whose result the caller must
free, and does not free it. `to_llvm_ir` calls the same function directly if the library exports it; otherwise it uses
the binding. The engine calls `generic_form` in a one-shot process, since parsing may crash the process.
"""

from __future__ import annotations

import ctypes
import re
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from buddy.compiler.mlir.bindings import PACKAGE, ir, llvm
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.protocol.one_shot_messages import GenericForm, GenericFormRequest
from buddy.compiler.protocol.text.lines import Origins, StageText

# ` loc(BODY)` after an op or an argument. BODY may have parentheses, nested in at most one other pair of them.
_LOCATION = re.compile(r" loc\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
# The definition of an alias, `#loc3 = loc(BODY)`, and a reference to one.
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_REFERENCE = re.compile(r"#loc\d*")
# In LLVM IR: the reference of an instruction or function to its debug location, and the metadata that has the lines.
_DEBUG_LOCATION = re.compile(r",? !dbg !(\d+)")
_DILOCATION = re.compile(r"^!(\d+) = !DILocation\(line: (\d+),")
_SUBPROGRAM = re.compile(r"^!(\d+) = distinct !DISubprogram\(.*?\bline: (\d+),")
_METADATA = re.compile(r"^!(\d+|llvm\.\S+) = ")
_MAX_ALIAS_DEPTH = 8
# The first characters of lines that define aliases for locations and for LLVM's debug information.
_DEBUG_ALIASES = ("#loc", "#di_")
# The end of the definition of an alias for the location of ops without a node.
_NO_NODE = f' = loc("{FILE}":0:0)'


class PrintedModule(NamedTuple):
    """A module's text with locations; `lost` is the number of ops that passes have left without a node."""

    text: str
    lost: int = 0


def print_with_locations(operation: ir.Operation, locations: LocationSets) -> PrintedModule:
    """Prints the module with a location for each op; `LocationSets.fill` adds the locations that passes dropped."""
    text = operation.get_asm(enable_debug_info=True, assume_verified=True)
    if not _has_unlocated_ops(text):
        return PrintedModule(text)
    lost = locations.fill(operation)
    return PrintedModule(operation.get_asm(enable_debug_info=True, assume_verified=True), lost)


def _has_unlocated_ops(located: str) -> bool:
    """Returns whether ops or arguments of a printed module have no node; the module op itself does not count."""
    if "loc(unknown)" in located:
        return True
    names = (line.partition(" ")[0] for line in _alias_lines(located) if line.endswith(_NO_NODE))
    references = [f"loc({name})" for name in names]
    module_end = located[located.rfind("\n}") :]
    return any(located.count(reference) > module_end.count(reference) for reference in references)


def _alias_lines(located: str) -> Iterator[str]:
    """Returns the lines that define aliases of locations, which are before and after the module."""
    return (line for line in located.splitlines() if line.startswith("#loc"))


def print_mlir(located: str, locations: LocationSets) -> StageText:
    """Converts the text of `print_with_locations`: removes the locations and returns them as sets of nodes."""
    lines = located.splitlines()
    aliases = _aliases(lines, locations)
    content: list[str] = []
    # The numbers of the location sets of all lines so far, and of all ops.
    line_sets: list[int] = []
    op_sets: list[int] = []
    # The numbers of the lines that open the present regions.
    open_regions: list[int] = []
    for line in lines:
        if line.startswith(_DEBUG_ALIASES):
            continue
        text, body = _split_locations(line)
        number = 0
        if body:
            number = aliases[body] if body in aliases else locations.number_in(body)
        # The last line of each op ends with its location. A line that starts with a brace ends the module.
        if line.endswith(")") and body and not text.startswith("}"):
            op_sets.append(number)
        if text.lstrip().startswith("}") and open_regions:
            # The location of an op with a region is printed after the region. The op's first line gets the set too; its
            # first two lines do if the region's arguments are on a separate line.
            opened = open_regions.pop()
            first_line = opened - content[opened].lstrip().startswith("(%")
            for line_index in range(first_line, opened + 1):
                line_sets[line_index] = line_sets[line_index] or number
        if text.endswith("{"):
            open_regions.append(len(content))
            number = 0
        content.append(text)
        line_sets.append(number)
    return stage_text(content, line_sets, locations, Counter(op_sets))


def stage_text(
    lines: Sequence[str], numbers: Sequence[int], locations: LocationSets, weights: Mapping[int, int],
    machine: Sequence[bytes] = (),
) -> StageText:  # fmt: skip
    """Returns the text of `lines`; line `i` comes from the set `numbers[i]`.

    `weights` maps each set to its number of ops or bytes, and `machine` has the machine code of each line.
    """
    direct = derived = none = 0
    for number, weight in weights.items():
        if not number:
            none += weight
        elif locations.is_direct(number):
            direct += weight
        else:
            derived += weight
    return StageText(
        "\n".join([*lines, ""]), tuple(numbers), tuple(locations.sets), dict(locations.derived),
        Origins(direct, derived, none), tuple(machine),
    )  # fmt: skip


def _split_locations(line: str) -> tuple[str, str]:
    """Returns a line without its locations, and the body of the last one; block arguments have locations too."""
    if " loc(" not in line:
        return line, ""
    start = line.rfind(" loc(")
    text, body = line[:start], line[start + 5 : -1]
    if line.endswith(")") and " loc(" not in text and "(" not in body:
        return text, body
    bodies = _LOCATION.findall(line)
    return _LOCATION.sub("", line), bodies[-1] if bodies else ""


def _aliases(lines: Sequence[str], locations: LocationSets) -> dict[str, int]:
    """Returns the number of the location set of each alias `#locN`; an alias may refer to other aliases."""
    bodies = {}
    for line in lines:
        match = _ALIAS.match(line)
        if match:
            bodies[match.group(1)] = match.group(2)
    return {name: locations.number_in(_expand(body, bodies, 0)) for name, body in bodies.items()}


def _expand(body: str, bodies: dict[str, str], depth: int) -> str:
    """Replaces aliases in the body of a location by their bodies, up to `_MAX_ALIAS_DEPTH` levels deep."""
    if depth > _MAX_ALIAS_DEPTH or "#loc" not in body:
        return body
    return _REFERENCE.sub(lambda m: _expand(bodies.get(m.group(), ""), bodies, depth + 1), body)


# ---- LLVM IR ---------------------------------------------------------------------------------------------------------


def print_llvm(
    text: str, locations: LocationSets, line_sets: Sequence[int] | None = None, function_set: int = 0
) -> StageText:
    """Removes the debug metadata from LLVM IR, and returns it as the sets of nodes of each line.

    Line `n` of a debug location stands for set number `n`. With `line_sets`, the line stands for the set
    `line_sets[n - 1]`, and each function has the set `function_set`: the debug location of a function then has no line.
    """
    lines = text.splitlines()
    # The lines of debug locations, which are set numbers, by the names of metadata of instructions and functions.
    instruction_sets = {match[1]: int(match[2]) for match in map(_DILOCATION.match, lines) if match}
    function_sets = {match[1]: int(match[2]) for match in map(_SUBPROGRAM.match, lines) if match}
    if line_sets is not None:
        instruction_sets = {
            name: line_sets[line - 1] if 0 < line <= len(line_sets) else 0 for name, line in instruction_sets.items()
        }
        function_sets = dict.fromkeys(function_sets, function_set)
    content, set_numbers, weighted_sets, current_set = [], [], [], 0
    for line in lines:
        if _METADATA.match(line):
            continue
        debug_location = _DEBUG_LOCATION.search(line)
        if line.startswith("define"):
            current_set = function_sets.get(debug_location[1], 0) if debug_location else 0
            number = current_set
        else:
            number = instruction_sets.get(debug_location[1], 0) if debug_location else 0
        number = number if number < len(locations.sets) else 0
        if line.startswith("  "):
            # An instruction without a location comes from all nodes of the function.
            number = number or current_set
            weighted_sets.append(number)
        content.append(_DEBUG_LOCATION.sub("", line))
        set_numbers.append(number)
    while content and not content[-1]:
        content.pop()
        set_numbers.pop()
    return stage_text(content, set_numbers, locations, Counter(weighted_sets))


# The name of the op that a line defines, after its results; in the generic form it is in quotes.
_OP = re.compile(r"^ *(?:%[\w:#, %]+ = )?\"?([a-z_]\w*(?:\.\w+)*)", re.MULTILINE)


def op_counts(content: str) -> Counter[str]:
    """Returns the number of ops by name in a printed module."""
    return Counter(_OP.findall(content))


# The functions of MLIR's C API that translate a module, and free the text of the translation.
_TRANSLATE, _FREE = "mlirTranslateModuleToLLVMIRToString", "LLVMDisposeMessage"


def to_llvm_ir(operation: ir.Operation) -> str:
    """Returns the LLVM IR of a module in the LLVM dialect. Raises `RuntimeError` if the translation fails."""
    translate = leak_free_translation()
    return str(llvm.translate_module_to_llvmir(operation)) if translate is None else translate(operation)


@lru_cache(maxsize=1)
def leak_free_translation() -> Callable[[ir.Operation], str] | None:
    """Returns a function that translates and frees MLIR's text; `None` if the bindings do not export what it calls."""
    llvm.translate_module_to_llvmir  # noqa: B018 - loads the module of bindings that is looked up below
    module = sys.modules.get(f"{PACKAGE}._mlir_libs._mlirDialectsLLVM")
    try:
        # `PyDLL` keeps the GIL during the call, as the binding does.
        library = ctypes.PyDLL(str(getattr(module, "__file__", None) or ""))
        translate, free = getattr(library, _TRANSLATE), getattr(library, _FREE)
    except (OSError, AttributeError):
        return None
    translate.argtypes, translate.restype = [ctypes.c_void_p], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None

    def translate_and_free(operation: ir.Operation) -> str:
        text = translate(_pointer(operation.operation._CAPIPtr))
        if not text:
            raise RuntimeError("MLIR could not translate the module to LLVM IR")
        try:
            return ctypes.string_at(text).decode()
        finally:
            free(text)

    return translate_and_free


def _pointer(capsule: object) -> int | None:
    """Returns the pointer in a Python capsule."""
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.argtypes, get_name.restype = [ctypes.py_object], ctypes.c_char_p
    get_pointer.argtypes, get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    pointer: int | None = get_pointer(capsule, get_name(capsule))
    return pointer


# ---- the generic form ------------------------------------------------------------------------------------------------


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
