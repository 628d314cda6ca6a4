"""For a function of one ATen op, the top-level IR holds the op of that meaning in the dialect's own dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, default_ops_map, new_op
from buddy.compiler.graph.operations import TransposeAddMMFusedOp, TransposeMatmulFusedOp
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.ops import registries
from buddy.compiler.ops.lowering import lower_top_level
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from tests.guarded_memory import run_guarded
from tests.ops.cases import normal
from tests.ops.one_op import CASES, NOT_CAPTURED, OF_INTEGERS, WITHOUT_VALUES
from tests.programs import assert_same, captured
from tests.support.tiers import sampled

SPELLING = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "i8", torch.int32: "i32", torch.int64: "i64",
    torch.uint64: "i64", torch.bool: "i1",
}  # fmt: skip


def in_parts(names: Iterable[str], count: int) -> Any:
    """Parametrises a test by `names`: `count` lists that hold all of them, so that each takes less than two seconds."""
    every = list(names)
    ids = [f"part {part + 1} of {count}" for part in range(count)]
    return pytest.mark.parametrize("names", [every[part::count] for part in range(count)], ids=ids)


def assert_each(names: Iterable[str], mismatch: Callable[[str], str]) -> None:
    """Fails with a line for each name that `mismatch` has something to say about, or raises for."""
    lines = []
    for name in names:
        try:
            found = mismatch(name)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            lines.append(f"{name}: {found}")
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


@cache
def graph_of(name: str) -> Any:
    case = CASES[name]
    return captured(case.function, *case.inputs).graph


@cache
def top_level(name: str, dialect: Any) -> str:
    return str(lower_top_level(graph_of(name), dialect))


def ops_in(text: str) -> set[str]:
    return set(re.findall(r'(?<![#!\w])"?((?:tosa|linalg|tensor)\.[a-z_0-9]+)"?', text))


def type_of(tensor: torch.Tensor) -> str:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor  # as which it is compiled
    return f"tensor<{''.join(f'{size}x' for size in tensor.shape)}{SPELLING[tensor.dtype]}>"


def signature_in(text: str) -> tuple[list[str], str]:
    """The types of the arguments and of the result of the only function; those that eager provides are private."""
    (line,) = [line for line in text.splitlines() if "func.func" in line and "private" not in line]
    arguments, _, result = line.rpartition("->")
    return re.findall(r"%\w+: (tensor<[^>]*>)", arguments), result.strip(" {")


def test_every_op_class_has_a_case() -> None:
    # Samples that ran in this process may have registered ops of their own.
    others = {op.__name__ for op in default_ops_map().values() if not op.__module__.startswith("buddy.")}
    lowered = {op for registry in registries().values() for op in registry} - others
    assert lowered - set(CASES) - NOT_CAPTURED - OF_INTEGERS - WITHOUT_VALUES == set()


@in_parts(CASES, 8)
@pytest.mark.slow
def test_a_case_is_a_function_of_that_op_alone(names: list[str]) -> None:
    def mismatch(name: str) -> str:
        found = {type(op).__name__ for op in graph_of(name).operations if not isinstance(op, GetItemOp)}
        # PyTorch detaches what an op without a gradient gives.
        return "" if found in ({name}, {name, "AliasOp"}) else f"captured as {sorted(found)}"

    assert_each(names, mismatch)


@in_parts(CASES, 8)
def test_tosa_first_holds_the_tosa_op_or_says_that_there_is_none(names: list[str]) -> None:
    def mismatch(name: str) -> str:
        expected = CASES[name].tosa
        if isinstance(expected, str):
            assignments = Compiler(graph_of(name)).assignments(default_recipe(dialect="tosa"))
            assignment, *_ = [a for a in assignments if a.lowering != "func"]  # without those that pick a result
            found = (assignment.lowering, assignment.reason)
            return "" if found == ("linalg", f"tosa: {expected}") else f"{found}, expected tosa: {expected}"
        ops = ops_in(top_level(name, "tosa"))
        missing = {f"tosa.{op}" for op in expected} - ops
        others = {op for op in ops if not op.startswith("tosa.")} - {"tensor.empty"}
        return f"missing {sorted(missing)}, of other dialects {sorted(others)}" if missing or others else ""

    assert_each(names, mismatch)


@in_parts(CASES, 8)
def test_linalg_first_holds_a_linalg_op_or_the_view_that_the_op_is(names: list[str]) -> None:
    def mismatch(name: str) -> str:
        expected, ops = set(CASES[name].linalg), ops_in(top_level(name, "linalg"))
        if not expected:
            return f"{sorted(ops)}, expected no op" if ops else ""
        missing, of_tosa = expected - ops, {op for op in ops if op.startswith("tosa.")}
        return f"missing {sorted(missing)}, of TOSA {sorted(of_tosa)}" if missing or of_tosa else ""

    assert_each(names, mismatch)


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
@in_parts(CASES, 8)
def test_the_function_has_the_types_that_eager_has(names: list[str], dialect: Any) -> None:
    def mismatch(name: str) -> str:
        case = CASES[name]
        arguments, result = signature_in(top_level(name, dialect))
        wanted, eager = [type_of(tensor) for tensor in case.inputs], case.function(*case.inputs)
        if arguments != wanted:
            return f"takes {arguments}, expected {wanted}"
        # A tensor without elements crosses no call: there is nothing to point to.
        same = result == type_of(eager) if eager.numel() else "->" not in result
        return "" if same else f"returns {result}, expected {type_of(eager)}"

    assert_each(names, mismatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dialect", sampled(["linalg", "tosa"], ["linalg"], "test_numbers has all of these in this dialect too")
)
def test_all_of_them_agree_with_eager(dialect: Any) -> None:
    every = tuple(tensor for case in CASES.values() for tensor in case.inputs)

    def program(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        return [case.function(*(next(given) for _ in case.inputs)) for case in CASES.values()]

    graph = captured(program, *every)
    loaded = LoadedProgram(compile_graph(graph.graph, default_recipe(dialect=dialect)))
    with torch.no_grad():
        assert_same(run_guarded(loaded, graph.tensors, "last"), program(*every), list(CASES))


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
@pytest.mark.parametrize("cls", [TransposeMatmulFusedOp, TransposeAddMMFusedOp])
def test_products_by_a_transpose_made_by_graph_passes(cls: type[Op], dialect: Any) -> None:
    tensors = [normal(4, 5), normal(6, 5), normal(6)][: 2 + (cls is TransposeAddMMFusedOp)]
    graph, operands = Graph(), []
    for i, tensor in enumerate(tensors):
        meta = TensorMeta(tuple(tensor.shape), TensorDType.Float32)
        operands.append(new_op(PlaceholderOp, f"x{i}", f"x{i}", metas=[meta]))
    node = new_op(cls, "node", "linear.default", operands, [TensorMeta((4, 6), TensorDType.Float32)])
    for op in (*operands, node, new_op(OutputOp, "output", "output", [(node,)])):
        graph.add_node(op)
    compilation = Compiler(graph).compile(default_recipe(dialect=dialect))
    assert [a.lowering for a in compilation.assignments] == [dialect]
    assert_same(LoadedProgram(compilation.artifact)(tensors), [torch.nn.functional.linear(*tensors)])
