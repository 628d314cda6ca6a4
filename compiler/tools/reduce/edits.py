"""Edits a module in generic form so that all used values stay defined.

A removed value is replaced by a new argument of the enclosing function, so that the remaining ops keep their types. At
the calls of this function, a new argument of the calling function is passed. Each edit returns False if it does not
apply; the module may then be partly changed, so callers edit a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeVar

from buddy.compiler.tools.reduce.generic_ir import Block, GenericModule, IrOp, IrRegion, Scanner, Value, split_list

Item = TypeVar("Item")

# The names of properties or attributes, and the start of the LLVM dialect's function types.
_FUNCTION_TYPE = "function_type"
_LLVM_FUNCTION = "!llvm.func<"
_CALLEE = "callee"
_SEGMENTS = "operandSegmentSizes"
_SEGMENT_SIZES = re.compile(r"array<i32: ([\d, ]+)>")
# The ops that return from a function, and those that yield the results of the op around them.
_RETURN = re.compile(r"\.return$")
_YIELD = re.compile(r"yield|\.terminator$|in_parallel$")


class Signature(NamedTuple):
    """The types of a function's arguments and results; with `is_llvm`, it is printed as a type of the LLVM dialect."""

    inputs: list[str]
    results: list[str]
    is_llvm: bool = False

    def __str__(self) -> str:
        inputs = ", ".join(self.inputs)
        if self.is_llvm:
            return f"{_LLVM_FUNCTION}{self.results[0] if self.results else 'void'} ({inputs})>"
        has_plain_result = len(self.results) == 1 and not self.results[0].startswith("(")
        return f"({inputs}) -> {self.results[0] if has_plain_result else '(' + ', '.join(self.results) + ')'}"


def signature_of(function: IrOp) -> Signature | None:
    """Returns the signature of a function, `None` for other ops and functions of variable arguments."""
    text = function.properties.get(_FUNCTION_TYPE) or function.attributes.get(_FUNCTION_TYPE, "")
    scanner = Scanner(text.removeprefix(_LLVM_FUNCTION))
    if not text or "..." in text:
        return None
    if text.startswith(_LLVM_FUNCTION):
        result = scanner.take_balanced(" (")
        if not scanner.take("("):
            return None
        return Signature(split_list(scanner.take_balanced("")), [] if result == "void" else [result], True)
    if not scanner.take("("):
        return None
    inputs = split_list(scanner.take_balanced(""))
    if not scanner.take(")") or not scanner.take("->"):
        return None
    if not scanner.take("("):
        return Signature(inputs, [scanner.take_balanced("")])
    return Signature(inputs, split_list(scanner.take_balanced("")))


def _set_signature(function: IrOp, signature: Signature) -> None:
    entries = function.properties if _FUNCTION_TYPE in function.properties else function.attributes
    entries[_FUNCTION_TYPE] = str(signature)


def _edit_list(function: IrOp, name: str, edit: Callable[[list[str]], None]) -> None:
    """Edits the list attribute `name` of an op, such as the attributes of a function's arguments."""
    for entries in (function.properties, function.attributes):
        text = entries.get(name, "")
        if text.startswith("["):
            items = split_list(text[1:-1])
            edit(items)
            entries[name] = f"[{', '.join(items)}]"


def parents(module: GenericModule) -> dict[IrOp, IrOp | None]:
    """Returns the op around each op, `None` for top-level ops."""
    result: dict[IrOp, IrOp | None] = dict.fromkeys(module.ops)

    def visit(op: IrOp) -> None:
        for block in op.blocks:
            for nested in block.ops:
                result[nested] = op
                visit(nested)

    for op in module.ops:
        visit(op)
    return result


def all_blocks(module: GenericModule) -> Iterator[Block]:
    """Returns all blocks in pre-order."""
    return (block for op in module.walk() for block in op.blocks)


