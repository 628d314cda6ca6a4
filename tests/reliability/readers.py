"""All pure-Python readers of data from a user, a file or a peer, with valid bytes as seeds."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.panes import graph_nodes
from buddy.app.reports import searches
from buddy.app.reports.reproducer import DESCRIPTION_FILE, ReproducerDescription, StageFile, read_description
from buddy.app.reports.text import search_hits
from buddy.app.session import engine_options
from buddy.app.workspace import inputs, pipeline_text, session_file, settings
from buddy.app.workspace.history import Edit, SavedHistory
from buddy.app.workspace.session_file import RunRecord
from buddy.app.workspace.workspace import Workspace
from buddy.compiler import protocol
from buddy.compiler.codegen.iree import options
from buddy.compiler.engine.programs import resolve_plugins
from buddy.compiler.engine.server import ClientRejected, greeting_of, request_of
from buddy.compiler.graph.sizes import BadSizeError, parse_size
from buddy.compiler.protocol import compatibility, programs, recipe, resumable_stream, worker_messages
from buddy.compiler.protocol.connection import FrameBuffer, FrameDecoder, FrameError, WireError, encode
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.source_files import kind_of
from buddy.compiler.protocol.source_locations import SourceError, locate_source
from buddy.compiler.protocol.text.diff import difference
from buddy.compiler.protocol.text.line_keys import line_keys
from buddy.compiler.protocol.text.lines import IndexedText, elide, jumps, line_ends
from buddy.compiler.protocol.text.store import is_literal, stays_within_lines
from buddy.compiler.protocol.text.structure import region_at, symbols
from buddy.compiler.support import files
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.fuzz.session import FuzzBatch
from buddy.themes.lexers import lexer_for
from buddy.themes.palette import read_theme, themes
from buddy.themes.toml import TomlError
from tests.reliability.valid_values import one_of_each

MLIR = """#map = affine_map<(d0, d1) -> (d0, d1)>
module attributes {llvm.data_layout = "e-m:e"} {
  func.func @forward(%arg0: tensor<1x128xf32> {buddy.source = "x"}) -> (tensor<?x4xi64>, f32) loc("a b") {
    %cst = arith.constant dense<[1.0, -0x7F800000]> : tensor<2xf32> // a comment
    %0:2 = "test.op"(%arg0) ({\n    ^bb0(%a: f32):\n      scf.yield %a : f32\n    }) : (tensor<1x128xf32>) -> (f32, f32)
    return %0#1 : f32
  }
}
"""
LLVM = """; ModuleID = 'm'
@g = private constant [4 x i8] c"a\\00b\\"", align 1
define void @f(ptr noalias %0, i64 %1) #0 !dbg !4 {
entry:
  %2 = load <16 x float>, ptr %0, align 64, !tbaa !5
  br label %entry
}
!4 = distinct !DISubprogram(name: "f", line: 3)
"""
ASM = (
    "f:\n  vfmadd231ps zmm0, zmm1, zmmword ptr [rdi + 4*rax]\n  ldr q0, [x1, #16]! // mm_3 (+11)\n  jne .L2\n.L2: ret\n"
)
PTX = ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n\t.reg .b32 %r<4>;\n\tmov.u32 %r1, %tid.x;\n\tret;\n}\n"
THEME = 'base = "buddy-dark"\ntitle = "Mine"\n[syntax]\nkeyword = "bold #ff00ff"\n[colors]\nprimary = "#112233"\n'
CONFIG = 'theme = "dark"\nauto_run = true\nbell_after = 2.5\n[keys]\nrun = ["f5", "r"]\n"move.top" = []\n'
STAGE = StageFile("cse", "cse.mlir", "00")
DESCRIBED = ReproducerDescription(
    compatibility.REPRODUCER.latest, "a.py", ("--x",), "a.py", 0, "0.1.0", "x86-64", {"torch": "2.13"}, "own", (STAGE,)
)
FILTER = "op:mm shape:128x* lowering:eager time>1ms -module:layers.3 err>=1e-5 gelu"
BATCH = FuzzBatch(1, "abc", {"compiled": 50}, 1.5)


@dataclass(frozen=True)
class Reader:
    """A reader of bytes, the exceptions by which it rejects them, and valid bytes.

    `form` is the form of the bytes (`mutations.FORMS`), `weight` the relative number of inputs, `longest` their maximum
    length.
    """

    read: Callable[[bytes], Any]
    refuses: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]
    form: str = "text"
    weight: int = 10
    longest: int = 4000


def _text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode("utf-8", "replace"))


def in_memory() -> str:
    """A folder for this process's files, in memory if possible."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(prefix=f"buddy-inputs-{os.getpid()}-", dir=memory if os.access(memory, os.W_OK) else None)
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    return folder


