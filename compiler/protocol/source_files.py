"""Detects the kind of a file, and checks a source without running it.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from buddy.compiler.protocol.dump_files import DESCRIPTIONS, dump_format
from buddy.compiler.protocol.source_locations import SourceError, locate_source, source_error, syntax_error

if TYPE_CHECKING:
    import zipfile

SourceKind = Literal["script", "mlir", "exported", "torchscript", "weights", "onnx", "dump", "other"]


def check_source(source: str) -> None:
    """Raises `SourceError` for a source that cannot be opened. Runs no code.

    Such a source is a missing file, a folder that is not a dump, a file that cannot be read or contains no program, or
    a script that is not valid Python.
    """
    path = locate_source(source).path
    if path is None or path.is_dir():
        return  # `locate_source` accepts only folders that are dumps
    try:
        detected = kind_of(path)
        content = path.read_bytes() if detected.kind == "script" else b""
    except OSError as error:
        raise source_error(f"{path} cannot be read: {error.strerror or error}", todo="check its permissions") from error
    if detected.kind == "other":
        raise no_program_error(str(path), detected)
    try:
        compile(content, str(path), "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        raise syntax_error(str(path), error) from error
    except (ValueError, RecursionError, MemoryError):
        return  # Python reports these when it runs the script


# ---- the kind of a file --------------------------------------------------------------------------------------------


# The magic number of MLIR's bytecode (mlir/docs/BytecodeFormat.md).
BYTECODE = b"ML\xefR"
# How many bytes at the start of a file determine its kind.
_HEAD_BYTES = 1 << 16

# Unsupported file formats by magic number, with their descriptions.
_MAGIC = (
    (b"\x7fELF", "an object file or a library"),
    (b"\xcf\xfa\xed\xfe", "an object file or a library"),
    (b"BC\xc0\xde", "LLVM bitcode"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"GGUF", "a file of weights (GGUF)"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
# The length of a JSON header in 8 bytes, then the header.
_SAFETENSORS = re.compile(rb".{6}\0\0\{", re.DOTALL)
_TFLITE = re.compile(rb".{4}TFL3", re.DOTALL)
# Tags of the protobuf fields of an ONNX `ModelProto` that may follow its version.
_AFTER_VERSION = (b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42")
# The start of a line of MLIR text; comments are `//`.
_MLIR = re.compile(
    r"^\s*(?:module\b[^=;:]*(?:\{|$)|\"?[a-z_]\w*\.[\w.]+\"?\s*(?:\(|@|private|public|\{|<)"
    r"|%[\w#:, %]+=\s*\"?\w+[\w.]*|[#!][\w.]+\s*=|#map|\{-#)",
    re.MULTILINE,
)
# Starts of lines of MLIR that no Python script has, not even one with a syntax error.
_NOT_PYTHON = re.compile(r"^\s*(?:module\b[^=;:]*\{\s*$|[a-z_]\w*\.[\w.]+[^=(]* @\w|%[\w#:, %]+= )", re.MULTILINE)
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


# An archive may unpack to this many times its size, plus this many bytes. PyTorch stores tensors uncompressed, but
# arrays of zeros compress a thousandfold.
_MAX_UNPACK_RATIO, _EXTRA_BYTES = 4, 2 << 30


@dataclass(frozen=True)
class DetectedKind:
    """A kind, and for `other` a description of the file."""

    kind: SourceKind
    description: str = ""


_UNKNOWN = DetectedKind("other", "a binary file of unknown kind")


def kind_of(path: Path) -> DetectedKind:
    """Returns the kind of the file at `path`. Raises `OSError` if it cannot be read."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(BYTECODE):
        return DetectedKind("mlir")
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_archive(path)
    if (dump := dump_format(path)) is not None:
        return DetectedKind("dump", DESCRIPTIONS[dump])
    if _PICKLE.match(head):
        return DetectedKind("weights")
    if (description := _foreign_format(head)) is not None:
        return DetectedKind("other", description)
    if path.suffix == ".py" and b"\0" not in head and not _NOT_PYTHON.search(head.decode("latin-1")):
        return DetectedKind("script")  # also if it declares another encoding than UTF-8
    return DetectedKind("onnx") if is_onnx(path, head) else _kind_of_text(path, head)


