"""Options shared by the verbs, and the separation of our options from the arguments of the user's script.

Our options may stand before or after SOURCE. Unknown options after SOURCE belong to the script, except those that look
like a misspelt option of ours. With `--`, only what follows it belongs to the script, and unknown options before it are
errors.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from buddy.app.cli.console import Console
from buddy.app.session.engine_options import PROGRAM, RECONNECT_SECONDS, LogOptions, RemoteHost, check_host
from buddy.app.workspace.inputs import parse_seed
from buddy.compiler.protocol import dump_files
from buddy.compiler.protocol.recipe import (
    BACKEND_NAME,
    CHECKS,
    DIALECTS,
    FRONTENDS,
    MAX_THREADS,
    PRECISIONS,
    PluginFile,
)
from buddy.compiler.protocol.source_files import check_source
from buddy.compiler.protocol.source_locations import SourceError, split_source

_WEEK_MINUTES = 7 * 24 * 60.0
_SOURCE_HELP = "script.py, script.py:name, package.module:name, or a model file (docs/how-to/opening-files.md)"
_SCRIPT_ARGUMENTS_HELP = """
SOURCE is a Python script, path.py:name, package.module:name, or a model file, detected by its content. Unknown options
after SOURCE are passed to the script, and so is everything after `--`. An unknown option that resembles one of ours is
an error, unless the script's text contains it.
"""


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations, because an abbreviated option could belong to the script."""

    def __init__(self, verb: str, summary: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"buddy-tui {verb}".strip(),
            description=summary,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Prints the message without the usage, which has up to thirty lines. Exits with code 2."""
        self.exit(2, f"{self.prog}: error: {message} (`{self.prog} --help` lists the options)\n")


def source_parser(verb: str, summary: str, epilog: str = "", *, optional: bool = False) -> Parser:
    """A parser for a verb with a SOURCE argument, with the options that all such verbs share.

    If the source is `optional`, it is "" when it is left out.
    """
    parser = Parser(verb, summary, f"{epilog}\n{_SCRIPT_ARGUMENTS_HELP}" if epilog else _SCRIPT_ARGUMENTS_HELP)
    parser.add_argument("source", metavar="SOURCE", help=_SOURCE_HELP, nargs="?" if optional else None, default="")
    add_engine_options(parser)
    add_plugin_option(parser)
    return parser


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    text = "load a Python file that adds ops, lowerings, decompositions or passes; may be repeated"
    parser.add_argument("--plugin", metavar="FILE.py", action="append", default=[], help=text)
    text = "like --plugin, but it is an error if the file registers no pass"
    parser.add_argument("--pass-plugin", metavar="FILE.py", action="append", default=[], help=text)


def plugins_of(options: argparse.Namespace) -> tuple[PluginFile, ...]:
    """The plug-ins of `--plugin` and `--pass-plugin`."""
    pass_plugins = (PluginFile(path, passes=True) for path in options.pass_plugin)
    return (*map(PluginFile, options.plugin), *pass_plugins)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    text = "append the engine's log to FILE; at 8 MiB, FILE is renamed to FILE.1 (the three latest old files are kept)"
    group.add_argument("--log", type=Path, metavar="FILE", help=text)
    levels = ("debug", "info", "warning", "error")
    group.add_argument(
        "--log-level", choices=levels, default="info", help="minimum level of logged messages (default: info)"
    )
    location = group.add_mutually_exclusive_group()
    text = "command that starts the engine, e.g. 'podman exec -i NAME buddy-tui engine'"
    location.add_argument("--engine", type=shell_command, metavar="COMMAND", default="", help=text)
    text = "run the engine on HOST over ssh; SOURCE is then a path on HOST; see docs/how-to/remote.md"
    location.add_argument("--remote", type=ssh_host, metavar="HOST", default=None, help=text)
    group = parser.add_argument_group("with --remote")
    text = "run ssh with `-o OPTION`, such as 'Port=2222'; may be repeated"
    group.add_argument("--ssh-option", metavar="OPTION", action="append", default=[], help=text)
    text = "command that connects to HOST, such as 'ssh -F FILE' (default: ssh)"
    group.add_argument("--ssh", type=shell_command, metavar="COMMAND", default="ssh", help=text)
    text = "path of buddy-tui on HOST, such as venv/bin/buddy-tui (default: buddy-tui)"
    group.add_argument("--remote-program", metavar="PATH", default=PROGRAM, help=text)
    text = "folder on HOST that SOURCE is relative to (default: the home folder)"
    group.add_argument("--remote-folder", metavar="FOLDER", default="", help=text)
    text = f"how long the engine waits for a reconnect after a lost connection (default: {RECONNECT_SECONDS / 60:g})"
    group.add_argument(
        "--remote-wait", type=positive_minutes, metavar="MINUTES", default=RECONNECT_SECONDS / 60, help=text
    )


def add_failure_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Adds the options that say what the failure is, and the command that shows it on a module."""
    group = parser.add_argument_group("failure").add_mutually_exclusive_group(required=required)
    text = "a command that exits with 0 if the module is interesting"
    group.add_argument("--test", type=shell_command, metavar="COMMAND", help=text)
    group.add_argument(
        "--crash", action="store_true", help="the command crashes, with the same failed assertion, if any"
    )
    group.add_argument("--verifier", action="store_true", help="the command reports the same error")
    group.add_argument("--contains", metavar="TEXT", help="the output of the command contains TEXT")
    group = parser.add_argument_group("command").add_mutually_exclusive_group()
    text = "the command for --crash, --verifier and --contains, with {} for the module"
    group.add_argument("--command", type=shell_command, metavar="COMMAND", help=text)
    text = "run this mlir-opt, with the flags after `--` (default: $BUDDY_MLIR_OPT, or mlir-opt)"
    group.add_argument("--mlir-opt", metavar="PATH", help=text)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object to stdout, everything else to stderr")
    group.add_argument("--plain", action="store_true", help="never redraw a line, for screen readers and logs")


def add_repeats_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup, default: int = 0) -> None:
    """Adds `--repeats`; the default 0 stands for a number that depends on how long a run takes."""
    text = f"number of timed runs (default: {default or '10, or at least 3 that take 1 s together'})"
    parser.add_argument("--repeats", type=positive_number, default=default, metavar="N", help=text)


