"""Defines the failure that a reduction preserves: runs its command, judges the result, and writes a script for it.

The worker process of a reduction checks and prints candidates by MLIR's bindings, and runs the command on them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NoReturn

import msgspec

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.lifetime import describe_exit, kill_group

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


# Stands for the path of the module in a command.
PLACEHOLDER = "{}"
# `test`: the command exits with 0. `crash`: a signal ends it. `verifier`: it reports an error. `contains`: its output
# contains a text. In each case the part of the output that names the failure must stay the same.
FailureKind = Literal["test", "crash", "verifier", "contains"]

_SIGNAL_CODES = 128  # a shell exits with this code plus the number of the signal
_ASSERTION = re.compile(r"Assertion `.*' failed|LLVM ERROR: .*|UNREACHABLE executed.*|Assertion failed: [^,\n]*")
_ERROR = re.compile(r"error: (?!unexpected error)(.*)")
# The parts that differ between messages about the same fault: numbers, types, and names of values and symbols.
_VARIABLE_PART = re.compile(r"[%@^#][\w$.-]+|\d+|'(?:[^'\s]*[<>][^'\n]*|[if]\d+|index)'")
# The end of a command's output that is read, and the time between two checks whether a fork has ended.
_MAX_OUTPUT_BYTES = 1 << 20
_POLL_SECONDS = 0.005


class Failure(msgspec.Struct, frozen=True):
    """A command, and the result that counts as its failure. `{}` in `command` stands for the path of the module.

    `text` must be in the output for `contains`; for `crash` and `verifier` it is the message of the original failure,
    without its variable parts, "" if unknown. The command runs in `folder`. It is stopped after `timeout` seconds,
    which counts as the failure if `hang_fails` is set. If `forks` is set, the command is `python -m MODULE …`: a worker
    process calls `warm_up` of the module once, and its `main`, with the other arguments, in forks of itself.
    """

    kind: FailureKind
    command: tuple[str, ...]
    folder: str
    text: str = ""
    timeout: float = 30.0
    hang_fails: bool = False
    forks: bool = False

    def words(self, path: str) -> list[str]:
        """Returns the command for the module at `path`."""
        if any(PLACEHOLDER in word for word in self.command):
            return [word.replace(PLACEHOLDER, path) for word in self.command]
        return [*self.command, path]


class CommandExecution(msgspec.Struct, frozen=True):
    """How a command ended: its exit code, negative for a signal, `None` after a timeout; and its output."""

    code: int | None
    output: str

    def describe(self) -> str:
        """Returns the end of a sentence for an error message, with the first line of the output."""
        if self.code is None:
            how = "timed out"
        else:
            how = f"ended with {describe_exit(self.code)}" if self.code else "succeeded"
        lines = [line for line in self.output.splitlines() if line.strip()]
        return how + (f": {lines[0][:200]}" if lines else "")


def execute(failure: Failure, path: str) -> CommandExecution:
    """Runs the command on the file at `path`; kills it and all its children at the time limit. Raises `OSError`."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            failure.words(path), cwd=failure.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        code: int | None
        try:
            code = process.wait(failure.timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process.pid)
            process.wait()
        return CommandExecution(code, _tail(output))


def execute_in_fork(failure: Failure, path: str) -> CommandExecution:
    """Runs the command as `execute` does, but in a fork of this process, which must have one thread."""
    _, _, module, *words = failure.words(path)
    run = _warm_main(module)
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            _run_as_child(run, words, output.fileno())
        deadline, status = time.monotonic() + failure.timeout, None
        while status is None and time.monotonic() < deadline:
            finished_pid, exit_status = os.waitpid(process, os.WNOHANG)
            status = exit_status if finished_pid else None
            time.sleep(0 if finished_pid else _POLL_SECONDS)
        if status is None:
            kill_group(process)
            os.waitpid(process, 0)
        return CommandExecution(None if status is None else os.waitstatus_to_exitcode(status), _tail(output))


@lru_cache(maxsize=1)
def _warm_main(module: str) -> Callable[[list[str]], int]:
    """Calls `warm_up` of a module, which loads what a run needs, and returns its `main`."""
    loaded = importlib.import_module(module)
    loaded.warm_up()
    main: Callable[[list[str]], int] = loaded.main
    return main


