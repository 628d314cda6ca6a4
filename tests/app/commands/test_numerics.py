"""The comparison of every node with eager: the summary, the plot and the filter fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from buddy.app.panes.graph_nodes import NodeFacts, parse_filter
from buddy.app.reports import numerics
from buddy.app.reports.numerics import variants_without
from buddy.app.reports.results import GoToNode
from buddy.app.screens.numerics import NumericsScreen
from buddy.app.screens.results import ResultRows, ResultScreen
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.protocol.numerics import Deviation, NanOrigin, NodeNumbers, NumericsReport
from buddy.compiler.protocol.presets import default_recipe

NAMES = ("mm", "gelu", "exp")
ROWS = tuple(NodeRow(i, f"{n}.0", "call_function", n, f"aten.{n}.default", "", "") for i, n in enumerate(NAMES))
INFO = GraphInfo("forward", ROWS)
GOOD, BAD = Deviation(1e-7, 1e-7, 0.01), Deviation(3e-2, 1e-2, 3000.0, where="[0]")
NODES = (
    NodeNumbers("mm.0", "fused", own_error=GOOD),
    NodeNumbers("gelu.0", "observed", BAD, GOOD),
    NodeNumbers("exp.0", "observed", Deviation(of_tolerance=-1.0, nans=2), nans=0),
)
REPORT = NumericsReport(
    0, "eager", NODES, "gelu.0", "error", ("mm.0",), (NanOrigin("nan", "compiled", "exp.0"),), ("exp.0",)
)


def test_the_summary_names_the_first_mismatch_and_the_nodes_not_compared() -> None:
    told = numerics.summary_lines(REPORT, INFO)
    assert told[0].startswith(
        "gelu.0 (aten.gelu.default) is the first node out of tolerance, in the program; compiled alone"
    )
    assert told[1] == "nodes that are fused into this node and not compared: mm.0"
    assert told[2] == "the first NaN in compiled code is in exp.0: no input of this node has NaN"


def test_the_summary_omits_what_was_not_measured() -> None:
    alone = replace(NODES[1], own_error=None, why="it has an effect")
    told = numerics.summary_lines(replace(REPORT, nodes=(NODES[0], alone, NODES[2])), INFO)
    assert "in the program; it was not compiled alone: it has an effect: 3e-02" in told[0]


def test_the_summary_has_a_multiple_of_the_tolerance_only_for_a_finite_error() -> None:
    nan = replace(NODES[1], error=NODES[2].error, tolerance="atol 1e-05")
    (first, *_) = numerics.summary_lines(replace(REPORT, nodes=(NODES[0], nan, NODES[2])), INFO)
    assert first.endswith("within tolerance: a NaN or an infinity differs (atol 1e-05)")
    details = numerics.node_details(NodeNumbers("mm.0", "observed", Deviation(), NODES[2].error))
    assert (details["err"], details["own"]) == ("0", "a NaN or an infinity differs")
    assert numerics.node_details(NODES[1])["err"] == "3e-02, 3e+03 x the tolerance"


def test_the_first_mismatch_may_lack_a_row_or_a_location() -> None:
    bare = replace(INFO, rows=(ROWS[0], replace(ROWS[1], target="", location="")))
    for info in (replace(INFO, rows=()), bare):
        assert numerics.summary_lines(REPORT, info)[0].startswith("gelu.0 is the first node out of tolerance, in")


def test_without_compared_nodes_nothing_is_reported_as_correct() -> None:
    nothing = NumericsReport(0, "eager", tuple(NodeNumbers(name, "folded") for name in ("a", "b")))
    assert not nothing.ok
    assert numerics.summary_lines(nothing, INFO)[0].startswith("not compared")
    assert numerics.as_json(nothing, INFO)["ok"] is None


def test_a_nan_in_double_precision_is_not_attributed_to_eager() -> None:
    origins = tuple(NanOrigin("nan", side, "exp.0") for side in ("eager", "compiled"))
    told = numerics.summary_lines(replace(REPORT, reference="float64", origins=origins), INFO)
    assert told[2].startswith("the first NaN in double precision is in exp.0")
    assert told[3].startswith("the first NaN in compiled code is in exp.0 (also in double precision)")


def test_the_first_mismatch_is_on_top_and_non_finite_errors_follow() -> None:
    assert [found.node for found in numerics.worst_nodes(REPORT, 3)] == ["gelu.0", "exp.0", "mm.0"]


def test_json_has_null_for_non_finite_numbers() -> None:
    told = json.loads(json.dumps(numerics.as_json(REPORT, INFO), allow_nan=False))
    assert told["first"]["node"] == "gelu.0"
    assert told["nodes"][2]["error"] == {
        "max_abs": None, "relative": None, "share_of_tolerance": None, "nans": 2, "infs": 0,
    }  # fmt: skip


def test_the_plot_has_the_errors_in_the_order_of_the_graph() -> None:
    program, alone = numerics.error_growth(REPORT, INFO).series
    assert (list(program.x), list(program.y)) == ([1.0], [1e-2])
    assert list(alone.names) == ["mm.0", "gelu.0"]


def test_a_filter_on_errors_excludes_nodes_not_compared() -> None:
    facts = [NodeFacts(row, err=err) for row, err in zip(ROWS, (float("nan"), 3e-2, 1e-7), strict=True)]
    assert [f.row.name for f in facts if parse_filter("err>1e-5")(f)] == ["gelu"]
    assert [f.row.name for f in facts if parse_filter("err<=1e-5")(f)] == ["exp"]


def test_each_pass_that_changes_numerics_is_disabled_alone() -> None:
    recipe = default_recipe()
    found = {without.step: without.recipe for without in variants_without(recipe)}
    assert {"expand-math-to-polynomials", "convolutions-to-kernels", "flash-attention-prefill"} <= found.keys()
    for step, other in found.items():
        differing = [a.name for a, b in zip(recipe.steps, other.steps, strict=True) if a != b]
        assert differing == [step]
    winograd = next(s for s in found["convolutions-to-kernels"].steps if s.name == "convolutions-to-kernels")
    assert winograd.enabled
    assert ("winograd", "never") in winograd.options


@pytest.mark.slow
async def test_the_list_opens_a_page_by_op_module_and_line_and_the_log_keeps_it(workbench: Callable[..., Any]) -> None:
    async with workbench("mlp.py", size=(120, 40)) as bench:
        app = bench.app
        await bench.press("N")
        await bench.until(lambda: isinstance(app.screen, NumericsScreen), "the list")
        await bench.sees("all nodes within")
        await bench.press("i")
        await bench.until(lambda: isinstance(app.screen, ResultScreen), "the page")
        await bench.sees("by source line, as a share of the tolerance")
        rows = app.screen.query_one(ResultRows)
        assert rows.entry is not None
        node = rows.entry.answer
        await bench.press("enter")
        await bench.until(lambda: len(app.screen_stack) == 1, "the panes")
        assert isinstance(node, GoToNode)
        assert app.graph.current.stable == node.name
        for column in ("err", "own"):
            app.graph.order.sort_by(app.graph._columns, column)
            app.graph.sort_rows()
            assert app.graph.order.sorted_by == column
            assert len(app.graph.rows) == len(app.state.info.rows)
        assert [logged.result.title for logged in app.context.results.logged] == ["Every node compared with eager"]