def add_input_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs").add_mutually_exclusive_group()
    text = "run on random inputs with the script's shapes and dtypes, generated from seed N"
    group.add_argument("--seed", type=seed_number, metavar="N", help=text)
    group.add_argument("--inputs", type=Path, metavar="FILE", help="run on the tensors of a .npy, .npz or .pt file")


def add_comparison_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    text = "accept NaN where eager also has NaN; without this option, any NaN is a mismatch"
    parser.add_argument("--equal-nan", action="store_true", help=text)


def shapes_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The values of `--shape`, for verbs that have this option."""
    return tuple(getattr(options, "shape", ()))


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--shape`, which replaces the shape of a model argument, and `--trust`, which lets files execute code."""
    text = "replace the shape of a model argument, such as x=4x128 or ids=1x12xi64; may be repeated"
    parser.add_argument("--shape", metavar="NAME=SHAPE", action="append", default=[], help=text)
    text = (
        "allow a pickled SOURCE to execute the code that it refers to, and a recipe file to load plug-ins "
        "and other files; without --trust, only a script executes code"
    )
    parser.add_argument("--trust", action="store_true", help=text)


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that change a recipe, and the time limits."""
    add_file_options(parser)
    group = parser.add_argument_group("recipe")
    text = "start from a recipe in TOML instead of a preset; may be given once for each graph"
    group.add_argument("--recipe", type=Path, metavar="FILE", action="append", default=[], help=text)
    group.add_argument("--preset", help="start from this preset (default: the one of the frontend and the dialect)")
    add_frontend_options(group)
    group.add_argument("--partition", choices=("layers", "whole"), help="how the graph is partitioned into functions")
    text = "the passes, in MLIR's pipeline syntax (docs/reference/recipes.md): the text, or a file that contains it"
    group.add_argument("--pipeline", metavar="TEXT|FILE", help=text)
    for verb in ("disable", "enable"):
        text = f"{verb} a pass by name; 'canonicalize#2' is the second pass with that name"
        group.add_argument(f"--{verb}", metavar="PASS", action="append", default=[], help=text)
    text = "run nodes in eager PyTorch: a name from the FX table, or a pattern such as 'gelu*'"
    group.add_argument("--eager", metavar="NODE", action="append", default=[], help=text)
    text = "checks of values, such as indices in range: raise an error as eager does, or omit the checks"
    group.add_argument("--checks", choices=CHECKS, help=text)
    add_llvm_options(group)
    text = "number of threads of compiled code and of eager"
    group.add_argument("--threads", type=thread_number, metavar="N", help=text)
    text = "only this graph of the program: its name or its number, starting at 0"
    group.add_argument("--graph", metavar="N|NAME", help=text)
    text = "time limit of the script and of each run (default: 120)"
    parser.add_argument("--timeout", type=positive_seconds, default=120.0, metavar="SECONDS", help=text)
    text = "time limit of each pass, of lowering and of code generation (default: no limit)"
    parser.add_argument("--step-timeout", type=positive_seconds, default=math.inf, metavar="SECONDS", help=text)


def add_frontend_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for frontend, dialect, target and backend: those of a recipe that the workbench has too."""
    text = (
        "the frontend that captures and imports the program: TorchDynamo, torch.export, or torch-mlir (default: dynamo)"
    )
    group.add_argument("--frontend", choices=FRONTENDS, help=text)
    text = "the dialect that ops are lowered to first; stablehlo only with --frontend torch-mlir"
    add_dialect_option(group, DIALECTS, help=text)
    text = (
        "the precision of all products of float32 that can be computed in it; int8 is int8-dynamic, int4 is "
        "int4-weights (default: f32)"
    )
    group.add_argument("--precision", type=_precision_name, choices=PRECISIONS, help=text)
    text = "the target: aarch64, riscv64, x86-64-v3, NAME:CPU:FEATURES, or a triple (default: the engine's host)"
    group.add_argument("--target", metavar="TARGET", help=text)
    text = "the backend: native (this compiler), iree, inductor, or one of a plug-in (buddy-tui passes --backends)"
    group.add_argument("--backend", type=backend_name, metavar="NAME", help=text)
    text = "a flag for that backend's compiler, as --backend-flag=--NAME=VALUE; may be repeated"
    group.add_argument("--backend-flag", type=backend_flag, metavar="FLAG", action="append", default=[], help=text)


