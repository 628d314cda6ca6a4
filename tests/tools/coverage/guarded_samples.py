"""Runs PyTorch's operator samples with inputs and results between two pages that nobody may touch.

    python -m tests.tools.coverage.guarded_samples --samples 1 --dtypes float32,int64,bool -o guarded.jsonl

Each program that `buddy-tui coverage` would check is compiled, and called twice: once the first byte of each input and
result is the first of a page behind a forbidden one, once the last byte is the last of a page before one. A program
that reads or writes beyond a tensor ends its process, which is a crash of its sample. Results are compared with those
of eager, which is called in ordinary memory. The status is 1 where a sample crashed or is wrong. With `-o`, results are
appended to a file, and the pairs of operators and dtypes that it has are skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

from buddy.compiler.support import files
from buddy.compiler.tools.coverage import report, session
from buddy.compiler.tools.coverage.session import RIGHT_OUTCOMES, CoveragePlan, PairResult, parse_shard, select_shard

DTYPES = "float32,float64,float16,bfloat16,int8,uint8,int16,int32,int64,bool,complex64"


@contextmanager
def guarded_checks() -> Iterator[None]:
    """The checks of coverage that are made meanwhile call compiled programs in guarded memory."""

    from buddy.compiler.tools.coverage import check
    from buddy.compiler.tools.coverage.samples import CallArguments, SampleCall
    from tests.guarded_memory import EDGES, Edge, guarded_arguments, guarded_results

    @dataclass(frozen=True)
    class GuardedCall(SampleCall):
        edge: Edge = "last"

        def copy_arguments(self) -> CallArguments:
            arguments: CallArguments = guarded_arguments(super().copy_arguments(), self.edge)
            return arguments

    ordinary = check._run_program

    def run_program(program: Any, calls: Sequence[SampleCall], backward: bool) -> Any:
        if getattr(program, "_torchdynamo_orig_callable", None) is None:
            return ordinary(program, calls, backward)
        done = None
        for edge in EDGES:
            values = [{field.name: getattr(call, field.name) for field in fields(call)} for call in calls]
            with guarded_results(edge):
                done = ordinary(program, [GuardedCall(**value, edge=edge) for value in values], backward)
        return done

    with patch.object(check, "_run_program", run_program):
        yield


def check_guarded(plan: CoveragePlan, known: dict[Any, PairResult]) -> Iterator[PairResult]:
    """The result of each pair of the plan's shard that is not known, checked in a process of its own.

    The caller must not have run an op before: see `CoverageWorker`."""
    from buddy.compiler.tools.coverage.samples import list_pairs
    from buddy.compiler.tools.coverage.worker import CoverageWorker, _warm_up

    _warm_up()
    with guarded_checks():
        worker = CoverageWorker(plan)
        try:
            for pair in select_shard(list_pairs(plan), plan.shard):
                if pair not in known:
                    yield worker.check(pair)
        finally:
            worker.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="A,B", help="only these operators")
    parser.add_argument("--dtypes", default=DTYPES, metavar="A,B", help="dtypes (all that are compiled)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="samples of each operator and dtype (1)")
    parser.add_argument("--shard", type=parse_shard, default=(1, 1), metavar="I/N", help="only part I of N parts")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="append results, skip those that it has")
    options = parser.parse_args()
    only, dtypes = (tuple(filter(None, text.split(","))) for text in (options.only, options.dtypes))
    plan = CoveragePlan(only, dtypes, options.samples, shard=options.shard)
    known = session.read_results(options.output) if options.output else {}
    found = list(known.values())
    with tempfile.TemporaryDirectory(prefix="buddy-guarded-") as cache:
        os.environ |= {"BUDDY_CACHE": cache, "OMP_NUM_THREADS": "1"}
        for result in check_guarded(plan, known):
            found.append(result)
            if options.output:
                files.append_json_line(options.output, result)
            if result.outcome not in (*RIGHT_OUTCOMES, "skipped"):
                print(report.pair_line(result), flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in Counter(r.outcome for r in found).most_common()))
    return 0 if all(result.outcome in (*RIGHT_OUTCOMES, "skipped") for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
