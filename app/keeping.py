"""What is kept of a session beside the recipes: the layout, bookmarks, runs, inputs. No Textual.

It is kept in one file a program, and a file that cannot be read is left alone and said so: nothing depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from buddy.app.runs import LENGTH, RunRecord
from buddy.compiler.run_report import OWN_INPUTS, InputChoice

FIRST_SCRIPT = "opening a Python script runs it; files of other kinds run no code"
T = TypeVar("T")


class Kept(msgspec.Struct, frozen=True):
    """How the screen was left. `stage` is the key of the stage shown, `how` the kind of diff.

    A file of `inputs` is its path, to be read again. `source` says whether the source pane was there.
    """

    pane: str = "graph"
    zoomed: bool = False
    stage: tuple[str, int] | None = None
    node: str = ""
    how: str = "off"
    theme: str = ""
    inputs: InputChoice = OWN_INPUTS
    bookmarks: Any = None
    runs: tuple[RunRecord, ...] = ()
    source: bool = False


def read_kept(path: Path) -> tuple[Kept, str]:
    """What was kept in `path`, and what is wrong with it ("" where nothing is, or there is no file)."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Kept), ""
    except FileNotFoundError:
        return Kept(), ""
    except (OSError, ValueError, RecursionError) as error:
        return Kept(), f"the layout kept from last time could not be read: {error}"


def write_kept(path: Path, kept: Kept) -> None:
    """Keep it, whole or not at all. Raises `OSError`."""
    from buddy.app.whole_files import write_whole_bytes

    write_whole_bytes(path, msgspec.msgpack.encode(kept))


def merged(base: Kept, theirs: Kept, mine: Kept) -> Kept:
    """`mine`, with the runs and bookmarks that another workbench has added or taken away since both were at `base`."""
    runs = sorted(_merged(base.runs, theirs.runs, mine.runs), key=lambda run: run.at)[-LENGTH:]
    marks = [each.bookmarks if isinstance(each.bookmarks, list) else [] for each in (base, theirs, mine)]
    bookmarks = _merged(*marks)
    return msgspec.structs.replace(mine, runs=tuple(runs), bookmarks=bookmarks)


def _merged(base: Sequence[T], theirs: Sequence[T], mine: Sequence[T]) -> list[T]:
    added = [each for each in mine if each not in base and each not in theirs]
    return [each for each in theirs if each in mine or each not in base] + added


def is_first_script(source: str, store: Path) -> bool:
    """Whether `source` is the first script that is opened where `store` is; from then on none is."""
    path = source.partition(":")[0]
    if os.path.exists(path) and not path.endswith(".py"):
        return False
    try:
        store.mkdir(parents=True, exist_ok=True)
        (store / "a-script-was-opened").touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True