def _foreign_format(head: bytes) -> str | None:
    """Returns the description of an unsupported format, by the start of a file; `None` for other files."""
    for magic, description in _MAGIC:
        if head.startswith(magic):
            return description
    if _SAFETENSORS.match(head):
        return "a file of weights (safetensors)"
    return "a TensorFlow Lite model" if _TFLITE.match(head) else None


def _kind_of_archive(path: Path) -> DetectedKind:
    """Returns the kind of a zip archive."""
    import zipfile  # few sources are archives

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            description = archive_too_large(archive, path.stat().st_size)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
        return DetectedKind("other", "a truncated or damaged zip archive")
    return DetectedKind("other", description) if description else kind_of_members(names)


def archive_too_large(archive: zipfile.ZipFile, size: int) -> str:
    """Returns an error message if an archive, a file of `size` bytes, would unpack to far more bytes; else "".

    The sizes in the archive's directory are upper bounds: Python's reader returns no more bytes of a member.
    """
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked <= _MAX_UNPACK_RATIO * size + _EXTRA_BYTES:
        return ""
    return f"a zip archive of {size:,} bytes that claims to unpack to {unpacked:,}"


def kind_of_members(names: Iterable[str]) -> DetectedKind:
    """Returns the kind of a zip archive with the members `names`; PyTorch puts members into one folder of any name."""
    inner = {name.partition("/")[2] for name in names} | set(names)
    if any(name.startswith("models/") and name.endswith(".json") for name in inner):
        return DetectedKind("exported")
    if "serialized_exported_program.json" in inner:
        return DetectedKind("exported")
    if "archive_format" in inner and any(name.startswith("data/aotinductor/") for name in inner):
        return DetectedKind("other", "a package of AOTInductor, which is machine code")
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return DetectedKind("torchscript")
    if "data.pkl" in inner:
        return DetectedKind("weights")
    if any(name.endswith(".npy") for name in inner):
        return DetectedKind("other", "an archive of NumPy arrays")
    return DetectedKind("other", "a zip archive")


def _kind_of_text(path: Path, head: bytes) -> DetectedKind:
    """Returns the kind of a file that no magic number identifies: a script, MLIR, or another text."""
    try:
        text = _whole_lines(head).decode("utf-8")
    except UnicodeDecodeError:
        return _UNKNOWN
    if "\0" in text:
        return _UNKNOWN
    if path.suffix == ".py" and (_is_python(path) or not _is_mlir(text)):
        return DetectedKind("script")
    if _is_mlir(text) or path.suffix == ".mlir":
        return DetectedKind("mlir")
    return DetectedKind("other", "empty" if not text.strip() else "text")


def _whole_lines(head: bytes) -> bytes:
    """Returns `head` without its last line, which may be truncated, unless `head` is the whole file."""
    return head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1]


def is_onnx(path: Path, head: bytes) -> bool:
    """Returns whether a file looks like a `ModelProto` (onnx/onnx.proto).

    The first field must be `ir_version` (tag 1) with a small number. Unless the file name ends in .onnx, the tag of
    another field of `ModelProto` must follow.
    """
    tag, version, next_tag = head[:1], head[1:2], head[2:3]
    return tag == b"\x08" and b"\0" < version < b"\x40" and (path.suffix == ".onnx" or next_tag in _AFTER_VERSION)


def _is_mlir(text: str) -> bool:
    """Returns whether a line of the text starts like one of MLIR."""
    return _MLIR.search(_COMMENT.sub("", text)) is not None


def _is_python(path: Path) -> bool:
    """Returns whether the file is valid Python."""
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def no_program_error(title: str, detected: DetectedKind) -> SourceError:
    """Makes the error for a file of the kind `other`."""
    todo = (
        "give a Python script (.py), a program of torch.export.save (.pt2) or torch.jit.save (.pt), MLIR as text or "
        "bytecode, or an ONNX model"
    )
    description = detected.description or "a file of unknown kind"
    what = f"{title} is {description}, which contains no program that can be opened"
    return source_error(what, title, todo)
