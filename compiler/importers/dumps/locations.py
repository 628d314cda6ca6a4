"""Finds the source lines that each line of printed IR names.

MLIR names them by `loc(...)`, LLVM IR by `!dbg`, HLO by the metadata of an op, PTX by `.loc`, code of torch.compile by
comments. A source line is written `file:line`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from buddy.compiler.protocol import NodeRow

# Longer texts are shown without source lines, because finding these would delay the stage noticeably.
MAX_LOCATED_CHARACTERS = 2 << 20
# The source lines that one line of IR names.
SourceLines = tuple[str, ...]
# The maximum number of references from one location to another that are followed, since a file may have a cycle.
_MAX_DEPTH = 16

_MLIR_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.MULTILINE)
_MLIR_PART = re.compile(r'"([^"\n]+)":(\d+):\d+|(#loc\d*)\b')
_LLVM_USE = re.compile(r"!dbg !(\d+)")
_LLVM_DEFINITION = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)", re.MULTILINE)
_HLO_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_HLO_FRAME = re.compile(r"stack_frame_id=(\d+)")
_HLO_TABLE = re.compile(r"^(FileNames|FileLocations|StackFrames)\n((?:\d+ .*\n)*)", re.MULTILINE)
_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"', re.MULTILINE)
_PTX_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_PYTHON_SOURCE = re.compile(r"\s*# File: (.*?):(\d+) in ")


def find_source_lines(text: str, language: str) -> list[SourceLines]:
    """Returns, for each line of a text, the source lines that it names; [] if the text names none at all."""
    finder = _FINDERS.get(language)
    return finder(text) if finder is not None else []


def source_line_rows(source_lines: Iterable[str]) -> tuple[NodeRow, ...]:
    """Returns a row for each source line, sorted by file and line, as nodes of a graph."""
    positions = sorted((file, int(line)) for file, _, line in (text.rpartition(":") for text in set(source_lines)))
    rows = []
    for index, (file, line) in enumerate(positions):
        text = f"{file}:{line}"
        rows.append(
            NodeRow(
                index, stable=text, opcode="source line", name=text, target=file, args=str(line), kwargs="",
                location=text,
            )
        )  # fmt: skip
    return tuple(rows)


def _source_lines_of_mlir(text: str) -> list[SourceLines]:
    if "loc(" not in text:
        return []
    definitions = dict(_MLIR_DEFINITION.findall(text))
    resolved: dict[str, SourceLines] = {}

    def resolve(parts: str, depth: int = 0) -> SourceLines:
        """Returns the source lines in the text of a location, and in the locations that it refers to."""
        source_lines: dict[str, None] = {}
        for path, line, alias in _MLIR_PART.findall(parts):
            if path and line != "0":
                source_lines[f"{path}:{line}"] = None
            elif alias and depth < _MAX_DEPTH:
                if alias not in resolved:
                    resolved[alias] = resolve(definitions.get(alias, ""), depth + 1)
                source_lines |= dict.fromkeys(resolved[alias])
        return tuple(source_lines)

    # The results by text of the locations: many lines have the same ones.
    results: dict[str, SourceLines] = {}

    def of_line(line: str) -> SourceLines:
        start = line.find("loc(")
        if start < 0 or line.startswith("#loc"):
            return ()
        parts = line[start:]
        if parts not in results:
            results[parts] = resolve(parts)
        return results[parts]

    return list(map(of_line, text.split("\n")))


def _source_lines_of_llvm(text: str) -> list[SourceLines]:
    if "!dbg !" not in text:
        return []
    nodes = {number: (kind, _parse_fields(fields)) for number, kind, fields in _LLVM_DEFINITION.findall(text)}

    def file_of(number: str, depth: int = 0) -> str:
        """Returns the path of the file of node `number`, which is a file, a scope, or has a scope."""
        kind, fields = nodes.get(number, ("", {}))
        if kind == "DIFile":
            name, folder = fields.get("filename", ""), fields.get("directory", "")
            return name if name.startswith("/") or not folder else f"{folder}/{name}"
        parent = fields.get("file") or fields.get("scope", "")
        return file_of(parent, depth + 1) if parent and depth < _MAX_DEPTH else ""

    def source_lines_of(number: str) -> SourceLines:
        """Returns the source lines of location `number`: its own, then those at which it was inlined."""
        source_lines = []
        for _ in range(_MAX_DEPTH):
            kind, fields = nodes.get(number, ("", {}))
            if kind == "DILocation" and fields.get("line", "0") != "0":
                source_lines.append(f"{file_of(fields.get('scope', ''))}:{fields['line']}")
            elif kind == "DISubprogram":
                source_lines.append(f"{file_of(number)}:{fields.get('line', '0')}")
            number = fields.get("inlinedAt", "")
        return tuple(dict.fromkeys(source_line for source_line in source_lines if not source_line.startswith(":")))

    lines_by_location: dict[str, SourceLines] = {}
    result = []
    for line in text.split("\n"):
        match = _LLVM_USE.search(line)
        if match is not None and match[1] not in lines_by_location:
            lines_by_location[match[1]] = source_lines_of(match[1])
        result.append(lines_by_location[match[1]] if match is not None else ())
    return result


def _parse_fields(text: str) -> dict[str, str]:
    """Returns the fields of a metadata node of LLVM IR, without quotes; references are numbers without `!`."""
    return {name: value.strip('"').lstrip("!") for name, value in re.findall(r'(\w+): ("[^"]*"|[^,]+)', text)}


def _source_lines_of_hlo(text: str) -> list[SourceLines]:
    tables = {name: _hlo_table(body) for name, body in _HLO_TABLE.findall(text)}
    files, locations, frames = (tables.get(name, {}) for name in ("FileNames", "FileLocations", "StackFrames"))

    def source_line_of(frame: str) -> SourceLines:
        match = re.search(r"file_location_id=(\d+)", frames.get(frame, ""))
        location = locations.get(match[1], "") if match is not None else ""
        match = re.search(r"file_name_id=(\d+).* line=(\d+)", location)
        return (f"{files[match[1]]}:{match[2]}",) if match is not None and match[1] in files else ()

    def of_line(line: str) -> SourceLines:
        if (match := _HLO_SOURCE.search(line)) is not None:
            return (f"{match[1]}:{match[2]}",)
        match = _HLO_FRAME.search(line)
        return source_line_of(match[1]) if match is not None else ()

    return list(map(of_line, text.split("\n")))


def _hlo_table(body: str) -> dict[str, str]:
    """Returns the entries of a table of locations in HLO, by number."""
    pairs = (line.split(" ", 1) for line in body.splitlines())
    return {number: value.strip('"') for number, value in pairs}


def _source_lines_of_ptx(text: str) -> list[SourceLines]:
    files = {number: f"{folder}/{name}" if folder else name for number, folder, name in _PTX_FILE.findall(text)}
    current: SourceLines = ()
    result = []
    for line in text.split("\n"):
        if (match := _PTX_LOC.match(line)) is not None:
            current = (f"{files[match[1]]}:{match[2]}",) if match[1] in files and match[2] != "0" else ()
        elif line.startswith("}"):
            current = ()
        result.append(current)
    return result


def _source_lines_of_python(text: str) -> list[SourceLines]:
    current: SourceLines = ()
    result = []
    for line in text.split("\n"):
        if (match := _PYTHON_SOURCE.match(line)) is not None:
            current = (f"{match[1]}:{match[2]}",)
        elif not line.strip() or line.lstrip().startswith(("return", "class ", "def ")):
            current = ()
        result.append(current)
    return result


_FINDERS: dict[str, Callable[[str], list[SourceLines]]] = {
    "mlir": _source_lines_of_mlir,
    "llvm": _source_lines_of_llvm,
    "hlo": _source_lines_of_hlo,
    "ptx": _source_lines_of_ptx,
    "python": _source_lines_of_python,
}


def all_source_lines(lines: Sequence[SourceLines]) -> set[str]:
    """Returns the source lines that any of `lines` names."""
    return {source_line for source_lines in lines for source_line in source_lines}
