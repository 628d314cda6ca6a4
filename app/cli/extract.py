"""`buddy-tui extract SOURCE NODE…`: some nodes as a program of their own, with their real inputs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Headless, converse
from buddy.app.cli.recipes import UsageError
from buddy.app.cli.report import as_json, as_text
from buddy.app.scripts import write_script
from buddy.compiler.protocol import Extract, Extracted, Script, WriteScript


def parser() -> arguments.Parser:
    found = arguments.source_parser("extract", VERBS["extract"])
    found.add_argument("nodes", metavar="NODE", nargs="+", help="a name of the FX table, or a stable name")
    text = "write it as a script, and its tensors as a .npz beside it"
    found.add_argument("-o", "--output", type=Path, metavar="FILE.py", help=text)
    found.add_argument("--repeats", type=arguments.positive_number, default=10, metavar="N", help="timed runs (10)")
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def main(words: Sequence[str]) -> int:
    found = parser()
    options, script = arguments.parse(found, words)
    if options.output is not None and options.output.suffix != ".py":
        found.error(f"{options.output}: give a name that ends in .py")
    console = Console(options.plain, stdout_is_data=options.json)
    return converse(options, console, lambda engine: _extract(engine, options, script))


async def _extract(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
    recipe, client = await engine.graph_of_program(options, script, options.nodes), engine.client
    extracted = await client.ask(Extract(client.next_request(), recipe, tuple(options.nodes)), Extracted)
    own = msgspec.structs.replace(recipe, graph=extracted.graph)
    saved: list[str] = []
    if options.output is not None:
        made = await client.ask(WriteScript(client.next_request(), own), Script)
        try:
            saved = [str(path) for path in write_script(options.output, made)]
        except OSError as error:
            raise UsageError(f"cannot write {options.output}: {error.strerror or error}") from error
        engine.console.note(f"wrote {' and '.join(saved)}")
    compilation = await engine.run(own, options.repeats, options.timeout)
    assert compilation.report is not None
    if options.json:
        found: dict[str, Any] = as_json(extracted.info, compilation.report, compilation.assignments)
        nodes = [row.stable for row in extracted.info.rows if row.opcode.startswith("call")]
        print(json.dumps({"source": options.source, "extracted": nodes, "files": saved, **found}, indent=2))
    else:
        print(as_text(extracted.info, compilation.report, compilation.assignments))
    return 0 if compilation.report.ok else FAILURE
