"""Reads the headers that pass managers print before IR, and finds which function or module the IR shows."""

from __future__ import annotations

import re
from typing import NamedTuple

from buddy.compiler.protocol.plain_values import Language

# The anchor of IR that is a whole module, and the `ran_on` of a pass on a module.
MODULE = "module"

# MLIR: `// -----// IR Dump After Canonicalizer (canonicalize) ('func.func' operation: @f) //----- //`. Newer versions
# print `CanonicalizerPass: canonicalize{options}`, Triton's pipeliner `SoftwarePipeliner internal IR Dump After: X`.
_MLIR = re.compile(
    rb"// -----// (?P<owner>[^\n]*? )?IR Dump (?P<when>After|Before):? (?P<name>.*?)(?P<failed> Failed)?"
    rb"(?: \('(?P<op>[^']*)' operation(?:: @(?P<symbol>[^)]*))?\))?(?: //-----.*)?\s*$"
)
# The class of a pass and its argument, in newer and older versions of MLIR.
_MLIR_ARGUMENT = re.compile(
    r"(?P<class>.*?)(?P<failed> Failed)?(?:: (?P<new>[\w.-]+)(?P<options>\{.*\})?| \((?P<old>[\w.-]+)\))$"
)
# LLVM: `; *** IR Dump After SROAPass on f ***`, with `omitted because no change` for a pass that changes nothing.
_LLVM = re.compile(
    rb"\*\*\* IR (?:(?P<kind>Dump|Pass|Deleted) (?P<when>After|Before) (?P<name>.*?)(?: on (?P<on>.*?))?"
    rb"(?P<reason> omitted because no change| filtered out| ignored)?|(?P<start>Dump At Start)"
    rb"|Pass (?P<name_without_ir>.*?)(?: on (?P<on_without_ir>.*?))?(?: ignored)?)(?: \(?invalidated\)?)? \*\*\*"
)
# The names of a pass and of what it ran on, in the header: `Loop Pass (loop-pass)`, `loop %x in function f`.
_LEGACY_ARGUMENT = re.compile(r"(?P<class>.*?) \((?P<argument>[\w.-]+)\)$")
_LOOP = re.compile(r"loop .* in function (?P<function>\S+)$")

# The first line of printed MLIR that declares an op: `func.func @f(`, `module @m {`, or generic `"func.func"() <{`.
_MLIR_TOP = re.compile(
    rb"^\s*(?:\"(?P<generic>[\w.]+)\"\(.*?(?:sym_name = \"(?P<sym>[^\"]*)\"|$)|(?P<op>[a-z_]\w*(?:\.[\w.]+)?)\b"
    rb"[^\n@({]*(?:@(?P<name>\"[^\"\n]*\"|[\w$.-]+))?)",
    re.MULTILINE,
)
_LLVM_FUNCTION = re.compile(rb"^define [^\n@]*@(\"[^\"\n]*\"|[\w$.-]+)", re.MULTILINE)
# Lines that may precede the first op: empty lines, comments, aliases, the start of resources.
_SKIPPED_LINE = re.compile(rb"^(?:\s*$|\s*//|[#!][\w$.-]+ = |\{-#)")


class Header(NamedTuple):
    """A header: `title` names the stage, `language` is that of its IR, and `ran_on` says what the pass ran on.

    `ran_on` is `@symbol`, `module` or the op's name without its dialect, "" if the header does not say. `op` is the
    full name of that op, which MLIR prints only with the IR of the whole module. `omitted` stands for IR that is not
    printed because it did not change; if `has_no_ir`, the pass did not run or was filtered out, or what it ran on was
    deleted or invalidated. `pipeline` is the pass with its options as the header carries them, "" if it has none.
    `before` says that the IR is that before the pass. `column` is where the header starts in its line: output of
    another thread may precede it.
    """

    title: str
    language: Language
    ran_on: str = ""
    failed: bool = False
    omitted: bool = False
    has_no_ir: bool = False
    pipeline: str = ""
    op: str = ""
    before: bool = False
    column: int = 0


