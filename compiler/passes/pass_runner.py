"""Runs one pass of a recipe on a module and reports its errors."""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from traceback import format_exc
from typing import Any

from buddy.compiler import passes
from buddy.compiler.mlir.bindings import ir, passmanager
from buddy.compiler.mlir.mlir_tool import ToolError
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes import mlir_opt
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, registered_passes
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.support.files import capture_stderr

# Messages of MLIR's pass manager and of LLVM's option parser.
_REJECTED_OPTIONS = re.compile(r"failed to add `[^`]*` with options `([^`]*)`")
_OPTION_PARSER_PREFIX = re.compile(r"^(<Pass-Options-Parser>)?: (for the --)?")
_WRONG_ANCHOR = re.compile(r"restricted to '([^']*)' on a PassManager")
_NO_MESSAGE = "Failure while executing pass pipeline"
# The op in a note of a diagnostic, and the name of an op in a message.
_OP_IN_NOTE = re.compile(r'^see current operation:\s*(?:%[^=]* = )?"([\w.]+)"')
_OP_IN_MESSAGE = re.compile(r"'[a-z]\w*\.[\w.]+'")
_UNREGISTERED_PASS = re.compile(r"does not refer to a registered pass")


class PassRunError(BuddyError):
    """A pass failed. `message` is its first error, `detail` all of its output.

    `node` is the stable name of the first graph node that the op with the error comes from, and `node_set` the number
    of the set of all its nodes in `LocationSets`; "" and 0 if unknown.
    """

    def __init__(self, message: str, detail: str = "", node: str = "", node_set: int = 0) -> None:
        super().__init__(message)
        self.message, self.detail, self.node, self.node_set = message, detail, node, node_set


def own_passes() -> dict[str, type[MlirPass]]:
    """Returns the passes written in Python, by name: those of this folder, and those that plug-ins have registered."""
    _import_all()
    return registered_passes()


@lru_cache(maxsize=1)
def _import_all() -> None:
    """Imports the folder's modules, which registers their passes."""
    for module in iter_modules(passes.__path__):
        import_module(f"{passes.__name__}.{module.name}")


def run_pass(operation: ir.Operation, step: PassStep, context: PassContext, verify: bool = True) -> None:
    """Runs `step` on a module, in place.

    Raises `PassRunError` if the pass is unknown, has wrong options, fails or raises, or (with `verify`) if its result
    does not verify. The module may then be partially rewritten.
    """
    with _Diagnostics(operation.context, context.locations) as diagnostics:
        try:
            python_pass = own_passes().get(step.name)
            if python_pass is not None:
                _run_python_pass(python_pass.create(dict(step.options)), operation, step, context)
                if verify:
                    _verify(operation, diagnostics)
            else:
                _run_mlir_pass(operation, step, context, verify)
        except PassRunError:
            raise
        except ToolError as error:
            raise _tool_error(error, context.locations) from error
        except PassError as error:
            raise PassRunError(str(error)) from error
        except (ir.MLIRError, ValueError) as error:
            raise diagnostics.error(error) from error
        except Exception as error:
            # A bug in a Python pass is reported like any failure, so that the IR before the pass can be inspected.
            raise PassRunError(f"a fault in the pass itself, {type(error).__name__}: {error}", format_exc()) from error


def _run_mlir_pass(operation: ir.Operation, step: PassStep, context: PassContext, verify: bool) -> None:
    """Runs a pass of the bindings, or one that only the user's `mlir-opt` has."""
    try:
        manager = _parse_pipeline(step, operation.context, verify)
    except ValueError as error:
        if _UNREGISTERED_PASS.search(str(error)) is None or not mlir_opt.has(step.name):
            raise
        mlir_opt.run(operation, step, context.locations)
    else:
        manager.run(operation)


def _tool_error(error: ToolError, locations: LocationSets) -> PassRunError:
    """Converts an error of the user's `mlir-opt`, and adds the first node that the op with the error comes from."""
    nodes = locations.sets[error.node_set] if error.node_set < len(locations.sets) else ()
    return PassRunError(str(error), error.detail, next(iter(nodes), ""), error.node_set)


def _run_python_pass(python_pass: MlirPass, operation: ir.Operation, step: PassStep, context: PassContext) -> None:
    """Runs a pass written in Python. Raises `PassError` if `step` has another anchor than the pass."""
    with operation.context, context.locations.unmapped_location(operation.context):
        if step.anchor == python_pass.anchor:
            python_pass.run(operation, context)
        else:
            raise PassError(f"{python_pass.name} runs on {python_pass.anchor}, not on {step.anchor}")


