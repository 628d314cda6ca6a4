"""The line that `torch.compile(model, backend="buddy")` logs once for each model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore:a graph of")]


@torch.library.custom_op("summary_test::half", mutates_args=())
def half(x: Tensor) -> Tensor:
    return x / 2


@half.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("summary_test::third", mutates_args=())
def third(x: Tensor) -> Tensor:
    return x / 3


@third.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return half(x) + x.cos()


class Broken(nn.Module):
    """Breaks its graph in an inner module, whose code is compiled once, and itself; nothing comes after that break."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Inner(), Inner())

    def forward(self, x: Tensor) -> Tensor:
        x = third(self.inner(x.sin())) + 1
        torch._dynamo.graph_break()
        return x


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that were logged since the last call."""
    found = [record.getMessage().partition("; explain")[0] for record in caplog.records]
    caplog.clear()
    return found


def compiled(function: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="buddy", dynamic=dynamic, options=options)


def test_one_line_after_the_first_call(caplog: pytest.LogCaptureFixture) -> None:
    f = compiled(lambda x: torch.relu(x) + 1)
    for _ in range(3):
        f(torch.ones(3))
    assert lines(caplog) == ["buddy: 1 graph, 2 nodes compiled, none in eager"]


def test_graphs_of_several_functions_are_one_model(caplog: pytest.LogCaptureFixture) -> None:
    f = compiled(Broken().eval())
    with torch.no_grad():
        f(torch.ones(4))
        assert lines(caplog) == ["buddy: 4 graphs, 5 nodes compiled, 2 in eager (half, third)"]
        f(torch.ones(4))
    assert lines(caplog) == []


def test_a_recompilation_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    f = compiled(lambda x, n: half(x) * n, dynamic=False)
    f(torch.ones(3), 2)
    assert lines(caplog) == ["buddy: 1 graph, 1 node compiled, 1 in eager (half)"]
    f(torch.ones(5), 3)
    assert lines(caplog) == []


def test_each_model_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    for function in (torch.sin, torch.cos):
        compiled(lambda x, function=function: function(x))(torch.ones(3))
    assert len(lines(caplog)) == 2


def test_training_announces_the_backward_graph(caplog: pytest.LogCaptureFixture) -> None:
    compiled(nn.Linear(3, 3))(torch.ones(2, 3)).sum().backward()
    assert lines(caplog) == ["buddy: 1 graph (its backward graph follows), 2 nodes compiled, none in eager"]


def test_a_graph_that_falls_back_is_in_eager(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("buddy.compiler.frontend.backend.convert_with_view_bases", fail)
    with pytest.warns(UserWarning, match="runs in eager"):
        compiled(lambda x: x.sin() + x.cos() + 1)(torch.ones(3))
    assert lines(caplog) == ["buddy: 1 graph, 0 nodes compiled, 4 in eager (add x2, sin, cos)"]


def test_nodes_between_pieces_are_no_graph(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin().to(torch.float8_e8m0fnu).float() + 1).cos()

    with pytest.warns(UserWarning, match="is compiled in 2 pieces around eager"):
        compiled(f)(torch.ones(3))
    assert lines(caplog) == ["buddy: 2 graphs, 3 nodes compiled, 2 in eager (_to_copy x2)"]


def test_sizes_that_change_are_one_graph(caplog: pytest.LogCaptureFixture) -> None:
    f = compiled(lambda x: x.sin() * x.shape[0], dynamic=True)
    for size in (3, 5, 7):
        f(torch.ones(size, 4))
    assert len(lines(caplog)) == 1


def test_the_cache_of_programs_gives_the_same_line(caplog: pytest.LogCaptureFixture) -> None:
    said = []
    for _ in range(2):
        torch._dynamo.reset()
        compiled(lambda x: half(x.exp()) - 3)(torch.ones(3))
        said += lines(caplog)
    assert said == ["buddy: 1 graph, 2 nodes compiled, 1 in eager (half)"] * 2


def test_the_option_and_the_variable_silence_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(lambda x: x + 1, summary=False)(torch.ones(3))
    monkeypatch.setenv("BUDDY_SUMMARY", "0")
    compiled(lambda x: x + 2)(torch.ones(3))
    assert lines(caplog) == []
    compiled(lambda x: x + 3, summary=True)(torch.ones(3))
    assert len(lines(caplog)) == 1
    monkeypatch.setenv("BUDDY_SUMMARY", "loud")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="BUDDY_SUMMARY is 'loud'"):
        compiled(lambda x: x + 4)(torch.ones(3))


def test_an_error_of_the_function_still_ends_the_count(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        raise KeyError(str(y.shape))

    with pytest.raises(KeyError):
        compiled(f)(torch.ones(3))
    assert lines(caplog) == ["buddy: 1 graph, 1 node compiled, none in eager"]


def test_a_logger_can_silence_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "buddy.summary"):
        compiled(lambda x: x + 5)(torch.ones(3))
    assert lines(caplog) == []


SCRIPT = """
import logging, sys, torch
f = torch.compile(lambda x: x.sin(), backend="buddy")
f(torch.ones(3))
print("result")
logging.basicConfig(stream=sys.stdout, format="own %(message)s", level=logging.INFO)
torch.compile(lambda x: x.cos(), backend="buddy")(torch.ones(3))
"""


@pytest.mark.process
def test_stderr_unless_the_program_configures_logging(run_python: Callable[..., Any], tmp_path: Any) -> None:
    script = tmp_path / "a script.py"
    script.write_text(SCRIPT)
    done = run_python(str(script))
    line = "buddy: 1 graph, 1 node compiled, none in eager; explain: buddy-tui explain"
    assert done.stderr.startswith(line)
    assert done.stderr.endswith("a script.py'\n")
    assert done.stdout.startswith("result\nown buddy: 1 graph")


@pytest.mark.slow
def test_the_line_says_how_recurrent_layers_are_compiled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "buddy.summary")

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.rnn = nn.Linear(4, 4), nn.LSTM(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x).tanh()
            return self.rnn(x)[0]

    model, x = Tagger(), torch.randn(3, 2, 4)
    with torch.no_grad():
        torch.compile(model, backend="buddy")(x)
        assert "set torch._dynamo.config.allow_rnn = True" in lines(caplog)[0]
        torch._dynamo.reset()
        with torch._dynamo.config.patch(allow_rnn=True):
            torch.compile(model, backend="buddy")(x)
        (line,) = lines(caplog)
        assert "recurrent" not in line
        assert "none in eager" in line
