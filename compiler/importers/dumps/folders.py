"""Finds the stages in a folder that a compiler has written, with one named file for each stage; or in a single file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from buddy.compiler.importers.dumps.headers import anchor_of, first_op_name, read_header
from buddy.compiler.importers.dumps.logs import MAX_COUNTED_BYTES, StageHash, lines_from
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.protocol.dump_files import IR_SUFFIXES, DumpFormat, files_in, is_text, language_of_text
from buddy.compiler.protocol.plain_values import Language

# The maximum number of file names in a note about files that are not shown.
_MAX_NAMED = 5
_MAX_HEADER_BYTES = 16 << 10


class DumpFile(NamedTuple):
    """A file that has the IR of one stage. Stages are sorted by `order`; if `anchor` is "", the IR determines it."""

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
        read_name = _single_file if is_file else _READERS[dump.format]
        stages = [stage for path in files if (stage := read_name(dump.path, path)) is not None]
        others = set(files) - {stage.path for stage in stages}
        dump.size = sum(stage.path.stat().st_size for stage in stages)
        unreadable = []
        for stage in sorted(stages, key=lambda stage: stage.order):
            try:
                yield from self._read(stage)
            except OSError:
                unreadable.append(stage.path)
        note_names(dump, sorted(others), "no IR of a stage")
        note_names(dump, unreadable, "cannot be read")

    def _read(self, stage: DumpFile) -> Iterator[None]:
        dump = self._dump
        read = StageHash(stage.language, dump.size <= MAX_COUNTED_BYTES)
        with stage.path.open("rb") as file:
            line = file.readline(_MAX_HEADER_BYTES)
            # The header of a pass is not part of the IR.
            header = read_header(line) if line.endswith(b"\n") else None
            start = len(line) if header is not None else 0
            for data in lines_from(file, start):
                read.add(data)
                dump.scanned += len(data)
                yield
        if not read.length or not is_text(read.head):
            dump.notes.append(f"{stage.path.name} is {'a binary file' if read.length else 'empty'}")
            return
        language = language_of_text(read.head) if stage.language == "text" else stage.language
        anchor = stage.anchor or anchor_of(read.head, language, "")
        record = DumpStage(
            stage.title, language, stage.phase, len(dump.files), start, read.length, read.total_lines, read.digest,
            anchor, ops=read.ops,
            pipeline=header.pipeline if header is not None else "",
            op=first_op_name(read.head) if dump.format == "mlir-tree" else "",
        )  # fmt: skip
        dump.files.append(stage.path)
        dump.add(record)


def note_names(dump: Dump, paths: Iterable[Path], what: str) -> None:
    """Adds a note with the names of files, preceded by the description `what`."""
    names = [path.name for path in paths]
    if names:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        dump.notes.append(f"{what}: {', '.join(names[:_MAX_NAMED])}{more}")


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """Returns a key that sorts numbers inside of names by their value."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text))


_TREE = re.compile(r"(?P<numbers>\d+(?:_\d+)*)_(?P<name>[\w.-]+)\.mlir")


def _read_mlir_tree_name(folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `1_3_cse.mlir`, with the pass number at each level of nesting; the folders name the ops."""
    match = _TREE.fullmatch(path.name)
    if match is None:
        return None
    numbers = tuple(map(int, match["numbers"].split("_")))
    return DumpFile(path, (path.relative_to(folder).parts[0], numbers), match["name"], "mlir", "mlir")


_PHASE = re.compile(r"(?P<program>.*)\.(?P<number>\d+)\.(?P<phase>[\w-]+)\.mlir")


def _read_iree_phase_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `program.3.flow.mlir`, with the number of the phase."""
    match = _PHASE.fullmatch(path.name)
    if match is None:
        return None
    order = match["program"], int(match["number"])
    return DumpFile(path, order, match["phase"], match["phase"], "mlir", match["program"])


_TRITON = (".source", ".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".sass")


def _read_triton_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `kernel.ttir`, whose suffix is the level; the folder is named after a hash of the kernel."""
    if path.suffix not in _TRITON:
        return None
    level = path.suffix[1:]
    anchor = f"{path.stem} {path.parent.name[:6]}" if len(path.parent.name) > 40 else path.stem
    order = path.parent.name, path.stem, _TRITON.index(path.suffix)
    return DumpFile(path, order, level, level, IR_SUFFIXES.get(path.suffix, "mlir"), anchor)


_XLA = re.compile(r"(?P<module>module_\d+\.[^.]*)\.(?P<rest>.*)")
_XLA_PASS = re.compile(r"(?P<number>\d+)\.(?P<pipeline>.+?)\.after_(?P<pass>.+?)(?:\.before_.*)?\.txt")


def _read_xla_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads the name `module_0001.jit_f.0003.pipeline.after_X.before_Y.txt`, or that of a module outside of passes."""
    match = _XLA.fullmatch(path.name)
    if match is None and path.name == "module.mlir" and path.parent.name.startswith("module_"):
        # The module that a frontend passed to XLA.
        return DumpFile(path, (path.parent.name, 0, 0, ""), "stablehlo", "stablehlo", "mlir", path.parent.name)
    if match is None:
        return None
    module, rest = match["module"], match["rest"]
    in_pass = _XLA_PASS.fullmatch(rest)
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


_INDUCTOR: dict[str, tuple[str, Language]] = {
    "fx_graph_readable.py": ("fx", "python"),
    "fx_graph_transformed.py": ("fx", "python"),
    "ir_pre_fusion.txt": ("scheduler", "text"),
    "ir_post_fusion.txt": ("scheduler", "text"),
    "output_code.py": ("code", "python"),
    "fx_graph_runnable.py": ("script", "python"),
}


def _read_inductor_name(_folder: Path, path: Path) -> DumpFile | None:
    """Reads one of the names in `_INDUCTOR`; the folder names the graph."""
    if path.name not in _INDUCTOR:
        return None
    phase, language = _INDUCTOR[path.name]
    order = path.parent.name, list(_INDUCTOR).index(path.name)
    return DumpFile(path, order, path.stem, phase, language, path.parent.name)


def _read_ir_name(folder: Path, path: Path) -> DumpFile | None:
    """Reads any name with the suffix of an IR; stages are ordered by name."""
    language = "mlir" if path.suffix == ".mlir" else IR_SUFFIXES.get(path.suffix)
    if language is None:
        return None
    return DumpFile(path, _natural(str(path.relative_to(folder))), path.stem, language, language)


def _single_file(_folder: Path, path: Path) -> DumpFile:
    language = IR_SUFFIXES.get(path.suffix, "text")
    return DumpFile(path, (), path.stem, language, language)


_READERS: dict[DumpFormat, Callable[[Path, Path], DumpFile | None]] = {
    "mlir-tree": _read_mlir_tree_name,
    "iree-phases": _read_iree_phase_name,
    "triton": _read_triton_name,
    "xla": _read_xla_name,
    "inductor": _read_inductor_name,
    "ir-folder": _read_ir_name,
}
