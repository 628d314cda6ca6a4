"""Opens a dump: indexes it step by step, and reads the texts of its stages.

The first stages can be read while the rest is scanned. In a folder that a compiler has written, each stage has one
named file; a dump may also be a single file.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from buddy.compiler.importers.dumps.headers import anchor_of, first_op_name, read_header
from buddy.compiler.importers.dumps.locations import MAX_LOCATED_CHARACTERS, find_source_lines
from buddy.compiler.importers.dumps.logs import (
    MAX_COUNTED_BYTES,
    TORCH_PREFIX,
    LogScan,
    StageHash,
    TorchLogScan,
    digest_of,
    lines_from,
)
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.protocol.dump_files import IR_SUFFIXES, DumpFormat, files_in, is_text, language_of_text
from buddy.compiler.protocol.plain_values import Language
from buddy.compiler.protocol.text.lines import IndexedText

# ---- folders ---------------------------------------------------------------------------------------------------------


# The maximum number of file names in a note about files that are not shown, and of bytes of a line with a header.
_MAX_LISTED_NAMES = 5
_MAX_HEADER_BYTES = 16 << 10


class DumpFile(NamedTuple):
    """A file that has the IR of one stage, as its name says.

    Stages are sorted by `order`. `anchor` is that of `DumpStage`; if it is "", the IR determines it.
    """

    path: Path
    order: tuple[Any, ...]
    title: str
    phase: str
    language: Language
    anchor: str = ""


class FolderScan:
    """The scan of a folder, or of a single file with IR."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump

    def scan(self) -> Iterator[None]:
        """Reads the files of the folder in the order of their stages, and yields after each chunk."""
        dump = self._dump
        is_file = dump.format == "ir"
        files = [dump.path] if is_file else files_in(dump.path)
        read_name = _read_single_name if is_file else _NAME_READERS[dump.format]
        stage_files = [stage_file for path in files if (stage_file := read_name(dump.path, path)) is not None]
        others = set(files) - {stage_file.path for stage_file in stage_files}
        dump.size = sum(stage_file.path.stat().st_size for stage_file in stage_files)
        unreadable = []
        for stage_file in sorted(stage_files, key=lambda stage_file: stage_file.order):
            try:
                yield from self._read_stage(stage_file)
            except OSError:
                unreadable.append(stage_file.path)
        add_names_note(dump, sorted(others), "no IR of a stage")
        add_names_note(dump, unreadable, "cannot be read")

    def _read_stage(self, stage_file: DumpFile) -> Iterator[None]:
        """Adds the stage of a file to the dump, and yields after each chunk. Raises `OSError`."""
        dump = self._dump
        stage_hash = StageHash(stage_file.language, dump.size <= MAX_COUNTED_BYTES)
        with stage_file.path.open("rb") as file:
            line = file.readline(_MAX_HEADER_BYTES)
            # The header of a pass is not part of the IR.
            header = read_header(line) if line.endswith(b"\n") else None
            start = len(line) if header is not None else 0
            for data in lines_from(file, start):
                stage_hash.add(data)
                dump.scanned += len(data)
                yield
        if not stage_hash.length or not is_text(stage_hash.head):
            dump.notes.append(f"{stage_file.path.name} is {'a binary file' if stage_hash.length else 'empty'}")
            return
        language = language_of_text(stage_hash.head) if stage_file.language == "text" else stage_file.language
        anchor = stage_file.anchor or anchor_of(stage_hash.head, language, "")
        stage = DumpStage(
            stage_file.title, language, stage_file.phase, len(dump.files), offset=start, length=stage_hash.length,
            lines=stage_hash.total_lines, digest=stage_hash.digest, anchor=anchor, ops=stage_hash.ops,
            pipeline=header.pipeline if header is not None else "",
            op=first_op_name(stage_hash.head) if dump.format == "mlir-tree" else "",
        )  # fmt: skip
        dump.files.append(stage_file.path)
        dump.add(stage)


def add_names_note(dump: Dump, paths: Iterable[Path], what: str) -> None:
    """Adds a note with the names of files, preceded by the description `what`."""
    names = [path.name for path in paths]
    if names:
        more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
        dump.notes.append(f"{what}: {', '.join(names[:_MAX_LISTED_NAMES])}{more}")


# ---- file names ------------------------------------------------------------------------------------------------------


def _natural_sort_key(text: str) -> tuple[tuple[int, str], ...]:
    """Returns a key that sorts numbers inside of names by their value."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text))


_MLIR_TREE_NAME = re.compile(r"(?P<numbers>\d+(?:_\d+)*)_(?P<name>[\w.-]+)\.mlir")


def _read_mlir_tree_name(folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `1_3_cse.mlir`, with the pass number at each level of nesting; the folders name the ops."""
    match = _MLIR_TREE_NAME.fullmatch(path.name)
    if match is None:
        return None
    numbers = tuple(map(int, match["numbers"].split("_")))
    return DumpFile(path, (path.relative_to(folder).parts[0], numbers), match["name"], "mlir", "mlir")


