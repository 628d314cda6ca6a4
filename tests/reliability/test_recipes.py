"""Random recipes: a bounded part of the campaign, and checks that it finds what it looks for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from buddy.compiler.protocol import Compile, Failed
from buddy.compiler.protocol.errors import Diagnostic
from buddy.compiler.protocol.plain_values import OptionInfo, PassInfo
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, from_toml
from buddy.compiler.runtime.captured import as_array
from buddy.compiler.runtime.compare import TOLERANCES, compare
from tests.reliability.campaign import Batch as CampaignBatch
from tests.reliability.campaign import Note, Plan, Tried, run
from tests.reliability.random_recipes import Choices, Insert, Set, Switch, edited, recipe_of
from tests.reliability.recipe_endings import differing, of_failure
from tests.reliability.recipe_table import kinds, table
from tests.reliability.recipes import CAMPAIGN, PROGRAMS, Batch, Program, as_file

PASSES = (
    PassInfo("cse", "mlir", ""),
    PassInfo("fuse-rows", "mlir", "", options=(OptionInfo("max-row-kib", "0"),), ours=True),
    PassInfo("loop", "mlir", "", "func.func", (OptionInfo("how", "a", words=("a", "b")), OptionInfo("on", "true"))),
)


@pytest.mark.parametrize("name", ["addmm", "two_models"])
@pytest.mark.full("a campaign of random recipes in miniature")
def test_a_share_of_the_campaign_has_no_faults(name: str) -> None:
    seed = next(number for number, program in enumerate(PROGRAMS) if name in program.path)
    (batch,) = run(CAMPAIGN, Plan(15, seed))
    assert sum(batch.tried.outcomes.values()) == 15, batch.tried.faults
    assert batch.tried.outcomes.get("right", 0) > 0
    assert batch.tried.faults == ()
    assert [note.number for note in batch.tried.notes] == list(range(15))
    assert all(note.why for note in batch.tried.notes if note.outcome != "right")
    assert any(line.startswith("| **all** | 15 |") for line in table(batch.tried.notes))


def test_any_part_of_the_edits_makes_a_recipe_that_a_file_holds() -> None:
    choices = Choices([preset.recipe for preset in presets().values()], PASSES, ["act/gelu.0", "mm.0"])
    for number in range(200):
        chance = random.Random(number)
        base, edits = recipe_of(chance, choices)
        some = [edit for edit in edits if chance.random() < 0.5]
        recipe = edited(base, some)
        if recipe.dialect != "stablehlo":
            assert from_toml(as_file(recipe, ["two\nlines"])) == recipe
        assert edited(base, []) == base


def test_the_same_number_draws_the_same_recipe() -> None:
    choices = Choices([presets()["default"].recipe], PASSES, ["mm.0"])
    assert recipe_of(random.Random("3/4"), choices) == recipe_of(random.Random("3/4"), choices)


# ---- the judge -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*TOLERANCES, torch.int32, torch.bool], ids=str)
def test_the_judge_allows_what_the_product_allows(dtype: torch.dtype) -> None:
    """One element is off by half of the product's tolerance, then by twice that."""
    for scale in (0.1, 1.0, 50.0):
        eager = (scale * torch.tensor([1.0, -2.0, 0.5, 3.0])).to(dtype)
        exact = eager.to(torch.complex128 if dtype.is_complex else torch.float64)
        rms, last = float(exact.abs().square().mean().sqrt()), float(exact[3].abs())
        allowed = TOLERANCES[dtype].bound(rms, last) if dtype in TOLERANCES else 0.0
        for error, right in ((0.5 * allowed, True), (2 * allowed or -1.0, False)):
            ours = exact.clone()
            ours[3] += error
            ours = ours.to(dtype)
            report = compare("out", ours, eager)
            said = differing(as_array(ours), as_array(eager), report.dtype)
            assert (report.verdict == "ok", said == "") == (right, right), (scale, error, report, said)


