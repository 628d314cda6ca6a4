"""Verdicts of compiled programs: a bounded share of the campaign, and that a false one would be told."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from tests.reliability.campaign import Batch, Note, Tried
from tests.reliability.planting import Planted, Subject, planted, subjects_of
from tests.reliability.verdict_models import DTYPES, models
from tests.reliability.verdicts import FOUND, HIDDEN, MISSED, RIGHT, Case, cases, table, tried

MODELS = ("quantised layers", "gathers and windows", "U-Net")
# Of the faults in these models those that are found by the one part of the rule or the other.
FAULTS = (
    "floor", "up to 16", "0.1 is added", "1e-5 is added", "zeros have no sign", "padding is not counted",
    "windows lack a column", "the last channel lacks a corner of its window",
)  # fmt: skip
SOME = [case for case in cases() if case.model in MODELS and (case.fault is None or case.fault.name in FAULTS)]


@lru_cache
def subjects(model: str, dtype: str) -> list[Subject]:
    return subjects_of(models()[model].program(dtype))


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_program_is_called_what_it_is(case: Case) -> None:
    assert tried(case, subjects(case.model, case.dtype)).outcome == (FOUND if case.fault else RIGHT)


def test_a_fault_that_roundings_hide_is_told_from_one_that_is_missed() -> None:
    rounding = Planted("a last place", "precision", "convolution.default", lambda call, *a: call(*a) * (1 + 2**-23))
    note = tried(Case("U-Net", "bfloat16", rounding), subjects("U-Net", "bfloat16"))
    assert note.outcome == HIDDEN
    assert note.why.endswith(" of roundings")


def test_a_fault_without_a_place_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"0 calls of mm\.default"):
        subjects("U-Net", "float32")[0].graph(Planted("nowhere", "", "mm.default", lambda call, *a: call(*a)))


def test_what_is_planted_takes_the_place_of_one_call_and_leaves_the_captured_graph_alone() -> None:
    x = torch.ones(3)
    (subject,) = subjects_of(lambda: (x + 1).relu() + 2)
    fault = Planted("three for two", "", "add.Tensor", lambda call, x, _y: call(x, 3))
    assert planted(subject.aten.module, fault)(x)[0].tolist() == [5.0] * 3
    assert subject.aten.module(x)[0].tolist() == [4.0] * 3


def test_the_table_counts_each_kind_of_fault_by_element_type() -> None:
    notes = (
        Note(0, RIGHT, "", ("models as they are", "float32")),
        Note(1, FOUND, "", ("epsilon", "float32")),
        Note(2, MISSED, "", ("epsilon", "bfloat16")),
    )
    lines = table([Batch("verdicts", 0, "", Tried({}, notes=notes), 1.0)])
    assert "| epsilon | 1 of 1 | 0 of 1 |" in lines
    assert "| **all faults** | 1 of 1 | 0 of 1 |" in lines
    assert "| models as they are | 1 of 1 | 0 of 0 |" in lines


def test_cases_are_many_and_each_has_a_name_of_its_own() -> None:
    names = [str(case) for case in cases()]
    assert len(set(names)) == len(names)
    assert sum(case.fault is None for case in cases()) >= 25 * len(DTYPES)
    assert len({case.fault for case in cases() if case.fault}) >= 50
