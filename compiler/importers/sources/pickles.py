"""Reads PyTorch's pickles without executing code in them unless the user allows it."""

from __future__ import annotations

import ast
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from unittest.mock import patch

import sympy
import torch

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.source_locations import SourceError, source_error

# The names of pickles in PyTorch's own archives.
_PICKLE_NAME = re.compile(r"(?:^|/)(?:data|constants)\.pkl$")
# The message of PyTorch's reader of weights about a class or function that it does not call.
_REJECTED_GLOBAL = re.compile(r"GLOBAL (\S+) was not an allowed global")
# Prefixes of the globals, in the form `module name`, that a pickle of tensors uses; other globals are foreign code.
_TENSOR_GLOBALS = (
    "torch._utils",
    "torch.storage",
    "torch ",
    "collections OrderedDict",
    "torch.nn.parameter",
    "torch._tensor",
)
# The nodes of Python's syntax tree that an expression of sizes may have.
_ALLOWED_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.Name, ast.Constant,
    ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
# The names of sympy in printed numbers, symbols and conditions.
_SYMPY_NAMES = frozenset({
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "floor", "ceiling", "oo",
    "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan",
    "GreaterThan", "And", "Or", "Not", "Piecewise", "true", "false",
})  # fmt: skip
# PyTorch's symbols of sizes and of numbers, and the permitted text between quotes in `Symbol('s77')`.
_SYMBOL = re.compile(r"(?:[su]|zuf|zf|f|uf)\d+")
_QUOTED_TEXT = re.compile(r"\w+")
TRUST = "--trust allows the file to run code: use it only if you trust the origin of the file"


class UnsafeError(BuddyError):
    """Reading the file would run code; the message names the code."""


@contextmanager
def without_running_code() -> Iterator[None]:
    """While active, PyTorch treats files as data: pickles may only contain tensors, and expressions only sizes.

    PyTorch's reader of exported programs falls back to pickles that run code, and sympy evaluates text of the file as
    Python. Raises `UnsafeError` for content that would be executed.
    """
    load = torch.load

    def load_weights(file: object, *args: object, **options: object) -> object:
        options["weights_only"] = True
        try:
            return load(file, *args, **options)
        except Exception as error:
            unsafe = _unsafe_error(error)
            if unsafe is None:
                raise
            raise unsafe from error

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "load", load_weights))
        stack.enter_context(patch("pickle.loads", _reject_class))
        stack.enter_context(patch.object(torch._C, "_pickle_load_obj", _reject_class))
        stack.enter_context(patch.object(sympy, "sympify", _wrap_sympify(sympy.sympify)))
        yield


def _reject_class(*_: object, **__: object) -> NoReturn:
    raise UnsafeError("it contains a pickled object of a custom class")


def _wrap_sympify(sympify: Callable[..., object]) -> Callable[..., object]:
    """Wraps `sympy.sympify`, which evaluates text as Python, to reject text that is no expression of sizes."""

    def sympify_sizes(expression: object, *args: object, **options: object) -> object:
        local_names = options.get("locals")
        allowed_names = local_names if isinstance(local_names, Mapping) else {}
        if isinstance(expression, str) and not _is_size_expression(expression, allowed_names):
            raise UnsafeError(f"it contains {expression[:80]!r} in place of an expression of sizes")
        return sympify(expression, *args, **options)

    return sympify_sizes


def _is_size_expression(text: str, local_names: Mapping[str, object]) -> bool:
    """Returns whether `text` is only arithmetic on symbols of sizes, on sympy's functions and on `local_names`."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, _ALLOWED_NODES) and _is_allowed_node(node, local_names) for node in nodes)


def _is_allowed_node(node: ast.AST, local_names: Mapping[str, object]) -> bool:
    """Returns whether a node of an allowed class has an allowed name, text or callee."""
    if isinstance(node, ast.Name):
        return node.id in local_names or node.id in _SYMPY_NAMES or _SYMBOL.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _QUOTED_TEXT.fullmatch(node.value) is not None
    return not isinstance(node, ast.Call) or isinstance(node.func, ast.Name)


def _unsafe_error(error: Exception) -> UnsafeError | None:
    """Returns the error for a pickle that PyTorch rejects because it would run code; `None` for other errors."""
    match = _REJECTED_GLOBAL.search(str(error))
    if "weights_only" not in str(error) and "Weights only" not in str(error):
        return None
    return UnsafeError(f"it would run {match[1]}" if match else "it contains more than tensors")


def list_globals(path: Path) -> list[str]:
    """Returns the names of the classes and functions that the pickles of a file import; nothing is executed."""
    names: list[str] = []
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for member in filter(_PICKLE_NAME.search, archive.namelist()):
                    with archive.open(member) as file:
                        names += _globals_in_pickle(file)  # type: ignore[arg-type]
        else:
            with path.open("rb") as file:
                names += _globals_in_pickle(file)
    except Exception:  # a truncated or invalid pickle: the names found so far are returned
        pass
    return [name for name in dict.fromkeys(names) if not name.startswith(_TENSOR_GLOBALS)]


def _globals_in_pickle(file: BinaryIO) -> Iterator[str]:
    """Yields the text `module name` for each global in a pickle."""
    # The texts so far: the module and the name of a `STACK_GLOBAL` are the last two.
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL":
            yield str(argument)
        elif opcode.name == "STACK_GLOBAL":
            yield " ".join(texts[-2:])
        elif isinstance(argument, str):
            texts.append(argument)


def read_weights(path: Path, title: str, trusts: bool = False) -> Any:
    """Returns the content of a file of `torch.save`; runs code in it only if the user `trusts` the file.

    Raises `SourceError`.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=not trusts)
    except Exception as error:
        raise pickle_error(path, title, error) from error


def pickle_error(path: Path, title: str, error: Exception) -> SourceError:
    """Returns the error for a pickle that was not read: it would run code, or it is damaged."""
    classes = [name.replace(" ", ".") for name in list_globals(path)]
    if not classes or isinstance(error, (EOFError, zipfile.BadZipFile)):
        first_line = str(error).strip().partition("\n")[0]
        what = f"{title} cannot be read as weights: {type(error).__name__}: {first_line[:200]}"
        return source_error(what, title, "check that the file is complete, or save it again with torch.save")
    names = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
    todo = f"save the program with torch.export.save or torch.jit.save, or open the script that makes it; {TRUST}"
    return source_error(f"{title} is a pickle that would run code: it asks for {names}", title, todo)
