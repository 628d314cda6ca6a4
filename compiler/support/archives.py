"""Estimates the memory that a zip archive needs, before any of it is read."""

from __future__ import annotations

import zipfile

# PyTorch stores tensors uncompressed, and arrays of zeros compress a thousandfold: an archive may unpack to this many
# times its size, plus this many bytes.
_MAX_RATIO, _EXTRA_BYTES = 4, 2 << 30


def archive_too_large(archive: zipfile.ZipFile, size: int) -> str:
    """Returns an error message for an archive, in a file of `size` bytes, that would need far more memory; else "".

    The sizes in the archive's directory are upper bounds: Python's reader returns no more bytes of a member.
    """
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked <= _MAX_RATIO * size + _EXTRA_BYTES:
        return ""
    return f"a zip archive of {size:,} bytes that claims to unpack to {unpacked:,}"
