"""`buddy-tui export SOURCE -o DIR --kind KIND`: writes a compiled program as files that need no Python."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence

from buddy.app.cli import VERBS, arguments
from buddy.app.cli.dump import choose_stage
from buddy.app.cli.headless import Headless, run_verb_on_program
from buddy.app.cli.recipes import UsageError
from buddy.app.reports import formatting
from buddy.compiler.protocol import EXPORT_KINDS, Export, ExportKind

_EPILOG = """
Kinds: asm and object (with C header, loader, weights, examples and CMakeLists.txt), static and shared (a library, built
with the C compiler of this machine or of CC), llvm-ir, mlir and bytecode, and wheel (a Python package that needs only
NumPy). See docs/export.md. With --remote, DIR is on HOST.
"""


def parser() -> arguments.Parser:
    found = arguments.source_parser("export", VERBS["export"], _EPILOG)
    text = "output folder; existing files are not overwritten without --force"
    found.add_argument("-o", "--output", metavar="DIR", required=True, help=text)
    text = "what to write (object); may be repeated, or a list: object,shared"
    found.add_argument("--kind", type=parse_kinds, metavar="KIND", action="append", default=[], help=text)
    text = "base name of C functions and files (the name of the source)"
    found.add_argument("--name", default="", help=text)
    text = "the stage for mlir and bytecode, as for `dump` (the first MLIR stage)"
    found.add_argument("--stage", metavar="NAME", default="", help=text)
    found.add_argument("--force", action="store_true", help="overwrite existing files")
    arguments.add_recipe_options(found)
    arguments.add_output_options(found)
    return found


def parse_kinds(text: str) -> list[ExportKind]:
    """The kinds in a comma-separated list."""
    found: dict[str, ExportKind] = {kind: kind for kind in EXPORT_KINDS}
    unknown = [word for word in text.split(",") if word not in found]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown kind {unknown[0]!r}; known: {', '.join(EXPORT_KINDS)}")
    return [found[word] for word in text.split(",")]


def main(words: Sequence[str]) -> int:
    command = shlex.join(["buddy-tui", "export", *words])

    async def export(engine: Headless, options: argparse.Namespace, script: tuple[str, ...]) -> int:
        return await _export(engine, options, script, command)

    return run_verb_on_program(parser(), words, export, data_with_json=True)


async def _export(engine: Headless, options: argparse.Namespace, script: tuple[str, ...], command: str) -> int:
    recipe = await engine.graph_of_program(options, script)
    wanted = tuple(dict.fromkeys(kind for group in options.kind for kind in group)) or ("object",)
    stage = ""
    if options.stage:
        found = choose_stage((await engine.compile(recipe)).ordered(), options.stage)
        if found.language != "mlir":
            raise UsageError(f"stage {options.stage} is not MLIR: choose an MLIR stage with --stage")
        stage = found.text
    frame = Export(
        engine.client.next_request(),
        recipe,
        wanted,
        options.output,
        arguments.working_folder(options),
        options.name,
        stage,
        options.force,
        command,
    )
    made = await engine.answer(frame)
    if options.json:
        files = {file.name: file.size for file in made.files}
        print(json.dumps({"source": options.source, "folder": made.folder, "files": files}, indent=2))
    else:
        width = max(len(file.name) for file in made.files)
        print(
            "\n".join([made.folder, *(f"  {file.name:{width}}  {formatting.size(file.size)}" for file in made.files)])
        )
    return 0
