"""`vectorize-generics`: numbers against NumPy for many shapes, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.mlir_jit import Compiled, random_array
from tests.support.mlir_text import entry_function, generic, memref

SIZES = (1, 3, 16, 17, 33, 65, 130)
NUMPY = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i8": np.int8, "i64": np.int64}


def vectorized(text: str) -> Compiled:
    compiled = Compiled(text, [VectorizeGenerics()])
    assert "linalg." not in compiled.text, compiled.remarks
    return compiled


def elementwise(m: int, n: int) -> str:
    whole, row, column = memref(m, n), memref(n), memref(m, 1)
    body = """%0 = arith.mulf %in0, %two : f32
          %1 = arith.addf %0, %in1 : f32
          %r = arith.subf %1, %in2 : f32"""
    inputs = [("%x", whole, "i,j"), ("%row", row, "j"), ("%column", column, "i,0")]
    return entry_function(
        f"%x: {whole}, %row: {row}, %column: {column}, %y: {whole}",
        "%two = arith.constant 2.0 : f32" + generic("ij", inputs, [("%y", whole, "i,j")], body),
        f"f{n}",
    )


def check_elementwise(compiled: Compiled, m: int, n: int) -> None:
    x, row, column = random_array(m, n), random_array(n), random_array(m, 1)
    y = np.full((m, n), np.nan, np.float32)
    compiled(f"f{n}", x, row, column, y)
    np.testing.assert_array_equal(y, x * np.float32(2) + row - column)


@pytest.mark.parametrize("m", SIZES)
def test_elementwise_with_broadcasts(m: int) -> None:
    sizes = [n for n in SIZES if m * n > 1]
    compiled = vectorized("".join(elementwise(m, n) for n in sizes))
    for n in sizes:
        check_elementwise(compiled, m, n)


@pytest.mark.parametrize("n", [2, 7, 16, 30, 33])
def test_a_part_of_a_vector_is_stored_in_pieces_without_a_mask(n: int) -> None:
    """A store of 16 of 32 elements of bfloat16 with a mask takes some 50 cycles on Zen 4."""
    compiled = vectorized(elementwise(3, n))
    assert "maskedstore" not in compiled.text
    check_elementwise(compiled, 3, n)


def test_a_single_element_needs_no_loop() -> None:
    compiled = vectorized(elementwise(1, 1))
    assert compiled.remarks == ["linalg.generic: a single element, without a loop"]
    assert "scf.for" not in compiled.text
    x, y = random_array(1, 1), np.zeros((1, 1), np.float32)
    compiled("f1", x, np.float32([3]), np.float32([[5]]), y)
    np.testing.assert_array_equal(y, x * np.float32(2) + np.float32(3) - np.float32(5))


@pytest.mark.parametrize("m", [1, 3, 34])
def test_dims_that_are_read_in_reverse(m: int) -> None:
    """Rows, columns and both, and columns of one of two operands."""

    def function(n: int) -> str:
        whole, rows, columns = memref(m, n), f"{m - 1} - i", f"{n - 1} - j"
        reads = {"%rows": f"{rows},j", "%columns": f"i,{columns}", "%both": f"{rows},{columns}"}
        doubled = [
            generic("ij", [("%x", whole, read)], [(out, whole, "i,j")], "%r = arith.addf %in0, %in0 : f32")
            for out, read in reads.items()
        ]
        operands = [("%x", whole, "i,j"), ("%x", whole, f"i,{columns}")]
        difference = generic("ij", operands, [("%difference", whole, "i,j")], "%r = arith.subf %in0, %in1 : f32")
        arguments = ", ".join(f"{name}: {whole}" for name in ("%x", *reads, "%difference"))
        return entry_function(arguments, "".join([*doubled, difference]), f"f{n}")

    sizes = [n for n in SIZES if m * n > 1]
    compiled = vectorized("".join(function(n) for n in sizes))
    for n in sizes:
        x, results = random_array(m, n), [np.full((m, n), np.nan, np.float32) for _ in range(4)]
        compiled(f"f{n}", x, *results)
        expected = (2 * x[::-1], 2 * x[:, ::-1], 2 * x[::-1, ::-1], x - x[:, ::-1])
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


def reduction(name: str, m: int, n: int, axis: int, combine: str, initial: str) -> str:
    whole, folded = memref(m, n), memref(m, 1) if axis == 1 else memref(1, n)
    operands = [("%x", whole, "i,j")], [("%y", folded, "i,0" if axis == 1 else "0,j")]
    return entry_function(
        f"%x: {whole}, %y: {folded}",
        f"""%initial = arith.constant {initial} : f32
      linalg.fill ins(%initial : f32) outs(%y : {folded})
      {generic("ij", *operands, f"%r = {combine} %in0, %out0 : f32", reductions="ij"[axis])}""",
        name,
    )


@pytest.mark.parametrize("m", [2, 130])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_and_maxima(m: int, axis: int) -> None:
    sizes = (3, 17, 33, 65, 128, 130)
    folds = {"sum": ("arith.addf", "0.0"), "max": ("arith.maximumf", "0xFF800000")}
    compiled = vectorized("".join(reduction(f"{f}{n}", m, n, axis, *folds[f]) for n in sizes for f in folds))
    for n in sizes:
        x, y = random_array(m, n), np.zeros((m, 1) if axis == 1 else (1, n), np.float32)
        compiled(f"sum{n}", x, y)
        np.testing.assert_allclose(y, x.astype(np.float64).sum(axis, keepdims=True), atol=1e-5)
        compiled(f"max{n}", x, y)
        np.testing.assert_array_equal(y, x.max(axis, keepdims=True))


@pytest.mark.parametrize("n", [17, 65])
def test_maximum_keeps_nan_and_infinities(n: int) -> None:
    x = -np.abs(random_array(4, n))
    x[0, n - 1], x[1, 0], x[2, :] = np.nan, np.inf, -np.inf
    y = np.zeros((4, 1), np.float32)
    vectorized(reduction("f", 4, n, 1, "arith.maximumf", "0xFF800000"))("f", x, y)
    np.testing.assert_array_equal(y, x.max(1, keepdims=True))


def test_a_sum_of_squared_differences_and_a_count_in_one_reduction() -> None:
    rows = memref(6)
    body = """%one = arith.constant 1.0 : f32
          %0 = arith.subf %in0, %in1 : f32
          %1 = arith.mulf %0, %0 : f32
          %2 = arith.addf %out0, %1 : f32
          %3 = arith.addf %out1, %one : f32"""
    inputs, outputs = [("%x", memref(6, 77), "i,j"), ("%mean", rows, "i")], [("%y", rows, "i"), ("%z", rows, "i")]
    text = generic("ij", inputs, outputs, body, reductions="j", yields="%2, %3")
    compiled = vectorized(entry_function(f"%x: {memref(6, 77)}, %mean: {rows}, %y: {rows}, %z: {rows}", text))
    x, mean = random_array(6, 77), random_array(6)
    y, z = np.full(6, 5, np.float32), np.zeros(6, np.float32)
    compiled("f", x, mean, y, z)
    np.testing.assert_allclose(y, 5 + ((x - mean[:, None]).astype(np.float64) ** 2).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(z, 77)


def test_a_reduction_over_outer_and_inner_dims() -> None:
    operands = [("%x", memref(5, 7, 33), "i,j,k")], [("%y", memref(7), "j")]
    text = generic("ijk", *operands, "%r = arith.addf %out0, %in0 : f32", reductions="ik")
    compiled = vectorized(entry_function(f"%x: {memref(5, 7, 33)}, %y: {memref(7)}", text))
    x, y = random_array(5, 7, 33), np.zeros(7, np.float32)
    compiled("f", x, y)
    np.testing.assert_allclose(y, x.astype(np.float64).sum((0, 2)), atol=1e-5)


def test_a_maximum_under_a_sliding_window() -> None:
    image, window, result = memref(3, 20, 41), memref(3, 3), memref(3, 18, 39)
    operands = [("%x", image, "c,h+i,w+j"), ("%window", window, "i,j")], [("%y", result, "c,h,w")]
    text = generic("chwij", *operands, "%r = arith.maximumf %out0, %in0 : f32", reductions="ij")
    compiled = vectorized(entry_function(f"%x: {image}, %window: {window}, %y: {result}", text))
    x, y = random_array(3, 20, 41), np.full((3, 18, 39), -np.inf, np.float32)
    compiled("f", x, np.zeros((3, 3), np.float32), y)
    np.testing.assert_array_equal(y, np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2)).max((3, 4)))


@pytest.mark.parametrize("element", NUMPY)
@pytest.mark.parametrize(("m", "n"), [(1, 5), (3, 16), (16, 16), (17, 33), (65, 130)])
def test_fill_copy_and_transpose(element: str, m: int, n: int) -> None:
    straight, crossed, one = (memref(*shape, element=element) for shape in ((m, n), (n, m), (1,)))
    text = entry_function(
        f"%s: {one}, %x: {straight}, %a: {straight}, %b: {straight}, %c: {crossed}",
        f"""%zero = arith.constant 0 : index
      %value = memref.load %s[%zero] : {one}
      linalg.fill ins(%value : {element}) outs(%a : {straight})
      memref.copy %x, %b : {straight} to {straight}
      linalg.transpose ins(%x : {straight}) outs(%c : {crossed}) permutation = [1, 0]""",
    )
    compiled = vectorized(text)
    x = (random_array(m, n) * 50).astype(NUMPY[element])
    filler = np.array([7], NUMPY[element])
    a, b, c = np.zeros_like(x), np.zeros_like(x), np.zeros((n, m), NUMPY[element])
    compiled("f", filler, x, a, b, c)
    np.testing.assert_array_equal(a, np.full_like(x, 7))
    np.testing.assert_array_equal(b, x)
    np.testing.assert_array_equal(c, x.T)


def test_a_transpose_writes_nothing_outside_its_target() -> None:
    view = "memref<19x17xf32, strided<[40, 1], offset: 3>>"
    text = entry_function(
        f"%x: {memref(17, 19)}, %y: {memref(19, 40)}",
        f"""%v = memref.subview %y[0, 3] [19, 17] [1, 1] : {memref(19, 40)} to {view}
      linalg.transpose ins(%x : {memref(17, 19)}) outs(%v : {view}) permutation = [1, 0]""",
    )
    compiled = vectorized(text)
    x, y = random_array(17, 19), np.full((19, 40), 9, np.float32)
    compiled("f", x, y)
    expected = np.full((19, 40), 9, np.float32)
    expected[:, 3:20] = x.T
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("n", [5, 16, 37])
def test_a_body_that_asks_for_its_index(n: int) -> None:
    type_ = memref(4, n, element="i64")
    body = """%i = linalg.index 0 : index
          %j = linalg.index 1 : index
          %c = arith.constant 100 : index
          %0 = arith.muli %i, %c : index
          %1 = arith.addi %0, %j : index
          %r = arith.index_cast %1 : index to i64"""
    compiled = vectorized(entry_function(f"%y: {type_}", generic("ij", [], [("%y", type_, "i,j")], body)))
    y = np.zeros((4, n), np.int64)
    compiled("f", y)
    np.testing.assert_array_equal(y, np.arange(4)[:, None] * 100 + np.arange(n))


@pytest.mark.parametrize("ops", [3, 20, 80])
@pytest.mark.parametrize("n", [512, 513, 1024, 1039, 1055])
def test_long_loops_do_several_vectors_an_iteration(n: int, ops: int) -> None:
    """Bodies of few ops, of some and of many, on whole iterations and on what is left of them."""
    x, y = random_array(3, n), np.full((3, n), np.nan, np.float32)
    type_ = memref(3, n)
    additions = "\n".join(f"%{i + 1} = arith.addf %{i}, %in0 : f32" for i in range(ops))
    operands = [("%x", type_, "i,j")], [("%y", type_, "i,j")]
    text = generic("ij", *operands, "%0 = arith.addf %in0, %in0 : f32\n" + additions, yields=f"%{ops}")
    compiled = vectorized(entry_function(f"%x: {type_}, %y: {type_}", text))
    compiled("f", x, y)
    np.testing.assert_allclose(y, (ops + 2) * x, rtol=1e-5)  # a sum of up to 82 terms, each rounded


@pytest.mark.parametrize("n", SIZES)
def test_a_reduction_that_asks_for_the_index_along_it(n: int) -> None:
    """The maximum of each row up to a column that a number from outside tells, as in causal attention."""
    x, y = random_array(5, n), np.full(5, -np.inf, np.float32)
    body = """%j = linalg.index 1 : index
          %0 = arith.cmpi uge, %last, %j : index
          %1 = arith.select %0, %in0, %low : f32
          %r = arith.maximumf %out0, %1 : f32"""
    text = entry_function(
        f"%x: {memref(5, n)}, %y: {memref(5)}",
        f"""%last = arith.constant {n // 2} : index
      %low = arith.constant -1.0 : f32
      {generic("ij", [("%x", memref(5, n), "i,j")], [("%y", memref(5), "i")], body, reductions="j")}""",
    )
    compiled = vectorized(text)
    compiled("f", x, y)
    x[:, n // 2 + 1 :] = -1.0
    np.testing.assert_array_equal(y, x.max(1))


@pytest.mark.parametrize("n", SIZES)
def test_a_reduction_along_what_is_only_stored(n: int) -> None:
    """As in the gradient of a cross entropy: a row with one element that is not zero, and its sum."""
    row = memref(5, n)
    body = """%j = linalg.index 1 : index
          %j1 = arith.index_cast %j : index to i64
          %is = arith.cmpi eq, %in1, %j1 : i64
          %0 = arith.select %is, %in0, %zero : f32
          %1 = arith.addf %out1, %0 : f32"""
    inputs = [("%x", memref(5), "i"), ("%at", memref(5, element="i64"), "i")]
    outputs = [("%y", row, "i,j"), ("%z", memref(5), "i")]
    text = entry_function(
        f"%x: {memref(5)}, %at: {memref(5, element='i64')}, %y: {row}, %z: {memref(5)}",
        f"""%zero = arith.constant 0.0 : f32
      {generic("ij", inputs, outputs, body, reductions="j", yields="%0, %1")}""",
    )
    compiled = vectorized(text)
    x, at = random_array(5), np.array([0, n // 2, n - 1, n, -1])
    y, z = random_array(5, n), np.zeros(5, np.float32)
    compiled("f", x, at, y, z)
    expected = np.where(np.arange(n) == at[:, None], x[:, None], 0)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(z, expected.sum(1))


def test_contiguous_loops_are_merged() -> None:
    compiled = vectorized(f"""
    func.func @f(%x: {memref(8, 3, 2)}, %y: {memref(8, 3, 2)}) {{
      linalg.copy ins(%x : {memref(8, 3, 2)}) outs(%y : {memref(8, 3, 2)})
      return
    }}""")
    assert compiled.remarks[0].startswith("linalg.copy: 48 elements in vectors of")


@pytest.mark.parametrize(
    ("element", "body", "reason"),
    [
        ("i1", "arith.andi", "elements of type i1"),
        ("f32", "math.atan2", "math.atan2 is a call of the math library"),
    ],
)
def test_what_stays_says_why(element: str, body: str, reason: str) -> None:
    type_ = memref(33, element=element)
    text = generic("i", [("%x", type_, "i")], [("%y", type_, "i")], f"%r = {body} %in0, %in0 : {element}")
    compiled = Compiled(entry_function(f"%x: {type_}, %y: {type_}", text), [VectorizeGenerics()])
    assert compiled.remarks == [f"linalg.generic left to scalar loops: {reason}"]
    assert "linalg.generic" in compiled.text


def shared(text: str) -> Compiled:
    compiled = vectorized(text)
    assert compiled.text.count("scf.parallel") >= 1
    return compiled


@pytest.mark.parametrize(("m", "n"), [(2, 300_007), (700, 1001), (90_001, 17), (3, 262_144)])
def test_large_elementwise_ops_are_shared_between_threads(m: int, n: int) -> None:
    compiled = shared(elementwise(m, n))
    check_elementwise(compiled, m, n)


@pytest.mark.parametrize(("m", "n"), [(5000, 129), (3, 400_001), (700, 1000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_large_reductions_are_shared_between_threads(m: int, n: int, axis: int) -> None:
    compiled = shared(reduction("f", m, n, axis, "arith.addf", "0.0"))
    x, y = random_array(m, n), np.zeros((m, 1) if axis == 1 else (1, n), np.float32)
    compiled("f", x, y)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(axis, keepdims=True), atol=max(m, n) * 1e-7 + 1e-4)


@pytest.mark.parametrize(("m", "n"), [(1000, 700), (333, 1001), (2, 250_000)])
def test_large_transposes_are_shared_between_threads(m: int, n: int) -> None:
    text = f"linalg.transpose ins(%x : {memref(m, n)}) outs(%y : {memref(n, m)}) permutation = [1, 0]"
    compiled = shared(entry_function(f"%x: {memref(m, n)}, %y: {memref(n, m)}", text))
    x, y = random_array(m, n), np.zeros((n, m), np.float32)
    compiled("f", x, y)
    np.testing.assert_array_equal(y, x.T)


def test_nothing_is_shared_within_a_shared_loop() -> None:
    inner = memref(300_000)
    text = entry_function(
        f"%x: {memref(4, 300_000)}",
        f"""%zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %four = arith.constant 4 : index
      %number = arith.constant 7.0 : f32
      scf.parallel (%i) = (%zero) to (%four) step (%one) {{
        %row = memref.alloc() : {inner}
        linalg.fill ins(%number : f32) outs(%row : {inner})
        %v = memref.load %row[%i] : {inner}
        memref.store %v, %x[%i, %zero] : {memref(4, 300_000)}
        memref.dealloc %row : {inner}
        scf.reduce
      }}""",
    )
    assert vectorized(text).text.count("scf.parallel") == 1


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("n", [2, 7, 8, 9, 16, 33, 130])
def test_parts_of_pairs_are_read_and_written_as_vectors(n: int, element: str) -> None:
    whole = memref(3, n, 2, element=element)
    first, second = (f"memref<3x{n}x{element}, strided<[{2 * n}, 2]{mark}>>" for mark in ("", ", offset: 1"))
    inputs, outputs = [("%first", first, "i,j"), ("%second", second, "i,j")], [("%target", second, "i,j")]
    text = entry_function(
        f"%x: {whole}, %y: {whole}",
        f"""%first = memref.subview %x[0, 0, 0] [3, {n}, 1] [1, 1, 1] : {whole} to {first}
      %second = memref.subview %x[0, 0, 1] [3, {n}, 1] [1, 1, 1] : {whole} to {second}
      %target = memref.subview %y[0, 0, 1] [3, {n}, 1] [1, 1, 1] : {whole} to {second}
      {generic("ij", inputs, outputs, f"%r = arith.subf %in0, %in1 : {element}")}""",
    )
    compiled = vectorized(text)
    assert "vector.shuffle" in compiled.text
    x = random_array(3, n, 2).astype(NUMPY[element])
    y = np.full_like(x, 9)
    compiled("f", x, y)
    np.testing.assert_array_equal(y[..., 1], x[..., 0] - x[..., 1])
    np.testing.assert_array_equal(y[..., 0], 9)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 33, 130])
def test_rows_of_a_table_are_read_as_vectors(n: int) -> None:
    table, out, ids = memref(50, n), memref(5, n), memref(5, element="i64")
    body = f"""%zero = arith.constant 0 : i64
          %rows = arith.constant 50 : i64
          %below = arith.cmpi slt, %in0, %zero : i64
          %from_end = arith.addi %in0, %rows : i64
          %id = arith.select %below, %from_end, %in0 : i64
          %i = arith.index_cast %id : i64 to index
          %j = linalg.index 1 : index
          %r = memref.load %table[%i, %j] : {table}"""
    text = generic("ij", [("%ids", ids, "i")], [("%y", out, "i,j")], body)
    compiled = vectorized(entry_function(f"%table: {table}, %ids: {ids}, %y: {out}", text))
    assert "vector.gather" not in compiled.text
    x, which, y = random_array(50, n), np.array([49, 0, -1, 7, 7]), np.full((5, n), np.nan, np.float32)
    compiled("f", x, which, y)
    np.testing.assert_array_equal(y, x[which])


@pytest.mark.parametrize("element", ["f32", "f64", "i64", "i8"])
@pytest.mark.parametrize("n", [3, 16, 37])
def test_elements_of_a_table_are_gathered(n: int, element: str) -> None:
    table, out, ids = memref(9, n, element=element), memref(4, n, element=element), memref(4, n, element="i64")
    body = f"""%i = arith.index_cast %in0 : i64 to index
          %j = linalg.index 1 : index
          %r = memref.load %table[%i, %j] : {table}"""
    text = generic("ij", [("%ids", ids, "i,j")], [("%y", out, "i,j")], body)
    compiled = vectorized(entry_function(f"%table: {table}, %ids: {ids}, %y: {out}", text))
    x = (random_array(9, n) * 50).astype(NUMPY[element])
    which, y = np.random.default_rng(1).integers(0, 9, (4, n)), np.zeros((4, n), NUMPY[element])
    compiled("f", x, which, y)
    np.testing.assert_array_equal(y, np.take_along_axis(x, which, 0))


@pytest.mark.parametrize("element", ["i32", "i64", "i8"])
@pytest.mark.parametrize("n", [2, 3, 13, 16, 33, 65])
def test_integer_division_does_not_trap_in_unused_lanes(n: int, element: str) -> None:
    type_ = memref(n, element=element)
    divisions = "\n".join(
        f"%{i} = arith.{op} %in0, %{'in1' if i < 2 else 'less'} : {element}"
        for i, op in enumerate(("divsi", "remsi", "floordivsi", "divui"))
    )
    body = f"%one = arith.constant 1 : {element}\n%less = arith.subi %in1, %one : {element}\n{divisions}"
    operands = [[(f"%{name}", type_, "i") for name in names] for names in ("xy", "qrst")]
    text = entry_function(
        ", ".join(f"%{name}: {type_}" for name in "xyqrst"),
        generic("i", *operands, body, yields="%0, %1, %2, %3"),
    )
    random = np.random.default_rng(0)
    x = random.integers(-100, 100, n).astype(NUMPY[element])
    d = random.choice([-7, -3, 2, 5, 11], n).astype(NUMPY[element])
    results = [np.zeros_like(x) for _ in range(4)]
    vectorized(text)("f", x, d, *results)
    quotient = np.trunc(x.astype(np.float64) / d).astype(np.int64)
    np.testing.assert_array_equal(results[0], quotient)
    np.testing.assert_array_equal(results[1], x - quotient * d)
    np.testing.assert_array_equal(results[2], x.astype(np.int64) // (d.astype(np.int64) - 1))
    unsigned = np.dtype(f"u{x.dtype.name}")
    np.testing.assert_array_equal(results[3].view(unsigned), x.view(unsigned) // (d - 1).view(unsigned))


def test_what_is_the_same_in_all_lanes_is_computed_once() -> None:
    whole, column = memref(5, 48), memref(5)
    body = """%one = arith.constant 1.0 : f32
          %0 = math.sqrt %in1 : f32
          %1 = arith.divf %one, %0 : f32
          %r = arith.mulf %in0, %1 : f32"""
    text = generic("ij", [("%x", whole, "i,j"), ("%s", column, "i")], [("%y", whole, "i,j")], body)
    compiled = vectorized(entry_function(f"%x: {whole}, %s: {column}, %y: {whole}", text))
    roots = [line for line in compiled.text.splitlines() if "math.sqrt" in line or "arith.divf" in line]
    assert len(roots) == 2
    assert not any("vector" in line for line in roots)
    x, s, y = random_array(5, 48), np.arange(1, 6, dtype=np.float32), np.zeros((5, 48), np.float32)
    compiled("f", x, s, y)
    np.testing.assert_array_equal(y, x * (np.float32(1) / np.sqrt(s))[:, None])


def repeated_sum(source: str, target: str, constant: str, node: int) -> str:
    operands = [(source, memref(37), "i")], [(target, memref(37), "i")]
    return generic("i", *operands, f"%r = arith.addf %in0, {constant} : f32") + f' loc("graph":{node}:0)'


def border(buffer: str) -> str:
    """Fills of a line before and one after."""
    strided = "strided<[20, 4, 1], offset: {}>"
    parts = [
        f"""
      %{buffer}{line} = memref.subview %{buffer}[{line}, 0, 0] [1, 5, 4] [1, 1, 1]
          : memref<3x5x4xf32> to memref<1x5x4xf32, {strided.format(20 * line)}>
      linalg.fill ins(%one : f32) outs(%{buffer}{line} : memref<1x5x4xf32, {strided.format(20 * line)}>)"""
        for line in (0, 2)
    ]
    return "".join(parts).replace(", offset: 0>", ">")


def test_what_is_repeated_becomes_calls_of_one_function() -> None:
    sums = [
        repeated_sum("%x", "%y", "%one", 1),
        repeated_sum("%y", "%x", "%one", 2),
        repeated_sum("%x", "%y", "%one", 1),
    ]
    sums.append(repeated_sum("%x", "%y", "%two", 1))
    text = entry_function(
        ", ".join(
            [f"%{buffer}: {memref(37)}" for buffer in "xy"] + [f"%{buffer}: {memref(3, 5, 4)}" for buffer in "cde"]
        ),
        "%one = arith.constant 1.0 : f32\n%two = arith.constant 2.0 : f32" + "".join([*sums, *map(border, "cde")]),
    )
    module = Compiled(text, [VectorizeGenerics()], nodes=["first", "second"])
    assert module.text.count("func.func private") == 2
    assert module.text.count("call @repeated_generic(") == 3
    assert module.text.count("call @repeated_fill(") == 3
    assert module.remarks[:2] == [
        "3 equal ops: calls of repeated_generic",
        "3 equal ops: calls of repeated_fill",
    ]
    assert module.nodes_of("repeated_generic") == {"first", "second"}
    assert "func.func private" not in Compiled(text, [VectorizeGenerics(share=False)], nodes=["first", "second"]).text
    a, b = np.arange(37, dtype=np.float32), np.zeros(37, np.float32)
    filled = [np.zeros((3, 5, 4), np.float32) for _ in range(3)]
    module("f", a, b, *filled)
    np.testing.assert_array_equal(a, np.arange(37) + 2)
    np.testing.assert_array_equal(b, np.arange(37) + 4)
    for array in filled:
        np.testing.assert_array_equal(array[:, 0, 0], [1, 0, 1])
        assert array.sum() == 40
