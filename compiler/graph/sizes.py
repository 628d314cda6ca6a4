"""Symbolic sizes: polynomials in symbols such as `s0` and in quotients, remainders, maxima and minima of sizes.

A `Size` is plain data in a canonical form, so equal expressions compare equal. Arithmetic folds constants: a constant
result is an `int`. Operations that need the number (`<`, `bool`, `range`) raise `UnknownSizeError`, so that a lowering
that needs it fails instead of compiling code for one size only. Imports neither torch nor MLIR.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, NoReturn, TypeVar, Union

from buddy.compiler.protocol.errors import BuddyError

# The size of a dim.
Dim = Union[int, "Size"]
# A symbol, or an operation that is not a polynomial.
Atom = Union[str, "SizeOperation"]
# The factor of each product of atoms; the product of no atoms is 1.
Terms = dict[tuple[Atom, ...], int]


class UnknownSizeError(BuddyError):
    """The value of a symbolic size is needed at compile time; the text names the size."""


class BadSizeError(BuddyError, ValueError):
    """A text is not a size."""


@dataclass(frozen=True)
class SizeOperation:
    """`left // right`, `left % right`, `max(left, right)` or `min(left, right)`: like a symbol, an atom of terms.

    `name` is `//`, `%`, `max` or `min`.
    """

    name: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        if self.name in ("max", "min"):
            return f"{self.name}({self.left}, {self.right})"
        return f"({_operand_text(self.left)}{self.name}{_operand_text(self.right)})"


# The operations of `SizeOperation`.
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "//": operator.floordiv, "%": operator.mod, "max": max, "min": min,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Size:
    """The sum of `factor * product(atoms)` over `terms`, which are sorted; at least one term has an atom."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __str__(self) -> str:
        texts = [_term_text(atoms, factor) for atoms, factor in self.terms]
        return texts[0] + "".join(f" - {text[1:]}" if text[0] == "-" else f" + {text}" for text in texts[1:])

    __repr__ = __str__

    def __add__(self, other: Dim) -> Dim:
        terms = _terms_of(self)
        for atoms, factor in _terms_of(other).items():
            terms[atoms] = terms.get(atoms, 0) + factor
        return _from_terms(terms)

    def __mul__(self, other: Dim) -> Dim:
        terms: Terms = {}
        for left_atoms, left_factor in self.terms:
            for right_atoms, right_factor in _terms_of(other).items():
                atoms = tuple(sorted((*left_atoms, *right_atoms), key=str))
                terms[atoms] = terms.get(atoms, 0) + left_factor * right_factor
        return _from_terms(terms)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: int) -> Dim:
        return other + self * -1

    def __floordiv__(self, other: Dim) -> Dim:
        exact = exact_quotient(self, other)
        return apply_operation("//", self, other) if exact is None else exact

    def __rfloordiv__(self, other: int) -> Dim:
        return apply_operation("//", other, self)

    def __mod__(self, other: Dim) -> Dim:
        return apply_operation("%", self, other) if exact_quotient(self, other) is None else 0

    def __rmod__(self, other: int) -> Dim:
        return apply_operation("%", other, self)

    def _raise_unknown(self, *_: object) -> NoReturn:
        raise UnknownSizeError(f"the size {self} is unknown at compile time")

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __index__ = __float__ = _raise_unknown
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = _raise_unknown


# The kind of values on which `evaluate` computes.
_Value = TypeVar("_Value")

# The first letter of symbols that may be negative: they are integer arguments of the program, not sizes.
SIGNED_PREFIX = "i"


class SymbolSource(NamedTuple):
    """Where a call finds the value of symbol `name`.

    The value is the size of dim `position` of the placeholder `node`. If `node` is "", it is the integer argument
    number `position` of the program.
    """

    name: str
    node: str
    position: int


def symbol(name: str) -> Size:
    """Returns the size that is equal to the symbol `name`."""
    return Size((((name,), 1),))


def apply_operation(name: str, left: Dim, right: Dim) -> Dim:
    """Applies `//`, `%`, `max` or `min` (`name`) to two sizes. The result is a number if both sizes are numbers."""
    if isinstance(left, int) and isinstance(right, int):
        return _OPERATIONS[name](left, right)
    if name in ("max", "min"):
        difference = left - right
        if is_nonnegative(difference) or is_nonnegative(-difference):
            return left if is_nonnegative(difference) == (name == "max") else right
    return Size((((SizeOperation(name, left, right),), 1),))


def is_nonnegative(size: Dim) -> bool:
    """True if `size` is certainly not negative: it has no subtraction, and no symbol that may be negative."""
    if isinstance(size, int):
        return size >= 0
    return all(factor > 0 and all(map(_is_nonnegative_atom, atoms)) for atoms, factor in size.terms)


def _is_nonnegative_atom(atom: Atom) -> bool:
    """True if a symbol or an operation is certainly not negative."""
    if isinstance(atom, str):
        return not atom.startswith(SIGNED_PREFIX)
    operands = (is_nonnegative(atom.left), is_nonnegative(atom.right))
    return any(operands) if atom.name == "max" else all(operands)


def smallest(left: Dim, right: Dim) -> Dim:
    """Returns the smaller of two sizes, as a `min` if this depends on symbols."""
    return apply_operation("min", left, right)


def largest(left: Dim, right: Dim) -> Dim:
    """Returns the larger of two sizes, as a `max` if this depends on symbols."""
    return apply_operation("max", left, right)


