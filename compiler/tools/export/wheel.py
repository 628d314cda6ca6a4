"""Packs a compiled program as a wheel: shared library, weights, and a module that calls it by ctypes.

The format is the binary distribution format (packaging.python.org/specifications/binary-distribution-format).
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from buddy.compiler.codegen.machines import Machine
from buddy.compiler.tools.export.c_text import source

VERSION = "0.1.0"
# The earliest timestamp of a zip file, so that the output is deterministic.
_MOMENT = (1980, 1, 1, 0, 0, 0)


def wheel_name(name: str, machine: Machine) -> str:
    return f"{name}-{VERSION}-{_tag(machine)}.whl"


def write_wheel(path: Path, name: str, machine: Machine, library: bytes, weights: Path, summary: str) -> None:
    """Writes the wheel of the program `name`. Raises `OSError`."""
    folder, records = f"{name}-{VERSION}.dist-info", list[str]()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:

        def add(file: str, data: bytes, compression: int = zipfile.ZIP_DEFLATED) -> None:
            info = zipfile.ZipInfo(file, _MOMENT)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, compression)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{file},sha256={digest},{len(data)}")

        add(f"{name}/__init__.py", source("package.py.txt", name).encode())
        add(f"{name}/lib{name}.so", library)
        # Compressing weights gains too little for the time it takes.
        add(f"{name}/{name}.safetensors", weights.read_bytes(), zipfile.ZIP_STORED)
        add(f"{folder}/METADATA", _metadata(name, summary).encode())
        add(f"{folder}/WHEEL", _wheel(machine).encode())
        records.append(f"{folder}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{folder}/RECORD", _MOMENT), "\n".join([*records, ""]))


def _tag(machine: Machine) -> str:
    """Any Python 3 on Linux of that architecture; the required C library depends on the compiler that linked it."""
    return f"py3-none-linux_{machine.architecture}"


def _metadata(name: str, summary: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {VERSION}", f"Summary: {summary}"]
    return "\n".join([*lines, "Requires-Python: >=3.10", "Requires-Dist: numpy", ""])


def _wheel(machine: Machine) -> str:
    lines = ["Wheel-Version: 1.0", "Generator: buddy-tui", "Root-Is-Purelib: false", f"Tag: {_tag(machine)}"]
    return "\n".join([*lines, ""])
