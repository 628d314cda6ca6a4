"""Files of inputs: read here, where the user is, and handed to the engine as they are. No Textual."""

from __future__ import annotations

from pathlib import Path

from buddy.compiler.protocol.run_report import InputChoice

# A frame has to hold it, together with all else.
LONGEST_FILE = 512 << 20


def file_choice(path: Path) -> InputChoice:
    """The inputs in a file. Raises `ValueError` for one that cannot be read or cannot hold any.

    What is no regular file is refused: a pipe without a writer would be waited for without end.
    """
    if path.suffix not in (".npy", ".npz", ".pt"):
        raise ValueError("inputs are read from .npy, .npz and .pt")
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ValueError("is no regular file; give the .npy, .npz or .pt itself")
        if size > LONGEST_FILE:
            raise ValueError(f"is longer than {LONGEST_FILE >> 20} MiB")
        return InputChoice("file", title=str(path), content=path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
