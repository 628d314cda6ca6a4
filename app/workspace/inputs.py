"""Parses paths, seeds and times that the user types, and reads the files that the user names."""

from __future__ import annotations

import math
import os
from pathlib import Path

from buddy.compiler.protocol.run_report import InputChoice

# An input file must fit into one message to the engine: half of `MAX_FRAME`, which leaves space for all else in it.
MAX_INPUT_BYTES = 512 << 20


def inputs_from_file(path: Path) -> InputChoice:
    """Returns the file at `path` as inputs of a run.

    Raises `ValueError` if it is unreadable, too large or of another format. Special files are rejected: reading a pipe
    without a writer would block.
    """
    if path.suffix not in (".npy", ".npz", ".pt"):
        raise ValueError("unknown format: give a .npy, .npz or .pt file")
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ValueError("not a regular file: give a .npy, .npz or .pt file")
        if size > MAX_INPUT_BYTES:
            raise ValueError(f"larger than the limit of {MAX_INPUT_BYTES >> 20} MiB")
        return InputChoice("file", title=str(path), content=path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


# The paths that a shell passes for `<(command)` and for standard input.
SHELL_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
# The range of seeds of torch's generators: a signed 64-bit integer.
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1


def parse_path(text: str) -> Path:
    """Returns the path in `text`, with `~` and `~user` expanded.

    Raises `ValueError` for an unknown user or a null byte.
    """
    try:
        path = Path(text.strip()).expanduser()
    except RuntimeError as error:
        raise ValueError(f"unknown home folder: {text.strip().partition('/')[0]}") from error
    if "\0" in str(path):
        raise ValueError("a path cannot contain a null character")
    return path


def read_file(path: Path) -> str:
    """Returns the text of a file that the user names. Raises `OSError`, and `ValueError` if it is special or not UTF-8.

    Reading a named pipe could block. A pipe that a shell opens always has a writer.
    """
    if not path.is_file() and path.exists() and not str(path).startswith(SHELL_PIPES):
        raise ValueError("is not a regular file")
    return path.read_text("utf-8-sig")  # editors of Windows begin a file with a byte order mark


def parse_seed(text: str) -> int:
    """Returns the seed in `text`. Raises `ValueError` with the expected format."""
    try:
        seed = int(text)
    except ValueError:
        raise ValueError(f"{text.strip():.40} is not a seed: give a whole number") from None
    if not MIN_SEED <= seed <= MAX_SEED:
        raise ValueError(f"{text.strip():.40} is not a seed: give a signed 64-bit number")
    return seed


def parse_seconds(text: str) -> float:
    """Returns the time limit in `text`, in seconds. Raises `ValueError` with the expected format."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text.strip():.40} is not a time limit: give a number of seconds above 0")
    return seconds


def relative_to_working_directory(location: str) -> str:
    """Returns `location`, a path that may end in a line number, relative to the working directory if it is inside."""
    try:
        return location.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the current folder was deleted
        return location
