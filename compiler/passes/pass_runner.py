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
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, registered
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.support.stderr_capture import capture_stderr

_REFUSED = re.compile(r"failed to add `[^`]*` with options `([^`]*)`")
_PARSER = re.compile(r"^(<Pass-Options-Parser>)?: (for the --)?")
_RESTRICTED = re.compile(r"restricted to '([^']*)' on a PassManager")
_SILENT = "Failure while executing pass pipeline"
# Finds the op that a note of a diagnostic names, and whether a message already names one.
_CURRENT = re.compile(r'^see current operation:\s*(?:%[^=]* = )?"([\w.]+)"')
_NAMED = re.compile(r"'[a-z]\w*\.[\w.]+'")
_UNREGISTERED = re.compile(r"does not refer to a registered pass")


class StepError(Exception):
    """A pass failed. `message` is its error, `node` the stable name of the node that it is about, if any.

    `place` is the number of the set of all nodes that the op comes from.
    """

    def __init__(self, message: str, detail: str = "", node: str = "", place: int = 0) -> None:
        super().__init__(message)
        self.message, self.detail, self.node, self.place = message, detail, node, place


def own_passes() -> dict[str, type[MlirPass]]:
    """Returns the passes written in Python, by name: those of this folder, and those registered by others."""
    _import_all()
    return registered()


@lru_cache(maxsize=1)
def _import_all() -> None:
    """Imports the folder's modules, which registers their passes."""
    for module in iter_modules(passes.__path__):
        import_module(f"{passes.__name__}.{module.name}")


def run_step(operation: Any, step: PassStep, context: PassContext, verify: bool = True) -> None:
    """Runs `step` on a module, in place.

    Raises `StepError` if the pass is unknown, has wrong options, fails or raises, or (with `verify`) if its result does
    not verify. The module may then be partially rewritten.
    """
    with _Diagnostics(operation.context, context.locations) as diagnostics:
        try:
            own = own_passes().get(step.name)
            if own is not None:
                _run_own(own.create(dict(step.options)), operation, step, context)
                if verify:
                    _verify(operation, diagnostics)
            else:
                _run_mlir_pass(operation, step, context, verify)
        except StepError:
            raise
        except ToolError as error:
            raise _tool_error(error, context.locations) from error
        except PassError as error:
            raise StepError(str(error)) from error
        except (ir.MLIRError, ValueError) as error:
            raise diagnostics.error(error) from error
        except Exception as error:
            # A bug in one of our passes is reported like any failure, so that the IR before it can be inspected.
            raise StepError(f"a fault in the pass itself, {type(error).__name__}: {error}", format_exc()) from error


def _run_mlir_pass(operation: Any, step: PassStep, context: PassContext, verify: bool) -> None:
    """Runs a pass of the bindings, or one that only the user's `mlir-opt` has."""
    try:
        manager = _parse_pipeline(step, operation.context, verify)
    except ValueError as error:
        if _UNREGISTERED.search(str(error)) is None or not mlir_opt.has(step.name):
            raise
        mlir_opt.run(operation, step, context.locations)
    else:
        manager.run(operation)


def _tool_error(error: ToolError, locations: LocationSets) -> StepError:
    """Converts a tool's error, with the node that it is about."""
    known = locations.sets[error.place] if error.place < len(locations.sets) else ()
    return StepError(str(error), error.detail, next(iter(known), ""), error.place)


def _run_own(found: MlirPass, operation: Any, step: PassStep, context: PassContext) -> None:
    with operation.context, context.locations.nowhere(operation.context):
        if step.anchor == found.anchor:
            found.run(operation, context)
        else:
            raise PassError(f"{found.name} runs on {found.anchor}, not on {step.anchor}")


def _verify(operation: Any, diagnostics: _Diagnostics) -> None:
    """Raises `StepError` if one of our passes has produced invalid IR."""
    try:
        operation.verify()
    except ir.MLIRError as error:
        found = diagnostics.error(error)
        message = f"its result does not verify: {found.message}"
        raise StepError(message, found.detail, found.node, found.place) from error


def _parse_pipeline(step: PassStep, context: Any, verify: bool) -> Any:
    nested = step.spelling() if step.anchor == "builtin.module" else f"{step.anchor}({step.spelling()})"
    pipeline = f"builtin.module({nested})"
    try:
        manager = passmanager.PassManager.parse(pipeline, context=context)
    except ValueError as error:
        if (found := _REFUSED.search(str(error))) is None:
            raise
        if (anchor := _RESTRICTED.search(str(error))) is not None:
            raise PassError(f"{step.name} runs on {anchor[1]}, not on {step.anchor}") from error
        why = _option_error(str(error), pipeline, context)
        raise PassError(f"{step.name} does not take the options `{found[1]}`{why and f': {why}'}") from error
    manager.enable_verifier(verify)
    return manager


def _option_error(diagnostics: str, pipeline: str, context: Any) -> str:
    """Returns what is wrong with an option.

    LLVM's option parser prints that to stderr, which the bindings do not capture, so the pipeline is parsed again with
    the process's stderr captured.
    """
    with tempfile.TemporaryFile() as captured, capture_stderr(captured):
        with contextlib.suppress(ValueError):
            passmanager.PassManager.parse(pipeline, context=context)
        captured.seek(0)
        text = captured.read().decode(errors="replace")
    lines = (line.strip() for line in (*text.splitlines(), diagnostics.partition("failed to add")[0]))
    line = next((line for line in lines if line), "")
    return _PARSER.sub("", line).rstrip("!").replace(" option: ", ": ", 1)


def _message_with_op(diagnostic: Any) -> str:
    """Returns MLIR's message, with the name of its op if only a note of the diagnostic has the name."""
    message = str(diagnostic.message)
    notes = (_CURRENT.match(str(note.message)) for note in diagnostic.notes)
    name = next((found[1] for found in notes if found is not None), "")
    if not name or _NAMED.search(message):
        return message
    return f"'{name}' {message}" if message.startswith("op ") else f"{message} ('{name}')"


@dataclass
class _Diagnostics:
    """Collects MLIR's diagnostics while a pass runs."""

    context: Any
    locations: LocationSets
    messages: list[str] = field(default_factory=list)
    node: str = ""
    place: int = 0

    def __enter__(self) -> _Diagnostics:
        self._handler = self.context.attach_diagnostic_handler(self._collect)
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.detach()
        # Python's garbage collector cannot see that the handler references this object through `_collect`: without the
        # deletion, both would leak, with the context and its IR.
        del self._handler

    def _collect(self, diagnostic: Any) -> bool:
        self.messages.append(_message_with_op(diagnostic))
        number = self.locations.number_of(diagnostic.location)
        if number and not self.node:
            self.node, self.place = self.locations.sets[number][0], number
        return True

    def error(self, error: Exception) -> StepError:
        """Returns the error to show: MLIR's first message, or the binding's own."""
        for diagnostic in getattr(error, "error_diagnostics", ()):
            self._collect(diagnostic)
        text = str(error)
        if _UNREGISTERED.search(text):
            return StepError("unknown pass", text)
        first = self.messages[0] if self.messages else next(iter(text.strip().splitlines()), type(error).__name__)
        # The rest of the message is the op in generic form, which may be very long.
        message = first.partition(" that was explicitly marked illegal")[0]
        if message == _SILENT:
            message = "it failed without a message"
        return StepError(message, "\n".join(dict.fromkeys([*self.messages, text])), self.node, self.place)
