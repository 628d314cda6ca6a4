"""The single steps of a reduction: each makes a module in generic form smaller or simpler.

A module is minimal if no single step preserves the failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from buddy.compiler.tools.reduce.edits import Rewriter, is_terminator, remove_unused_added, signature_of
from buddy.compiler.tools.reduce.generic_ir import GenericModule, IrOp, Value

# Attributes whose removal alone makes a module invalid.
_REQUIRED_ATTRIBUTES = frozenset({"function_type", "sym_name", "operandSegmentSizes", "resultSegmentSizes", "callee"})
# The sizes of a tensor, memref or vector (`4x?x` in `tensor<4x?xf32>`), and those of a torch tensor.
_SHAPE = re.compile(r"(?<=<)(?:(?:\d+|\?)x)+(?=[a-z!])|(?<=tensor<\[)[\d,?]+(?=\])")
_SIZE = re.compile(r"\d+")
# Constants; the group is the type.
_INTEGER = re.compile(r"-?\d+( : (?:i|si|ui)\d+| : index)")
_FLOAT = re.compile(r"(?:-?\d\.\d+[eE][+-]\d+|0x[0-9A-F]+)( : \w+)")
_DENSE = re.compile(r"dense(?:_resource)?<.*>( : \w+<(?:[^<>]|<[^<>]*>)*>)", re.DOTALL)
_FLOAT_ELEMENT = re.compile(r"x?(?:f|bf|tf)\d+[\w]*(?:,|>)")
_SIZE_LIST = re.compile(r"array<i(?:32|64): [-\d, ]+>")


class ReductionStep(NamedTuple):
    """A change of a module, and its description. `apply` returns False if it does not apply."""

    what: str
    apply: Callable[[GenericModule], bool]


# A kind of step: returns the steps of this kind on a module.
StepKind = Callable[[GenericModule], Iterator[ReductionStep]]


def apply_step(module: GenericModule, step: ReductionStep) -> GenericModule | None:
    """Returns a changed copy of `module`, or `None` if the step does not apply."""
    copy = module.clone()
    if not step.apply(copy):
        return None
    remove_unused_added(copy)
    return copy


# ---- ops -------------------------------------------------------------------------------------------------------------


def removable_by_depth(module: GenericModule) -> list[list[int]]:
    """Returns the numbers, in pre-order, of the ops that may be removed, by depth; terminators may not.

    Depths without such an op are left out.
    """
    levels: list[list[int]] = []
    numbers = {op: number for number, op in enumerate(module.walk())}

    def visit(ops: Sequence[IrOp], depth: int, *, in_block: bool) -> None:
        if len(levels) <= depth:
            levels.append([])
        removable = ops[:-1] if in_block and ops and is_terminator(ops[-1]) else ops
        levels[depth] += [numbers[op] for op in removable]
        for op in ops:
            for block in op.blocks:
                visit(block.ops, depth + 1, in_block=True)

    visit(module.ops, 0, in_block=False)
    return [level for level in levels if level]


def remove_ops(numbers: Iterable[int], module: GenericModule) -> bool:
    """Removes the ops with these numbers from `module`."""
    removed = set(numbers)
    return bool(removed) and Rewriter(module).remove([op for n, op in enumerate(module.walk()) if n in removed])


def _ops(module: GenericModule) -> Iterator[ReductionStep]:
    # The users of a value come before the op that defines it, so that whole chains are removed in one pass.
    ops = list(module.walk())
    for level in reversed(removable_by_depth(module)):
        for number in reversed(level):
            yield ReductionStep(f"remove {ops[number].name}", partial(remove_ops, [number]))
    for number, op in enumerate(ops):
        # Blocks may end with an op that is unknown here, or need no terminator.
        if is_terminator(op) and not op.results:
            yield ReductionStep(f"remove {op.name}", partial(remove_ops, [number]))


def _regions(module: GenericModule) -> Iterator[ReductionStep]:
    for number, op in enumerate(module.walk()):
        for index, region in enumerate(op.regions):
            if region.blocks and number:
                yield _on_op(number, f"unwrap {op.name}", partial(_unwrap, index))
        for index, region in enumerate(op.regions):
            if region.blocks:
                yield _on_op(number, f"empty a region of {op.name}", partial(_empty_region, index))


def _unwrap(index: int, rewriter: Rewriter, op: IrOp) -> bool:
    return rewriter.unwrap(op, op.regions[index])


def _empty_region(index: int, rewriter: Rewriter, op: IrOp) -> bool:
    op.regions[index].blocks = []
    return True


def _branches(module: GenericModule) -> Iterator[ReductionStep]:
    for number, op in enumerate(module.walk()):
        if len(op.successors) > 1:
            for index in range(len(op.successors)):
                yield _on_op(number, f"always take branch {index} of {op.name}", partial(_jump, index))


def _jump(index: int, rewriter: Rewriter, op: IrOp) -> bool:
    return rewriter.jump_to(op, op.successors[index])


# ---- values ----------------------------------------------------------------------------------------------------------


def _unused_arguments(module: GenericModule) -> Iterator[ReductionStep]:
    used = {value for op in module.walk() for value in op.operands}
    for number, op in enumerate(module.walk()):
        signature = signature_of(op)
        if signature is None or not op.regions:
            continue
        arguments = op.regions[0].blocks[0].arguments if op.regions[0].blocks else [None] * len(signature.inputs)
        unused = [index for index, value in enumerate(arguments) if value not in used]
        if len(unused) > 1:
            yield _on_op(number, f"remove unused arguments of {op.name}", partial(_remove_arguments, unused))
        for index in unused:
            yield _on_op(number, f"remove argument {index} of {op.name}", partial(_remove_arguments, [index]))


def _remove_arguments(numbers: list[int], rewriter: Rewriter, op: IrOp) -> bool:
    return rewriter.remove_arguments(op, numbers)


def _equal_arguments(module: GenericModule) -> Iterator[ReductionStep]:
    for number, op in enumerate(module.walk()):
        if signature_of(op) is None or not op.regions or not op.regions[0].blocks:
            continue
        first_of_type: dict[str, int] = {}
        for index, value in enumerate(op.regions[0].blocks[0].arguments):
            first = first_of_type.setdefault(value.type, index)
            if first != index:
                merge = partial(_merge_arguments, first, index)
                yield _on_op(number, f"use argument {first} of {op.name} for {index}", merge)


def _merge_arguments(target: int, index: int, rewriter: Rewriter, op: IrOp) -> bool:
    arguments = op.regions[0].blocks[0].arguments
    for user in op.walk():
        user.operands = [arguments[target] if value is arguments[index] else value for value in user.operands]
    return rewriter.remove_arguments(op, [index])


def _results(module: GenericModule) -> Iterator[ReductionStep]:
    used = {value for op in module.walk() for value in op.operands}
    for number, op in enumerate(module.walk()):
        signature = signature_of(op)
        if signature is not None and op.regions:
            for index in reversed(range(len(signature.results))):
                yield _on_op(number, f"remove result {index} of {op.name}", partial(_remove_function_result, index))
        for index, value in reversed(list(enumerate(op.results))):
            if value not in used or op.regions:
                for carried in (True, False) if op.regions else (False,):
                    removal = partial(_remove_result, index, carried)
                    yield _on_op(number, f"remove result {index} of {op.name}", removal)


def _remove_function_result(index: int, rewriter: Rewriter, op: IrOp) -> bool:
    return rewriter.remove_function_result(op, index)


def _remove_result(index: int, carried: bool, rewriter: Rewriter, op: IrOp) -> bool:
    return rewriter.remove_result(op, index, carried=carried)


def _operands(module: GenericModule) -> Iterator[ReductionStep]:
    for number, op in enumerate(module.walk()):
        for index in reversed(range(len(op.operands))):
            yield _on_op(number, f"remove operand {index} of {op.name}", partial(_remove_operand, index))


def _remove_operand(index: int, rewriter: Rewriter, op: IrOp) -> bool:
    return rewriter.remove_operand(op, index)


# ---- attributes and types --------------------------------------------------------------------------------------------


def _all_attributes(module: GenericModule) -> Iterator[ReductionStep]:
    if any(op.attributes.keys() - _REQUIRED_ATTRIBUTES for op in module.walk()):
        yield ReductionStep("remove all attributes that are not properties", _remove_attributes_of_all)
    if module.resources:
        yield ReductionStep("remove the resources", _remove_resources)


def _remove_attributes_of_all(module: GenericModule) -> bool:
    for op in module.walk():
        op.attributes = {name: value for name, value in op.attributes.items() if name in _REQUIRED_ATTRIBUTES}
    return True


def _remove_resources(module: GenericModule) -> bool:
    module.resources = ""
    return True


def _attributes(module: GenericModule) -> Iterator[ReductionStep]:
    for number, op in enumerate(module.walk()):
        for name in [name for name in (*op.attributes, *op.properties) if name not in _REQUIRED_ATTRIBUTES]:
            yield _on_op(number, f"remove {name} of {op.name}", partial(_remove_attribute, name))


def _remove_attribute(name: str, rewriter: Rewriter, op: IrOp) -> bool:
    op.attributes.pop(name, None)
    op.properties.pop(name, None)
    return True


def _constants(module: GenericModule) -> Iterator[ReductionStep]:
    for number, op in enumerate(module.walk()):
        for name, text in (*op.properties.items(), *op.attributes.items()):
            for simpler in _simpler_constants(text):
                yield _on_op(number, f"set {name} of {op.name} to {simpler}", partial(_set_attribute, name, simpler))


def _simpler_constants(text: str) -> list[str]:
    """Returns simpler constants of the same type, up to the constant itself."""
    if match := _INTEGER.fullmatch(text):
        choices = [f"0{match[1]}", f"1{match[1]}"]
    elif match := _FLOAT.fullmatch(text):
        choices = [f"0.000000e+00{match[1]}", f"1.000000e+00{match[1]}"]
    elif match := _DENSE.fullmatch(text):
        zero = "0.000000e+00" if _FLOAT_ELEMENT.search(match[1]) else "0"
        if match[1].endswith("i1>"):
            zero = "false"
        choices = [f"dense<{zero}>{match[1]}"]
    else:
        return []
    return choices[: choices.index(text)] if text in choices else choices


def _set_attribute(name: str, text: str, rewriter: Rewriter, op: IrOp) -> bool:
    (op.properties if name in op.properties else op.attributes)[name] = text
    return True


def _sizes(module: GenericModule) -> Iterator[ReductionStep]:
    sizes: set[int] = set()
    types = {value.type for op in module.walk() for value in _values(op)}
    for type_ in types:
        sizes.update(_sizes_of(type_))
    for size in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < smaller < size:
                for everywhere in (False, True):
                    where = "types and attributes" if everywhere else "types"
                    yield ReductionStep(
                        f"size {size} becomes {smaller} in {where}", partial(_resize, size, smaller, everywhere)
                    )
    for type_ in sorted(types):
        for size in sorted(set(_sizes_of(type_)), reverse=True):
            if size > 1:
                changed = _resize_type(type_, size, 1)
                yield ReductionStep(f"{type_} becomes {changed}", partial(_replace_type, type_, changed))


def _sizes_of(type_: str) -> list[int]:
    """Returns the static sizes in the text of a type."""
    return [int(size) for shape in _SHAPE.findall(type_) for size in _SIZE.findall(shape)]


def _resize_type(text: str, size: int, smaller: int) -> str:
    """Returns the text with `smaller` for each `size` in shapes."""

    def change(shape: re.Match[str]) -> str:
        return _SIZE.sub(lambda number: str(smaller) if int(number[0]) == size else number[0], shape[0])

    return _SHAPE.sub(change, text)


def _resize(size: int, smaller: int, everywhere: bool, module: GenericModule) -> bool:
    def resize(text: str) -> str:
        text = _resize_type(text, size, smaller)
        if everywhere and (_INTEGER.fullmatch(text) or _SIZE_LIST.fullmatch(text)):
            return re.sub(rf"(?<![\w-]){size}\b", str(smaller), text)
        return text

    _change_texts(module, resize)
    return True


def _replace_type(type_: str, changed: str, module: GenericModule) -> bool:
    _change_texts(module, lambda text: text.replace(type_, changed))
    return True


def _change_texts(module: GenericModule, change: Callable[[str], str]) -> None:
    """Changes the text of each type and each attribute of `module`."""
    module.aliases = [change(alias) for alias in module.aliases]
    for op in module.walk():
        op.properties = {name: change(text) for name, text in op.properties.items()}
        op.attributes = {name: change(text) for name, text in op.attributes.items()}
        for value in _values(op):
            value.type = change(value.type)


def _values(op: IrOp) -> Iterator[Value]:
    """Returns the values that an op defines: its results and the arguments of its blocks."""
    yield from op.results
    for block in op.blocks:
        yield from block.arguments


def _on_op(number: int, what: str, edit: Callable[[Rewriter, IrOp], bool]) -> ReductionStep:
    """Returns a step that edits the op with this number."""

    def apply(module: GenericModule) -> bool:
        op = next(op for n, op in enumerate(module.walk()) if n == number)
        return edit(Rewriter(module), op)

    return ReductionStep(what, apply)


# All kinds of steps, in the order in which they are tried: first those that remove most.
STEP_KINDS: tuple[StepKind, ...] = (
    _unused_arguments, _all_attributes, _branches, _ops, _regions, _results, _equal_arguments, _operands, _attributes,
    _constants, _sizes,
)  # fmt: skip
