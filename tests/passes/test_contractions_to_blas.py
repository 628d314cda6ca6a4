"""`contractions-to-blas`: calls of a packaged OpenBLAS, which products get them, and what is said where none does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from buddy.compiler.passes.contractions_to_blas import ContractionsToBlas, blas_product
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.support import blas
from tests.passes.products import function, operands
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import from_node

SIZES = {"m": 13, "n": 7, "k": 31}


def run(compiled: Compiled, name: str, *arrays: np.ndarray) -> None:
    """Call a function whose products come from the library."""
    called = [symbol.encode() for symbol in re.findall(r"@(buddy_cblas_\w+)", compiled.text)]
    compiled.imports = blas.gemm_addresses(called, threads=1)
    assert compiled.imports
    compiled(name, *arrays)


@pytest.mark.parametrize("subscripts", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->nm", "bmk,bkn->bmn", "k,kn->n"])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("element", ["f32", "f64"])
def test_products_in_any_orientation(subscripts: str, zero: bool, element: str) -> None:
    sizes = {letter: size for letter, size in {**SIZES, "b": 3}.items() if letter in subscripts}
    compiled = Compiled(function("f", subscripts, sizes, zero=zero, element=element), [ContractionsToBlas()])
    assert "linalg" not in compiled.text, compiled.remarks
    a, b, c = operands(subscripts, sizes, np.float32 if element == "f32" else np.float64)
    expected = np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64)) + (0 if zero else c)
    if zero:
        c[...] = np.nan
    run(compiled, "f", a, b, c)
    np.testing.assert_allclose(c, expected, atol=1e-4 if element == "f32" else 1e-12)


def test_a_call_says_which_library_computes_it() -> None:
    library = blas.find_blas()
    assert library is not None
    compiled = Compiled(function("f", "mk,kn->mn", SIZES), [ContractionsToBlas()])
    assert compiled.remarks == [f"13x7x31: {library.package}"]
    filecheck(
        compiled.text,
        """
        CHECK: call @blas_13x31x7(
        CHECK: func.func private @buddy_cblas_sgemm_{{32|64}}(
        CHECK: func.func private @blas_13x31x7(
        CHECK: call @buddy_cblas_sgemm_
        """,
    )


def test_only_the_chosen_nodes_call_the_library() -> None:
    text = "".join(from_node(node, function(f"f{node}", "mk,kn->mn", SIZES)) for node in (1, 2))
    compiled = Compiled(text, [ContractionsToBlas(nodes="query, value")], nodes=["query", "key"])
    filecheck(
        compiled.text,
        """
        CHECK: func.func @f1
        CHECK: call @blas_13x31x7
        CHECK: func.func @f2
        CHECK: linalg.contract
        """,
    )


def test_without_a_library_products_are_left_with_a_line_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(blas.ENVIRONMENT_VARIABLE, "none")
    compiled = Compiled(function("f", "mk,kn->mn", SIZES), [ContractionsToBlas()])
    reason = "no BLAS library is installed (pip install scipy-openblas32)"
    assert compiled.remarks == [f"linalg.contract unchanged: {reason}"]
    assert "linalg.contract" in compiled.text


@pytest.mark.parametrize(
    ("subscripts", "sizes", "reason"),
    [
        ("mjk,kjn->mn", {"m": 9, "j": 3, "k": 10, "n": 33}, "a sum over several loops is not a matrix product"),
        ("mkx,kn->mxn", {"m": 9, "k": 10, "x": 3, "n": 33}, "one of its matrices is contiguous in neither direction"),
    ],
)
def test_what_is_no_call_of_the_library_is_left(subscripts: str, sizes: dict[str, int], reason: str) -> None:
    compiled = Compiled(function("f", subscripts, sizes), [ContractionsToBlas()])
    assert compiled.remarks == [f"linalg.contract unchanged: {reason}"]


@pytest.mark.parametrize(
    ("m", "n", "k", "reason"),
    [
        ((31, 0, 7), (0, 1, 1), (1, 7), ""),
        ((31, 0, 1), (0, 1, 13), (1, 7), "the rows of its result are not contiguous"),
        ((2, 0, 7), (0, 1, 1), (1, 7), "the rows of one of its matrices overlap"),
        ((31, 0, 7), (0, 2, 1), (1, 1), "the columns of one of its matrices overlap"),
        ((62, 0, 7), (0, 1, 1), (2, 7), "one of its matrices is contiguous in neither direction"),
    ],
)
def test_the_reason_names_what_the_library_cannot_access(
    m: tuple[int, ...], n: tuple[int, ...], k: tuple[int, ...], reason: str
) -> None:
    """With the strides of A, B and C in the loops over rows, columns and products."""
    rows, columns = (Loop(size, strides, False, (), ()) for size, strides in ((13, m), (7, n)))
    depth = Loop(31, (*k, 0), True, (), ())
    contraction = Contraction("f32", (), rows, columns, (depth,), False, ("f32", "f32"), "f32")
    if not reason:
        assert blas_product(contraction).leading_c == 7
        return
    with pytest.raises(UnsupportedError, match=reason):
        blas_product(contraction)


def test_halves_are_left() -> None:
    text = function("f", "mk,kn->mn", SIZES, element="f16")
    (remark,) = Compiled(text, [ContractionsToBlas()]).remarks
    assert remark == "linalg.contract unchanged: the library has no matrix product of f16"


def test_the_library_inside_numpy_is_found_where_the_wheel_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    real = blas.util.find_spec
    monkeypatch.setattr(blas.util, "find_spec", lambda name: None if name == "scipy_openblas32" else real(name))
    blas._find_installed.cache_clear()
    found = blas.find_blas()
    blas._find_installed.cache_clear()
    if found is None:
        pytest.skip("this NumPy brings no OpenBLAS")
    assert (found.package.split()[0], found.index_bits) == ("numpy", 64)
    assert found.load(1)[found.exported_name("cblas_sgemm")]
