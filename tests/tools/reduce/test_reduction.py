"""What a reduction does besides ops: other representations, hangs, crashes of its workers, and minimality."""

import sys
from pathlib import Path

import pytest

from buddy.compiler.tools.reduce.failure import Failure, execute, reproduction_script, shows_failure
from buddy.compiler.tools.reduce.generic_ir import parse
from buddy.compiler.tools.reduce.reduction import ReducibleIr, Reduction, ReductionError, execute_on
from tests.tools.reduce.large_module import large_module

pytestmark = pytest.mark.process
LOOP = """
func.func @f(%n: index, %x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %y = math.exp %x : tensor<8x16xf32>
  %r = scf.for %i = %zero to %n step %one iter_args(%a = %y) -> (tensor<8x16xf32>) {
    %b = math.tanh %a : tensor<8x16xf32>
    scf.yield %b : tensor<8x16xf32>
  }
  return %r : tensor<8x16xf32>
}
"""


def greps(pattern: str, folder: Path, *, forbidden: str = "^$") -> Failure:
    script = f'grep -q "{pattern}" "$1" && ! grep -q "{forbidden}" "$1"'
    return Failure("test", ("/bin/sh", "-c", script, "test", "{}"), str(folder), timeout=10.0)


def reduced(text: str, failure: Failure, folder: Path) -> Reduction:
    with Reduction(text, failure, jobs=2) as reduction:
        reduction.start(execute_on(text, failure, str(folder)))
        reduction.run()
    return reduction


def test_a_result_is_minimal_by_its_steps(tmp_path: Path) -> None:
    failure = greps("math.tanh", tmp_path)
    reduction = reduced(LOOP, failure, tmp_path)
    assert (reduction.progress.original, reduction.progress.current) == (8, 3)
    assert "tensor<1x1xf32>" in reduction.best
    assert "return" not in reduction.best or "->" not in reduction.best
    assert reduction.minimal


def test_a_module_that_the_bindings_cannot_read_is_reduced_in_generic_form(tmp_path: Path) -> None:
    """Neither verified nor parsed by MLIR: the operand of the addition has another type than its definition."""
    text = """
"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "f"}> ({
    %0 = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %1 = "arith.constant"() <{value = 2 : i64}> : () -> i64
    %2 = "arith.addi"(%0, %1) : (i32, i64) -> i32
    %3 = "arith.muli"(%2, %2) : (i32, i32) -> i32
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""
    reduction = reduced(text, greps("arith.addi.*i64", tmp_path), tmp_path)
    assert reduction.progress.form == "MLIR in generic form, as it is in the file"
    assert parse(reduction.best).op_count == 2


def test_other_texts_are_reduced_by_lines(tmp_path: Path) -> None:
    text = "module {\n" + "".join(f"  some.loop {{\n    op {n}\n  }}\n" for n in range(100)) + "}\n"
    reduction = reduced(text, greps("op 42$", tmp_path), tmp_path)
    assert reduction.progress.form.startswith("lines of text")
    assert reduction.best.split() == ["op", "42"]


def test_a_hang_may_be_the_failure(tmp_path: Path) -> None:
    script = 'grep -q math.tanh "$1" && sleep 20; exit 1'
    failure = Failure("test", ("/bin/sh", "-c", script, "test", "{}"), str(tmp_path), timeout=0.3, hang_fails=True)
    reduction = reduced(LOOP, failure, tmp_path)
    assert reduction.progress.current == 3
    assert "math.tanh" in reduction.best


def test_a_crash_does_not_become_another_crash(tmp_path: Path) -> None:
    """Without `math.exp` the command aborts too, with another assertion."""
    code = """
import sys
with open(sys.argv[1]) as file:
    sys.exit("Assertion `%s' failed" % ("exp" if "math.exp" in file.read() else "other"))
"""
    failure = Failure("crash", (sys.executable, "-S", "-c", code, "{}"), str(tmp_path))
    reduction = reduced(LOOP, failure, tmp_path)
    assert "math.exp" in reduction.best
    assert reduction.progress.current == 3


def test_a_failure_that_depends_on_chance_is_an_error(tmp_path: Path) -> None:
    once = tmp_path / "once"
    failure = Failure("test", ("/bin/sh", "-c", f"test ! -e {once} && touch {once}"), str(tmp_path))
    with Reduction(LOOP, failure, jobs=1) as reduction, pytest.raises(ReductionError, match="does not occur again"):
        reduction.start(execute_on(LOOP, failure, str(tmp_path)))


def test_an_interrupted_reduction_has_a_smaller_module_that_fails(tmp_path: Path) -> None:
    failure, text = greps("math.tanh", tmp_path), large_module(ops=60)
    sizes = []

    def stop(progress: object) -> None:
        sizes.append(reduction.progress.current)
        if sizes[-1] < sizes[0]:
            raise KeyboardInterrupt

    with Reduction(text, failure, jobs=2, report=stop) as reduction:
        reduction.start(execute_on(text, failure, str(tmp_path)))
        with pytest.raises(KeyboardInterrupt):
            reduction.run()
    path = tmp_path / "reduced.mlir"
    path.write_text(reduction.best)
    assert not reduction.minimal
    assert shows_failure(failure, execute(failure, str(path)))
    assert len(reduction.best) < len(text)


def test_the_script_shows_the_failure_next_to_the_module(tmp_path: Path) -> None:
    path = tmp_path / "it's reduced.mlir"
    path.write_text("%0 = math.tanh")
    script = tmp_path / "script.sh"
    script.write_text(reproduction_script(greps("math.tanh", tmp_path), path))
    run = Failure("test", ("/bin/sh", str(script), "{}"), "/")
    assert execute(run, "").code == 0
    path.write_text("nothing")
    assert execute(run, "").code == 1


def test_a_module_in_generic_form_counts_its_ops() -> None:
    assert ReducibleIr(parse('"a.b"() ({ "c.d"() : () -> () }) : () -> ()')).size == 2
