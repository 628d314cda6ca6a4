"""Kernels with dot-product instructions and tiles on any processor: the instructions are computed by plain code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from buddy.compiler.passes.base import MlirPass
from buddy.compiler.support.target import Target
from tests.support.mlir_jit import Compiled

_INTRINSIC = re.compile(r'llvm\.call_intrinsic "llvm\.x86\.([\w.]+)"(\(.*\) : \(.*\) -> vector<(\d+)x\w+>)')
_GROUPS = {"vpdpbusd": 4, "vpdpwssd": 2, "dpbf16ps": 2, "pmadd": 2}
# In the name of an instruction that multiplies unsigned with signed bytes and adds pairs in 16 bits; kernels avoid that
# it saturates.
_BYTES = "pmaddub"
# In the name of an instruction that rounds two vectors.
_ROUNDING = "cvtne2ps2bf16"
_TILE = re.compile(r"!x86\.amx\.tile<[^>]*>|!llvm\.x86_amx")
_CAST = re.compile(r"builtin\.unrealized_conversion_cast (%\S+) : i64 to i64")
_LOAD = re.compile(r"x86\.amx\.tile_load (%\S+)\[(%\S+)\], (%\S+) : (memref<.*>) into i64")
_STORE = re.compile(r"x86\.amx\.tile_store (%\S+)\[(%\S+)\], (%\S+), (%\S+) : (memref<.*>), i64")
_MULTIPLY = re.compile(r"x86\.amx\.tile_mul([fi]) (%\w+)( zext)?, (%\w+)( zext)?, (%\S+) : i64, i64, i64")


def _function(name: str, group: int, lanes: int) -> str:
    """Returns an MLIR function that computes an intrinsic: products of each group of elements, added to the sums."""
    is_of_bytes = _BYTES in name.replace("_", "")
    element = "bf16" if "bf16" in name else "i8" if group == 4 or is_of_bytes else "i16"
    total = "f32" if element == "bf16" else "i16" if is_of_bytes else "i32"
    wide, sums, kind = f"vector<{lanes * group}x{total}>", f"vector<{lanes}x{total}>", "f" if total == "f32" else "i"
    left, right = (
        ("arith.extf",) * 2 if kind == "f" else ("arith.extui" if element == "i8" else "arith.extsi", "arith.extsi")
    )
    narrow = f"vector<{lanes * group}x{element}>"
    has_sums = "pmadd" not in name
    lines = [
        f"func.func private @{name}({f'%t: {sums}, ' * has_sums}%a: {narrow}, %b: {narrow}) -> {sums} {{",
        f"%x = {left} %a : {narrow} to {wide}",
        f"%y = {right} %b : {narrow} to {wide}",
        f"%p = arith.mul{kind} %x, %y : {wide}",
    ]
    if not has_sums:
        lines.append(f"%t = arith.constant dense<0> : {sums}")
    previous = "%t"
    for i in range(group):
        mask = ", ".join(str(lane * group + i) for lane in range(lanes))
        lines.append(f"%q{i} = vector.shuffle %p, %p [{mask}] : {wide}, {wide}")
        lines.append(f"%s{i} = arith.add{kind} {previous}, %q{i} : {sums}")
        previous = f"%s{i}"
    return "\n".join([*lines, f"return {previous} : {sums}", "}"])


def _rounding(name: str, lanes: int) -> str:
    """Returns an MLIR function that computes the intrinsic that rounds two vectors, of which the second is first."""
    half, wide, narrow = (
        f"vector<{count}x{type_}>" for count, type_ in ((lanes // 2, "f32"), (lanes, "f32"), (lanes, "bf16"))
    )
    places = ", ".join(map(str, range(lanes)))
    return f"""func.func private @{name}(%second: {half}, %first: {half}) -> {narrow} {{
        %all = vector.shuffle %first, %second [{places}] : {half}, {half}
        %rounded = arith.truncf %all : {wide} to {narrow}
        return %rounded : {narrow}
    }}"""


class _Tiles:
    """The tiles of a program, as rows of bytes by their handles, and the functions that work on them."""

    def __init__(self) -> None:
        self._tiles: list[np.ndarray[Any, Any]] = []
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        flat = (pointer, pointer, i64, i64, i64)  # allocated and aligned pointer, offset, size, stride
        self.functions: dict[str, Any] = {
            "tile_zero": ctypes.CFUNCTYPE(i64)(self._zero),
            "tile_load": ctypes.CFUNCTYPE(i64, *flat, i64, i64, i64)(self._load),
            "tile_store": ctypes.CFUNCTYPE(None, *flat, i64, i64, i64, i64)(self._store),
            "tile_multiply": ctypes.CFUNCTYPE(i64, *[i64] * 6)(self._multiply),
        }

    def _add(self, tile: np.ndarray[Any, Any]) -> int:
        self._tiles.append(tile)
        return len(self._tiles) - 1

    def _zero(self) -> int:
        return self._add(np.zeros((16, 64), np.uint8))

    def _rows(self, aligned: int, offset: int, index: int, stride: int, width: int) -> np.ndarray[Any, Any]:
        start = aligned + (offset + index) * width
        memory = (ctypes.c_uint8 * (15 * stride * width + 64)).from_address(start)
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, np.uint8), (16, 64), (stride * width, 1))

    def _load(self, _: int, aligned: int, offset: int, __: int, ___: int, index: int, stride: int, width: int) -> int:
        return self._add(self._rows(aligned, offset, index, stride, width).copy())

    def _store(
        self, _: int, aligned: int, offset: int, __: int, ___: int, index: int, stride: int, width: int, tile: int
    ) -> None:
        self._rows(aligned, offset, index, stride, width)[...] = self._tiles[tile]

    def _multiply(self, a: int, b: int, total: int, floats: int, a_unsigned: int, b_unsigned: int) -> int:
        left, right, sums = self._tiles[a], self._tiles[b], self._tiles[total]
        if floats:
            x, y = ((t.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for t in (left, right))
            y = y.reshape(16, 16, 2).transpose(0, 2, 1).reshape(32, 16)
            return self._add((sums.view(np.float32) + x @ y).astype(np.float32).view(np.uint8))
        x, y = (
            t.view(np.uint8 if unsigned else np.int8).astype(np.int32)
            for t, unsigned in ((left, a_unsigned), (right, b_unsigned))
        )
        y = y.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
        return self._add((sums.view(np.int32) + x @ y).astype(np.int32).view(np.uint8))


def _without_tiles(text: str) -> str:
    """Returns `text` with calls of the functions of `_Tiles` in place of ops on tiles, which become handles."""
    text = _TILE.sub("i64", text)
    text = _CAST.sub(r"arith.bitcast \1 : i64 to i64", text)
    text = text.replace("x86.amx.tile_zero : i64", "func.call @tile_zero() : () -> i64")
    declared: dict[str, str] = {}

    def declare(type_: str, name: str, rest: str) -> str:
        return declared.setdefault(f"func.func private @{name}_NUMBER({type_}, {rest}", type_)

    types: list[str] = []

    def number(type_: str) -> int:
        if type_ not in types:
            types.append(type_)
        return types.index(type_)

    def width(type_: str) -> str:
        return {"bf16": "%w2", "i8": "%w1", "f32": "%w4", "i32": "%w4"}[re.split(r"[x,>]", type_)[1]]

    text = _LOAD.sub(
        lambda m: (
            f"func.call @tile_load_{number(m[4])}({m[1]}, {m[2]}, {m[3]}, {width(m[4])}) "
            f": ({m[4]}, index, index, index) -> i64"
        ),
        text,
    )
    text = _STORE.sub(
        lambda m: (
            f"func.call @tile_store_{number(m[5])}({m[1]}, {m[2]}, {m[4]}, {width(m[5])}, {m[3]}) "
            f": ({m[5]}, index, index, index, i64) -> ()"
        ),
        text,
    )
    text = _MULTIPLY.sub(
        lambda m: (
            f"func.call @tile_multiply({m[2]}, {m[4]}, {m[6]}, {_flag(m[1] == 'f')}, {_flag(m[3])}, {_flag(m[5])}) "
            ": (i64, i64, i64, i64, i64, i64) -> i64"
        ),
        text,
    )
    text = re.sub(
        r"(func\.func [^{\n]*\{\n)",
        r"\1%w1 = arith.constant 1 : index\n%w2 = arith.constant 2 : index\n%w4 = arith.constant 4 : index\n"
        r"%f0 = arith.constant 0 : i64\n%f1 = arith.constant 1 : i64\n",
        text,
    )
    heads = [
        "func.func private @tile_zero() -> i64",
        "func.func private @tile_multiply(i64, i64, i64, i64, i64, i64) -> i64",
    ]
    for i, type_ in enumerate(types):
        heads.append(f"func.func private @tile_load_{i}({type_}, index, index, index) -> i64")
        heads.append(f"func.func private @tile_store_{i}({type_}, index, index, index, i64)")
    return text.replace("module {", "module {\n" + "\n".join(heads), 1)


def _flag(is_set: object) -> str:
    return "%f1" if is_set else "%f0"


class Emulated(Compiled):
    """A module after `passes` for `target`, with its dot-product instructions and tiles computed by plain code."""

    def __init__(self, text: str, passes: Sequence[MlirPass], *, target: Target) -> None:
        compiled = Compiled(text, passes, target=target)
        functions: dict[str, str] = {}

        def call(match: re.Match[str]) -> str:
            name = match[1].replace(".", "_")
            if _ROUNDING in name:
                functions[name] = _rounding(name, int(match[3]))
                return f"func.call @{name}{match[2]}"
            group = next(group for key, group in _GROUPS.items() if key in name)
            functions[name] = _function(name, group, int(match[3]))
            return f"func.call @{name}{match[2]}"

        plain = _INTRINSIC.sub(call, compiled.text)
        plain = plain.replace("module {", "module {\n" + "\n".join(functions.values()), 1)
        self.tiles = _Tiles()
        has_tiles = "x86.amx" in plain
        super().__init__(_without_tiles(plain) if has_tiles else plain)
        self.text, self.remarks = compiled.text, compiled.remarks
        if has_tiles:
            for name, function in self.tiles.functions.items():
                address = ctypes.cast(function, ctypes.c_void_p).value or 0
                for suffix in ["", *(f"_{i}" for i in range(16))]:
                    self.imports[name + suffix] = address


Kernel = Callable[..., None]
