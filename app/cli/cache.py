"""`buddy-tui cache`: shows or clears the on-disk cache of compiled code, or copies it to another machine as a file."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from buddy.app.cli import FAILURE, USAGE_ERROR, VERBS, arguments
from buddy.app.cli.arguments import Parser
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, run_with_engine
from buddy.app.reports.formatting import table
from buddy.compiler.driver import cache_archive
from buddy.compiler.driver.cache_archive import ArchiveContents, ArchiveError, Trust
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support import disk_cache
from buddy.compiler.support.files import scratch_folder

_EPILOG = """\
`export FILE` writes an archive of the compiled code: all of it, or with --program only what these programs need; they
are compiled first. `import FILE` adds an archive to the cache of this machine, which later executes the code in it.
So only archives that this user's cache has sealed are read, unless --key, --sha256 or --trust is given.
"""


def make_parser() -> Parser:
    parser = Parser("cache", VERBS["cache"], _EPILOG)
    text = "write the compiled code to FILE, or read it from FILE"
    parser.add_argument("action", nargs="?", choices=("export", "import"), help=text)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the archive")
    parser.add_argument("--clear", action="store_true", help="remove all entries")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plain", action="store_true", help="do not redraw lines of progress")
    group = parser.add_argument_group("export and import")
    text = (
        "export what this program needs: a source with options of `buddy-tui stages` and arguments of the script, as "
        "one quoted word; may be repeated"
    )
    group.add_argument("--program", metavar="SOURCE", action="append", default=[], help=text)
    text = "seal or verify the archive by the secret in KEYFILE; export writes the file if it does not exist"
    group.add_argument("--key", type=Path, metavar="KEYFILE", help=text)
    text = "import the archive with this SHA-256, as export and `sha256sum` print it, by any author"
    group.add_argument("--sha256", metavar="HASH", default="", help=text)
    group.add_argument("--trust", action="store_true", help="import the archive of any author")
    return parser


def main(words: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(list(words))
    _check_usage(parser, options)
    console = Console(options.plain, stdout_is_data=options.json)
    try:
        if options.action == "export":
            return _export_archive(options, console)
        if options.action == "import":
            return _import_archive(options, console)
    except ArchiveError as error:
        console.error(error.diagnostic)
        return FAILURE
    if options.clear:
        try:
            disk_cache.clear()
        except OSError as error:
            console.error(Diagnostic(f"the cache could not be cleared: {error}", str(disk_cache.folder())))
            return FAILURE
    return _print_caches(options, console)


def _check_usage(parser: Parser, options: argparse.Namespace) -> None:
    """Exits with code 2 if options cannot be combined."""
    if options.action and options.file is None:
        parser.error(f"{options.action} needs the FILE of the archive")
    if options.action and options.clear:
        parser.error(f"--clear removes all entries: give it without {options.action}")
    if options.program and options.action != "export":
        parser.error("--program is an option of `buddy-tui cache export FILE`")
    for name in ("sha256", "trust"):
        if getattr(options, name) and options.action != "import":
            parser.error(f"--{name} is an option of `buddy-tui cache import FILE`")
    if options.key and not options.action:
        parser.error("--key is an option of `buddy-tui cache import FILE`")


def _print_caches(options: argparse.Namespace, console: Console) -> int:
    """Prints the folder, the limit and the size of each cache. Returns the exit code."""
    counts = disk_cache.count_files()
    if options.json:
        summary = {
            "folder": str(disk_cache.folder()),
            "problem": disk_cache.find_problem(),
            "limit": disk_cache.DEFAULT_LIMIT_BYTES,
            "caches": _counts_json(counts),
        }
        print(json.dumps(summary, indent=2))
        return 0
    print(f"{disk_cache.folder()}, at most {disk_cache.DEFAULT_LIMIT_BYTES >> 20} MiB for each cache")
    problem = disk_cache.find_problem()
    if problem:
        console.note(f"the cache is disabled: {problem}; its folder must belong to you and be writable only by you")
    _print_table(counts)
    return 0


def _print_table(counts: dict[str, tuple[int, int]]) -> None:
    """Prints `counts`: the number of files and the number of bytes of each cache, by the cache's name."""
    rows = [(name, files, f"{size / 2**20:.1f} MiB") for name, (files, size) in counts.items()]
    print(table(["cache", "files", "size"], rows, frozenset(["cache"])))


# ---- export -------------------------------------------------------------------------------------------------------


