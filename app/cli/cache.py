"""`buddy-tui cache`: shows or clears the on-disk cache of compiled code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from buddy.app.cli import FAILURE, VERBS
from buddy.app.cli.console import Console
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support import disk_cache


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="buddy-tui cache", description=VERBS["cache"])
    parser.add_argument("--clear", action="store_true", help="remove all entries")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(list(words))
    if options.clear:
        try:
            disk_cache.clear()
        except OSError as error:
            Console().error(Diagnostic(f"the cache could not be cleared: {error}", str(disk_cache.folder())))
            return FAILURE
    contents = disk_cache.contents()
    if options.json:
        caches = {name: {"files": files, "bytes": size} for name, (files, size) in contents.items()}
        facts = {
            "folder": str(disk_cache.folder()),
            "problem": disk_cache.problem(),
            "limit": disk_cache.DEFAULT_LIMIT_BYTES,
        }
        print(json.dumps({**facts, "caches": caches}, indent=2))
        return 0
    print(f"{disk_cache.folder()}, at most {disk_cache.DEFAULT_LIMIT_BYTES >> 20} MiB for each cache")
    problem = disk_cache.problem()
    if problem:
        Console().note(f"the cache is disabled: {problem}; its folder must belong to you and be writable only by you")
    rows = [(name, files, f"{size / 2**20:.1f} MiB") for name, (files, size) in contents.items()]
    print(table(["cache", "files", "size"], rows, frozenset(["cache"])))
    return 0
