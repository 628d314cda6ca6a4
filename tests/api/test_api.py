"""The public interface: frozen signatures, the cost of importing it, programs in this process, registrations."""

from __future__ import annotations

import ast
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import buddy.api
from buddy.api import (
    BuddyError,
    PassStep,
    capture_program,
    exporter,
    graph_pass,
    open_program,
    preset,
    presets,
    register_pass,
)
from buddy.compiler.graph import plugins
from buddy.compiler.graph.node import default_ops_map, op_classes
from buddy.compiler.graph.plugins import load_plugin_file, plugin_decompositions, plugin_problems
from buddy.compiler.graph.transform import transforms
from buddy.compiler.ops import linalg
from buddy.compiler.protocol import presets as recipe_presets
from buddy.compiler.protocol.recipe import PluginFile
from tests.api.signatures import FILE, signatures

SOURCE = Path(buddy.api.__file__).resolve()


def test_the_signatures_are_those_that_plugins_were_written_for() -> None:
    """After a change that is meant: `python -m tests.api.signatures --write`. The policy is in `api/__init__.py`."""
    assert signatures() == FILE.read_text("utf-8").splitlines()


def test_type_checkers_and_python_find_the_same_names() -> None:
    (block,) = (node for node in ast.parse(SOURCE.read_text("utf-8")).body if isinstance(node, ast.If))
    typed = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(buddy.api._HOMES)
    with pytest.raises(AttributeError, match=r"buddy\.api\.__all__ lists the public names"):
        _ = buddy.api.nothing  # type: ignore[attr-defined]


@pytest.mark.slow
def test_importing_it_imports_neither_torch_nor_mlir_nor_textual(run_python: Callable[..., Any]) -> None:
    code = "import sys, buddy.api as api; api.Recipe, api.preset, api.exporter, api.ElementwiseOp; "
    code += "print([name for name in ('torch', 'torch_mlir', 'mlir', 'textual') if name in sys.modules])"
    done = run_python("-c", code)
    assert done.stdout == "[]\n", done.stderr


def test_a_program_is_compiled_read_run_and_compared() -> None:
    (graph,) = capture_program(lambda x: torch.relu(x @ x) + 1, torch.randn(4, 4)).graphs
    compiled = graph.compile()
    assert compiled.stages[-1].phase == "asm"
    assert "func.func @forward" in compiled.text("lower")
    assert compiled.text(len(compiled.stages) - 1) == compiled.text("codegen")
    report = compiled.compare(1)
    assert report.ok
    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(x)[0], torch.relu(x @ x) + 1)
    with pytest.raises(BuddyError, match="unknown stage 'lowr'") as caught:
        compiled.text("lowr")
    assert "lower" in caught.value.todo


def test_a_script_is_opened_with_plugins_whose_errors_are_listed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\nmodel, example_inputs = torch.tanh, (torch.ones(3),)\n")
    (tmp_path / "newer.py").write_text("from buddy.api import require_api\nrequire_api(99)\n")
    program = open_program("model.py", directory=str(tmp_path), plugins=[str(tmp_path / "newer.py")])
    assert [graph.name for graph in program.graphs] == ["tanh"]
    (problem,) = program.problems
    assert "version 99 of buddy.api is needed" in problem.what
    assert "update buddy-tui" in problem.todo


def test_a_plugin_that_replaces_a_part_of_another_one_is_named(tmp_path: Path) -> None:
    text = "from buddy.api import ElementwiseOp\n\n\nclass TakenTwiceOp(ElementwiseOp):\n    targets = ()\n"
    paths = [tmp_path / name for name in ("first.py", "second.py")]
    for path in paths:
        path.write_text(text)
    first, second = (load_plugin_file(PluginFile(str(path))) for path in paths)
    assert first.problem is None
    assert second.problem is not None
    assert second.problem.what == "plug-in second.py replaces op class TakenTwiceOp of first.py"
    assert "the one that is loaded last is used" in second.problem.todo


EARLY = """
import sys
from buddy.compiler.graph.plugins import load_plugin_file
from buddy.compiler.protocol.recipe import PluginFile

print(load_plugin_file(PluginFile(sys.argv[1])).problem)
from buddy.compiler.passes.base import own_pass_names
from buddy.compiler.passes.pass_runner import own_passes
print(own_passes()["chain-packings"].__module__, *sorted(set(own_passes()) - own_pass_names()))
"""


