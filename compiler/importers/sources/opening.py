"""Opens files: the content of a file determines its kind, and each kind has one loader."""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buddy.compiler.importers.sources.program import CapturedProgram, SourceError, source_error
from buddy.compiler.protocol.recipe import Frontend
from buddy.compiler.support.files import archive_too_large

Kind = Literal["script", "mlir", "exported", "torchscript", "weights", "onnx", "other"]

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


@dataclass(frozen=True)
class DetectedKind:
    """A kind, and for `other` a description of the file."""

    kind: Kind
    description: str = ""


_UNKNOWN = DetectedKind("other", "a binary file of unknown kind")


def kind_of(path: Path) -> DetectedKind:
    """The kind of the file at `path`. Raises `OSError` if it cannot be read."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(BYTECODE):
        return DetectedKind("mlir")
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_archive(path)
    if _PICKLE.match(head):
        return DetectedKind("weights")
    if (description := _foreign_format(head)) is not None:
        return DetectedKind("other", description)
    if path.suffix == ".py" and b"\0" not in head and not _NOT_PYTHON.search(head.decode("latin-1")):
        return DetectedKind("script")  # also if it declares another encoding than UTF-8
    return DetectedKind("onnx") if is_onnx(path, head) else _kind_of_text(path, head)


def _foreign_format(head: bytes) -> str | None:
    for magic, description in _MAGIC:
        if head.startswith(magic):
            return description
    if _SAFETENSORS.match(head):
        return "a file of weights (safetensors)"
    return "a TensorFlow Lite model" if _TFLITE.match(head) else None


def _kind_of_archive(path: Path) -> DetectedKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            description = archive_too_large(archive, path.stat().st_size)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
        return DetectedKind("other", "a truncated or damaged zip archive")
    return DetectedKind("other", description) if description else kind_of_members(names)


def kind_of_members(names: Iterable[str]) -> DetectedKind:
    """The kind of a zip archive with the members `names`; PyTorch puts members into one folder of any name."""
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
    """`head` without its last line, which may be truncated; a shorter file is complete."""
    return head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1]


def is_onnx(path: Path, head: bytes) -> bool:
    """Whether a file looks like a `ModelProto` (onnx/onnx.proto).

    The first field must be `ir_version` (tag 1) with a small number. Unless the file name ends in .onnx, the tag of
    another field of `ModelProto` must follow.
    """
    tag, version, next_tag = head[:1], head[1:2], head[2:3]
    return tag == b"\x08" and b"\0" < version < b"\x40" and (path.suffix == ".onnx" or next_tag in _AFTER_VERSION)


def _is_mlir(text: str) -> bool:
    return _MLIR.search(_COMMENT.sub("", text)) is not None


def _is_python(path: Path) -> bool:
    import ast

    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


# By kind: the module and the function that open it; the module is imported when it is needed.
_LOADERS = {
    "mlir": "mlir_file:load",
    "exported": "exported_program:load",
    "torchscript": "torchscript:load",
    "weights": "modules:load_weights",
    "onnx": "onnx_file:load",
}


@dataclass(frozen=True)
class Opening:
    """A request to open a file.

    `name` is the part after the path (`file.mlir:name`), `title` the path as the user wrote it. With `trusts`, pickles
    in the file may run code. `report` is called with each step of opening.
    """

    path: Path
    name: str = ""
    title: str = ""
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False
    report: Callable[[str], None] = lambda _text: None

    @property
    def stem(self) -> str:
        """The name of a program of this file: its name without suffixes."""
        return self.path.name.partition(".")[0] or self.path.name


def open_file(opening: Opening, detected: DetectedKind) -> CapturedProgram:
    """The program in a file that is not a script. Raises `SourceError`."""
    loader = _LOADERS.get(detected.kind)
    if loader is None:
        raise _no_program_error(opening, detected)
    opening.report(f"reading {opening.title}")
    module, _, function = loader.partition(":")
    load = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    program = load(opening)
    assert isinstance(program, CapturedProgram)
    program.files = (str(opening.path.resolve()),)
    return program


def _no_program_error(opening: Opening, detected: DetectedKind) -> SourceError:
    todo = (
        "give a Python script (.py), a program of torch.export.save (.pt2) or torch.jit.save (.pt), MLIR as text or "
        "bytecode, or an ONNX model"
    )
    description = detected.description or "a file of unknown kind"
    what = f"{opening.title} is {description}, which contains no program that can be opened"
    return source_error(what, opening.title, todo)
