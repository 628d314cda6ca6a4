"""The worker of a reduction: checks and prints candidates by MLIR's bindings, and runs the command on them."""

from __future__ import annotations

import contextlib
import io
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.reduce.failure import CommandExecution, Failure, execute, execute_in_fork, shows_failure

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


# The form in which a candidate is written: as MLIR's bindings print it, unchanged after a check by the bindings, or
# unchanged without a check.
Form = Literal["printed", "checked", "plain"]


class TryModule(Message, frozen=True):
    """Run the command of `failure` on the module `text`, written in `form`; answered by `ModuleTried`."""

    text: str
    form: Form
    failure: Failure


class ModuleTried(Message, frozen=True):
    """The result for a module: whether it shows the failure, the text that was tested, and how the command ended.

    `execution` is `None` if the command was not run, because the bindings reject the module or the command cannot
    start; `problem` has the reason.
    """

    fails: bool
    written: str = ""
    execution: CommandExecution | None = None
    problem: str = ""


class PrintGeneric(Message, frozen=True):
    """Print the module `text` in generic form; answered by `GenericPrinted`."""

    text: str


class GenericPrinted(Message, frozen=True):
    """The answer to `PrintGeneric`: the module in generic form, or the reason why the bindings cannot read it."""

    text: str = ""
    problem: str = ""


@serves(TryModule | PrintGeneric)
def serve(channel: Channel) -> None:
    """Answers requests until the channel closes."""
    with tempfile.TemporaryDirectory(prefix="buddy-reduce-") as folder:
        path = Path(folder, "candidate.mlir")
        while (request := channel.receive()) is not None:
            channel.send(_print_generic(request) if isinstance(request, PrintGeneric) else _try_module(request, path))


def _try_module(request: TryModule, path: Path) -> ModuleTried:
    text = request.text
    if request.form != "plain":
        module, problem = _parse(text)
        if module is None:
            return ModuleTried(False, problem=problem)
        if request.form == "printed":
            text = f"{module.operation.get_asm(assume_verified=True).rstrip()}\n"
    path.write_text(text, encoding="utf-8")
    try:
        run = execute_in_fork if request.failure.forks else execute
        execution = run(request.failure, str(path))
    except OSError as error:
        return ModuleTried(False, text, problem=f"{request.failure.command[0]}: {error.strerror or error}")
    return ModuleTried(shows_failure(request.failure, execution), text, execution)


def _print_generic(request: PrintGeneric) -> GenericPrinted:
    module, problem = _parse(request.text)
    if module is None:
        return GenericPrinted(problem=problem)
    return GenericPrinted(module.operation.get_asm(print_generic_op_form=True, assume_verified=True))


def _parse(text: str) -> tuple[ir.Module | None, str]:
    """Returns the module, or `None` and the reason why it is not valid."""
    try:
        from buddy.compiler.mlir.bindings import ir

        with contextlib.redirect_stderr(io.StringIO()):
            return ir.Module.parse(text, _context()), ""
    except Exception as error:
        return None, next(iter(str(error).splitlines()), type(error).__name__)


@lru_cache(maxsize=1)
def _context() -> ir.Context:
    from buddy.compiler.mlir.bindings import ir, register_external_dialects

    context = ir.Context()
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)  # a process with threads cannot be forked
    register_external_dialects(context)
    return context
