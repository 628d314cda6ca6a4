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
from buddy.compiler.protocol import EXPORT_KINDS, Export
from buddy.compiler.protocol.recipe import PLUGIN_GROUP

_EPILOG = """
Kinds: asm and object (with C header, loader, weights, examples and CMakeLists.txt), static and shared (a library, built
with the C compiler of this machine or of CC), llvm-ir, mlir and bytecode, and wheel (a Python package that needs only
NumPy). See docs/how-to/export.md. With --remote, DIR is on HOST.
"""


def make_parser() -> arguments.Parser:
    parser = arguments.source_parser("export", VERBS["export"], _EPILOG)
    text = "output folder; existing files are not overwritten without --force"
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help=text)
    text = "what to write (default: object); may be repeated, or a list: object,shared"
    parser.add_argument("--kind", type=split_kinds, metavar="KIND", action="append", default=[], help=text)
    text = "base name of C functions and files (default: the name of the source)"
    parser.add_argument("--name", default="", help=text)
    text = "the stage for mlir and bytecode, as for `dump` (default: the first MLIR stage)"
    parser.add_argument("--stage", metavar="NAME", default="", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    return parser


def split_kinds(text: str) -> list[str]:
    """The kinds in a comma-separated list; plug-ins may have further ones."""
    return text.split(",")


def _check_kinds(kinds: Sequence[str]) -> None:
    """Raises `UsageError` for an unknown kind."""
    unknown = [kind for kind in kinds if kind not in EXPORT_KINDS]
    if unknown:
        raise UsageError(
            f"unknown kind {unknown[0]!r}; known: {', '.join(EXPORT_KINDS)}, and those of plug-ins (--plugin)"
        )


def main(words: Sequence[str]) -> int:
    command = shlex.join(["buddy-tui", "export", *words])

    async def export(engine: Headless, options: argparse.Namespace, script_arguments: tuple[str, ...]) -> int:
        return await _export(engine, options, script_arguments, command)

    # Only with `--json`, stdout is for data alone, and the script's output goes to stderr.
    return run_verb_on_program(make_parser(), words, export, data_with_json=True)


async def _export(
    engine: Headless, options: argparse.Namespace, script_arguments: tuple[str, ...], command: str
) -> int:
    """Lets the engine write the files, and lists them. `command` is this command line, for the README of the export."""
    # Each value of `--kind` is a list of kinds.
    kinds = tuple(dict.fromkeys(kind for listed_kinds in options.kind for kind in listed_kinds)) or ("object",)
    # Imported here, because it takes time, and a rejected command line does not get here.
    from importlib import metadata

    if not (options.plugin or options.remote or metadata.entry_points(group=PLUGIN_GROUP)):
        _check_kinds(kinds)
    recipe = await engine.open_graph(options, script_arguments)
    stage_text = ""
    if options.stage:
        stage = choose_stage((await engine.compile(recipe)).ordered_stages(), options.stage)
        if stage.language != "mlir":
            raise UsageError(f"stage {options.stage} is not MLIR: choose an MLIR stage with --stage")
        stage_text = stage.text
    frame = Export(
        engine.client.new_request_id(),
        recipe,
        kinds,
        options.output,
        directory=arguments.working_folder(options),
        name=options.name,
        stage=stage_text,
        force=options.force,
        command=command,
    )
    exported = await engine.request(frame)
    if options.json:
        sizes = {file.name: file.size for file in exported.files}
        print(json.dumps({"source": options.source, "folder": exported.folder, "files": sizes}, indent=2))
    else:
        width = max(len(file.name) for file in exported.files)
        lines = [f"  {file.name:{width}}  {formatting.size(file.size)}" for file in exported.files]
        print("\n".join([exported.folder, *lines]))
    return 0
