"""The results of long jobs: shares by op kind, module and source line, changes against the last result, next steps."""

from __future__ import annotations

import math

from msgspec.structs import replace

from buddy.app.actions import BY_ID
from buddy.app.reports.results import (
    AGAIN,
    MAX_ENTRIES,
    PLOT,
    SAVE,
    USE,
    GoToNode,
    PerformAction,
    bisection_result,
    numerics_result,
    profile_result,
    tuning_result,
)
from buddy.compiler.protocol import BisectionResult, GraphInfo, NodeRow, NodeTime, Tuned
from buddy.compiler.protocol.recipe import Recipe
from tests.app.commands.test_numerics import INFO as COMPARED_INFO
from tests.app.commands.test_numerics import REPORT as COMPARED
from tests.app.commands.test_tune import TRIES
from tests.app.reports.test_profile import INFO, REPORT


def test_a_profile_is_summed_by_op_kind_module_and_source_line() -> None:
    lines = tuple(replace(row, location=f"model.py:{7 if row.index < 3 else 9}") for row in INFO.rows)
    result = profile_result(REPORT, None, replace(INFO, rows=lines))
    kinds, modules, places = result.sections
    assert [(entry.name, entry.value, entry.share) for entry in kinds.entries] == [
        ("aten.sort", "3.000 ms", 0.375), ("aten.mm", "2.000 ms", 0.25), ("aten.exp", "1.000 ms", 0.125),
    ]  # fmt: skip
    assert [(entry.name, entry.answer) for entry in modules.entries] == [
        ("down", GoToNode("sort.0")), ("up.deep", GoToNode("mm.0")), ("(none)", GoToNode("exp.0")),
    ]  # fmt: skip
    # On the same line are mm and exp, of which mm is slower.
    assert [(entry.name, entry.share, entry.answer) for entry in places.entries] == [
        ("model.py:9", 0.375, GoToNode("sort.0")), ("model.py:7", 0.375, GoToNode("mm.0")),
    ]  # fmt: skip
    assert all(entry.change == "" for entry in kinds.entries), "there is no other profile"


def test_a_profile_is_compared_with_the_last_one() -> None:
    slower = NodeTime("sort.0", 6e-3, regions=2), NodeTime("mm.0", 2e-3, regions=1)
    last = replace(REPORT, nodes=slower, plain=replace(REPORT.plain, median=14e-3))
    result = profile_result(REPORT, last, INFO)
    assert result.conclusions[1] == "-50.0% compared with the last profile (14 ms)"
    assert [entry.change for entry in result.sections[0].entries] == ["-50%", "same", "new"]


def test_only_the_ten_largest_are_listed() -> None:
    rows = tuple(NodeRow(k, f"n.{k}", "call_function", f"n{k}", f"aten.op{k}", "", "") for k in range(30))
    nodes = tuple(NodeTime(f"n.{k}", 1e-4 * (k + 1), regions=1) for k in range(30))
    kinds = profile_result(replace(REPORT, nodes=nodes), None, GraphInfo("many", rows)).sections[0]
    assert [entry.name for entry in kinds.entries] == [f"aten.op{k}" for k in range(29, 29 - MAX_ENTRIES, -1)]


def test_a_profile_says_which_keys_show_more() -> None:
    following = profile_result(REPORT, None, INFO).next_steps
    assert [entry.answer for entry in following] == [
        PerformAction(name) for name in ("profile.modules", "profile.roofline", "profile.hot")
    ]
    assert [f"g {entry.key}" for entry in following] == [BY_ID[entry.answer.action].key for entry in following]  # type: ignore[union-attr]


def test_errors_are_shown_as_shares_of_the_tolerance_the_largest_first() -> None:
    kinds = numerics_result(COMPARED, None, COMPARED_INFO).sections[0]
    assert [(entry.name, entry.value, entry.role) for entry in kinds.entries] == [
        ("aten.exp", "nan/inf", "bad"), ("aten.gelu", "3e+03 x", "bad"), ("aten.mm", "0.01 x", "text"),
    ]  # fmt: skip
    assert [entry.share for entry in kinds.entries] == [1.0, 1.0, 0.01]
    assert not any(math.isinf(entry.share) for entry in kinds.entries)


def test_errors_are_compared_with_the_last_ones_against_the_same_reference() -> None:
    gelu = replace(COMPARED.nodes[1], error=replace(COMPARED.nodes[1].error, of_tolerance=0.5))
    last = replace(COMPARED, nodes=(COMPARED.nodes[0], gelu, COMPARED.nodes[2]))
    now = numerics_result(COMPARED, last, COMPARED_INFO).sections[0]
    assert [entry.change for entry in now.entries] == ["", "was 0.5 x", ""]
    other = numerics_result(COMPARED, replace(last, reference="float64"), COMPARED_INFO).sections[0]
    assert [entry.change for entry in other.entries] == ["", "", ""]


def test_tuning_lists_the_fastest_recipes_and_the_best_time_of_each_choice() -> None:
    tuned = Tuned(1, Recipe(), ("fuse-rows=on",), 4, 12, 0.5, 1.6, 1.4, 1.7, 9.0)
    result = tuning_result(tuned, TRIES, is_better=True)
    recipes, choices = result.sections
    assert [(entry.name, entry.value, entry.change) for entry in recipes.entries] == [
        ("fuse-rows=on", "0.500 x", "-38%"),
        ("fuse-rows=on", "0.800 x", "current"),
        ("fuse-rows=off", "0.900 x", "+12%"),
    ]  # fmt: skip
    assert [(entry.name, entry.value) for entry in choices.entries] == [
        ("fuse-rows=on", "0.500 x"), ("fuse-rows=off", "0.900 x"),
    ]  # fmt: skip
    assert [entry.answer for entry in result.next_steps] == [USE, PLOT]
    assert [entry.answer for entry in tuning_result(tuned, TRIES[2:3], is_better=False).next_steps] == []


def test_a_bisection_offers_its_recipe_only_if_it_has_one() -> None:
    nothing = BisectionResult("the program is right: nothing to search for", Recipe())
    assert [entry.answer for entry in bisection_result(nothing).next_steps] == [SAVE, AGAIN]
    found = replace(nothing, in_eager=("add.0",), before="func.func @f()", after="func.func @g()")
    result = bisection_result(found)
    assert [entry.answer for entry in result.next_steps] == [USE, SAVE, AGAIN]
    assert result.texts == (("before the pass", "func.func @f()"), ("after the pass", "func.func @g()"))
