"""The outcomes of a campaign's recipes by their configuration: `python -m tests.reliability.recipe_table FILE`.

`--endings OUTCOME …` prints the notes with these outcomes instead, one of each kind, with its count.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from buddy.compiler.support import files
from tests.reliability.campaign import Batch, Note

OUTCOMES = ("right", "refused", "crashed", "stopped", "differs")


def table(notes: Sequence[Note]) -> list[str]:
    """For each mark the outcomes of the recipes with it; outcomes that are not listed are faults."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for note in notes:
        for mark in (*note.marks, "**all**"):
            counts[mark][note.outcome if note.outcome in OUTCOMES else "fault"] += 1
    columns = ("recipes", *OUTCOMES, "fault")
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for mark, found in sorted(counts.items()):
        numbers = [found.total(), *(found[outcome] for outcome in (*OUTCOMES, "fault"))]
        lines.append(f"| {mark} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    return lines


def kinds(batches: Sequence[Batch], outcomes: Sequence[str]) -> list[str]:
    """The reasons of endings, each once without its numbers and names, the most frequent first."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for batch in batches:
        for note in batch.tried.notes:
            if note.outcome in outcomes:
                kind = re.sub(r"[0-9]+|'[^']*'", "#", note.why)[:60]
                counts[kind] += 1
                first.setdefault(kind, f"[seed {batch.seed}, recipe {note.number}] {note.why}\n{note.what}".rstrip())
    return [f"{count} x {first[kind]}" for kind, count in counts.most_common()]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the file of a campaign")
    parser.add_argument("--endings", nargs="+", metavar="OUTCOME", help="the reasons of these")
    options = parser.parse_args(list(arguments))
    batches = files.read_json_lines(options.file, Batch)
    if options.endings:
        print("\n".join(kinds(batches, options.endings)))
    else:
        print("\n".join(table([note for batch in batches for note in batch.tried.notes])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
