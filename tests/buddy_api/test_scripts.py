"""Scripts in the style of Buddy-MLIR's examples, each in a process of its own: what they print is what they expect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.filecheck_text import filecheck

SCRIPTS = Path(__file__).parent / "scripts"
ARGUMENTS: dict[str, Callable[[Path], list[str]]] = {
    "lenet_import": lambda folder: [str(folder)],
    "bert_import": lambda folder: ["--output-dir", str(folder)],
}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_a_script_runs_and_prints_what_it_expects(name: str, run_warm: Run, tmp_path: Path) -> None:
    """The checks stand in the script, as in Buddy-MLIR's own tests."""
    if name == "bert_import":
        pytest.importorskip("transformers")
    path = SCRIPTS / f"{name}.py"
    arguments = ARGUMENTS.get(name, lambda _: [])(tmp_path)
    result = run_warm(str(path), *arguments, cwd=tmp_path, timeout=300, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    filecheck(result.stdout, path.read_text())


def test_the_flat_parameters_are_as_many_as_the_main_graph_takes(run_warm: Run, tmp_path: Path) -> None:
    result = run_warm(str(SCRIPTS / "lenet_import.py"), str(tmp_path), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "arg0.data").stat().st_size == 4 * 44426
    assert {path.name for path in tmp_path.iterdir()} == {"arg0.data", "forward.mlir", "subgraph0.mlir"}


@pytest.mark.parametrize("name", ["own_pipeline", "matmul_dynamo_run", "matmul_torch_compile"])
def test_the_workbench_takes_the_same_scripts(name: str, cli: Run, tmp_path: Path) -> None:
    result = cli("run", SCRIPTS / f"{name}.py", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [output["verdict"] for graph in json.loads(result.stdout)["graphs"] for output in graph["outputs"]] == ["ok"]