def read_header(line: bytes) -> Header | None:
    """Returns the header in a line; `None` if it has none."""
    match = _MLIR.search(line)
    header = _mlir_header(match) if match is not None else None
    if match is None and (match := _LLVM.search(line)) is not None:
        header = _llvm_header(match)
    if header is None or match is None:
        return None
    preceding = line[: match.start()].rstrip(b"#; ")
    return header._replace(column=len(preceding)) if preceding.strip() else header


def _mlir_header(match: re.Match[bytes]) -> Header:
    """Returns the header in a match of `_MLIR`."""
    name = _decode_name(match["name"])
    argument = _MLIR_ARGUMENT.fullmatch(name)
    title, pipeline, has_failed = name, "", bool(match["failed"])
    if argument is not None:
        has_failed = has_failed or argument["failed"] is not None
        title = argument["new"] or argument["old"]
        pipeline = title + (argument["options"] or "")
    prefix = "before " if match["when"] == b"Before" else ""
    owner = _decode_name(match["owner"] or b"").removesuffix(" internal ")
    ran_on, op = "", _decode_name(match["op"] or b"")
    if op:
        symbol = _decode_name(match["symbol"] or b"")
        ran_on = f"@{symbol}" if symbol else op.rpartition(".")[2]
    return Header(
        f"{owner}: {title}" if owner else prefix + title, "mlir", ran_on, has_failed, pipeline=pipeline,
        op=op, before=bool(prefix),
    )  # fmt: skip


def _llvm_header(match: re.Match[bytes]) -> Header:
    """Returns the header in a match of `_LLVM`."""
    if match["start"]:
        return Header("start", "llvm")
    if match["name_without_ir"] is not None:
        ran_on = _llvm_ran_on(match["on_without_ir"]) if match["on_without_ir"] else ""
        return Header(_decode_name(match["name_without_ir"]), "llvm", ran_on, has_no_ir=True)
    title = _decode_name(match["name"])
    if (legacy := _LEGACY_ARGUMENT.fullmatch(title)) is not None:
        title = legacy["argument"]
    ran_on, reason = _llvm_ran_on(match["on"]), match["reason"] or b""
    prefix = "before " if match["when"] == b"Before" else ""
    has_no_ir = reason in (b" ignored", b" filtered out") or match["kind"] != b"Dump"
    is_omitted = reason == b" omitted because no change"
    return Header(prefix + title, "llvm", ran_on, omitted=is_omitted, has_no_ir=has_no_ir)


def _llvm_ran_on(on: bytes | None) -> str:
    """Returns what a pass of LLVM ran on: `module`, `@f`, or `@f, @g` for functions that call each other."""
    text = _decode_name(on or b"")
    if loop := _LOOP.search(text):
        text = loop["function"]
    names = text.strip("()").split(", ") if text.startswith("(") else [text]
    return MODULE if text in ("[module]", "") else ", ".join(f"@{name}" for name in names)


def anchor_of(head: bytes, language: str, ran_on: str) -> str:
    """Returns the anchor of printed IR from its first lines.

    It is `module`, `@f` for a function or another symbol, or the first op's name without its dialect. If the lines do
    not determine it, returns `ran_on`, or `module`.
    """
    if language == "llvm":
        if b"ModuleID = " in head[:200]:
            return MODULE
        functions = _LLVM_FUNCTION.findall(head)
        is_one_function = len(functions) == 1 and ran_on != MODULE
        return "@" + _decode_name(functions[0]).strip('"') if is_one_function else ran_on or MODULE
    match = _match_first_op(head)
    if match is None:
        return ran_on or MODULE
    op, name = _decode_name(match["generic"] or match["op"]), match["sym"] or match["name"]
    if op in ("module", "builtin.module") and not name:
        return MODULE
    return f"@{_decode_name(name)}" if name else ran_on or op.rpartition(".")[2]


def first_op_name(head: bytes) -> str:
    """Returns the full name of the first op in printed MLIR, "" if the first lines do not contain it."""
    match = _match_first_op(head)
    op = _decode_name(match["generic"] or match["op"]) if match is not None else ""
    return "builtin.module" if op == "module" else op


def _match_first_op(head: bytes) -> re.Match[bytes] | None:
    """Returns the match of the first line of printed MLIR that declares an op."""
    for line in head.splitlines():
        if not _SKIPPED_LINE.match(line):
            return _MLIR_TOP.match(line)
    return None


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "replace").strip('"')
