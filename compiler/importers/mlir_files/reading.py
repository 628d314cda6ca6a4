"""Parses text or bytecode to modules with registered ops only, or returns an error with its position."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir import bindings
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.replace_ir import parse_problem
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import BuddyError

BYTECODE = b"ML\xefR"
# Where `mlir-opt --split-input-file` splits a text.
_PART_SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)
# Messages of MLIR's readers.
_UNKNOWN_DIALECT = re.compile(
    r"[Dd]ialect [`'](\w+)['`] not found|dialect '(\w+)' is unknown|unregistered dialect '?(\w+)"
)
_UNKNOWN_OP = re.compile(r"unregistered operation '([\w.]+)'|custom op '([\w.]+)' is unknown")
_OTHER_VERSION = re.compile(r"bytecode version (\d+) is newer|newer than the current version|unsupported.*version")
_OTHER_BUILD = "set BUDDY_MLIR_PACKAGE to the package of another LLVM build that has it"


class UnreadableError(BuddyError):
    """MLIR cannot read a file, or does not have an op or a dialect in it."""


@dataclass(frozen=True)
class ModulePart:
    """A module of the file, and the number of lines of the file before it."""

    module: Any
    lines_before: int = 0


def new_context() -> ir.Context:
    """Returns a context with every dialect of the bindings.

    Attributes of unknown dialects are allowed, since they do not affect compilation; unknown ops are reported later,
    with a clearer message than the parser's.
    """
    context = ir.Context()
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)
    bindings.register_external_dialects(context)
    return context


def parse_modules(content: bytes, title: str, context: ir.Context) -> list[ModulePart]:
    """Returns the modules in `content`: one, or several separated by `// -----` in a text. Raises `UnreadableError`."""
    if content.startswith(BYTECODE):
        parts = [ModulePart(_parse(content, title, context))]
    else:
        parts = [
            ModulePart(_parse(text, title, context, lines_before), lines_before)
            for text, lines_before in _split_texts(content, title)
        ]
    for part in parts:
        _check_registered(part, title, context)
    return parts


def _split_texts(content: bytes, title: str) -> list[tuple[str, int]]:
    """Returns the texts of the modules, each with the number of lines before it; parts with only comments are left out.

    Raises `UnreadableError` for content that is not UTF-8, or has no IR.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"{title} is neither UTF-8 text nor MLIR bytecode (byte {error.start})"
        raise UnreadableError(
            Diagnostic(what, title, "check the program that wrote it, and that the file is complete")
        ) from error
    texts, start = [], 0
    for end in [*(match.start() for match in _PART_SEPARATOR.finditer(text)), len(text)]:
        part = text[start:end]
        if any(line.strip() and not line.lstrip().startswith("//") for line in part.splitlines()):
            texts.append((part, text.count("\n", 0, start)))
        start = end
    if not texts:
        raise UnreadableError(Diagnostic(f"{title} contains no IR", title, "check that the file is complete"))
    return texts


def _parse(content: str | bytes, title: str, context: ir.Context, lines_before: int = 0) -> ir.Module | None:
    """Parses one module. Raises `UnreadableError`."""
    try:
        return ir.Module.parse(content, context)
    except (ir.MLIRError, ValueError) as error:
        line, column, message = parse_problem(error)
        messages = [str(info.message) for info in getattr(error, "error_diagnostics", ())] or [message]
        where = f"{title}:{line + lines_before}:{column}" if line else title
        raise UnreadableError(_parse_diagnostic("\n".join(messages), title, where)) from error
    except RuntimeError as error:  # raised by the bindings if MLIR's message quotes invalid text
        what = f"{title} cannot be read: MLIR's reader rejects it with a message that is not valid text"
        raise UnreadableError(Diagnostic(what, title, "check that the file is complete")) from error


def _parse_diagnostic(message: str, title: str, where: str) -> Diagnostic:
    """Converts a message of MLIR's parser, with a hint if one is known."""
    first_line = message.partition("\n")[0]
    if (match := _UNKNOWN_DIALECT.search(message)) is not None:
        return _missing_dialects({next(filter(None, match.groups()))}, title, where, first_line)
    # An op name without a dialect is a truncated word, or not an op.
    if (match := _UNKNOWN_OP.search(message)) is not None and "." in next(filter(None, match.groups())):
        return _unknown_ops({next(filter(None, match.groups()))}, where, first_line)
    if _OTHER_VERSION.search(message) is not None:
        what = f"{title} has another version than the bindings: {first_line}"
        todo = "write it again as text (`mlir-opt FILE`), or as bytecode of a lower version (--emit-bytecode-version)"
        return Diagnostic(what, where, todo, detail=message)
    todo = "correct the line, or check that the file is complete"
    return Diagnostic(f"{title} is not a module that MLIR can read: {first_line}", where, todo, detail=message)


def _check_registered(part: ModulePart, title: str, context: ir.Context) -> None:
    """Raises `UnreadableError` if the module has ops that the context does not know."""
    unknown_ops: dict[str, str] = {}  # the position of the first one by name

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name not in unknown_ops and not context.is_registered_operation(op.name):
            unknown_ops[op.name] = _position(op, title, part.lines_before)
        return ir.WalkResult.ADVANCE

    part.module.operation.walk(visit)
    if not unknown_ops:
        return
    dialects = {name.partition(".")[0] for name in unknown_ops}
    missing_dialects = {dialect for dialect in dialects if not _has_dialect(context, dialect)}
    where = next(iter(unknown_ops.values()))
    if missing_dialects:
        raise UnreadableError(_missing_dialects(missing_dialects, title, where, ", ".join(unknown_ops)))
    raise UnreadableError(_unknown_ops(set(unknown_ops), where, ", ".join(unknown_ops)))


def _has_dialect(context: ir.Context, name: str) -> bool:
    try:
        context.get_dialect_descriptor(name)
    except ValueError:
        return False
    return True


def _missing_dialects(dialects: set[str], title: str, where: str, detail: str) -> Diagnostic:
    names = ", ".join(sorted(dialects))
    plural = "dialects" if len(dialects) > 1 else "dialect"
    what = f"{title} uses the {plural} {names}, which the MLIR of {bindings.PACKAGE} does not have"
    return Diagnostic(what, where, f"lower it to MLIR's own dialects first; or {_OTHER_BUILD}", detail=detail)


def _unknown_ops(ops: set[str], where: str, detail: str) -> Diagnostic:
    what = f"the MLIR of {bindings.PACKAGE} has no op {', '.join(sorted(ops))}"
    return Diagnostic(
        what, where, f"check its spelling and the version that wrote it; or {_OTHER_BUILD}", detail=detail
    )


# The position in a location of a parsed module, whose file is called `-`.
_LINE = re.compile(r'"-":(\d+):\d+')


def line_of(op: ir.Operation, lines_before: int) -> int:
    """Returns the line of an op in the file; 0 if unknown."""
    match = _LINE.search(str(op.location))
    return int(match[1]) + lines_before if match else 0


def _position(op: ir.Operation, title: str, lines_before: int) -> str:
    line = line_of(op, lines_before)
    return f"{title}:{line}" if line else title
