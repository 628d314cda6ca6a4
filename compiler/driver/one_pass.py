"""Runs one pass on a module in a file and prints the result: `python -m buddy.compiler.driver.one_pass FILE.mlir`.

A pass that crashes ends the process, so that the command reproduces the crash.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from buddy.compiler.graph import plugins
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import PassRunError, run_pass
from buddy.compiler.protocol.recipe import OptionValue, PassStep, PluginFile

_SPELLING = re.compile(r"([\w-]+)(?:\{(.*)\})?")


def parse_step(spelling: str, anchor: str) -> PassStep:
    """Parses the output of `PassStep.spelling`. Raises `ValueError` for any other text."""
    match = _SPELLING.fullmatch(spelling.strip())
    if match is None:
        raise ValueError(f"{spelling!r} is not a pass: write NAME or NAME{{option=value}}")
    settings = [setting.partition("=") for setting in (match[2] or "").split()]
    return PassStep(match[1], "mlir", anchor, tuple((option, _parse_value(value)) for option, _, value in settings))


def _parse_value(text: str) -> OptionValue:
    """Returns the value of an option: a bool, an int or a float if `text` is one, else `text`."""
    if text in ("true", "false"):
        return text == "true"
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text


def warm_up() -> None:
    """Loads MLIR and the plug-ins, for a process that calls `main` in forks of itself. Starts no thread."""
    plugins.installed_plugins()
    with new_context():
        module = ir.Module.parse("module {}").operation
        run_pass(module, PassStep("cse", "mlir", "builtin.module"), PassContext(LocationSets()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with `arguments`, by default those of this process; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m buddy.compiler.driver.one_pass", description="run one pass on a module"
    )
    parser.add_argument("file", type=Path, help="a module, as `buddy-tui bisect` and `buddy-tui dump` write it")
    parser.add_argument("--pass", required=True, dest="step", metavar="NAME{OPTIONS}", help="the pass")
    parser.add_argument(
        "--anchor", default="builtin.module", help="the op that the pass runs on (default: builtin.module)"
    )
    parser.add_argument("--threads", type=int, default=1, help="the number of threads of the recipe (default: 1)")
    parser.add_argument("--plugin", action="append", default=[], help="a Python file to load first")
    options = parser.parse_args(arguments)
    plugin_files = [plugins.load_plugin_file(PluginFile(path)) for path in options.plugin]
    for loaded in [*plugins.installed_plugins(), *plugin_files]:
        if loaded.problem is not None:
            print(loaded.problem, file=sys.stderr)
    try:
        step, text = parse_step(options.step, options.anchor), options.file.read_text("utf-8")
        with new_context():
            module = ir.Module.parse(text).operation
            run_pass(module, step, PassContext(LocationSets(), threads=options.threads))
            print(module.get_asm(assume_verified=True), end="")
    except (OSError, ValueError, PassRunError, ir.MLIRError) as error:
        print(f"{options.file}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
