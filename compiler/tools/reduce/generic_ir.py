"""Parses modules in MLIR's generic form to a tree that can be edited and printed, without MLIR.

The tree consists of ops, regions, blocks and values; types and attributes are texts. It therefore represents every
dialect of every MLIR version, and invalid IR. Locations are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from buddy.compiler.protocol.errors import BuddyError

# White space and comments, and the tokens of the generic form.
_SPACE = re.compile(r"(?:\s|//[^\n]*)+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_VALUE = re.compile(r"%[\w$.-]+")
_VALUE_USE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_BLOCK = re.compile(r"\^[\w$.-]+")
# The name of an attribute or property.
_ENTRY_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|[\w$.-]+')
_ALIAS = re.compile(r"[#!][\w$.-]+")
_ALIAS_DEFINITION = re.compile(r"[#!][\w$.-]+\s*=")
_NUMBER = re.compile(r"\d+")
_LINE_END = "\n"
_OPENING, _CLOSING = "([{<", ")]}>"
# Tokens of function types, affine maps and affine sets whose `>` closes no bracket.
_ARROWS = ("->", ">=")


class GenericFormError(BuddyError):
    """A text is not a module in MLIR's generic form."""


@dataclass(eq=False)
class Value:
    """An SSA value. `added` marks a function argument that stands for a removed value."""

    type: str
    added: bool = False


@dataclass(eq=False)
class Block:
    """A basic block."""

    arguments: list[Value] = field(default_factory=list)
    ops: list[IrOp] = field(default_factory=list)


@dataclass(eq=False)
class IrRegion:
    """A region of an op; its first block is the entry."""

    blocks: list[Block] = field(default_factory=list)


@dataclass(eq=False)
class IrOp:
    """An op; properties and attributes map names to the text of their value, "" for a unit attribute."""

    name: str
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    successors: list[Block] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    regions: list[IrRegion] = field(default_factory=list)

    @property
    def blocks(self) -> Iterator[Block]:
        """Returns the blocks of all regions."""
        return (block for region in self.regions for block in region.blocks)

    def walk(self) -> Iterator[IrOp]:
        """Returns this op and all nested ones, in pre-order."""
        yield self
        for block in self.blocks:
            for op in block.ops:
                yield from op.walk()


@dataclass(eq=False)
class GenericModule:
    """The top-level ops of a file, with the definitions of aliases before them and the resources after them."""

    ops: list[IrOp] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    resources: str = ""

    def walk(self) -> Iterator[IrOp]:
        """Returns all ops in pre-order."""
        for op in self.ops:
            yield from op.walk()

    @property
    def op_count(self) -> int:
        """Returns the number of ops without the modules around them."""
        return sum(op.name != "builtin.module" for op in self.walk())

    def clone(self) -> GenericModule:
        """Returns a copy whose ops have the same order."""
        return _Cloner().copy_module(self)

    def __str__(self) -> str:
        return _Printer().print_module(self)


class _Cloner:
    """Copies a module; each value and block has one copy, to which all uses refer."""

    def __init__(self) -> None:
        self._values: dict[Value, Value] = {}
        self._blocks: dict[Block, Block] = {}

    def copy_module(self, module: GenericModule) -> GenericModule:
        return GenericModule([self._copy_op(op) for op in module.ops], list(module.aliases), module.resources)

    def _copy_of_value(self, value: Value) -> Value:
        copy = self._values.get(value)
        if copy is None:
            copy = self._values[value] = Value(value.type, value.added)
        return copy

    def _copy_of_block(self, block: Block) -> Block:
        return self._blocks.setdefault(block, Block())

    def _copy_op(self, op: IrOp) -> IrOp:
        return IrOp(
            op.name, list(map(self._copy_of_value, op.operands)), list(map(self._copy_of_value, op.results)),
            list(map(self._copy_of_block, op.successors)), dict(op.properties), dict(op.attributes),
            list(map(self._copy_region, op.regions)),
        )  # fmt: skip

    def _copy_region(self, region: IrRegion) -> IrRegion:
        blocks = [self._copy_of_block(block) for block in region.blocks]
        for copy, block in zip(blocks, region.blocks, strict=True):
            copy.arguments = [self._copy_of_value(value) for value in block.arguments]
            copy.ops = [self._copy_op(op) for op in block.ops]
        return IrRegion(blocks)


