"""The formats of other compilers' dumps, recognised by the content of a file or by the names in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from buddy.compiler.protocol.plain_values import Language

DumpFormat = Literal[
    "log", "torch-log", "torch-trace", "ir", "mlir-tree", "iree-phases", "triton", "xla", "inductor", "ir-folder"
]
# What a dump in each format is, for messages.
DESCRIPTIONS: dict[DumpFormat, str] = {
    "log": "a log of IR after or before each pass",
    "torch-log": "a log of TORCH_LOGS",
    "torch-trace": "a log of TORCH_TRACE",
    "ir": "IR of another compiler",
    "mlir-tree": "a folder of --mlir-print-ir-tree-dir",
    "iree-phases": "a folder of IREE's --dump-compilation-phases-to",
    "triton": "a folder of TRITON_KERNEL_DUMP",
    "xla": "a folder of --xla_dump_to",
    "inductor": "a folder of TORCH_COMPILE_DEBUG",
    "ir-folder": "a folder of IR files",
}
# The language of a file with IR, by suffix. Suffixes of programs that this compiler opens itself are not among them.
IR_SUFFIXES: dict[str, Language] = {
    ".ttir": "mlir",
    ".ttgir": "mlir",
    ".llir": "llvm",
    ".ll": "llvm",
    ".ptx": "ptx",
    ".hlo": "hlo",
    ".sass": "asm",
    ".amdgcn": "asm",
    ".s": "asm",
}

# The start of a header before printed IR: MLIR's `// -----// IR Dump After`, LLVM's `*** IR Dump After`.
HEADER = re.compile(rb"// -----//[^\n]{0,80}? IR Dump |\*\*\* IR (?:Dump|Pass|Deleted) ")
# The start of a line of TORCH_LOGS, such as `V0101 10:00:00.000000 7 torch/x.py:3] [0/0] [__guards]`.
_TORCH_LINE = re.compile(rb"^[A-Z]\d{4} [\d:.]+ \d+ \S+\.py:\d+\] (?:\[[^\]\n]*\] )*\[__(?:\w+)\]", re.MULTILINE)
# The start of a line of TORCH_TRACE: the same prefix, then JSON.
_TRACE_LINE = re.compile(rb'^V\d{4} [\d:.]+ \d+ \S+\.py:\d+\] \{"', re.MULTILINE)
_HLO = re.compile(rb"\A\s*(?:#[^\n]*\n|//[^\n]*\n)*HloModule ")
_LLVM = re.compile(
    rb"^(?:; ModuleID = |source_filename = |target (?:triple|datalayout) = |define [^=\n]*@)", re.MULTILINE
)
# The magic numbers of files that may contain such text, but are no dumps: archives, MLIR's bytecode, ELF, pickles.
_CONTAINERS = (b"PK\x03\x04", b"ML\xefR", b"\x7fELF", b"\x80\x02", b"\x80\x04", b"\x80\x05")
# A log may start with other output, such as warnings. Its first header is searched in this many bytes.
_SEARCHED_BYTES = 4 << 20
# Names of the files that XLA, MLIR (one folder for each op) and IREE write.
_XLA_FILE = re.compile(r"module_\d+\..*(?:before|after)_optimizations[^/]*\.txt")
_TREE_FILE = re.compile(r"\d+(?:_\d+)*_[\w.-]+\.mlir")
_PHASE_FILE = re.compile(r".*\.\d+\.[\w-]+\.mlir")
# Maximum numbers of entries and levels that are read to recognise a folder.
_MAX_ENTRIES, _MAX_DEPTH = 4000, 4


def dump_format(path: Path) -> DumpFormat | None:
    """Returns the format of a file or folder; `None` if it is not a dump. Raises `OSError` if it cannot be read."""
    if path.is_dir():
        return _format_of_folder(path)
    if path.suffix == ".py" or not path.is_file():
        return None
    with path.open("rb") as file:
        return format_of_text(file.read(_SEARCHED_BYTES), path.suffix)


def is_dump(path: Path) -> bool:
    """Returns whether a path names a dump that can be read."""
    try:
        return dump_format(path) is not None
    except (OSError, ValueError):
        return False


def format_of_text(head: bytes, suffix: str = "") -> DumpFormat | None:
    """Returns the format of a file that starts with `head`; `None` if it is not a dump."""
    if head.startswith(_CONTAINERS):
        return None
    if b" IR " in head and HEADER.search(head):
        return "log"
    if b".py:" in head and _TRACE_LINE.search(head):
        return "torch-trace"
    if b".py:" in head and _TORCH_LINE.search(head):
        return "torch-log"
    if _HLO.match(head) or (suffix in IR_SUFFIXES and is_text(head)):
        return "ir"
    return "ir" if suffix != ".mlir" and is_text(head) and _LLVM.search(head) else None


def is_text(head: bytes) -> bool:
    """Returns whether the start of a file looks like text: it has no NUL, and at most 1 % other control characters."""
    # White space is text, and so is escape (27), which starts terminal colours.
    control_characters = head.translate(None, bytes(range(8, 14)) + bytes(range(27, 256)))
    return b"\0" not in head and len(control_characters) * 100 <= len(head)


def language_of_text(head: bytes) -> Language:
    """Returns the language of IR whose suffix does not name it; "text" if it is not known."""
    if _HLO.match(head):
        return "hlo"
    return "llvm" if _LLVM.search(head) else "text"


def _format_of_folder(folder: Path) -> DumpFormat | None:
    """Returns the format of a folder, by the names in it. Raises `OSError` if it cannot be read."""
    names = [os.path.relpath(path, folder) for path in files_in(folder)]
    bases = [os.path.basename(name) for name in names]
    suffixes = {os.path.splitext(base)[1] for base in bases}
    if any(map(_XLA_FILE.fullmatch, bases)):
        return "xla"
    if {"output_code.py", "fx_graph_readable.py", "ir_pre_fusion.txt"} & set(bases):
        return "inductor"
    if any("dedicated_log_torch_trace" in base for base in bases):
        return "torch-trace"
    if suffixes & {".ttir", ".ttgir"}:
        return "triton"
    if any("_module" in name.partition(os.sep)[0] and _TREE_FILE.fullmatch(os.path.basename(name)) for name in names):
        return "mlir-tree"
    if sum(_PHASE_FILE.fullmatch(base) is not None for base in bases) > 1:
        return "iree-phases"
    return "ir-folder" if suffixes & set(IR_SUFFIXES) else None


def files_in(folder: Path) -> list[Path]:
    """Returns the files in a folder and its subfolders, up to a number and a depth.

    Hidden files and links that lead nowhere are left out. Raises `OSError` if a folder cannot be read.
    """
    files: list[Path] = []
    folders = [(folder, 0)]
    while folders and len(files) < _MAX_ENTRIES:
        current, depth = folders.pop(0)
        for entry in sorted(os.scandir(current), key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError:  # a link to itself; a link to a missing file raises nothing
                continue
            if is_folder and depth < _MAX_DEPTH:
                folders.append((Path(entry.path), depth + 1))
            elif is_file:
                files.append(Path(entry.path))
    return files[:_MAX_ENTRIES]