def test_outputs_are_compared_once_more() -> None:
    eager = np.array([1.0, -2.0, np.nan, np.inf], np.float32)
    assert differing(eager + np.float32(1e-6), eager, "float32") == ""
    assert "1 of 4 are wrong" in differing(eager + np.array([0, 1e-3, 0, 0], np.float32), eager, "float32")
    assert differing(np.array([1.0, -2.0, 3.0, np.inf], np.float32), eager, "float32")
    assert differing(np.array([1.0, -2.0, np.nan, 9e9], np.float32), eager, "float32")
    assert differing(np.array([3]), np.array([4]), "int64")
    assert differing(eager[:2], eager, "float32")


def test_failures_have_to_say_what_and_where() -> None:
    def outcome(diagnostic: Diagnostic, ours: bool = False) -> str:
        return of_failure(Failed(1, diagnostic), ours).outcome

    assert outcome(Diagnostic("unknown pass", "pass 3 x")) == "refused"
    assert outcome(Diagnostic("unknown pass")) == "unsaid"
    crash = Diagnostic("the compiler crashed (SIGSEGV, an access to invalid memory)", "pass x (step 3)")
    assert outcome(crash) == "crashed"
    assert outcome(crash, ours=True) == "own crash"
    code = Diagnostic(
        "the compiled kernel crashed (SIGILL, an instruction that this CPU does not support)", "while it ran"
    )
    assert outcome(code) == "code crash"
    assert outcome(Diagnostic("crashed: SIGSEGV", "after the phase input")) == "crashed"
    assert outcome(Diagnostic("its result does not verify: operand #0", "pass 3 x")) == "own fault"
    assert outcome(Diagnostic("a fault in the pass itself, KeyError: 'callee'", "pass 3 x")) == "own fault"


def test_endings_are_counted_by_what_recipes_are_made_of() -> None:
    notes = (
        Note(0, "right", "", ("backend iree",)),
        Note(1, "refused", "no pass 'a' · step 1", ("backend iree",)),
        Note(2, "refused", "no pass 'b' · step 2"),
        Note(3, "wrong", "all of it"),
    )
    assert "| backend iree | 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in table(notes)
    assert "| **all** | 4 | 1 | 2 | 0 | 0 | 0 | 1 |" in table(notes)
    found = kinds([CampaignBatch("recipes", 5, "", Tried({}, notes=notes), 1.0)], ["refused"])
    assert found == ["2 x [seed 5, recipe 1] no pass 'a' · step 1"]


# ---- reduction of recipes --------------------------------------------------------------------------------------------


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    (tmp_path / "cache").mkdir()
    found = Batch(tmp_path / "cache", 0, Program("samples/arith_add.py"), "dynamo")
    yield found
    found.close()
    assert found.faults == {}


@pytest.mark.full("a campaign of random recipes in miniature")
def test_wrong_outputs_are_told_with_the_one_edit_that_makes_them(batch: Batch) -> None:
    bench = batch.bench()
    base = bench.bases(0)[0]
    client = bench.engine.client
    compiled = bench.engine.ask(Compile(client.new_request_id(), base), 60)
    text = bench.engine.text(next(stage.text for stage in compiled.stages if stage.name == "lower"))
    wrong = PassStep("replace-ir", "mlir", "builtin.module", (("text", text.replace("arith.addf", "arith.mulf")),))
    edits = (Switch("cse"), Insert(wrong, "tosa-to-linalg-named"), Set("threads", 2))
    ending = batch.ending(edited(base, edits))
    assert ending.outcome == "wrong"
    fault = batch.fault(7, base, edits, ending)
    assert fault.what.startswith("# samples/arith_add.py, seed 0, recipe 7: wrong\n")
    assert from_toml(fault.what) == msgspec.structs.replace(edited(base, edits[1:2]), source="", arguments=())


@pytest.mark.full("a campaign of random recipes in miniature")
def test_a_preset_as_it_is_has_to_be_right(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all drawn recipes are rejected, no recipe shows a fault."""
    bench = batch.bench()
    recipe = bench.first(0)
    assert batch.ending(recipe).outcome == "right"
    assert batch.faults == {}
    refused = msgspec.structs.replace(recipe, target="no-such-target")
    monkeypatch.setattr(bench, "first", lambda _graph: refused)
    bench._references.clear()
    assert batch.ending(recipe).outcome == "right"
    (fault,) = batch.faults.values()
    assert fault.outcome == "preset"
    assert fault.why.startswith("graph 0 by the default preset: refused: ")
    batch.faults.clear()
