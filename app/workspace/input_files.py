"""Input files: read on the user's machine, and passed to the engine unchanged. No Textual."""

from __future__ import annotations

from pathlib import Path

from buddy.compiler.protocol.run_report import InputChoice

# The file must fit into a frame.
LONGEST_FILE = 512 << 20


def file_choice(path: Path) -> InputChoice:
    """The inputs in a file. Raises `ValueError` if the file cannot be read or has no known format.

    Special files are rejected: reading a pipe without a writer would block.
    """
    if path.suffix not in (".npy", ".npz", ".pt"):
        raise ValueError("unknown format: give a .npy, .npz or .pt file")
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ValueError("not a regular file: give a .npy, .npz or .pt file")
        if size > LONGEST_FILE:
            raise ValueError(f"larger than the limit of {LONGEST_FILE >> 20} MiB")
        return InputChoice("file", title=str(path), content=path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
