"""`buddy.compiler.record()`: what it records, and what can be done with that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import buddy.compiler
from buddy.compiler.importers.sources import SourceError, load_program
from buddy.compiler.protocol.recipe import from_toml

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(x)) * x


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * 2


def names(session: Any) -> list[str]:
    return [graph.info.name for graph in session.graphs]


def test_plain_calls_and_compiled_functions_are_recorded() -> None:
    gate, x = Gate().eval(), torch.randn(3, 6)
    with buddy.compiler.record() as session, torch.no_grad():
        first = gate(x)
        second = torch.compile(scaled, backend="buddy")(x)
    with torch.no_grad():
        torch.testing.assert_close(first, gate(x))
        torch.testing.assert_close(second, scaled(x))
    assert names(session) == ["scaled", "Gate"]
    assert repr(session) == "<Recording of 2 graphs: scaled, Gate>"
    for number in range(2):
        assert session.run(number, repeats=1).ok
    again = session.compile(1)
    assert again.reused > 0


def test_what_was_compiled_before_is_recorded_and_compiled_again_behind() -> None:
    gate, x = Gate().eval(), torch.randn(3, 6)

    def around(x: torch.Tensor) -> torch.Tensor:
        return gate(x) + 1

    run, module = torch.compile(around, backend="buddy"), torch.compile(gate, backend="buddy")
    with torch.no_grad():
        before = run(x), module(x)
        with buddy.compiler.record() as session:
            run(x), module(x)
        assert len(session.graphs) == 2
        assert [len(graph.graph.operations) for graph in session.graphs] == [
            len(session.graphs[1].graph.operations) + 1, len(session.graphs[1].graph.operations),
        ]  # fmt: skip
        torch.testing.assert_close((run(x), module(x)), before)


def test_a_step_of_training_is_recorded_with_its_backward_graph() -> None:
    gate, x = Gate(), torch.randn(3, 6)
    with buddy.compiler.record() as session:
        gate(x).sum().backward()
    assert gate.linear.weight.grad is not None
    assert names(session) == ["Gate", "Gate (backward)"]
    assert all(session.run(number, repeats=1).ok for number in range(2))


def test_an_error_inside_passes_and_what_came_before_is_kept() -> None:
    gate, kept = Gate().eval(), []

    def failing() -> None:
        with buddy.compiler.record() as session, torch.no_grad():
            kept.append(session)
            gate(torch.randn(3, 6))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert names(kept[0]) == ["Gate"]
    assert torch.nn.Module.__call__ is Gate.__call__


def test_a_saved_session_is_a_script_with_the_same_numbers(tmp_path: Path) -> None:
    gate, x = Gate(), torch.randn(3, 6)
    with buddy.compiler.record() as session:
        gate(x).sum().backward()
        with torch.no_grad():
            torch.compile(scaled, backend="buddy")(x)
    script = session.save(tmp_path / "session")
    assert from_toml((script.parent / "recipe.toml").read_text()) == session.recipe
    program = load_program(str(script))
    assert [graph.info.name for graph in program.graphs] == names(session)
    for mine, theirs in zip(program.graphs, session.graphs, strict=True):
        assert mine.info.parameters == theirs.info.parameters
        # An input that the forward graph keeps as it is for the backward one is not a result of a script.
        expected = theirs.eager(theirs.tensors)
        for value in mine.eager(mine.tensors):
            assert any(value.shape == other.shape and torch.allclose(value, other) for other in expected)


def test_the_workbench_is_not_opened_where_there_is_no_terminal() -> None:
    with buddy.compiler.record() as session, torch.no_grad():
        Gate()(torch.randn(3, 6))
    with pytest.raises(SourceError, match=r"needs a terminal.*session\.save"):
        session.open()


def test_nothing_recorded_is_told_as_such(tmp_path: Path) -> None:
    with buddy.compiler.record() as session:
        pass
    with pytest.raises(SourceError, match="no graph was recorded"):
        session.save(tmp_path)


SCRIPT = """
import torch
import buddy.compiler

with buddy.compiler.record() as session, torch.no_grad():
    torch.nn.Linear(3, 2)(torch.ones(1, 3))
session.open()
"""


def test_a_script_that_records_opens_in_the_workbench_as_what_it_recorded(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert [graph.info.name for graph in load_program(str(path)).graphs] == ["Linear"]


def test_importing_the_package_imports_nothing_heavy(run_python: Callable[..., Any]) -> None:
    code = "import sys, buddy.compiler; print(sorted({'torch', 'torch_mlir', 'textual'} & set(sys.modules)))"
    assert run_python("-c", code).stdout.strip() == "[]"