def add_llvm_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for the passes of LLVM's optimiser."""
    text = "add a stage for each pass of LLVM's optimiser that changes something (docs/how-to/llvm-passes.md)"
    group.add_argument("--llvm-passes", action="store_true", help=text)
    text = "skip a pass of LLVM by name, such as loop-vectorize; may be repeated"
    group.add_argument("--disable-llvm-pass", metavar="NAME", action="append", default=[], help=text)


def _precision_name(text: str) -> str:
    """The name of a precision in a recipe, for which the command line has the short forms `int8` and `int4`."""
    return {"int8": "int8-dynamic", "int4": "int4-weights"}.get(text, text)


def add_dialect_option(group: argparse._ActionsContainer, choices: Sequence[str], **options: Any) -> None:
    """Adds `--dialect`, and `--flavour`, its name in version 0.1."""
    group.add_argument("--dialect", choices=choices, **options)
    group.add_argument("--flavour", choices=choices, dest="dialect", action=_RenamedOption, help=argparse.SUPPRESS)


class _RenamedOption(argparse.Action):
    """The action of an option's old name: prints the new name, and sets `dest`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **options)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(f"{parser.prog}: {option_string} is now --{self.dest}", file=sys.stderr)
        setattr(namespace, self.dest, values)


def recipe_overrides(options: argparse.Namespace) -> dict[str, object]:
    """The recipe fields that the user set with the options of `add_frontend_options`."""
    values = {key: getattr(options, key) for key in ("frontend", "dialect", "precision", "backend", "target")}
    flags = {"backend_flags": tuple(options.backend_flag)} if options.backend_flag else {}
    return {key: value for key, value in values.items() if value is not None} | flags


class PrintVersion(argparse.Action):
    """The action of `--version`. Reads the version only if the option is given, because that is slow."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = "show program's version number and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=text)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(version())
        parser.exit()