_IREE_PHASE_NAME = re.compile(r"(?P<program>.*)\.(?P<number>\d+)\.(?P<phase>[\w-]+)\.mlir")


def _read_iree_phase_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `program.3.flow.mlir`, with the number of the phase."""
    match = _IREE_PHASE_NAME.fullmatch(path.name)
    if match is None:
        return None
    order = match["program"], int(match["number"])
    return DumpFile(path, order, match["phase"], match["phase"], "mlir", match["program"])


_TRITON_SUFFIXES = (".source", ".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".sass")


def _read_triton_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `kernel.ttir`, whose suffix is the level; the folder is named after a hash of the kernel."""
    if path.suffix not in _TRITON_SUFFIXES:
        return None
    level = path.suffix[1:]
    # A hash is longer than 40 characters; its first six suffice as a name.
    anchor = f"{path.stem} {path.parent.name[:6]}" if len(path.parent.name) > 40 else path.stem
    order = path.parent.name, path.stem, _TRITON_SUFFIXES.index(path.suffix)
    return DumpFile(path, order, level, level, IR_SUFFIXES.get(path.suffix, "mlir"), anchor)


_XLA_NAME = re.compile(r"(?P<module>module_\d+\.[^.]*)\.(?P<rest>.*)")
_XLA_PASS_NAME = re.compile(r"(?P<number>\d+)\.(?P<pipeline>.+?)\.after_(?P<pass>.+?)(?:\.before_.*)?\.txt")


def _read_xla_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `module_0001.jit_f.0003.pipeline.after_X.before_Y.txt`, or that of a module outside of passes."""
    match = _XLA_NAME.fullmatch(path.name)
    if match is None and path.name == "module.mlir" and path.parent.name.startswith("module_"):
        # The module that a frontend passed to XLA.
        return DumpFile(path, (path.parent.name, 0, 0, ""), "stablehlo", "stablehlo", "mlir", path.parent.name)
    if match is None:
        return None
    # The second element of `order`: 0 frontend, 0.5 before the optimisations, 1 passes, 2 after, 3 code, 4 reports.
    module, rest = match["module"], match["rest"]
    in_pass = _XLA_PASS_NAME.fullmatch(rest)
    if in_pass is not None:
        title = f"{in_pass['pipeline']}/{in_pass['pass']}"
        return DumpFile(path, (module, 1, int(in_pass["number"]), ""), title, "hlo", "hlo", module)
    title, suffix = os.path.splitext(rest)
    if suffix in (".ll", ".ptx", ".s"):
        phase = "llvm" if suffix == ".ll" else suffix[1:]
        is_late = phase != "llvm" or "with-opt" in title
        return DumpFile(path, (module, 3, is_late, title), title, phase, IR_SUFFIXES[suffix], module)
    if suffix != ".txt":
        return None
    if re.fullmatch(r"(?:\w+_)?(?:before|after)_optimizations", title):
        return DumpFile(path, (module, 0.5 if "before" in title else 2, 0, title), title, "hlo", "hlo", module)
    return DumpFile(path, (module, 4, 0, title), title, "reports", "text", module)


_INDUCTOR_FILES: dict[str, tuple[str, Language]] = {
    "fx_graph_readable.py": ("fx", "python"),
    "fx_graph_transformed.py": ("fx", "python"),
    "ir_pre_fusion.txt": ("scheduler", "text"),
    "ir_post_fusion.txt": ("scheduler", "text"),
    "output_code.py": ("code", "python"),
    "fx_graph_runnable.py": ("script", "python"),
}


def _read_inductor_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads one of the names in `_INDUCTOR_FILES`; the folder names the graph."""
    if path.name not in _INDUCTOR_FILES:
        return None
    phase, language = _INDUCTOR_FILES[path.name]
    order = path.parent.name, list(_INDUCTOR_FILES).index(path.name)
    return DumpFile(path, order, path.stem, phase, language, path.parent.name)


def _read_ir_name(folder: Path, path: Path) -> DumpFile | None:
    """Reads any name with the suffix of an IR; stages are ordered by name."""
    language = "mlir" if path.suffix == ".mlir" else IR_SUFFIXES.get(path.suffix)
    if language is None:
        return None
    return DumpFile(path, _natural_sort_key(str(path.relative_to(folder))), path.stem, language, language)


def _read_single_name(_folder: Path, path: Path) -> DumpFile:
    """Returns the only stage of a dump that is one file, whatever its name."""
    language = IR_SUFFIXES.get(path.suffix, "text")
    return DumpFile(path, (), path.stem, language, language)