def index_from_front(position: Dim, size: Dim) -> Dim:
    """Returns `position` in a dim of `size`, counted from the front; a negative position counts from the end."""
    if isinstance(position, int):
        return position + size if position < 0 else position
    if is_nonnegative(position):
        return position
    # The product is -size for a negative position, else 0.
    return position - size * largest(smallest(position, 0), -1)


def product(sizes: Sequence[Dim]) -> Dim:
    """Returns the product of sizes, 1 if there are none."""
    return reduce(operator.mul, sizes, 1)


def exact_quotient(size: Dim, divisor: Dim) -> Dim | None:
    """Returns `size / divisor` if both are equal, or if `divisor` is one term that divides each term of `size`.

    Otherwise returns `None`.
    """
    terms = _terms_of(divisor)
    if len(terms) != 1:
        return 1 if size == divisor else None
    ((atoms, factor),) = terms.items()
    quotient: Terms = {}
    for size_atoms, size_factor in _terms_of(size).items():
        remaining_atoms = list(size_atoms)
        for atom in atoms:
            if atom not in remaining_atoms:
                return None
            remaining_atoms.remove(atom)
        if size_factor % factor:
            return None
        quotient[tuple(remaining_atoms)] = size_factor // factor
    return _from_terms(quotient)


def is_dynamic(shape: Sequence[Dim]) -> bool:
    """True if a size of `shape` is symbolic."""
    return any(isinstance(size, Size) for size in shape)


def symbols_in(value: object) -> Iterator[str]:
    """Yields the symbols in a size, or in nested lists, tuples and dicts of sizes, with repeats."""
    if isinstance(value, Size):
        for atoms, _ in value.terms:
            for atom in atoms:
                yield from (atom,) if isinstance(atom, str) else symbols_in((atom.left, atom.right))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, dict):
        yield from symbols_in(list(value.values()))


def evaluate(
    size: Dim,
    symbols: Mapping[str, _Value],
    constant: Callable[[int], _Value],
    apply: Callable[[str, _Value, _Value], _Value],
) -> _Value:
    """Evaluates `size` on values of any kind, such as MLIR values of type `index`.

    `symbols` has the value of each symbol. `constant(n)` returns the value of the number `n`. `apply(op, a, b)` returns
    the value of `a op b`, where `op` is `+`, `*`, `//`, `%`, `max` or `min`.
    """
    if isinstance(size, int):
        return constant(size)

    def atom_value(atom: Atom) -> _Value:
        if isinstance(atom, str):
            return symbols[atom]
        left, right = (evaluate(operand, symbols, constant, apply) for operand in (atom.left, atom.right))
        return apply(atom.name, left, right)

    def term_value(atoms: tuple[Atom, ...], factor: int) -> _Value:
        values = [atom_value(atom) for atom in atoms]
        if factor != 1 or not values:
            values.append(constant(factor))
        return reduce(lambda a, b: apply("*", a, b), values)

    return reduce(lambda a, b: apply("+", a, b), [term_value(*term) for term in size.terms])


def value_of(size: Dim, symbols: Mapping[str, int]) -> int:
    """Returns the number that `size` is for the values of its symbols in `symbols`."""
    return int(evaluate(size, symbols, int, lambda name, a, b: _ALL_OPERATIONS[name](a, b)))


# The operations that `evaluate` applies.
_ALL_OPERATIONS = {**_OPERATIONS, "+": operator.add, "*": operator.mul}


def parse_size(text: str | int) -> Dim:
    """Parses a size in the form of `plain_size`. Raises `BadSizeError` for any other text."""
    if isinstance(text, int):
        return text
    try:
        return _convert_expression(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise BadSizeError(f"{text:.200} is not a size") from error


# The operators that `parse_size` accepts.
_PARSED_OPERATORS: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def _convert_expression(node: ast.expr) -> Dim:
    """Returns the size of a Python expression. Raises `KeyError` for an expression that is not a size."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _convert_expression(node.operand) * -1
    if isinstance(node, ast.BinOp):
        return _PARSED_OPERATORS[type(node.op)](_convert_expression(node.left), _convert_expression(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        return apply_operation(node.func.id, *map(_convert_expression, node.args))
    raise KeyError(ast.dump(node))


def plain_size(size: Dim) -> int | str:
    """Returns the size as a number, or as text if it is symbolic; `parse_size` is the inverse."""
    return size if isinstance(size, int) else str(size)


def _terms_of(size: Dim) -> Terms:
    """Returns the terms of a size; a number is the factor of the product of no atoms."""
    if isinstance(size, Size):
        return dict(size.terms)
    return {(): int(size)}


def _from_terms(terms: Terms) -> Dim:
    """Returns the size in canonical form, or a number if no term has an atom."""
    nonzero = {atoms: factor for atoms, factor in terms.items() if factor}
    if not nonzero or set(nonzero) == {()}:
        return nonzero.get((), 0)
    # The usual order of polynomials: by decreasing degree, with the constant last.
    return Size(tuple(sorted(nonzero.items(), key=lambda term: (-len(term[0]), tuple(map(str, term[0]))))))


def _term_text(atoms: tuple[Atom, ...], factor: int) -> str:
    """Returns a term as text, such as `-s0*s1`; a factor of 1 is left out."""
    texts = [str(atom) for atom in atoms]
    if factor == -1 and texts:
        return "-" + "*".join(texts)
    return "*".join([str(factor), *texts] if factor != 1 or not texts else texts)


def _operand_text(size: Dim) -> str:
    """Returns the size as text, in parentheses unless it is a number or a single atom."""
    is_atomic = isinstance(size, int) or (len(size.terms) == 1 and len(size.terms[0][0]) == 1 and size.terms[0][1] == 1)
    return str(size) if is_atomic else f"({size})"
