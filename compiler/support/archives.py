"""Estimates the memory that a zip archive needs, before any of it is read."""

from __future__ import annotations

import zipfile

# PyTorch stores its data uncompressed, and NumPy's arrays of zeros compress a thousandfold: a small file may be large
# in memory, but nobody sends gigabytes of zeros on purpose.
FOLD, ROOM = 4, 2 << 30


def archive_too_large(archive: zipfile.ZipFile, size: int) -> str:
    """Returns an error message for an archive, in a file of `size` bytes, that would need far more memory; else "".

    Python's reader returns no more bytes of a member than the archive's directory states.
    """
    whole = sum(member.file_size for member in archive.infolist())
    if whole <= FOLD * size + ROOM:
        return ""
    return f"a zip archive of {size:,} bytes that claims to unpack to {whole:,}"
