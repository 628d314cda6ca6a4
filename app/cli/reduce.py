"""`buddy-tui reduce FILE.mlir`: makes a module smaller while a command still fails on it.

No correct result is needed for comparison. `bisect_dump`, for `buddy-tui bisect DUMP`, finds the first stage of another
compiler on which such a command shows a failure. Both run in this process, without an engine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, INTERRUPTED, USAGE_ERROR, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import reporting_write_errors
from buddy.app.cli.recipes import UsageError
from buddy.compiler.mlir import mlir_tool
from buddy.compiler.mlir.mlir_tool import ToolError
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.tools.dumps.bisecting import BisectionError, StageBisection, read_dump, stages_to_test
from buddy.compiler.tools.reduce.failure import Failure, FailureKind, describe, reproduction_script, resolved_command
from buddy.compiler.tools.reduce.reduction import Reduction, ReductionError, ReductionProgress, original_execution

EPILOG = """
The command gets the path of a module in place of {}, or as its last argument. Examples:

  buddy-tui reduce bad.mlir --test './crashes.sh'
  buddy-tui reduce bad.mlir --crash --command 'mlir-opt -pass-pipeline="builtin.module(canonicalize)" {}'
  buddy-tui reduce bad.mlir --verifier --mlir-opt ~/llvm/bin/mlir-opt -- -convert-scf-to-cf
  buddy-tui reduce bad.mlir --contains 'failed to legalize' -- -convert-arith-to-llvm
  buddy-tui reduce slow.mlir --crash --timeout 5 --timeout-is-interesting -o hang.mlir -- -my-pass

