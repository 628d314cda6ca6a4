"""How much a zip archive comes to in memory, before anything of it is read there."""

from __future__ import annotations

import zipfile

# PyTorch stores what it writes as it is, and NumPy's arrays of zeros are compressed a thousandfold: a small file may
# well hold much, but nobody sends gigabytes of zeros on purpose.
FOLD, ROOM = 4, 2 << 30


def too_large(archive: zipfile.ZipFile, size: int) -> str:
    """What to say of an archive in a file of `size` bytes that would take far more memory than that, "" of others.

    Python's reader gives no member more bytes than the archive's directory says.
    """
    whole = sum(member.file_size for member in archive.infolist())
    if whole <= FOLD * size + ROOM:
        return ""
    return f"a zip archive of {size:,} bytes that says it unpacks to {whole:,}"
