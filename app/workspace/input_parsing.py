"""What the user types where a path or a number is asked for, read in one way everywhere. No Textual."""

from __future__ import annotations

import math
import os
from pathlib import Path

# How the shell calls what it hands over as `<(command)` or as standard input.
SHELL_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
# What generators take: the range of a 64-bit integer with its sign.
LEAST_SEED, GREATEST_SEED = -(2**63), 2**63 - 1


def typed_path(text: str) -> Path:
    """The path that `text` names, `~` and `~name` being homes. Raises `ValueError` for a home that there is not."""
    try:
        path = Path(text.strip()).expanduser()
    except RuntimeError as error:
        raise ValueError(f"there is no home of that name: {text.strip().partition('/')[0]}") from error
    if "\0" in str(path):
        raise ValueError("a path holds no character 0")
    return path


def read_file(path: Path) -> str:
    """The text of a file that the user names. Raises `OSError`, and `ValueError` for what is no text or no file.

    A named pipe would be waited for without end; one that a shell has opened has something that writes to it.
    """
    if not path.is_file() and path.exists() and not str(path).startswith(SHELL_PIPES):
        raise ValueError("is no regular file")
    return path.read_text("utf-8")


def typed_seed(text: str) -> int:
    """The seed of random inputs that `text` gives. Raises `ValueError` that says what a seed is."""
    try:
        seed = int(text)
    except ValueError:
        raise ValueError(f"{text.strip():.40} is no seed: give a whole number") from None
    if not LEAST_SEED <= seed <= GREATEST_SEED:
        raise ValueError(f"{text.strip():.40} is no seed: give a whole number of at most 64 bits with its sign")
    return seed


def typed_seconds(text: str) -> float:
    """How long something may take, by `text`. Raises `ValueError` that says what is wrong."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text.strip():.40} is no time: give a number of seconds")
    return seconds


def from_here(location: str) -> str:
    """A file's path, and what stands behind it, as it is called in the current folder where it lies in that."""
    try:
        return location.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the current folder is gone
        return location