class Rewriter:
    """Edits one module; `parents` has the op around each op before the edits."""

    def __init__(self, module: GenericModule) -> None:
        self.module, self.parents = module, parents(module)
        # The arguments that stand for removed values, by function and removed value.
        self._added: dict[tuple[IrOp, Value], Value] = {}

    def function_around(self, op: IrOp) -> IrOp | None:
        """Returns the innermost function with a body around `op`."""
        current: IrOp | None = op
        while current is not None and not (current.regions and signature_of(current) is not None):
            current = self.parents.get(current)
        return current

    def remove(self, removed: Collection[IrOp]) -> bool:
        """Removes ops with all that they contain; arguments replace the values that are still used."""
        all_removed = {nested for op in removed for nested in op.walk()}
        values = {value for op in all_removed for value in op.results}
        values |= {value for op in all_removed for block in op.blocks for value in block.arguments}
        self.module.ops = [op for op in self.module.ops if op not in all_removed]
        for block in all_blocks(self.module):
            block.ops = [op for op in block.ops if op not in all_removed]
        return bool(self.module.ops) and self.replace_by_arguments(values)

    def replace_by_arguments(self, values: Collection[Value]) -> bool:
        """Replaces all uses of `values` by new arguments of the functions around the uses."""
        for op in list(self.module.walk()):
            for number, value in enumerate(op.operands):
                if value in values:
                    function = self.function_around(op)
                    if function is None:
                        return False
                    op.operands[number] = self._argument(function, value)
        return True

    def _argument(self, function: IrOp, value: Value) -> Value:
        """Returns the argument of `function` that stands for `value`; adds it at the first use."""
        key = (function, value)
        if key not in self._added:
            self._added[key] = argument = Value(value.type, added=True)
            self._append_argument(function, argument, value)
        return self._added[key]

    def _append_argument(self, function: IrOp, argument: Value, value: Value) -> None:
        """Appends an argument that stands for `value` to a function; its callers get such an argument too."""
        signature = signature_of(function)
        assert signature is not None
        if not function.regions[0].blocks:
            return
        function.regions[0].blocks[0].arguments.append(argument)
        _set_signature(function, signature._replace(inputs=[*signature.inputs, argument.type]))
        _edit_list(function, "arg_attrs", lambda items: items.append("{}"))
        for call in self.calls_of(function):
            caller = self.function_around(call)
            if caller is not None:
                call.operands.append(self._argument(caller, value))
                _resize_segment(call, len(call.operands) - 1, +1)

    def calls_of(self, function: IrOp) -> list[IrOp]:
        """Returns the ops of the module whose callee is `function`."""
        symbol = (function.properties.get("sym_name") or function.attributes.get("sym_name", "")).strip('"')
        names = {f"@{symbol}", f'@"{symbol}"'}
        return [op for op in self.module.walk() if op.properties.get(_CALLEE, op.attributes.get(_CALLEE)) in names]

    def remove_arguments(self, function: IrOp, numbers: Collection[int]) -> bool:
        """Removes the unused arguments `numbers` of a function, and the operands of its calls."""
        signature = signature_of(function)
        if signature is None or not numbers:
            return False
        blocks = function.regions[0].blocks
        if blocks:
            used = {value for op in function.walk() for value in op.operands}
            if any(blocks[0].arguments[number] in used for number in numbers):
                return False
            blocks[0].arguments = _without(blocks[0].arguments, numbers)
        _set_signature(function, signature._replace(inputs=_without(signature.inputs, numbers)))
        _edit_list(function, "arg_attrs", lambda items: _delete(items, numbers))
        for call in self.calls_of(function):
            for number in sorted(numbers, reverse=True):
                _resize_segment(call, number, -1)
                del call.operands[number : number + 1]
        return True

    def remove_function_result(self, function: IrOp, number: int) -> bool:
        """Removes a result of a function from its type, its returns and its calls."""
        signature = signature_of(function)
        if signature is None or number >= len(signature.results):
            return False
        for block in function.regions[0].blocks:
            if block.ops and _RETURN.search(block.ops[-1].name):
                if len(block.ops[-1].operands) != len(signature.results):
                    return False
                del block.ops[-1].operands[number]
        _set_signature(function, signature._replace(results=_without(signature.results, [number])))
        _edit_list(function, "res_attrs", lambda items: _delete(items, [number]))
        removed_values = [call.results.pop(number) for call in self.calls_of(function)]
        return self.replace_by_arguments(removed_values)

    def remove_result(self, op: IrOp, number: int, *, carried: bool) -> bool:
        """Removes a result of an op, and the operand of the terminators of its regions that yields it.

        If the result is `carried` from one iteration of a loop to the next, its initial value and its block arguments
        are removed too: those at the same distance from the end of the operands and of the entry block's arguments.
        """
        count = len(op.results)
        removed_values = [op.results.pop(number)]
        for block in op.blocks:
            terminator = block.ops[-1] if block.ops else None
            if terminator is not None and _YIELD.search(terminator.name) and len(terminator.operands) == count:
                del terminator.operands[number]
        if carried:
            position = len(op.operands) - count + number
            if position < 0:
                return False
            _resize_segment(op, position, -1)
            del op.operands[position]
            for region in op.regions:
                arguments = region.blocks[0].arguments if region.blocks else []
                if len(arguments) >= count:
                    removed_values.append(arguments.pop(len(arguments) - count + number))
        return self.replace_by_arguments(removed_values)

    def remove_operand(self, op: IrOp, number: int) -> bool:
        """Removes operand number `number` of an op; its results keep their types."""
        _resize_segment(op, number, -1)
        del op.operands[number]
        return True

    def unwrap(self, op: IrOp, region: IrRegion) -> bool:
        """Replaces an op by the ops of a region's only block, without the terminator."""
        block = self._block_of(op)
        if block is None or len(region.blocks) != 1:
            return False
        (body,) = region.blocks
        body_ops = body.ops[:-1] if body.ops and is_terminator(body.ops[-1]) else body.ops
        position = block.ops.index(op)
        block.ops[position : position + 1] = body_ops
        enclosing_op = self.parents[op]
        for nested in body_ops:
            self.parents[nested] = enclosing_op
        terminator = body.ops[-1] if len(body_ops) < len(body.ops) else None
        if terminator is not None and len(terminator.operands) == len(op.results):
            # The op's results become the values that its body yields.
            self._substitute(dict(zip(op.results, terminator.operands, strict=True)))
        return self.replace_by_arguments({*op.results, *body.arguments})

    def jump_to(self, op: IrOp, successor: Block) -> bool:
        """Replaces a branch by an unconditional one to `successor`, whose arguments become function arguments."""
        values = list(successor.arguments)
        op.name, op.operands, op.successors = op.name.partition(".")[0] + ".br", [], [successor]
        op.properties, op.attributes = {}, {}
        for user in self.module.walk():
            if user is not op and successor in user.successors:
                # Another branch passes values: the block keeps its arguments, and this branch passes new ones.
                op.operands = [Value(value.type) for value in values]
                return self.replace_by_arguments(op.operands) and self.remove_unreachable()
        successor.arguments = []
        return self.replace_by_arguments(values) and self.remove_unreachable()

    def remove_unreachable(self) -> bool:
        """Removes blocks that the entry block does not reach, and joins a block with its only successor.

        No other op may branch to that successor.
        """
        removed_values: set[Value] = set()
        for region in [region for op in self.module.walk() for region in op.regions]:
            reached, pending = set[Block](), region.blocks[:1]
            while pending:
                block = pending.pop()
                if block not in reached:
                    reached.add(block)
                    pending += block.ops[-1].successors if block.ops else []
            removed = [block for block in region.blocks if block not in reached]
            region.blocks = [block for block in region.blocks if block in reached]
            removed_values |= {value for block in removed for op in block.ops for value in op.results}
            removed_values |= {value for block in removed for value in block.arguments}
            self._join_blocks(region)
        return self.replace_by_arguments(removed_values)

    def _join_blocks(self, region: IrRegion) -> None:
        """Appends to each block the only successor of its terminator, if no other op branches to this successor."""
        for block in list(region.blocks):
            while block.ops and len(block.ops[-1].successors) == 1 and block in region.blocks:
                (target,) = block.ops[-1].successors
                branch_count = sum(op.successors.count(target) for other in region.blocks for op in other.ops)
                arguments = target.arguments
                if branch_count != 1 or target is block or target is region.blocks[0]:
                    break
                if len(block.ops[-1].operands) != len(arguments):
                    break
                self._substitute(dict(zip(arguments, block.ops[-1].operands, strict=True)))
                block.ops[-1:] = target.ops
                region.blocks.remove(target)

    def _substitute(self, replacements: dict[Value, Value]) -> None:
        for op in self.module.walk():
            op.operands = [replacements.get(value, value) for value in op.operands]

    def _block_of(self, op: IrOp) -> Block | None:
        return next((block for block in all_blocks(self.module) if op in block.ops), None)