def _verify(operation: ir.Operation, diagnostics: _Diagnostics) -> None:
    """Raises `PassRunError` if a Python pass has produced invalid IR."""
    try:
        operation.verify()
    except ir.MLIRError as error:
        verifier = diagnostics.error(error)
        message = f"its result does not verify: {verifier.message}"
        raise PassRunError(message, verifier.detail, verifier.node, verifier.node_set) from error


def _parse_pipeline(step: PassStep, context: ir.Context, verify: bool) -> Any:
    """Returns the pass manager for `step`.

    Raises `PassError` if the pass rejects its anchor or options, and `ValueError` for other errors of the parser.
    """
    nested = step.spelling() if step.anchor == "builtin.module" else f"{step.anchor}({step.spelling()})"
    pipeline = f"builtin.module({nested})"
    try:
        manager = passmanager.PassManager.parse(pipeline, context=context)
    except ValueError as error:
        if (rejected := _REJECTED_OPTIONS.search(str(error))) is None:
            raise
        if (anchor := _WRONG_ANCHOR.search(str(error))) is not None:
            raise PassError(f"{step.name} runs on {anchor[1]}, not on {step.anchor}") from error
        reason = _option_error(str(error), pipeline, context)
        raise PassError(f"{step.name} does not take the options `{rejected[1]}`{reason and f': {reason}'}") from error
    manager.enable_verifier(verify)
    return manager


def _option_error(diagnostics: str, pipeline: str, context: ir.Context) -> str:
    """Returns the error of LLVM's option parser for `pipeline`; `diagnostics` is the error of the bindings.

    The parser prints the error to stderr, which the bindings do not capture, so the pipeline is parsed again with the
    process's stderr captured.
    """
    with tempfile.TemporaryFile() as captured, capture_stderr(captured):
        with contextlib.suppress(ValueError):
            passmanager.PassManager.parse(pipeline, context=context)
        captured.seek(0)
        text = captured.read().decode(errors="replace")
    candidates = (line.strip() for line in (*text.splitlines(), diagnostics.partition("failed to add")[0]))
    line = next((candidate for candidate in candidates if candidate), "")
    return _OPTION_PARSER_PREFIX.sub("", line).rstrip("!").replace(" option: ", ": ", 1)


def _message_with_op(diagnostic: ir.DiagnosticInfo) -> str:
    """Returns MLIR's message; if only a note of the diagnostic has the name of the op, the name is added."""
    message = str(diagnostic.message)
    notes = (_OP_IN_NOTE.match(str(note.message)) for note in diagnostic.notes)
    name = next((note[1] for note in notes if note is not None), "")
    if not name or _OP_IN_MESSAGE.search(message):
        return message
    return f"'{name}' {message}" if message.startswith("op ") else f"{message} ('{name}')"


@dataclass
class _Diagnostics:
    """A context manager that collects MLIR's messages while a pass runs.

    `node` and `node_set` are those of the first message about an op with a known location, see `PassRunError`.
    """

    context: Any
    locations: LocationSets
    messages: list[str] = field(default_factory=list)
    node: str = ""
    node_set: int = 0

    def __enter__(self) -> _Diagnostics:
        self._handler = self.context.attach_diagnostic_handler(self._collect)
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.detach()
        # Python's garbage collector cannot see that the handler references this object through `_collect`: without the
        # deletion, both would leak, with the context and its IR.
        del self._handler

    def _collect(self, diagnostic: ir.DiagnosticInfo) -> bool:
        """Adds a diagnostic of MLIR; returns `True`, so that MLIR does not print it."""
        self.messages.append(_message_with_op(diagnostic))
        number = self.locations.number_of(diagnostic.location)
        if number and not self.node:
            self.node, self.node_set = self.locations.sets[number][0], number
        return True

    def error(self, error: Exception) -> PassRunError:
        """Returns the error to show: the first message, otherwise the first line of `error`."""
        for diagnostic in getattr(error, "error_diagnostics", ()):
            self._collect(diagnostic)
        text = str(error)
        if _UNREGISTERED_PASS.search(text):
            return PassRunError("unknown pass", text)
        first_line = next(iter(text.strip().splitlines()), type(error).__name__)
        first = self.messages[0] if self.messages else first_line
        # This text of MLIR's dialect conversion is followed by the op in generic form, which may be very long.
        message = first.partition(" that was explicitly marked illegal")[0]
        if message == _NO_MESSAGE:
            message = "it failed without a message"
        return PassRunError(message, "\n".join(dict.fromkeys([*self.messages, text])), self.node, self.node_set)
