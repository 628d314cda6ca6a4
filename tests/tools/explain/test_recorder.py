"""What a recorded run says: one recompilation for each class of guards, graph breaks of the main kinds, limits."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.protocol.dynamo import DynamoReport
from buddy.compiler.tools.explain.recorder import Recorder
from buddy.compiler.tools.explain.report import ReportBuilder

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
SCALE = 2
HERE = str(Path(__file__).resolve())
log = logging.getLogger("tests.explained")


def recorded(act: Callable[[], object]) -> DynamoReport:
    builder = ReportBuilder()
    with Recorder(builder.take).recording():
        act()
    report = builder.report()
    assert report.notes == ()
    return report


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="eager", **options)


class Config:
    def __init__(self) -> None:
        self.scale = 2


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x * 2


def x(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.ones(*(sizes or (2, 4)), **options)


def size() -> None:
    f = compiled(lambda x: x + 1, dynamic=False)
    f(x())
    f(x(2, 8))


def symbolic_size() -> None:
    f = compiled(lambda x: x + 1 if x.size(0) > 4 else x - 1, dynamic=True)
    f(x())
    f(x(8, 4))


def one() -> None:
    f = compiled(lambda x: x + 1, dynamic=True)
    f(x())
    f(x(1, 4))


def rank() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    f(x(2))


def dtype() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    f(x().double())


def stride() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    f(x(4, 2).t())


def requires_grad() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    f(x(requires_grad=True))


def device() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    f(x(device="meta"))


def training() -> None:
    module = Scaled()
    f = compiled(module)
    f(x())
    module.eval()
    f(x())


def global_value() -> None:
    global SCALE
    SCALE = 2
    f = compiled(lambda x: x * SCALE)
    f(x())
    SCALE = 3
    f(x())


def closure() -> None:
    n = 2
    f = compiled(lambda x: x * n)
    f(x())
    n = 3
    f(x())


def closure_of_a_function() -> None:
    g = torch.sin
    f = compiled(lambda x: g(x))
    f(x())
    g = torch.cos
    f(x())


def integer() -> None:
    f = compiled(lambda x, n: x * n)
    f(x(), 2)
    f(x(), 3)


def floating() -> None:
    f = compiled(lambda x, n: x * n)
    f(x(), 2.5)
    f(x(), 3.5)


def string() -> None:
    f = compiled(lambda x, mode: x + 1 if mode == "add" else x * 2)
    f(x(), "add")
    f(x(), "mul")


def boolean() -> None:
    f = compiled(lambda x, flag: x + 1 if flag else x * 2)
    f(x(), True)
    f(x(), False)


def none() -> None:
    f = compiled(lambda x, mask=None: x + 1 if mask is None else x * mask)
    f(x())
    f(x(), x())


def enumeration() -> None:
    f = compiled(lambda x, mode: x + 1 if mode is Mode.SUM else x * 2)
    f(x(), Mode.SUM)
    f(x(), Mode.MEAN)


def length() -> None:
    f = compiled(lambda xs: sum(xs))
    f([x(), x()])
    f([x(), x(), x()])


def keys() -> None:
    f = compiled(lambda d: sum(d.values()))
    f({"a": x()})
    f({"b": x()})


def number_of_keys() -> None:
    f = compiled(lambda d: sum(d.values()))
    f({"a": x()})
    f({"a": x(), "b": x()})


def type_of_a_value() -> None:
    f = compiled(lambda x, c: x + 1 if isinstance(c, Config) else x * 2)
    f(x(), Config())
    f(x(), Mode)


def attribute() -> None:
    config = Config()
    f = compiled(lambda x, c: x * c.scale)
    f(x(), config)
    config.scale = 3
    f(x(), config)


def aliasing() -> None:
    f = compiled(lambda x, y: x.add_(1) * y)
    f(x(), x())
    same = x()
    f(same, same)


def grad_mode() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    with torch.no_grad():
        f(x())


def default_dtype() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    torch.set_default_dtype(torch.float64)
    try:
        f(torch.ones(2, 4, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


def marks() -> None:
    f = compiled(lambda x: x + 1)
    f(x())
    marked = x()
    torch._dynamo.mark_dynamic(marked, 0)
    f(marked)


def backend() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for _ in range(2):
        torch.compile(f, backend=lambda module, inputs: module)(x())


# Dynamo of PyTorch 2.11 says that the backends differ, and does not name them.
BACKENDS = ("<lambda>", "another <lambda>") if hasattr(torch._dynamo.guards, "describe_backend") else ("", "")

# The kind of the failed guard, its scope, the value, before and after, and a word of the fix.
CASES: tuple[tuple[Callable[[], None], str, str, str, str, str, str], ...] = (
    (size, "size", "local", "x", "[2, 4]", "[2, 8]", "mark_dynamic(x, 1)"),
    (symbolic_size, "symbolic size", "local", "x", "[2, 4]", "[8, 4]", "branch"),
    (one, "symbolic size", "local", "x", "[2, 4]", "[1, 4]", "sizes of 0 and 1"),
    (rank, "rank", "local", "x", "[2, 4]", "[2]", "reshape x"),
    (dtype, "dtype", "local", "x", "float32", "float64", "one dtype"),
    (stride, "stride", "local", "x", "[4, 1]", "[1, 2]", "x.contiguous()"),
    (requires_grad, "requires_grad", "local", "x", "False", "True", "detach()"),
    (device, "device", "local", "x", "cpu", "meta", "one device"),
    (training, "value", "attribute", "self.training", "True", "False", "evaluation"),
    (global_value, "value", "global", "SCALE", "2", "3", "the global SCALE"),
    (closure, "value", "closure", "n", "2", "3", "a variable of the enclosing function"),
    (closure_of_a_function, "identity", "closure", "g", "sin", "cos", "create g once"),
    (integer, "value", "local", "n", "2", "3", "dynamic=True"),
    (floating, "value", "local", "n", "2.5", "3.5", "make n a tensor"),
    (string, "value", "local", "mode", "'add'", "'mul'", "few different values of mode"),
    (boolean, "value", "local", "flag", "True", "False", "torch.where"),
    (none, "value", "local", "mask", "None", "float32 [2, 4]", "always, or never"),
    (enumeration, "identity", "local", "mode", "<Mode.SUM: 1>", "<Mode.MEAN: 2>", "enumeration"),
    (length, "length", "local", "xs", "length 2", "length 3", "one length"),
    (keys, "keys", "local", "d", "dict with a", "dict with b", "one order"),
    (number_of_keys, "length", "local", "d", "length 1", "length 2", "one length"),
    (type_of_a_value, "type", "local", "c", "Config", "EnumType", "one type"),
    (attribute, "value", "attribute", "c.scale", "2", "3", "the attribute c.scale"),
    (aliasing, "aliasing", "", "x, y", "different", "one tensor", "clone()"),
    (grad_mode, "global state", "", "grad_mode", "True", "False", "grad mode"),
    (default_dtype, "global state", "", "default_dtype", "float32", "float64", "default dtype"),
    (marks, "dynamic marks", "", "", "not marked", "marked", "first input"),
    (backend, "backend", "", "", *BACKENDS, "create the backend once"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("act", "kind", "scope", "source", "before", "after", "fix"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_a_recompilation_names_the_failed_guard_and_the_values(
    act: Callable[[], None], kind: str, scope: str, source: str, before: str, after: str, fix: str
) -> None:
    report = recorded(act)
    (recompilation,) = report.recompilations
    failure = recompilation.failures[0]
    assert (failure.kind, failure.source) == (kind, source)
    assert failure.before.removeprefix("_VariableFunctionsClass.") == before
    assert failure.after.removeprefix("_VariableFunctionsClass.").replace("EnumMeta", "EnumType") == after
    assert failure.scope == scope
    assert fix in failure.fix
    first = report.compiles[failure.compile]
    assert (first.number, recompilation.number) == (1, 2)
    assert recompilation.seconds > 0
    assert recompilation.call is not None
    assert (recompilation.call.file, recompilation.call.function) == (HERE, act.__name__)
    if scope:
        assert failure.frame is not None
        assert failure.frame.file == HERE


def test_other_values_that_changed_are_listed() -> None:
    def act() -> None:
        f = compiled(lambda x, n: x * n, dynamic=False)
        f(x(), 2)
        f(x(2, 8).double(), 3)

    (recompilation,) = recorded(act).recompilations
    failure = recompilation.failures[0]
    changed = {(failure.source, failure.before, failure.after), *failure.changes}
    assert ("n", "2", "3") in changed
    assert ("x", "dtype float32, size [2, 4]", "dtype float64, size [2, 8]") in changed


def test_checks_and_failures_of_guards_are_counted() -> None:
    def act() -> None:
        f = compiled(lambda x, n: x * n)
        for n in ("1", "1", "1", "2", "1"):
            f(x(), int(n) > 1)

    report = recorded(act)
    first, second = report.compiles
    (guard,) = [guard for guard in report.guards if guard.compile == 0 and guard.expression == "n == False"]
    assert (guard.kind, guard.scope, guard.failed) == ("value", "local", 1)
    assert guard.frame is not None
    assert guard.frame.text == "f = compiled(lambda x, n: x * n)"
    assert (first.calls, second.calls) == (4, 1)
    assert guard.checked == 4
    tensors = [guard for guard in report.guards if guard.kind == "tensor" and guard.compile == 0]
    assert [(guard.expression, guard.failed) for guard in tensors] == [("x is float32 [2, 4], stride [4, 1]", 0)]
    assert any(guard.library for guard in report.guards)


def test_the_recompile_limit_is_reported() -> None:
    def act() -> None:
        f = compiled(lambda x, mode: x + 1 if mode else x)
        with torch._dynamo.config.patch(recompile_limit=3):
            for number in range(6):
                f(x(), str(number))

    report = recorded(act)
    (limit,) = report.limits
    assert (limit.setting, limit.limit) == ("recompile_limit", 3)
    assert limit.location == f"{HERE}:{act.__code__.co_firstlineno + 1}"
    assert [compile_.number for compile_ in report.compiles] == [1, 2, 3, 4]
    assert report.compiles[3].function == "<lambda>"
    changes = [failure.before for failure in report.compiles[3].failures]
    assert changes == ["'2'", "'1'", "'0'"]


# ---- graph breaks ----------------------------------------------------------------------------------------------------


def prints(x: torch.Tensor) -> torch.Tensor:
    print("here")
    return x + 1


def reads(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def inputs(x: torch.Tensor) -> torch.Tensor:
    open(HERE).close()
    return x + 1


def logs(x: torch.Tensor) -> torch.Tensor:
    log.warning("here")
    return x + 1


def calls(x: torch.Tensor) -> torch.Tensor:
    return prints(x * 2)


BREAKS = (
    (prints, "print", "reorderable_logging_functions", ['print("here")']),
    (reads, "item", "capture_scalar_outputs", ["return x * x.sum().item()"]),
    (branches, "branch", "torch.where", ["if x.sum() > 0:"]),
    (inputs, "", "", ["open(HERE).close()"]),
    (logs, "logging", "ignore_logging_functions", ['log.warning("here")']),
    (calls, "print", "reorderable_logging_functions", ["return prints(x * 2)", 'print("here")']),
)


@pytest.mark.parametrize(("function", "word", "fix", "lines"), BREAKS, ids=[case[0].__name__ for case in BREAKS])
def test_a_graph_break_has_its_stack_and_a_fix(
    function: Callable[..., Any], word: str, fix: str, lines: list[str]
) -> None:
    report = recorded(lambda: compiled(function)(x()))
    assert report.breaks
    found = report.breaks[0]
    assert word in f"{found.reason} {found.explanation}".lower()
    assert found.fixes
    assert fix in found.fixes[0]
    assert all(frame.file == HERE for frame in found.frames)
    assert [frame.text for frame in found.frames][-len(lines) :] == lines
    assert found.frames[-len(lines)].function == function.__name__


def test_a_break_of_several_compilations_is_counted() -> None:
    def act() -> None:
        f = compiled(lambda x: prints(x * 2) + 1, dynamic=False)
        f(x())
        f(x(2, 8))

    report = recorded(act)
    # In the outer function, in `prints` that is compiled alone, and in the outer function for other sizes.
    assert [(found.reason, found.times) for found in report.breaks] == [("Failed to trace builtin operator", 3)]
    resumed = f"prints after line {prints.__code__.co_firstlineno + 1}"
    assert {"<lambda>", resumed} <= {compile_.function for compile_ in report.compiles}


def test_a_break_with_fullgraph_is_an_error_with_its_line() -> None:
    def act() -> None:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(prints, fullgraph=True)(x())

    report = recorded(act)
    assert report.compiles[0].problem.startswith("Unsupported: Failed to trace builtin operator")
    (found,) = report.breaks
    assert found.frames[-1].line == prints.__code__.co_firstlineno + 1
    assert "print" in found.fixes[0]


def test_a_run_without_compiled_functions_has_no_rows() -> None:
    report = recorded(lambda: prints(x()))
    assert (report.compiles, report.breaks, report.guards) == ((), (), ())


def test_compiled_code_computes_the_same_while_it_is_recorded() -> None:
    results = []
    f = torch.compile(Scaled(), backend="eager")
    recorded(lambda: results.extend(f(x(n, 4)) for n in (2, 3, 4)))
    assert all(torch.equal(result, x(n, 4) + 1) for n, result in zip((2, 3, 4), results, strict=True))
