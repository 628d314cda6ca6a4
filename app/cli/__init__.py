"""The command line: one module per verb, imported on demand. Headless verbs never import textual."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from buddy.app.workspace.sources import missing_source_error

VERBS = {
    "run": "compile, run, and compare every output with eager PyTorch",
    "recipe": "print a recipe as TOML, or its passes as a pipeline",
    "dump": "write the IR of one stage, or of all",
    "stages": "list the stages of a program's compilation, and what each pass changed",
    "trace": "show which lines of each stage come from a node or a Python line, or which nodes a line comes from",
    "explain": "list what is not compiled, graph breaks with a fix, guards, and why functions were compiled again",
    "why": "show what each pass did to a node, or why the pass left it unchanged",
    "diff": "compare a stage under two recipes, or two stages",
    "trials": "preview what each known pass would change in a stage",
    "numerics": "compare every node with eager: the first mismatch, and the origin of NaNs",
    "extract": "extract nodes as a separate graph with their real inputs, and run it",
    "export": "write a compiled program as C, a library, assembly, LLVM IR, MLIR or a wheel",
    "bisect": "find the pass, the lowering and the nodes that make a program fail, differ or run slowly",
    "reduce": "make a module smaller while a command still fails on it, without a reference",
    "profile": "measure the time of each node in a run",
    "tune": "search for the fastest recipe whose results match eager",
    "reproduce": "write a reproducer: a folder with all files of a compilation and a run",
    "replay": "compile and run a reproducer again, and report what differs",
    "share": "write one HTML file with every stage, the graph and the results, which works offline",
    "presets": "compile a program with every preset, and compare the measurements",
    "passes": "list the passes that a recipe can use",
    "ops": "list the ATen ops that the compiler supports",
    "bench": "time programs against eager, inductor, IREE and other runtimes",
    "coverage": "compile PyTorch's own operator samples and compare them with eager",
    "fuzz": "compile random programs and compare them with eager; reduce those that fail",
    "new": "write a plug-in with an op, a pass or a backend, with its test",
    "config": "show the settings, where they are stored, and all keys",
    "cache": "show, clear, export or import the on-disk cache of compiled code",
    "completion": "print a script that completes command lines in bash, zsh or fish",
    "doctor": "check the installation with a small program, and print the text for a bug report",
    "mcp": "serve the workbench's functions to an agent as tools, by the Model Context Protocol on stdin and stdout",
    "engine": "serve a workbench on stdin and stdout",
}
# Exit codes. 130 is what a shell reports after SIGINT.
FAILURE, USAGE_ERROR, INTERRUPTED = 1, 2, 130
# The error numbers of a full device, and of a file size limit or a quota that is reached.
_STORAGE_FULL_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# The verbs that run although an environment variable is misspelt: `doctor` reports it, the others read none.
_VERBS_WITHOUT_ENVIRONMENT_CHECK = ("doctor", "engine", "completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the verb named by the first argument, or opens the workbench. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    try:
        try:
            return _run_verb(words)
        finally:
            # The handlers below catch the errors of this last write, also after `--help` raises SystemExit.
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output(1, 2)  # the reader closed the pipe
        return FAILURE
    except OSError as error:
        # An error with a file name is about that file, not about standard output.
        if error.filename is not None or error.errno not in _STORAGE_FULL_ERRORS:
            raise
        _discard_output(1)
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        print("  to do: free space there, or write to another place", file=sys.stderr)
        return FAILURE


def _open_closed_streams() -> None:
    """Opens the null device in place of standard streams that are closed (`>&-`).

    Otherwise the next file or pipe that is opened would get the number of a closed stream, and with it the output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `descriptor`
            stream = open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _discard_output(*descriptors: int) -> None:
    """Sends the output that is still buffered for these file descriptors to the null device.

    Otherwise the final flush of the interpreter reports a second error.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)


def _run_verb(words: Sequence[str]) -> int:
    """Runs the verb that `words` begin with, or opens the workbench. Returns the exit code."""
    verb, rest = (words[0], words[1:]) if words and words[0] in VERBS else ("workbench", words)
    error = _first_word_error(words) if verb == "workbench" else ""
    if error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    if verb not in _VERBS_WITHOUT_ENVIRONMENT_CHECK:
        # Imported on demand: it takes longer than to find an unknown word.
        from buddy.compiler.protocol.environment import EnvironmentVariableError, check_variables

        try:
            check_variables()
        except EnvironmentVariableError as misspelt:
            print(f"error: {misspelt}", file=sys.stderr)
            return USAGE_ERROR
    return int(import_module(f"buddy.app.cli.{verb}").main(rest))


def _first_word_error(words: Sequence[str]) -> str:
    """The error if the first word is neither a verb, nor an option, nor a source that a workbench can open here.

    An empty string if it is one of these. The verb `workbench` reports the same errors, but only after the import of
    its options, which takes longer.
    """
    word = words[0] if words else "-"
    if word.startswith("-") or {"-h", "--help", "--version"} & set(words):
        return ""
    verb = _similar_verb(word)
    if verb:
        return f"unknown verb or file {word!r}: did you mean {verb}? (`buddy-tui --help` lists the verbs)"
    is_remote = any(option.partition("=")[0] in ("--engine", "--remote") for option in words)
    source_error = "" if is_remote else missing_source_error(word)
    needs_terminal = not {"--web", "--plain"} & set(words)
    return source_error or (missing_terminal_error(word) if needs_terminal else "")


def missing_terminal_error(source: str = "") -> str:
    """The error if a standard stream is not a terminal; empty if all are, or if a Textual driver replaces them.

    Without a source, the error is that of the first screen.
    """
    if os.environ.get("TEXTUAL_DRIVER"):  # set by textual-serve, which starts this process with pipes
        return ""
    streams = {"input": sys.__stdin__, "output": sys.__stdout__, "error output": sys.__stderr__}
    redirected = [name for name, stream in streams.items() if stream is None or not stream.isatty()]
    if not redirected:
        return ""
    argument = shlex.quote(source) if source else "SOURCE"
    todo = f"use `buddy-tui run {argument}` instead" + ("" if source else " (`buddy-tui --help` lists the verbs)")
    return f"the workbench needs a terminal, but standard {', '.join(redirected)} is not one; {todo}"


def _similar_verb(word: str) -> str:
    """The verb that `word` resembles; empty if it resembles none, or may be a source: a path or a module name."""
    if not word.isidentifier() or os.path.exists(word):
        return ""
    return next(iter(get_close_matches(word, VERBS, 1, 0.6)), "")
