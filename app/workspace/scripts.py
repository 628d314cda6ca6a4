"""Writes a graph as a Python script with its tensors. No Textual."""

from __future__ import annotations

from pathlib import Path

from buddy.app.workspace.atomic_write import write_whole, write_whole_bytes
from buddy.compiler.protocol import Script


def write_script(path: Path, script: Script) -> tuple[Path, Path]:
    """Write `script` to `path`, and its tensors to a `.npz` with the same name. Returns both paths.

    Raises `OSError`.
    """
    values = path.with_suffix(".npz")
    write_whole_bytes(values, script.values)
    write_whole(path, script.text.replace(f"{script.name}.npz", values.name))
    return path, values