Ctrl-C stops a reduction and writes the smallest module so far.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("reduce", VERBS["reduce"], EPILOG)
    parser.add_argument("source", type=Path, metavar="FILE", help="a module in MLIR that shows the failure")
    arguments.add_failure_options(parser, required=True)
    text = "time limit of each run of the command (default: 30)"
    parser.add_argument("--timeout", type=arguments.positive_seconds, default=30.0, metavar="SECONDS", help=text)
    text = "a run that exceeds the time limit counts as the failure, too"
    parser.add_argument("--timeout-is-interesting", action="store_true", help=text)
    text = "number of processes that try modules in parallel (default: one per core)"
    parser.add_argument("-j", "--jobs", type=arguments.positive_number, metavar="N", help=text)
    text = (
        "write the reduced module to OUTPUT, and a script that shows the failure to OUTPUT.sh"
        " (default: the name of FILE with .reduced.mlir)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="OUTPUT", help=text)
    arguments.add_output_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    # The words after `--` are flags of the command.
    our_words, flags = list(words), list[str]()
    if "--" in our_words:
        index = our_words.index("--")
        our_words, flags = our_words[:index], our_words[index + 1 :]
    options = make_parser().parse_args(our_words)
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        return _reduce(options, flags, console)
    except (UsageError, mlir_tool.ToolError) as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui reduce --help"))
        return USAGE_ERROR
    except ReductionError as error:
        console.error(error.diagnostic)
        return FAILURE


def _reduce(options: argparse.Namespace, flags: Sequence[str], console: Console) -> int:
    """Reduces the module, and writes the result. Returns the exit code.

    Raises `UsageError`, `ToolError`, and `ReductionError` if the module does not show the failure.
    """
    text, failure = _read_module(options.source), failure_of(options, flags)
    output = options.output or options.source.with_name(f"{options.source.stem}.reduced.mlir")
    _check_output(output, options.source)
    with tempfile.TemporaryDirectory(prefix="buddy-reduce-") as folder:
        try:
            unreduced_run = original_execution(text, failure, folder, str(options.source))
        except OSError as error:
            raise UsageError(f"cannot run {failure.command[0]}: {error.strerror or error}") from error
        reduction = Reduction(
            text, failure, options.jobs or 0, lambda: _generic_form(failure, text, folder), _progress_reporter(console)
        )
        with reduction:
            reduction.start(unreduced_run)
            console.note(f"{describe(reduction.failure)}; {_form_text(reduction.progress)}")
            code = _run_to_end(reduction)
        console.clear_progress()
    with reporting_write_errors(output):
        script = _write_files(output, reduction)
    _print_summary(options, reduction, output, script, console)
    return code


def _check_output(output: Path, source: Path) -> None:
    """Raises `UsageError` if `output` cannot be written. Called before the reduction, which may take long."""
    if output.resolve() == source.resolve():
        raise UsageError(f"{output} is the module itself: give another file with -o")
    if output.is_dir():
        raise UsageError(f"cannot write to {output}: it is a folder. Give the name of a file with -o")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write to {output}: {output.parent} is not a folder")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise UsageError(f"cannot write to {output}: permission denied")


def _run_to_end(reduction: Reduction) -> int:
    """Runs the reduction up to its end or `ctrl+c`. Returns the exit code."""
    try:
        reduction.run()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _read_module(path: Path) -> str:
    """The text of the module. Raises `UsageError`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        todo = "print it as text first, such as with `mlir-opt`"
        raise UsageError(f"{path} is not text in UTF-8 (byte {error.start}): {todo}") from error


def failure_of(options: argparse.Namespace, flags: Sequence[str]) -> Failure:
    """The failure that the options of `add_failure_options` describe, with `flags` for the command.

    Raises `UsageError` and `ToolError`.
    """
    kind: FailureKind
    if options.test is not None:
        if options.command or options.mlir_opt or flags:
            raise UsageError("--test is the whole command: it cannot be combined with --command, --mlir-opt or flags")
        kind, command = "test", shlex.split(options.test)
    else:
        if options.contains is None and not options.crash and not options.verifier:
            raise UsageError("say what the failure is: --test COMMAND, --crash, --verifier or --contains TEXT")
        if options.contains == "":
            raise UsageError("--contains needs a text: every output contains the empty one")
        if options.crash:
            kind = "crash"
        elif options.verifier:
            kind = "verifier"
        else:
            kind = "contains"
        command = shlex.split(options.command) if options.command is not None else [_mlir_opt_path(options.mlir_opt)]
    if not command:
        raise UsageError("the command is empty")
    try:
        words = resolved_command([*command, *flags])
    except FileNotFoundError:
        raise UsageError(f"{command[0]} is neither a program on the path nor an executable file") from None
    is_hang_a_failure = getattr(options, "timeout_is_interesting", False)  # not an option of `bisect`
    return Failure(kind, words, os.getcwd(), options.contains or "", options.timeout, is_hang_a_failure)


def _mlir_opt_path(path: str | None) -> str:
    """The `mlir-opt` to run. Raises `UsageError` if none is found."""
    if path:
        return os.path.expanduser(path)
    tool = mlir_tool.find_tool()
    if tool is None:
        raise UsageError(
            f"no mlir-opt on the path: give --command, or --mlir-opt PATH, or set {mlir_tool.TOOL_VARIABLE}"
        )
    return tool.path


def _generic_form(failure: Failure, text: str, folder: str) -> str:
    """The module `text` in generic form, as the program of the failure's command prints it.

    Empty for `--test`, for a program whose name does not contain `opt`, and if the program cannot print the module.
    `folder` is for the file of the module.
    """
    program = failure.command[0]
    if "opt" not in Path(program).name or failure.kind == "test":
        return ""
    path = Path(folder, "original.mlir")
    path.write_text(text, encoding="utf-8")
    command = [program, str(path), "--mlir-print-op-generic", "--allow-unregistered-dialect"]
    try:
        completed = subprocess.run(command, capture_output=True, timeout=failure.timeout, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return completed.stdout if completed.returncode == 0 else ""


def _progress_reporter(console: Console) -> Callable[[ReductionProgress], None]:
    """A function that shows the progress of a reduction on `console`."""

    def show(state: ReductionProgress) -> None:
        sizes = f"{state.original} -> {state.current} {state.unit}"
        rejected = f", {state.rejected} invalid" if state.rejected else ""
        costs = f"{state.tests} tests{rejected}, {state.hits} already tried, {state.seconds:.0f} s"
        console.progress(f"reducing {sizes}; {costs}; {state.step}")

    return show


def _form_text(progress: ReductionProgress) -> str:
    """The size of the unreduced module, and the form in which it is reduced."""
    return f"{progress.original} {progress.unit}; {progress.form}"


def _write_files(output: Path, reduction: Reduction) -> Path:
    """Writes the reduced module to `output`, and the script that shows the failure. Returns the script's path."""
    output.write_text(reduction.best, encoding="utf-8")
    script = output.with_name(f"{output.name}.sh")
    script.write_text(reproduction_script(reduction.failure, output), encoding="utf-8")
    script.chmod(0o755)
    return script


def _print_summary(
    options: argparse.Namespace, reduction: Reduction, output: Path, script: Path, console: Console
) -> None:
    """Prints the sizes, the number of tests, and the paths of the reduced module and the script."""
    state = reduction.progress
    if options.json:
        summary = {
            "file": str(options.source), "failure": describe(reduction.failure), "form": state.form, "unit": state.unit,
            "original": state.original, "reduced": state.current, "minimal": reduction.minimal, "tests": state.tests,
            "invalid": state.rejected, "known": state.hits, "seconds": round(state.seconds, 2), "output": str(output),
            "script": str(script),
        }  # fmt: skip
        print(json.dumps(summary, indent=2))
        return
    completeness = "no single step makes it smaller" if reduction.minimal else "interrupted; smaller modules may exist"
    console.print_output(
        f"{state.original} -> {state.current} {state.unit} in {state.seconds:.1f} s, {state.tests} tests "
        f"({completeness})\n"
        f"wrote {output}\nwrote {script}, which exits with 0 if {output.name} fails\n"
    )


# ---- bisection of a dump ---------------------------------------------------------------------------------------------


def bisect_dump(options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Finds and prints the first stage of the dump `options.source` that shows the failure. Returns the exit code.

    `flags` are for the user's mlir-opt.
    """
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        return _bisect_dump(options, flags, console)
    except (UsageError, ToolError) as error:
        console.error(Diagnostic(str(error), todo="run buddy-tui bisect --help"))
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def _bisect_dump(options: argparse.Namespace, flags: Sequence[str], console: Console) -> int:
    """Like `bisect_dump`, but raises `UsageError` and `ToolError`."""
    failure = failure_of(options, flags)
    try:
        dump = read_dump(Path(options.source), console.progress)
        first_failure = StageBisection(dump, failure, console.progress).run(stages_to_test(dump, options.graph or ""))
    except BisectionError as error:
        console.error(error.diagnostic)
        return FAILURE
    except OSError as error:
        raise UsageError(f"cannot run {failure.command[0]}: {error.strerror or error}") from error
    finally:
        console.clear_progress()
    saved: list[str] = []
    if options.output is not None:
        with reporting_write_errors(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
            for name, text in first_failure.texts():
                (options.output / name).write_text(text, encoding="utf-8")
                saved.append(str(options.output / name))
    if options.json:
        print(json.dumps({"source": options.source, **first_failure.summary(), "files": saved}, indent=2))
    else:
        print("\n".join([*first_failure.lines(), *(f"wrote {path}" for path in saved)]))
    return 0
