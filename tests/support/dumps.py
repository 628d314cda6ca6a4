"""Real dumps of other compilers, from the archives in `tests/data/dumps`."""

from __future__ import annotations

import tarfile
from pathlib import Path

ARCHIVES = Path(__file__).resolve().parent.parent / "data" / "dumps"


def unpack(name: str, folder: Path) -> Path:
    """Unpacks the dumps of the compiler `name` into `folder`; returns the folder that has them."""
    target = folder / name
    if not target.exists():
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(target, filter="data")
    return target
