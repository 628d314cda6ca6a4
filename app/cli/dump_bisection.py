"""`buddy-tui bisect DUMP`: finds the first stage of another compiler on which a command of the user shows a failure.

The search runs in this process, without an engine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from buddy.app.cli import FAILURE, INTERRUPTED, USAGE_ERROR
from buddy.app.cli.console import Console
from buddy.app.cli.headless import reporting_write_errors
from buddy.app.cli.recipes import UsageError
from buddy.app.cli.reduce import failure_of
from buddy.compiler.mlir.mlir_tool import ToolError
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.tools.dumps.bisecting import BisectionError, StageBisection, read_dump, stages_to_test


def bisect_dump(options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Search the dump `options.source`; `flags` are for the user's mlir-opt. Returns the exit code."""
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
