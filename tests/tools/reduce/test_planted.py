"""Ten planted crashes in a module of 500 ops are reduced to a few ops, and the result is minimal by single steps."""

import sys
import time
from pathlib import Path

import pytest

from buddy.compiler.tools.reduce.failure import Failure, execute, shows_failure
from buddy.compiler.tools.reduce.reduction import Reduction, execute_on
from tests.tools.reduce.large_module import large_module
from tests.tools.reduce.planted_compiler import FAULTS

COMPILER = str(Path(__file__).with_name("planted_compiler.py"))
MAX_OPS, MAX_SECONDS = 20, 60.0


@pytest.fixture(scope="module")
def module() -> str:
    return large_module()


def crash_of(fault: str, folder: Path) -> Failure:
    return Failure("crash", (sys.executable, "-S", COMPILER, fault, "{}"), str(folder))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_crash_is_reduced(
    fault: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure, start = crash_of(fault, tmp_path), time.monotonic()
    original = execute_on(module, failure, str(tmp_path))
    with Reduction(module, failure) as reduction:
        reduction.start(original)
        state = reduction.progress
        assert state.original >= 490
        reduction.run()
    seconds = time.monotonic() - start
    with capsys.disabled():
        print(f"\n{fault}: {state.original} -> {state.current} ops, {seconds:.1f} s, {state.tests} tests", end=" ")
    path = tmp_path / "reduced.mlir"
    path.write_text(reduction.best)
    assert shows_failure(failure, execute(failure, str(path)))
    assert reduction.minimal
    assert state.current <= MAX_OPS
    assert seconds <= MAX_SECONDS