def remove_unused_added(module: GenericModule) -> None:
    """Removes the unused arguments among those that stand for removed values."""
    used = {value for op in module.walk() for value in op.operands}
    rewriter = Rewriter(module)
    for function in list(module.walk()):
        if function.regions and function.regions[0].blocks and signature_of(function) is not None:
            arguments = function.regions[0].blocks[0].arguments
            unused = [n for n, value in enumerate(arguments) if value.added and value not in used]
            rewriter.remove_arguments(function, unused)


_TERMINATORS = frozenset({"return", "yield", "br", "terminator", "condition", "unreachable", "in_parallel", "reduce"})


def is_terminator(op: IrOp) -> bool:
    """Returns whether an op must end its block, judging by its name and successors."""
    return bool(op.successors) or op.name.rpartition(".")[2] in _TERMINATORS


def _resize_segment(op: IrOp, position: int, change: int) -> None:
    """Adds `change` to the size of the segment of operand number `position`, if the op has segments of operands."""
    for entries in (op.properties, op.attributes):
        match = _SEGMENT_SIZES.fullmatch(entries.get(_SEGMENTS, ""))
        if match is None:
            continue
        sizes, end = [int(size) for size in match[1].split(",")], 0
        for number, size in enumerate(sizes):
            end += size
            if position < end or number == len(sizes) - 1:
                sizes[number] += change
                break
        entries[_SEGMENTS] = f"array<i32: {', '.join(map(str, sizes))}>"


def _without(items: list[Item], numbers: Collection[int]) -> list[Item]:
    """Returns the items without those at the indices `numbers`."""
    return [item for number, item in enumerate(items) if number not in numbers]


def _delete(items: list[str], numbers: Collection[int]) -> None:
    """Removes the items at the indices `numbers`, in place."""
    items[:] = _without(items, numbers)