_FOLDER = Path(in_memory())


def written(path: Path, data: bytes) -> Path:
    """Writes `data` to `path` and returns it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    return path


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    path = _FOLDER / name
    return lambda data: read(written(path, data))


def _frames(types: Any) -> Callable[[bytes], Any]:
    decoder = FrameDecoder(types)

    def read(data: bytes) -> None:
        buffer = FrameBuffer()
        middle = len(data) // 2
        for part in (data[:middle], data[middle:]):
            for body in buffer.feed(part):
                decoder.decode(body)
        buffer.finish()

    return read


def _refused_by(problem: Callable[[str], str]) -> Callable[[str], None]:
    """For a function that returns the error: raises `ValueError` if there is one."""

    def read(text: str) -> None:
        if said := problem(text):
            raise ValueError(said)

    return read


def _lexed(language: str) -> Callable[[str], None]:
    """Lexers tokenize every line and lose nothing of it."""
    lexer = lexer_for(language)

    def read(text: str) -> None:
        for line in text.split("\n"):
            tokens = lexer.get_tokens_unprocessed(line)
            assert "".join([piece for _, _, piece in tokens]) == line, f"lost a part of {line!r}"

    return read


def _indexed(text: str) -> None:
    """Lines, regions, symbols, jumps and shapes of any text."""
    indexed = IndexedText(text, line_ends(text))
    lines = text.split("\n")
    assert indexed.line_count == len(lines) - (text.endswith("\n") or not text)
    for number in range(0, indexed.line_count, max(1, indexed.line_count // 5)):
        elide(indexed.line(number))
        region_at(indexed, number)
    jumps(lines)
    language = ("mlir", "llvm", "asm", "ptx", "buddy")[len(text) % 5]
    symbols(indexed, language)
    list(line_keys(lines, language))


def _compared(text: str) -> None:
    """A difference leads from one text to the other, for any texts."""
    one, other = text, text[len(text) // 3 :] + text[: len(text) // 4]
    for how in ("line", "structural"):
        before, after, made, at = one.split("\n"), other.split("\n"), [], 0
        for hunk in difference(one, other, how).hunks:  # type: ignore[arg-type]
            made += before[at : hunk.before] + after[hunk.after : hunk.after + hunk.added]
            at = hunk.before + hunk.removed
        if how == "line":
            assert "\n".join([*made, *before[at:]]).rstrip("\n") == other.rstrip("\n")


def _parsed_pipeline(text: str) -> None:
    pipeline_text.to_steps(pipeline_text.parse_pipeline(text), STEPS)


def _completed(text: str) -> None:
    for offset in range(0, len(text) + 1, max(1, len(text) // 3)):
        pipeline_text.completions(text, offset, [])


def _filtered(text: str) -> None:
    graph_nodes.parse_filter(text)(FACTS)


def _searched(text: str) -> None:
    pattern = search_hits.read_pattern(text)
    pattern.compile()
    is_literal(pattern.source), stays_within_lines(pattern.source)


def _flagged(text: str) -> None:
    given = [options.normalise_flag(word) for word in text.split("\n")]
    options.runtime_driver(options.merge_flags(given), 2)
    if said := next(filter(None, map(options.flag_problem, text.split("\n"))), ""):
        raise ValueError(said)


def _linked(data: bytes) -> None:
    """A greeting over a connection and what follows it, in pieces."""
    greeted, stream = resumable_stream.GreetingReader(), resumable_stream.ResumableStream()
    stream.write(b"x" * 100)
    found = None
    for at in range(0, len(data), 1 + len(data) // 3):
        piece = data[at : at + 1 + len(data) // 3]
        if found is None:
            found = greeted.feed(piece)
            if found is None:
                continue
            stream.resume(found[0])
            piece = found[1]
        stream.feed(piece)
    if found is None:
        raise resumable_stream.StreamError("no greeting")
    assert 0 <= stream.received <= len(data)


def _greeted(data: bytes) -> None:
    request_of(data)
    greeting_of(data)


def _kept_program(data: bytes) -> None:
    """A session's files, cut out of the bytes: recipe, edits, the graph shown.

    A session starts whatever they contain.
    """
    recipe_at, edits_at = len(data) // 3, 2 * len(data) // 3
    bench = Workspace("a.py", store=_FOLDER / "kept")
    bench.path_of(0).parent.mkdir(parents=True, exist_ok=True)
    parts = data.split(b"\n%%\n") if data.count(b"\n%%\n") == 2 else [data[:recipe_at], data[recipe_at:edits_at], data]
    for suffix, part in zip((".toml", ".edits", ".graph"), parts, strict=True):
        written(bench.path_of(0).with_suffix(suffix), part)
    bench.load(SMALL)
    assert bench.recipe.source == "a.py"
    bench.undo(), bench.redo()
    if bench.problem:
        raise ValueError(bench.problem)


def _kept_layout(path: Path) -> None:
    _, problem = session_file.read_session(path)
    if problem:
        raise ValueError(problem)


def _settings(path: Path) -> None:
    _, problem = settings.read_settings(path)
    if problem:
        raise ValueError(problem)


def _lines(path: Path) -> None:
    if not files.read_json_lines(path, FuzzBatch):
        raise ValueError("nothing in it")


STEPS = default_recipe().steps
SMALL = recipe.Recipe(
    "a.py",
    ("--size", "3"),
    steps=(
        recipe.PassStep("flash-attention", "graph", ""),
        recipe.PassStep("cse", phase="fused"),
        recipe.PassStep("tile", anchor="func.func", options=(("rows", 4), ("on", True), ("by", 0.5), ("ir", "a\nb"))),
    ),
    choices=(recipe.OpChoice("mm_3", "tosa"),),
    backend_flags=("--iree-opt-level=O2",),
)
FACTS = graph_nodes.NodeFacts(one_of_each(protocol.NodeRow)[0])
EDITS = SavedHistory([Edit(SMALL)], Edit(SMALL, "tile"), [Edit(SMALL, "cse")])
KEPT = session_file.SavedSession(
    stage=("a", 3), node="mm", runs=tuple(one_of_each(RunRecord)), bookmarks=[[0, ["cse", 3], 1, "x"]]
)
_SESSION = b"\n%%\n".join((recipe.to_toml(SMALL).encode(), msgspec.msgpack.encode(EDITS), b"1\n"))
_RECIPES = (recipe.to_toml(SMALL).encode(), recipe.to_toml(msgspec.structs.replace(SMALL, steps=STEPS[:6])).encode())
_LINK = resumable_stream.encode_greeting(40) + b"D\x03\0\0\0abc" + b"A" + (100).to_bytes(8, "little")
_NOISY_LINK = b"Welcome!\r\n" + resumable_stream.encode_greeting(100) + b"D\x01\0\0\0a"


def _encoded(types: Any) -> tuple[bytes, ...]:
    return tuple(map(encode, one_of_each(types)))


def _pipeline() -> bytes:
    return pipeline_text.pipeline_text(STEPS[:12]).encode()


READERS: dict[str, Reader] = {
    "frames to the engine": Reader(
        _frames(protocol.ClientFrame), (WireError, FrameError), _encoded(protocol.ClientFrame), "frames", 150
    ),
    "frames to the workbench": Reader(
        _frames(protocol.EngineFrame), (WireError, FrameError), _encoded(protocol.EngineFrame), "frames", 150
    ),
    "messages of workers": Reader(
        _frames(worker_messages.HostMessage | worker_messages.CompilerMessage),
        (WireError, FrameError),
        _encoded(worker_messages.HostMessage | worker_messages.CompilerMessage),
        "frames",
        60,
    ),
    "first frame": Reader(
        _greeted,
        (ClientRejected,),
        (msgspec.msgpack.encode(protocol.Hello()), msgspec.msgpack.encode(protocol.Cancel(3))),
        "msgpack",
        60,
    ),
    "link to an engine elsewhere": Reader(
        _linked,
        (resumable_stream.StreamError, resumable_stream.ResumeError),
        (_LINK, _NOISY_LINK, resumable_stream.encode_rejection("it ended")),
        "bytes",
        60,
    ),
    "recipe": Reader(_text(recipe.from_toml), (ValueError,), _RECIPES, "toml", 30),
    "settings": Reader(_file("config.toml", _settings), (ValueError,), (CONFIG.encode(),), "toml", 40),
    "theme": Reader(
        _file("mine.toml", lambda path: read_theme(path, themes())),
        (TomlError, OSError, ValueError),
        (THEME.encode(),),
        "toml",
        30,
    ),
    "kept layout": Reader(_file("layout", _kept_layout), (ValueError,), (msgspec.msgpack.encode(KEPT),), "msgpack", 60),
    "kept recipe and edits": Reader(_kept_program, (ValueError,), (_SESSION,), "bytes", 10),
    "bookmarks": Reader(
        lambda data: session_file.Bookmarks.from_data(msgspec.json.decode(data)),
        (msgspec.MsgspecError, RecursionError, UnicodeDecodeError),
        (msgspec.json.encode(session_file.Bookmarks([session_file.Bookmark(0, ("cse", 3), 12, "%0 = f")]).to_data()),),
        "json",
        20,
    ),
    "reproducer": Reader(
        _file(DESCRIPTION_FILE, lambda path: read_description(path.parent)),
        (ValueError,),
        (msgspec.json.encode(DESCRIBED),),
        "json",
        50,
    ),
    "results of a campaign": Reader(
        _file("batches.jsonl", _lines), (ValueError,), (msgspec.json.encode(BATCH) + b"\n",), "json", 30
    ),
    "pipeline": Reader(_text(_parsed_pipeline), (pipeline_text.PipelineError,), (_pipeline(),), weight=30),
    "completion": Reader(_text(_completed), (), (_pipeline(),)),
    "filter": Reader(_text(_filtered), (graph_nodes.FilterError,), (FILTER.encode(),), weight=40),
    "search": Reader(
        _text(_searched), (ValueError,), (b"llvm\\.(load|store) .*f32", b"=a(b", b"\\V%0 = ["), longest=300
    ),
    "variation": Reader(
        _text(searches.read_variation),
        (searches.VariationError,),
        (b"contractions-to-kernels.rows=4,8,on,default,1e3",),
        weight=20,
    ),
    "shape": Reader(_text(programs.parse_input_shape), (ValueError,), (b"x=1x128xi64", b"0=?x4", b"ids=3"), weight=20),
    "size": Reader(_text(parse_size), (BadSizeError,), (b"s0*4 + 2*s1 - 3", b"max(s0, (s1 + 1)//2) % 8"), weight=20),
    "source": Reader(
        _text(locate_source),
        (SourceError,),
        (b"package.module:name", b"a.py:model", b"/etc/hosts", b"/dev/null"),
        weight=20,
    ),
    "path and seed": Reader(
        _text(lambda text: (inputs.parse_path(text), inputs.parse_seed(text.partition("\n")[2] or "7"))),
        (ValueError,),
        (b"~/a.npy\n123", b"~root/x\n-5", b"a b\n"),
        weight=20,
    ),
    "host": Reader(_text(engine_options.check_host), (ValueError,), (b"me@host", b"ssh://me@host:22", b"h"), weight=20),
    "ssh's complaint": Reader(
        _text(lambda text: engine_options.RemoteHost("h").explain_exit(len(text) % 256, text)),
        (),
        (b"ssh: Permission denied (publickey).\n", b"bash: buddy-tui: command not found"),
        weight=20,
    ),
    "plug-in's path": Reader(
        _text(lambda text: resolve_plugins([recipe.PluginFile(text, "00")], "")),
        (JobFailed,),
        (b"/etc/hosts", b"plugin.py"),
        weight=20,
    ),
    "flags": Reader(
        _text(_flagged),
        (ValueError,),
        ("\n".join(options.DEFAULT_FLAGS).encode(), b"--iree-hal-target-device=cuda[0]"),
        weight=20,
    ),
    "kind of file": Reader(
        _file("some.pt", kind_of),
        (OSError,),
        (
            b"ML\xefR\x01",
            b"PK\x03\x04",
            MLIR.encode(),
            b"import torch\nmodel = 1\n",
            b"\x08\x08\x12\x01x",
            b"\x93NUMPY\x01",
        ),
        "bytes",
        50,
    ),
    "text": Reader(_text(_indexed), (), (MLIR.encode(), LLVM.encode(), ASM.encode()), weight=20, longest=2000),
    "difference": Reader(_text(_compared), (), (MLIR.encode(), LLVM.encode(), ASM.encode()), weight=8, longest=1500),
    **{
        f"lexer of {language}": Reader(_text(_lexed(language)), (), (seed.encode(),), weight=5, longest=1500)
        for language, seed in {"mlir": MLIR, "llvm": LLVM, "asm": ASM, "ptx": PTX, "buddy": MLIR, "fx": ASM}.items()
    },
}