def _export_archive(options: argparse.Namespace, console: Console) -> int:
    """Writes an archive with the code that the programs of `--program` need, or with all code. Returns the exit code.

    Raises `ArchiveError`.
    """
    if options.key and not options.key.exists():
        cache_archive.make_key(options.key)
        console.note(
            f"wrote a new key to {options.key}: keep it secret, since it seals archives that are imported with it"
        )
    key = cache_archive.read_key(options.key) if options.key else None
    if options.program:
        with _empty_cache():
            code = _compile_programs(options.program, options.plain, console)
            contents = cache_archive.collect()
        if code:
            return code
    else:
        contents = cache_archive.collect()
    if not contents.entries:
        todo = "run a program first, or name one with --program"
        raise ArchiveError("the cache has nothing to export", str(disk_cache.folder()), todo)
    sha256 = cache_archive.write(options.file, contents, key)
    counts = _count_by_cache(contents)
    size = options.file.stat().st_size
    if options.json:
        summary = {"file": str(options.file), "bytes": size, "sha256": sha256, "caches": _counts_json(counts)}
        print(json.dumps(summary, indent=2))
        return 0
    _print_table(counts)
    print(f"{options.file}: {size / 2**20:.1f} MiB, SHA-256 {sha256}")
    return 0


@contextmanager
def _empty_cache() -> Iterator[None]:
    """While active, this process and its engines have an empty cache, which is removed at the end."""
    before = os.environ.get(disk_cache.ENVIRONMENT_VARIABLE)
    with scratch_folder("cache") as folder:
        os.environ[disk_cache.ENVIRONMENT_VARIABLE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[disk_cache.ENVIRONMENT_VARIABLE]
            else:
                os.environ[disk_cache.ENVIRONMENT_VARIABLE] = before


def _compile_programs(programs: Sequence[str], plain: bool, console: Console) -> int:
    """Compiles all graphs of each program, which fills the cache. Returns the exit code of the first failure, or 0."""
    for program in programs:
        code = _compile_program(program, plain, console)
        if code:
            return code
    return 0


def _compile_program(program: str, plain: bool, console: Console) -> int:
    """Compiles all graphs of `program`, a value of `--program`. Returns the exit code."""
    try:
        words = shlex.split(program)
    except ValueError as error:
        console.error(Diagnostic(f"--program {program!r} cannot be split into words: {error}"))
        return USAGE_ERROR
    parser = arguments.source_parser("stages", VERBS["cache"])
    arguments.add_recipe_options(parser)
    arguments.add_output_options(parser)
    options, script = arguments.parse_program(parser, words)
    options.plain = options.plain or plain

    async def compile_graphs(engine: Headless) -> int:
        engine.reopens = True
        for recipe in await engine.open_program(options, script):
            try:
                await engine.compile(recipe)
            except Failure as failure:
                engine.console.error(failure.diagnostic, f"graph {recipe.graph} of {options.source}")
                return FAILURE
        return 0

    return run_with_engine(options, console, compile_graphs)


# ---- import -------------------------------------------------------------------------------------------------------


def _import_archive(options: argparse.Namespace, console: Console) -> int:
    """Adds the archive to the cache. Returns the exit code: a failure if nothing is added. Raises `ArchiveError`."""
    trust = Trust(cache_archive.read_key(options.key) if options.key else None, options.sha256, options.trust)
    contents = cache_archive.read(options.file, trust)
    imported = cache_archive.store(contents)
    for name, reason in imported.rejected.items():
        what = f"the entries of {name} were not imported: {reason}"
        console.error(
            Diagnostic(what, str(options.file), "export the cache on a machine and installation like this one")
        )
    if options.json:
        print(json.dumps({"stored": _counts_json(imported.stored), "rejected": imported.rejected}, indent=2))
    elif imported.stored:
        _print_table(imported.stored)
    return 0 if imported.stored else FAILURE


def _count_by_cache(contents: ArchiveContents) -> dict[str, tuple[int, int]]:
    """The number of entries and the number of bytes of each cache, by the cache's name."""
    counts: dict[str, tuple[int, int]] = {}
    for entry in contents.entries:
        files, size = counts.get(entry.cache, (0, 0))
        counts[entry.cache] = files + 1, size + len(entry.data)
    return counts


def _counts_json(counts: dict[str, tuple[int, int]]) -> dict[str, object]:
    return {name: {"files": files, "bytes": size} for name, (files, size) in counts.items()}