def _run_as_child(run: Callable[[list[str]], int], words: list[str], output: int) -> NoReturn:
    """Runs `run` with stdout and stderr in the file `output`, and exits with its result."""
    code = 1
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = run(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tail(output: IO[bytes]) -> str:
    """Returns the last `_MAX_OUTPUT_BYTES` of a file as text."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MAX_OUTPUT_BYTES))
    return output.read().decode(errors="replace")


def shows_failure(failure: Failure, result: CommandExecution) -> bool:
    """Returns whether the command has failed as `failure` says."""
    if result.code is None:
        return failure.hang_fails
    if failure.kind == "test":
        return result.code == 0
    if failure.kind == "contains":
        return failure.text in result.output
    if failure.kind == "crash":
        return is_crash(result) and (not failure.text or failure.text == crash_message(result.output))
    return result.code != 0 and (error_message(result.output) == failure.text if failure.text else _has_error(result))


def is_crash(result: CommandExecution) -> bool:
    """Returns whether a signal, a failed assertion or a fatal error has ended the command."""
    if result.code is None:
        return False
    return result.code < 0 or result.code > _SIGNAL_CODES or _ASSERTION.search(result.output) is not None


def _has_error(result: CommandExecution) -> bool:
    return _ERROR.search(result.output) is not None


def with_message(failure: Failure, original: CommandExecution) -> Failure:
    """Returns `failure` with the message of the original run, so that a reduction does not end at another failure."""
    if failure.kind == "crash":
        return msgspec.structs.replace(failure, text=crash_message(original.output))
    if failure.kind == "verifier":
        return msgspec.structs.replace(failure, text=error_message(original.output))
    return failure


def crash_message(output: str) -> str:
    """Returns the failed assertion or fatal error in an output without its variable parts, or an empty string."""
    match = _ASSERTION.search(output)
    return _VARIABLE_PART.sub("_", match[0]) if match else ""


def error_message(output: str) -> str:
    """Returns the first error in an output without its variable parts, or an empty string."""
    match = _ERROR.search(output)
    return _VARIABLE_PART.sub("_", match[1]).strip() if match else ""


def resolved_command(command: Sequence[str]) -> tuple[str, ...]:
    """Returns a command with the full path of its program, to run in any folder. Raises `FileNotFoundError`."""
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(command[0])
    return (os.path.abspath(program), *command[1:])


def reproduction_script(failure: Failure, path: Path) -> str:
    """Returns a shell script that exits with 0 if the module at `path`, in the folder of the script, still fails."""
    run = " ".join(map(_shell_word, failure.words(PLACEHOLDER)))
    lines = [
        "#!/bin/sh",
        f"# Exits with 0 if {path.name} still fails: {describe(failure)}.",
        f'file=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/{shlex.quote(path.name)}',
        f"cd {shlex.quote(failure.folder)} || exit 2",
        f"output=$(timeout -s KILL {failure.timeout:g} {run} 2>&1 </dev/null)",
        "code=$?",
        "printf '%s\\n' \"$output\"",
    ]
    if failure.hang_fails:
        lines.append(f"[ $code -eq {_SIGNAL_CODES + signal.SIGKILL} ] && exit 0")
    if failure.kind == "test":
        lines.append("exit $code")
    elif failure.kind == "contains":
        lines.append(f"printf '%s\\n' \"$output\" | grep -qF -- {shlex.quote(failure.text)}")
    elif failure.kind == "crash":
        lines.append(f"[ $code -gt {_SIGNAL_CODES} ] || printf '%s\\n' \"$output\" | grep -qE 'Assertion|LLVM ERROR:'")
    else:
        lines.append("[ $code -ne 0 ] && printf '%s\\n' \"$output\" | grep -q 'error: '")
    return "\n".join([*lines, ""])


def _shell_word(word: str) -> str:
    """Returns a word of the command for a shell, with the file in place of `{}`."""
    return '"$file"'.join(shlex.quote(part) if part else "" for part in word.split(PLACEHOLDER)) or "''"


def describe(failure: Failure) -> str:
    """Returns a description of the failure, as the end of a sentence."""
    what = {
        "test": "the test exits with 0",
        "crash": "the command crashes",
        "verifier": "the command reports an error",
        "contains": f"the output contains {failure.text!r}",
    }[failure.kind]
    message = f" ({failure.text})" if failure.text and failure.kind in ("crash", "verifier") else ""
    hang = f", or takes more than {failure.timeout:g} s" if failure.hang_fails else ""
    return what + message + hang


# ---- the worker ------------------------------------------------------------------------------------------------------


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
