"""What the tests cost: seconds of wall clock and CPU, and processes started, by folder, file or test.

    python -m pytest -p tests.suite_costs --costs=FOLDER [-n 2] [tests/...]    measures into FOLDER
    python -m tests.suite_costs FOLDER [--by folder|file|test] [--most N]      prints the table

CPU seconds are those of pytest's own process and of all its descendants that had ended, and been waited for, by the
end of the test. What a fixture of a module or a session costs is counted for the first test that asks for it, and the
CPU time of its processes for the test at whose end they are stopped. Processes are counted where Python starts or
forks: a file `sitecustomize.py` in FOLDER, found through `PYTHONPATH`, writes a line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FOLDER_VARIABLE = "BUDDY_SUITE_COSTS"
STARTS = "starts.txt"
# One short write to a file opened for appending is not torn, whichever process makes it.
COUNT_PROCESSES = f"""\
import os

def _count():
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    folder = os.environ.get("{FOLDER_VARIABLE}")
    if test and folder:
        try:
            file = os.open(os.path.join(folder, "{STARTS}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{{test}}\\n".encode())
            os.close(file)
        except OSError:
            pass

_count()
os.register_at_fork(after_in_child=_count)
"""
Row = dict[str, float]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FOLDER", help="write what each test costs into FOLDER")


def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("--costs")
    if not given:
        return
    folder = Path(given).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not hasattr(config, "workerinput"):  # the process that shares the tests out, or the only one
        (folder / "sitecustomize.py").write_text(COUNT_PROCESSES, "utf-8")
        os.environ[FOLDER_VARIABLE] = str(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    exec(COUNT_PROCESSES, {})  # for what pytest's own process forks
    config.pluginmanager.register(Measurement(folder / f"{os.getpid()}.jsonl"))


class Measurement:
    """Appends one JSON object for each test to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        wall, cpu = time.perf_counter(), _cpu_seconds()
        try:
            return (yield)
        finally:
            row = {"test": item.nodeid, "wall": time.perf_counter() - wall, "cpu": _cpu_seconds() - cpu}
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def read(folder: Path) -> dict[str, Row]:
    """By test: `wall` and `cpu` in seconds, `processes` as a count."""
    rows: dict[str, Row] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            told = json.loads(line)
            rows[told["test"]] = {"tests": 1, "wall": told["wall"], "cpu": told["cpu"], "processes": 0}
    starts = folder / STARTS
    for line in starts.read_text("utf-8").splitlines() if starts.exists() else ():
        if line in rows:
            rows[line]["processes"] += 1
    return rows


def grouped(rows: dict[str, Row], key: Callable[[str], str]) -> dict[str, Row]:
    """The sums by group, and the longest wall time of a test of the group as `longest`."""
    groups: dict[str, Row] = defaultdict(lambda: defaultdict(float))
    for test, row in rows.items():
        group = groups[key(test)]
        for name, value in row.items():
            group[name] += value
        group["longest"] = max(group["longest"], row["wall"])
    return groups


KEYS: dict[str, Callable[[str], str]] = {
    "folder": lambda test: str(Path(test.partition("::")[0]).parent),
    "file": lambda test: test.partition("::")[0],
    "test": lambda test: test,
}
COLUMNS = ("tests", "wall", "cpu", "longest", "processes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what a measured run of the tests cost.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", choices=sorted(KEYS), default="folder")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="only the N with the longest wall time")
    given = parser.parse_args()
    rows = read(given.folder)
    groups = sorted(grouped(rows, KEYS[given.by]).items(), key=lambda item: -item[1]["wall"])
    print(f"{'tests':>7} {'wall s':>9} {'CPU s':>9} {'longest':>9} {'processes':>10}  {given.by}")
    for name, row in [*groups[: given.most or None], *grouped(rows, lambda test: "all").items()]:
        cells = (
            f"{row[column]:.0f}" if column in ("tests", "processes") else f"{row[column]:.1f}" for column in COLUMNS
        )
        print("{:>7} {:>9} {:>9} {:>9} {:>10}  {}".format(*cells, name))


if __name__ == "__main__":
    main()