# By format of the dump: the function that reads the name of a file in the folder, `None` for a file without a stage.
_NAME_READERS: dict[DumpFormat, Callable[[Path, Path], DumpFile | None]] = {
    "mlir-tree": _read_mlir_tree_name,
    "iree-phases": _read_iree_phase_name,
    "triton": _read_triton_name,
    "xla": _read_xla_name,
    "inductor": _read_inductor_name,
    "ir-folder": _read_ir_name,
}


# ---- dumps -----------------------------------------------------------------------------------------------------------


# Longer texts are truncated, because they would fill the memory.
MAX_TEXT_BYTES = 192 << 20
# The bytes of control characters, without tab and newline, and the pictures that Unicode has for them. 0xC2 is the
# first byte of the control characters beyond ASCII in UTF-8.
_CONTROL_BYTES = bytes(range(9)) + bytes(range(11, 32)) + b"\x7f\xc2"
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {0x7F: "\u2421"}
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def read_text(dump: Dump, stage: DumpStage) -> str:
    """Returns the text of a stage. Invalid UTF-8 is replaced, and control characters are shown as pictures.

    Raises `OSError` if the file cannot be read or has changed.
    """
    path = dump.files[stage.file]
    with path.open("rb") as file:
        file.seek(stage.offset)
        data = file.read(min(stage.length, MAX_TEXT_BYTES))
    if len(data) < min(stage.length, MAX_TEXT_BYTES):
        raise OSError(f"{path} has become shorter since it was opened")
    if stage.strip == "torch-log":
        data = TORCH_PREFIX.sub(b"", data)
    elif stage.strip == "tab":
        data = re.sub(rb"^\t", b"", data, flags=re.MULTILINE)
    if stage.length <= MAX_TEXT_BYTES and digest_of(data) != stage.digest:
        raise OSError(f"{path} was rewritten since it was opened")
    text = data.decode("utf-8", "replace")
    if len(data.translate(None, _CONTROL_BYTES)) < len(data):
        text = text.replace("\r\n", "\n").translate(_PICTURES)
    if stage.strip:
        text = text.rstrip("\n")
    if stage.length > MAX_TEXT_BYTES:
        text += f"\n… {stage.length - MAX_TEXT_BYTES:,} more bytes in {os.fspath(path)}"
    return text + "\n"


def indexed_text(dump: Dump, stage: DumpStage) -> IndexedText:
    """Returns the text of a stage, with the source lines of its lines as the names of nodes. Raises as `read_text`."""
    text = read_text(dump, stage)
    if len(text) > MAX_LOCATED_CHARACTERS:
        return IndexedText(text)
    # The distinct sets of source lines, numbered; each line of the text has the number of its set.
    sets: dict[tuple[str, ...], int] = {(): 0}
    source_lines = find_source_lines(text, stage.language)
    set_of_line = array("I", (sets.setdefault(names, len(sets)) for names in source_lines))
    return IndexedText(text, set_of_line, tuple(sets)) if len(sets) > 1 else IndexedText(text)


# The path, modification time and size of each file.
_Statuses = tuple[tuple[str, int, int], ...]


class DumpScan:
    """The scan of a dump. If a log has grown, `index` reads only the new part."""

    def __init__(self, path: Path, dump_format: DumpFormat) -> None:
        self.dump = Dump(path, dump_format)
        self._log = LogScan(self.dump, path) if dump_format == "log" else None
        self._statuses: _Statuses = ()

    def index(self) -> Iterator[None]:
        """Indexes the dump, and yields after each chunk. Raises `OSError` if a file cannot be read."""
        dump = self.dump
        dump.is_complete = False
        self._statuses = _statuses(dump.path)
        dump.size = sum(size for _, _, size in self._statuses)
        if self._log is not None:
            yield from self._log.scan()
        elif dump.format in ("torch-log", "torch-trace"):
            paths = (
                [dump.path] if dump.path.is_file() else [path for path in files_in(dump.path) if path.suffix == ".log"]
            )
            for path in paths:
                yield from TorchLogScan(dump, path, is_trace=dump.format == "torch-trace").scan()
        else:
            yield from FolderScan(dump).scan()
        dump.is_complete = True

    def is_current(self) -> bool:
        """Returns whether no file has changed or was deleted since the scan."""
        try:
            return self.dump.is_complete and self._statuses == _statuses(self.dump.path)
        except OSError:
            return False

    def can_continue(self) -> bool:
        """Returns whether the dump is a log that has grown, so that `index` reads only what is new."""
        return self._log is not None and self.dump.is_complete and self._log.has_grown()


def _statuses(path: Path) -> _Statuses:
    paths = files_in(path) if path.is_dir() else [path]
    statuses = [(str(file), file.stat()) for file in paths]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in statuses)
