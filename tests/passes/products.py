"""Contractions as MLIR text, from an einsum and sizes, and arrays to call them with."""

from __future__ import annotations

import re

import numpy as np

from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import memref


def function(
    name: str,
    subscripts: str,
    sizes: dict[str, int],
    *,
    zero: bool = True,
    parameter: bool = False,
    element: str = "f32",
    right: str = "",
    sums: str = "",
    unsigned: tuple[bool, bool] = (False, False),
) -> str:
    """A function (A, B, C) that computes `subscripts`, an einsum, over loops of `sizes`; C has elements of `sums`.

    B has elements of `right`, if that is given; then A is a float.

    Integers of A and B are widened with zeros where they are `unsigned`.
    """
    terms = re.split(",|->", subscripts)
    loops = ",".join(sizes)
    maps = ",".join(f"affine_map<({loops})->({','.join(term)})>" for term in terms)
    sums = sums or element
    kinds = (element, right or element, sums)
    a, b, c = (
        memref(*(sizes[letter] for letter in term), element=kind) for term, kind in zip(terms, kinds, strict=True)
    )
    mark = " {buddy.parameter, buddy.source = 1 : i64}" if parameter else ""
    fill = f"linalg.fill ins(%z : {sums}) outs(%c : {c})" if zero else ""
    nothing = "0.0" if "f" in sums else "0"
    casts = ["arith.extui" if positive else "arith.extsi" for positive in unsigned]
    kinds = ", ".join('"parallel"' if letter in terms[2] else '"reduction"' for letter in sizes)
    body = f"""linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} ins(%a, %b : {a}, {b})
        outs(%c : {c}) {{
      ^bb0(%x: {element}, %y: {element}, %t: {sums}):
        %wx = {casts[0]} %x : {element} to {sums}
        %wy = {casts[1]} %y : {element} to {sums}
        %p = arith.muli %wx, %wy : {sums}
        %s = arith.addi %p, %t : {sums}
        linalg.yield %s : {sums}
      }}"""
    if not any(unsigned):
        body = f"linalg.contract indexing_maps = [{maps}] ins(%a, %b : {a}, {b}) outs(%c : {c})"
    return f"""
    func.func @{name}(%a: {a}, %b: {b}{mark}, %c: {c}) attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant {nothing} : {sums}
      {fill}
      {body}
      return
    }}"""


def operands(subscripts: str, sizes: dict[str, int], dtype: type = np.float32) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    terms = re.split(",|->", subscripts)
    return tuple(rng.standard_normal([sizes[letter] for letter in term]).astype(dtype) for term in terms)


def packed_by(compiled: Compiled, raw: np.ndarray) -> np.ndarray:
    """The parameter `raw` as the module's only packing function packs it."""
    (shape,) = re.findall(r"memref<([\dx]+)x\w+> {buddy.pack", compiled.text)
    packed = np.zeros([int(size) for size in shape.split("x")], raw.dtype)
    compiled("pack_0", raw, packed)
    return packed