def test_a_plugin_that_is_loaded_before_the_passes_takes_none_of_their_names(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    """The module of the package's own pass could not be imported, so that nothing would compile."""
    text = "from buddy.api import MlirPass, register_pass\n\n\n@register_pass\nclass Chain(MlirPass):\n"
    (tmp_path / "early.py").write_text(text + "    name = 'chain-packings'\n    summary = ''\n")
    done = run_python("-c", EARLY, str(tmp_path / "early.py"))
    problem, own = done.stdout.splitlines()
    assert "the pass 'chain-packings' is registered twice: by buddy.compiler.passes and by buddy_plugin" in problem
    assert own == "buddy.compiler.passes.hoist_parameters", "and every pass of the package is among the names"


@pytest.mark.parametrize(
    ("name", "has_lowering"), [("SinOp", True), ("SinOp", False), ("MeanOp", False)], ids=["lowered", "plain", "other"]
)
def test_an_op_class_with_the_name_of_one_of_this_package_is_refused(
    name: str, has_lowering: bool, tmp_path: Path
) -> None:
    """Its lowering would be used for the package's op as well: sine would be computed as the square.

    Classes are found in the order of their bases, so `MeanOp`, which is a `ReduceOp` here, comes after the other one.
    """
    built_in, lowered = op_classes()[name], linalg.ops_registry[name]
    text = "from buddy.api import ElementwiseOp, lowering, lower_expression\n\n\n"
    text += f"class {name}(ElementwiseOp):\n    targets = ('of_this.squared.default',)\n\n\n"
    if has_lowering:
        text += f"@lowering({name})\ndef square(node, table):\n"
        text += "    return lower_expression(node, table, lambda x: x * x)\n"
    (tmp_path / "taken.py").write_text(text)
    problem = load_plugin_file(PluginFile(str(tmp_path / "taken.py"))).problem
    assert problem is not None
    assert problem.what == f"plug-in taken.py: the op class '{name}' has the name of an op class of buddy-tui"
    assert problem.todo.startswith("choose another name")
    assert (op_classes()[name], linalg.ops_registry[name]) == (built_in, lowered)
    assert "of_this.squared.default" not in default_ops_map()
    x = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(capture_program(torch.sin, x).graphs[0].compile()(x)[0], torch.sin(x))


def test_a_file_that_loops_is_stopped_and_the_next_one_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread, where signals cannot be handled."""
    monkeypatch.setenv("BUDDY_PLUGIN_SECONDS", "0.3")
    (tmp_path / "loops.py").write_text("while True:\n    pass\n")
    (tmp_path / "newest.py").write_text("from buddy.api import something_new\n")
    (tmp_path / "fine.py").write_text("")

    def problem(name: str) -> Any:
        return load_plugin_file(PluginFile(str(tmp_path / name))).problem

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(problem, "loops.py").result(60)
        assert stopped.what == "plug-in loops.py took too long, and was stopped"
        assert stopped.where.startswith(f"{tmp_path / 'loops.py'}:")
        assert pool.submit(problem, "fine.py").result(60) is None
    assert "needs a name that this buddy.api does not have" in problem("newest.py").what
    assert "update buddy-tui" in problem("newest.py").todo


SLEEPER = """
import signal, sys
from buddy.compiler.graph.plugins import load_plugin_file
from buddy.compiler.protocol.recipe import PluginFile

print(load_plugin_file(PluginFile(sys.argv[1])).problem)
print(signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL))
"""


@pytest.mark.slow
def test_a_file_that_sleeps_is_stopped_by_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: Callable[..., Any]
) -> None:
    monkeypatch.setenv("BUDDY_PLUGIN_SECONDS", "0.3")
    sleeps = "import time\nwhile True:\n    try:\n        time.sleep(1000)\n    except Exception:\n        pass\n"
    (tmp_path / "sleeps.py").write_text(sleeps)
    done = run_python("-c", SLEEPER, str(tmp_path / "sleeps.py"))
    problem, after = done.stdout.splitlines()
    assert problem.startswith(f"plug-in sleeps.py took too long, and was stopped · {tmp_path / 'sleeps.py'}:4")
    assert after == "True (0.0, 0.0)"


def test_a_name_is_registered_by_one_definition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[PassStep]:
        return [PassStep("cse")]

    def write(program: Any, folder: Path, name: str) -> list[str]:
        return []

    monkeypatch.setattr(recipe_presets, "_PLUGIN_PRESETS", {})
    preset("of-this-test", "one pass")(steps)
    preset("of-this-test", "one pass")(steps)  # as a notebook's cell that runs again
    assert presets()["of-this-test"].recipe.steps == (PassStep("cse"),)
    exporter("of-this-test")(write)
    for register in (preset("of-this-test", ""), exporter("of-this-test")):
        with pytest.raises(BuddyError, match="is registered twice"):
            register(lambda *_: [])  # type: ignore[arg-type]
    for register in (preset("default", ""), preset("No Name", "")):
        with pytest.raises(BuddyError, match="cannot be called"):
            register(steps)
    with pytest.raises(BuddyError, match="cannot be called 'shared'"):
        exporter("shared")(write)
    stranger = type("Cse", (buddy.api.MlirPass,), {"name": "copies-to-loops", "summary": ""})
    with pytest.raises(BuddyError, match="the pass 'copies-to-loops' is registered twice"):
        register_pass(stranger)

    def drop_identities(graph: Any) -> None:
        """A graph pass with a name of this package."""

    before = transforms()["drop-identities"]
    with pytest.raises(BuddyError, match="the graph pass 'drop-identities' is registered twice"):
        graph_pass(drop_identities)
    assert transforms()["drop-identities"] is before
    monkeypatch.setattr(plugins, "_RULES", {})
    assert buddy.api.decomposition("of_this.test.default")(write) is write
    buddy.api.decomposition("of_this.test.default")(write)
    with pytest.raises(BuddyError, match=r"the decomposition 'of_this\.test\.default' is registered twice"):
        buddy.api.decomposition("of_this.other.default", "of_this.test.default")(drop_identities)
    assert plugin_decompositions()["of_this.test.default"] is write
    assert "of_this.other.default" not in plugin_decompositions(), "nothing is registered by halves"
    assert buddy.api.decomposition("of_this.partial.default")(rule := partial(write)) is rule
    assert plugin_problems(()) == ()