# ---- printing --------------------------------------------------------------------------------------------------------


class _Printer:
    """Prints a module in generic form with new names of values, blocks and arguments.

    `_counts` has the number of the next value by prefix of its name: `%0`, `%arg0`.
    """

    def __init__(self) -> None:
        self._names: dict[Value, str] = {}
        self._labels: dict[Block, str] = {}
        self._lines: list[str] = []
        self._counts = {"": 0, "arg": 0}

    def print_module(self, module: GenericModule) -> str:
        for op in module.ops:
            self._print_op(op, "")
        text = "\n".join(self._lines)
        used, aliases = {*_ALIAS.findall(text)}, []
        for alias in reversed(module.aliases):  # an alias may use those before it
            name, _, value = alias.partition("=")
            if name.strip() in used:
                aliases.append(alias)
                used.update(_ALIAS.findall(value))
        return "\n".join([*reversed(aliases), text, *([module.resources] if module.resources else []), ""])

    def _name_of(self, value: Value) -> str:
        # In invalid IR, a value may have no definition: it gets a new name here.
        return self._names.get(value) or self._define([value], "")

    def _define(self, values: Sequence[Value], prefix: str) -> str:
        """Names the values of one op or argument; returns the name as its definition prints it: `%0`, or `%0:2`."""
        name = f"%{prefix}{self._counts[prefix]}"
        self._counts[prefix] += 1
        for index, value in enumerate(values):
            self._names.setdefault(value, name if len(values) == 1 else f"{name}#{index}")
        return name if len(values) == 1 else f"{name}:{len(values)}"

    def _print_op(self, op: IrOp, indent: str) -> None:
        """Appends the lines of an op and of its regions."""
        parts = [f'{indent}"{op.name}"']
        parts.append(f"({', '.join(map(self._name_of, op.operands))})")
        if op.results:
            # A result may have been used before this op.
            named_results = [value for value in op.results if value in self._names]
            if named_results and len(op.results) == 1:
                parts[0] = f"{indent}{self._names[named_results[0]]} = {parts[0].lstrip()}"
            else:
                parts[0] = f"{indent}{self._define(op.results, '')} = {parts[0].lstrip()}"
        if op.successors:
            parts.append(f"[{', '.join(map(self._label_of, op.successors))}]")
        if op.properties:
            parts.append(f" <{{{_print_entries(op.properties)}}}>")
        if op.regions:
            parts.append(" (")
            for number, region in enumerate(op.regions):
                self._lines.append("".join(parts) + "{")
                self._print_region(region, indent)
                parts = [f"{indent}}}" + (", " if number + 1 < len(op.regions) else ")")]
        if op.attributes:
            parts.append(f" {{{_print_entries(op.attributes)}}}")
        operands = ", ".join(value.type for value in op.operands)
        results = [value.type for value in op.results]
        single = len(results) == 1 and not results[0].startswith("(")
        parts.append(f" : ({operands}) -> {results[0] if single else '(' + ', '.join(results) + ')'}")
        self._lines.append("".join(parts))

    def _label_of(self, block: Block) -> str:
        return self._labels.setdefault(block, f"^bb{len(self._labels)}")

    def _print_region(self, region: IrRegion, indent: str) -> None:
        for number, block in enumerate(region.blocks):
            if number or block.arguments:
                arguments = ", ".join(f"{self._define([value], 'arg')}: {value.type}" for value in block.arguments)
                self._lines.append(f"{indent}{self._label_of(block)}" + (f"({arguments}):" if arguments else ":"))
            for op in block.ops:
                self._print_op(op, indent + "  ")