def version() -> str:
    """The name and the version of the installed package, as `--version` prints them."""
    from importlib.metadata import version

    return f"buddy-tui {version('buddy-tui')}"


def parse_with_script_arguments(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Our options, and the arguments of the script. Exits with code 2 if the command line is invalid."""
    our_words, script_words = _split_at_double_dash(words)
    options, unknown = parser.parse_known_args(our_words)
    if script_words is not None:
        if unknown:
            parser.error(f"unknown option: {' '.join(unknown)} (put options of the script after `--`)")
        return options, tuple(script_words)
    rejected = _unknown_before_source(our_words, options.source, unknown)
    if rejected:
        parser.error(f"unknown option: {' '.join(rejected)} (put options of the script after SOURCE)")
    for word in unknown:
        similar = _similar_option(parser, options.source, word.partition("=")[0])
        if similar:
            parser.error(f"unknown option: {word}: did you mean {similar}? (put options of the script after `--`)")
    return options, tuple(unknown)


def parse_program(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Like `parse_with_script_arguments`, and checks SOURCE before anything heavy is imported.

    Exits with code 2 and one message if SOURCE cannot be opened.
    """
    options, script = parse_with_script_arguments(parser, words)
    if report_source_error(options):
        parser.exit(2)
    return options, script


def report_source_error(options: argparse.Namespace) -> bool:
    """Returns whether SOURCE cannot be opened, and prints why; with `--json`, also as an object on stdout.

    A source on another machine is not checked.
    """
    if options.engine or options.remote:
        return False
    try:
        check_source(options.source)
    except SourceError as error:
        Console().error(error.diagnostic)
        if vars(options).get("json"):
            from buddy.app.reports.run_report import failure_json

            failure = {"source": options.source, "ok": False, "error": failure_json(error.diagnostic), "graphs": []}
            print(json.dumps(failure, indent=2))
        return True
    return False


def is_dump(options: argparse.Namespace) -> bool:
    """Whether SOURCE is a dump of another compiler on this machine."""
    source = getattr(options, "source", None)
    return isinstance(source, str) and not options.remote and dump_files.is_dump(Path(source))


def log_options(options: argparse.Namespace) -> LogOptions:
    """The file and the level of the engine's log."""
    return LogOptions(options.log, options.log_level)


def engine_location(options: argparse.Namespace) -> list[str] | RemoteHost | None:
    """The command that starts the engine, or its remote host; `None` for a process of this installation."""
    if not options.remote:
        return shlex.split(options.engine) or None
    return RemoteHost(
        options.remote,
        tuple(shlex.split(options.ssh)) or ("ssh",),
        tuple(options.ssh_option),
        options.remote_program,
        options.remote_folder,
        options.remote_wait * 60,
    )


def engine_words(options: argparse.Namespace) -> list[str]:
    """The options of `add_engine_options` as words of a command line, for another verb with the same engine."""
    if not options.remote:
        return ["--engine", options.engine] if options.engine else []
    words = [word for option in options.ssh_option for word in ("--ssh-option", option)]
    words += ["--remote", options.remote, "--ssh", options.ssh, "--remote-program", options.remote_program]
    return [*words, "--remote-folder", options.remote_folder, "--remote-wait", str(options.remote_wait)]


def working_folder(options: argparse.Namespace) -> str:
    """The folder that SOURCE is relative to; "" is the engine's current folder."""
    if options.remote:
        return str(options.remote_folder)
    return "" if options.engine else os.getcwd()


def ssh_host(text: str) -> str:
    """`text`, if ssh can take it for a host. Raises `ArgumentTypeError`."""
    try:
        return check_host(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def backend_name(text: str) -> str:
    """`text`, if a backend can have that name. Raises `ArgumentTypeError`; the compiler checks whether it exists."""
    if not BACKEND_NAME.search(text):
        raise argparse.ArgumentTypeError(f"invalid backend name {text!r}: use lower-case letters, digits and hyphens")
    return text


def backend_flag(text: str) -> str:
    """The flag with two leading dashes. The input may omit them, because argparse reads `--NAME` as an option."""
    name = text.strip().lstrip("-")
    if not name:
        raise argparse.ArgumentTypeError("the flag is empty: give NAME or NAME=VALUE")
    return f"--{name}"


def shell_command(text: str) -> str:
    """`text` unchanged, if the shell can split it into words. Raises `ArgumentTypeError` if not."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return text


def script_path(text: str) -> Path:
    """The path of a script to write. Its tensors are saved next to it under the same name."""
    if Path(text).suffix != ".py":
        raise argparse.ArgumentTypeError(f"{text} does not end in .py: give a name that ends in .py")
    return Path(text)


def number(text: str) -> float:
    """`text` as a number. Raises `ArgumentTypeError`."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def whole_number(text: str) -> int:
    """`text` as a whole number. Raises `ArgumentTypeError`."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def positive_seconds(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value


def positive_factor(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def positive_minutes(text: str) -> float:
    value = number(text)
    if not 0 < value <= _WEEK_MINUTES:
        raise argparse.ArgumentTypeError("must be more than 0 minutes and at most a week")
    return value


def positive_number(text: str) -> int:
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def thread_number(text: str) -> int:
    value = positive_number(text)
    if value > MAX_THREADS:
        raise argparse.ArgumentTypeError(f"must be {MAX_THREADS} or less")
    return value


def seed_number(text: str) -> int:
    try:
        return parse_seed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _split_at_double_dash(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The words before the first `--`, and those after it (`None` if there is no `--`)."""
    if "--" not in words:
        return list(words), None
    index = list(words).index("--")
    return list(words[:index]), list(words[index + 1 :])


# An option with a name of at most `_SHORT_NAME_LETTERS` letters may be misspelt by `_MAX_SHORT_EDITS` edits, a longer
# one by `_MAX_EDITS`.
_SHORT_NAME_LETTERS, _MAX_SHORT_EDITS, _MAX_EDITS = 4, 1, 2


def _similar_option(parser: argparse.ArgumentParser, source: str, option: str) -> str:
    """Our option that `option` misspells, or an empty string. An option in the script's text is not misspelt."""
    if not option.startswith("--") or _is_in_script(source, option):
        return ""
    max_edits = _MAX_SHORT_EDITS if len(option.strip("-")) <= _SHORT_NAME_LETTERS else _MAX_EDITS
    our_options = [name for name in parser._option_string_actions if name.startswith("--")]
    return next((name for name in our_options if _edit_distance(option, name) <= max_edits), "")


def _is_in_script(source: str, option: str) -> bool:
    """Whether the file of a source contains the name of an option, as a script does that defines it."""
    try:
        return option.encode() in Path(split_source(source).target).read_bytes()
    except OSError:
        return False


def _edit_distance(a: str, b: str) -> int:
    """The optimal string alignment distance of two words: insertions, deletions, replacements and swaps of letters."""
    # Entry j of row i is the distance of the first i letters of `a` and the first j letters of `b`.
    previous_row, row = list[int](), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        second_last_row, previous_row, row = previous_row, row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(previous_row[j] + 1, row[j - 1] + 1, previous_row[j - 1] + (x != y)))
            is_swap = i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y
            if is_swap:
                row[j] = min(row[j], second_last_row[j - 2] + 1)
    return row[-1]


def _unknown_before_source(words: list[str], source: str, unknown: list[str]) -> list[str]:
    """The unknown options before SOURCE, which cannot belong to the script."""
    before_source = words[: words.index(source)] if source in words else words
    return [word for word in unknown if word in before_source and word.startswith("-")]
