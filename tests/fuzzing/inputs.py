"""Random bytes for everything that reads what a user, a file or a peer wrote: each answers, or says what is wrong.

`python tests/fuzzing/inputs.py --count 1000000 --seed 0` tries so many, in shares of `--shard I/N`, and prints one JSON
object; `--reader NAME` keeps to one. An input is made of the reader's own seeds, cut, doubled, joined and overwritten,
by a seed of its own: what failed is told by that number and comes again with `--only NUMBER`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import msgspec

from buddy.app import bookmarks, keeping, node_filter, patterns, pipeline_text, settings, tuning
from buddy.app.reproducer import DESCRIPTION, FORMAT, Description, read_description
from buddy.compiler import protocol, recipe, shape_words
from buddy.compiler.presets import default_recipe
from buddy.compiler.sources.kinds import kind_of
from buddy.compiler.text.diff import difference
from buddy.compiler.text.lines import IndexedText, line_ends
from buddy.compiler.text.regions import region_at, symbols
from buddy.compiler.text.structure import shapes
from buddy.compiler.wire import FrameBuffer, FrameDecoder, FrameError, WireError, encode
from buddy.themes.lexers import lexer_for
from buddy.themes.palette import read_theme, themes
from buddy.themes.toml import TomlError

# Seconds after which a reader counts as one that never ends. A line of IR takes microseconds.
PATIENCE = 20
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
CONFIG = 'theme = "dark"\nauto_run = true\nbell_after = 2.5\n[keys]\nrun = ["f5", "r"]\n"ir.find" = []\n'
DESCRIBED = Description(FORMAT, "a.py", ("--x",), "a.py", 0, "0.1.0", "x86-64", {"torch": "2.13"}, "own", ())
FILTER = "op:mm shape:128x* road:eager time>1ms -module:layers.3 err>=1e-5 gelu"


@dataclass(frozen=True)
class Reader:
    """What reads bytes, what it may raise to say that they are wrong, and bytes that it takes."""

    read: Callable[[bytes], Any]
    refuses: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def _text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    folder = TemporaryDirectory(prefix="buddy-inputs-")

    def written(data: bytes) -> Any:
        path = Path(folder.name, name)
        path.write_bytes(data)
        return read(path)

    return written


def _frames(types: Any) -> Callable[[bytes], Any]:
    def read(data: bytes) -> None:
        buffer, decoder = FrameBuffer(), FrameDecoder(types)
        middle = len(data) // 2
        for part in (data[:middle], data[middle:]):
            for body in buffer.feed(part):
                decoder.decode(body)
        buffer.finish()

    return read


def _lexed(language: str) -> Callable[[str], None]:
    """Lexers take every line apart and lose nothing of it."""

    def read(text: str) -> None:
        for line in text.split("\n"):
            tokens = lexer_for(language).get_tokens_unprocessed(line)
            assert "".join(piece for _, _, piece in tokens) == line, f"lost a part of {line!r}"

    return read


def _indexed(text: str) -> None:
    """Lines, regions, symbols and shapes of any text; a difference leads from one text to the other."""
    indexed = IndexedText(text, line_ends(text))
    assert indexed.total == len(text.split("\n")) - (text.endswith("\n") or not text)
    for number in range(min(indexed.total, 20)):
        indexed.line(number)
        region_at(indexed, number)
    for language in ("mlir", "llvm", "asm", "buddy"):
        symbols(indexed, language)
        list(shapes(text.split("\n"), language))
    one, other = text, text[len(text) // 3 :] + text[: len(text) // 4]
    for how in ("line", "structural"):
        before, after, made, at = one.split("\n"), other.split("\n"), [], 0
        for hunk in difference(one, other, how).hunks:  # type: ignore[arg-type]
            made += before[at : hunk.before] + after[hunk.after : hunk.after + hunk.added]
            at = hunk.before + hunk.removed
        if how == "line":
            assert _ended("\n".join([*made, *before[at:]])) == _ended(other)


def _ended(text: str) -> str:
    return text.rstrip("\n")


def _completed(text: str) -> None:
    for offset in range(0, len(text) + 1, max(1, len(text) // 8)):
        pipeline_text.completions(text, offset, [])


def _pipeline() -> bytes:
    return pipeline_text.pipeline_text(default_recipe().steps).encode()


def _recipe() -> bytes:
    return recipe.to_toml(default_recipe()).encode()


READERS: dict[str, Reader] = {
    "frames to the engine": Reader(
        _frames(protocol.ClientFrame),
        (WireError, FrameError),
        (
            encode(protocol.Hello()),
            encode(protocol.Cancel(3)) + encode(protocol.Compile(1, default_recipe())),
            b"\x02\x00\x00\x00\x80\xc0",
        ),
    ),
    "frames to the workbench": Reader(
        _frames(protocol.EngineFrame),
        (WireError, FrameError),
        (encode(protocol.Progress(1, "compiling", 0.5)), encode(protocol.Failed(1, protocol.Diagnostic("no")))),
    ),
    "recipe": Reader(_text(recipe.from_toml), (ValueError,), (_recipe(), _recipe()[:900])),
    "settings": Reader(_file("config.toml", settings.read_settings), (), (CONFIG.encode(),)),
    "theme": Reader(
        _file("mine.toml", lambda path: read_theme(path, themes())), (TomlError, OSError, ValueError), (THEME.encode(),)
    ),
    "kept layout": Reader(
        _file("layout", keeping.read_kept), (), (msgspec.msgpack.encode(keeping.Kept(stage=("a", 3), node="mm")),)
    ),
    "bookmarks": Reader(
        lambda data: bookmarks.Bookmarks.from_data(msgspec.json.decode(data)),
        (msgspec.MsgspecError, RecursionError, UnicodeDecodeError),
        (msgspec.json.encode(bookmarks.Bookmarks([bookmarks.Bookmark(0, ("cse", 3), 12, "%0 = f")]).to_data()),),
    ),
    "reproducer": Reader(
        _file(DESCRIPTION, lambda path: read_description(path.parent)), (ValueError,), (msgspec.json.encode(DESCRIBED),)
    ),
    "pipeline": Reader(_text(pipeline_text.parse), (pipeline_text.PipelineError,), (_pipeline(),)),
    "completion": Reader(_text(_completed), (), (_pipeline(),)),
    "filter": Reader(_text(node_filter.read_filter), (node_filter.FilterError,), (FILTER.encode(),)),
    "search": Reader(
        _text(lambda text: patterns.read_pattern(text).compiled()),
        (ValueError,),
        (b"llvm\\.(load|store) .*f32", b"=a(b"),
    ),
    "variation": Reader(
        _text(tuning.read_variation), (tuning.VariationError,), (b"contractions-to-kernels.rows=4,8,on,default,1e3",)
    ),
    "shape": Reader(_text(shape_words.shape_word), (ValueError,), (b"x=1x128xi64", b"0=?x4", b"ids=3")),
    "kind of file": Reader(
        _file("some.pt", kind_of),
        (OSError,),
        (b"ML\xefR\x01", b"PK\x03\x04", MLIR.encode(), b"import torch\nmodel = 1\n"),
    ),
    "text": Reader(_text(_indexed), (), (MLIR.encode(), LLVM.encode(), ASM.encode())),
    **{
        f"lexer of {language}": Reader(_text(_lexed(language)), (), (seed.encode(),))
        for language, seed in {"mlir": MLIR, "llvm": LLVM, "asm": ASM, "ptx": PTX, "buddy": MLIR, "fx": ASM}.items()
    },
}


def made(reader: Reader, number: int) -> bytes:
    """Input `number` of a reader: one of its seeds after a few changes."""
    chance = random.Random(number)
    data = bytearray(chance.choice(reader.seeds))
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        _change(data, chance, reader.seeds)
    return bytes(data[:20_000])


_PIECES = (
    *(b"\x00", b"\xff" * 4, b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\x1b[31m", b"\\", b"\n", b"\r\n", b" " * 200),
    *(b'"', b"'", b"{", b"}" * 9, b"(" * 300, b"[[", b"%" * 40, b"-" * 50, b"=", b"#"),
    *(b"nan", b"inf", b"1e999", b"9" * 40),
)


def _change(data: bytearray, chance: random.Random, seeds: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    length = chance.choice((1, 2, 4, 16, 64, len(data)))
    kind = chance.randrange(6)
    if kind == 0:
        del data[at : at + length]
    elif kind == 1:
        data[at:at] = data[at : at + length] * chance.choice((1, 2, 50))
    elif kind == 2:
        data[at : at + length] = chance.randbytes(min(length, 64))
    elif kind == 3:
        data[at:at] = chance.choice(_PIECES)
    elif kind == 4:
        other = chance.choice(seeds)
        data[at:] = other[chance.randrange(len(other) + 1) :]
    elif data:
        data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)


def fault_of(reader: Reader, data: bytes) -> str:
    """What is wrong with how a reader takes `data`; "" for nothing."""
    try:
        reader.read(data)
    except TimeoutError:
        return f"it was not done after {PATIENCE} s"
    except reader.refuses:
        return ""
    except (Exception, RecursionError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def campaign(names: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """Try each of `numbers` on the readers in turn; how many inputs each had, and the faults."""
    tried: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []
    for number in numbers:
        name = names[number % len(names)]
        said = _in_time(READERS[name], made(READERS[name], number))
        tried[name] += 1
        if said:
            faults.append({"reader": name, "number": number, "said": said})
    return {"tried": dict(tried), "faults": faults}


def _in_time(reader: Reader, data: bytes) -> str:
    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        return fault_of(reader, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, metavar="N", help="how many inputs (100000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the number of the first input (0)")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="only part I of N parts")
    parser.add_argument("--reader", choices=READERS, help="only this reader")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only this input, for all to see")
    options = parser.parse_args()
    part, parts = map(int, options.shard.split("/"))
    names = [options.reader] if options.reader else list(READERS)
    if options.only is not None:
        name = names[options.only % len(names)]
        data = made(READERS[name], options.only)
        print(name, data)
        print(READERS[name].read(data))
        return 0
    start = time.perf_counter()
    found = campaign(names, range(options.seed + part - 1, options.seed + options.count, parts))
    print(json.dumps(found | {"seconds": round(time.perf_counter() - start, 1)}, indent=2))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