def _print_entries(entries: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" if value else name for name, value in entries.items())


# ---- parsing ---------------------------------------------------------------------------------------------------------


def parse(text: str) -> GenericModule:
    """Parses a file in generic form. Raises `GenericFormError`, with the line, for any other text."""
    parser = _Parser(text)
    try:
        return parser.parse_module()
    except RecursionError:
        raise GenericFormError("regions are nested too deeply") from None


def split_list(text: str) -> list[str]:
    """Splits a text at the commas outside brackets and strings, such as the elements of an attribute's list."""
    scanner, items = Scanner(text), []
    while not scanner.at_end:
        items.append(scanner.take_balanced(","))
        if not scanner.take(",") and not scanner.at_end:
            raise scanner.error("expected ','")
    return items


class Scanner:
    """Reads a text from `position` on; skips white space and comments after what it reads."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self._skip()

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def peek(self, word: str) -> bool:
        """Returns whether `word` is next."""
        return self.text.startswith(word, self.position)

    def take(self, word: str) -> bool:
        """Reads `word` if it is next; returns whether it is."""
        if not self.peek(word):
            return False
        self.position += len(word)
        self._skip()
        return True

    def expect(self, word: str) -> None:
        """Reads `word`. Raises `GenericFormError` if another text is next."""
        if not self.take(word):
            raise self.error(f"expected {word!r}")

    def match(self, pattern: re.Pattern[str]) -> str:
        """Reads a match of `pattern`; returns an empty string without one."""
        match = pattern.match(self.text, self.position)
        if match is None:
            return ""
        self.position = match.end()
        self._skip()
        return match[0]

    def require(self, pattern: re.Pattern[str], what: str) -> str:
        """Reads a match of `pattern`. Raises `GenericFormError`, which names `what`, without one."""
        token = self.match(pattern)
        if not token:
            raise self.error(f"expected {what}")
        return token

    def take_balanced(self, stops: str) -> str:
        """Reads up to one of the characters `stops`, or a closing bracket, outside brackets and strings."""
        text, start, position, depth = self.text, self.position, self.position, 0
        while position < len(text):
            character = text[position]
            if character == '"':
                match = _STRING.match(text, position)
                if match is None:
                    raise self.error("a string without end")
                position = match.end()
                continue
            if text[position : position + 2] in _ARROWS:
                position += 2
                continue
            if depth == 0 and (character in stops or character in _CLOSING):
                break
            depth += (character in _OPENING) - (character in _CLOSING)
            position += 1
        self.position = position
        self._skip()
        return text[start:position].strip()

    def error(self, problem: str) -> GenericFormError:
        """Returns an error with the line and the text at the position."""
        line = self.text.count("\n", 0, self.position) + 1
        return GenericFormError(f"line {line}: {problem}, found {self.text[self.position : self.position + 20]!r}")

    def _skip(self) -> None:
        space = _SPACE.match(self.text, self.position)
        if space is not None:
            self.position = space.end()


class _Scope:
    """The values and blocks that a region defines, by name, and the uses whose definitions have not been read yet."""

    def __init__(self, parent: _Scope | None) -> None:
        self._parent = parent
        self._values: dict[str, list[Value]] = {}
        self._blocks: dict[str, Block] = {}
        self._uses: list[tuple[IrOp, int, str]] = []

    def define(self, name: str, values: list[Value]) -> None:
        self._values[name] = values

    def block(self, name: str) -> Block:
        """Returns the block called `name`, which a branch may name before it is read."""
        return self._blocks.setdefault(name, Block())

    def use(self, op: IrOp, number: int, name: str) -> None:
        """Notes that operand `number` of `op` is the value `name`, such as `%0#1`."""
        self._uses.append((op, number, name))

    def resolve(self) -> None:
        """Sets the operands whose values this region defines; passes the other uses on to the enclosing region."""
        for op, number, name in self._uses:
            base, _, index = name.partition("#")
            values = self._values.get(base)
            if values is not None and int(index or 0) < len(values):
                op.operands[number] = values[int(index or 0)]
            elif self._parent is not None:
                self._parent.use(op, number, name)
        self._uses.clear()


class _Parser(Scanner):
    """Parses ops, regions, blocks and lists of attributes in generic form."""

    def parse_module(self) -> GenericModule:
        """Reads the whole text."""
        module, scope = GenericModule(), _Scope(None)
        while not self.at_end:
            if self.peek("{-#"):
                module.resources, self.position = self.text[self.position :].rstrip(), len(self.text)
            elif name := self.match(_ALIAS_DEFINITION):
                module.aliases.append(f"{name} {self.take_balanced(_LINE_END)}")
            else:
                module.ops.append(self._parse_op(scope))
        scope.resolve()
        if not module.ops:
            raise GenericFormError("the file has no op")
        module.aliases = [alias for alias in module.aliases if not alias.startswith("#loc")]
        return module

    def _parse_op(self, scope: _Scope) -> IrOp:
        """Reads an op with its regions; `scope` resolves its operands when their definitions are read."""
        result_names = self._parse_result_names()
        op = IrOp(self.require(_STRING, "an op in generic form")[1:-1])
        self.expect("(")
        uses = []
        while not self.take(")"):
            uses.append(self.require(_VALUE_USE, "an operand"))
            self.take(",")
        if self.take("["):
            while not self.take("]"):
                op.successors.append(scope.block(self.require(_BLOCK, "a block")))
                self.take(",")
        if self.take("<{"):
            op.properties = self._parse_entries()
            self.expect("}")
            self.expect(">")
        if self.peek("("):
            self.expect("(")
            while not self.take(")"):
                op.regions.append(self._parse_region(scope))
                self.take(",")
        if self.take("{"):
            op.attributes = self._parse_entries()
            self.expect("}")
        self.expect(":")
        inputs, outputs = self._parse_function_type()
        if len(inputs) != len(uses) or (result_names and len(outputs) != sum(count for _, count in result_names)):
            raise self.error(f"{op.name} has another number of types than values")
        op.operands = [Value(type_) for type_ in inputs]
        op.results = [Value(type_) for type_ in outputs]
        for number, use in enumerate(uses):
            scope.use(op, number, use)
        first = 0
        for name, count in result_names:
            scope.define(name, op.results[first : first + count])
            first += count
        self._skip_location()
        return op

    def _parse_result_names(self) -> list[tuple[str, int]]:
        """Reads the names before an op, such as `%0:2, %1 =`; returns each with its number of results."""
        names = []
        if self.peek("%"):
            while True:
                name = self.require(_VALUE, "a value")
                count = int(self.require(_NUMBER, "a number")) if self.take(":") else 1
                names.append((name, count))
                if not self.take(","):
                    break
            self.expect("=")
        return names

    def _parse_entries(self) -> dict[str, str]:
        """Reads attributes or properties up to the closing brace."""
        entries = {}
        while not self.peek("}"):
            name = self.require(_ENTRY_NAME, "the name of an attribute")
            entries[name] = self.take_balanced(",") if self.take("=") else ""
            self.take(",")
        return entries

    def _parse_function_type(self) -> tuple[list[str], list[str]]:
        """Reads a function type; returns the types of the operands, and those of the results."""
        self.expect("(")
        inputs = split_list(self.take_balanced(""))
        self.expect(")")
        self.expect("->")
        if not self.take("("):
            return inputs, [self.take_balanced(" \t\r\n,")]
        outputs = split_list(self.take_balanced(""))
        self.expect(")")
        return inputs, outputs

    def _parse_region(self, parent: _Scope) -> IrRegion:
        """Reads a region in braces; its values are in a new scope inside `parent`."""
        scope, region = _Scope(parent), IrRegion()
        self.expect("{")
        while not self.take("}"):
            name = self.match(_BLOCK)
            block = scope.block(name) if name else Block()
            region.blocks.append(block)
            if name:
                if self.take("("):
                    while not self.take(")"):
                        self._parse_argument(block, scope)
                        self.take(",")
                self.expect(":")
            while not self.peek("}") and not self.peek("^"):
                block.ops.append(self._parse_op(scope))
        scope.resolve()
        return region

    def _parse_argument(self, block: Block, scope: _Scope) -> None:
        name = self.require(_VALUE, "a block argument")
        self.expect(":")
        value = Value(self.take_balanced(" \t\r\n,"))
        self._skip_location()
        block.arguments.append(value)
        scope.define(name, [value])

    def _skip_location(self) -> None:
        if self.take("loc("):
            self.take_balanced("")
            self.expect(")")
