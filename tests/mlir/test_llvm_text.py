"""Translation to LLVM IR: the text is the binding's own, and is not kept by anybody after it was read."""

from __future__ import annotations

import ctypes
import gc

import pytest

from buddy.compiler.codegen.objects import new_context
from buddy.compiler.mlir import printing
from buddy.compiler.mlir.bindings import ir, llvm

TIMES = 100
_FUNCTION = """
llvm.func @f{0}(%a: i64) -> i64 {{
  %b = llvm.mul %a, %a : i64
  llvm.return %b : i64
}}"""


class _Allocated(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


@pytest.fixture
def module() -> ir.Module:
    with new_context(), ir.Location.unknown():
        return ir.Module.parse("".join(map(_FUNCTION.format, range(200))))


def _allocated() -> int:
    """Bytes that the C library has handed out and not got back."""
    count = ctypes.CDLL(None).mallinfo2
    count.restype = _Allocated
    gc.collect()
    found = count()
    return int(found.uordblks + found.hblkhd)


def test_the_text_is_what_the_binding_gives(module: ir.Module) -> None:
    text = printing.to_llvm_ir(module.operation)
    assert "define i64 @f199(i64 %0)" in text
    assert text == str(llvm.translate_module_to_llvmir(module.operation))


def test_bindings_without_that_function_are_asked_themselves(
    module: ir.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printing.to_llvm_ir(module.operation)
    monkeypatch.setattr(printing, "_TRANSLATE", "mlirTranslatesNothing")
    printing.leak_free_translation.cache_clear()
    try:
        assert printing.leak_free_translation() is None
        assert printing.to_llvm_ir(module.operation) == text
    finally:
        printing.leak_free_translation.cache_clear()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks the GNU C library what it has handed out")
def test_texts_are_let_go(module: ir.Module) -> None:
    """The binding's function kept each for good: a compiler grew by the LLVM IR of every compilation."""
    length = len(printing.to_llvm_ir(module.operation))
    before = _allocated()
    for _ in range(TIMES):
        printing.to_llvm_ir(module.operation)
    assert _allocated() - before < TIMES * length / 10
