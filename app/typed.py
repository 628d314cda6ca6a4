"""What the user types where a path or a number is asked for, read in one way everywhere. No Textual."""

from __future__ import annotations

from pathlib import Path

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


def typed_seed(text: str) -> int:
    """The seed of random inputs that `text` gives. Raises `ValueError` that says what a seed is."""
    try:
        seed = int(text)
    except ValueError:
        raise ValueError(f"{text.strip():.40} is no seed: give a whole number") from None
    if not LEAST_SEED <= seed <= GREATEST_SEED:
        raise ValueError(f"{text.strip():.40} is no seed: give a whole number of at most 64 bits with its sign")
    return seed
