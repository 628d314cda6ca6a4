"""The catalogue: whatever a recipe may name, with options as the bindings have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.catalogue import _read_upstream_list, catalogue, pass_as_registered
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol import PassInfo
from buddy.compiler.protocol.presets import presets


@pytest.fixture(scope="module")
def by_name() -> dict[str, PassInfo]:
    return {info.name: info for info in catalogue()}


def test_names_are_sorted_and_unique() -> None:
    names = [info.name for info in catalogue()]
    assert names == sorted(set(names))


@pytest.mark.parametrize("preset", presets())
def test_every_pass_of_a_preset_is_in_it_with_its_level_and_options(by_name: dict[str, PassInfo], preset: str) -> None:
    for step in presets()[preset].recipe.steps:
        info = by_name[step.name]
        assert info.level == step.level
        assert {key for key, _ in step.options} <= {option.name for option in info.options}


def test_every_listed_pass_of_mlir_is_registered_in_the_bindings(by_name: dict[str, PassInfo]) -> None:
    assert [name for name, *_ in _read_upstream_list() if name not in by_name] == []


def test_every_pass_of_ours_is_in_it(by_name: dict[str, PassInfo]) -> None:
    ours = [name for name, cls in own_passes().items() if cls.__module__.startswith("buddy.compiler.")]
    assert "contractions-to-kernels" in ours
    assert all(by_name[name].ours for name in ours)


def test_every_pass_has_a_summary() -> None:
    assert [info.name for info in catalogue() if not info.summary] == []


def test_options_that_take_one_of_a_few_words_have_their_default_among_them(by_name: dict[str, PassInfo]) -> None:
    found = [option for info in by_name.values() for option in info.options if option.words]
    assert {"analysis-heuristic", "region-simplify", "emission-kind"} <= {option.name for option in found}
    assert [option.name for option in found if option.default not in option.words] == []


def test_options_of_mlirs_passes_come_with_defaults(by_name: dict[str, PassInfo]) -> None:
    options = {option.name: option.default for option in by_name["canonicalize"].options}
    assert options["max-iterations"] == "10"
    assert options["top-down"] == "true"


def test_options_of_our_passes_come_with_defaults(by_name: dict[str, PassInfo]) -> None:
    assert [(option.name, option.default) for option in by_name["plan-memory"].options] == [("arena", "true")]


def test_a_pass_that_only_runs_on_functions_says_so(by_name: dict[str, PassInfo]) -> None:
    assert by_name["tosa-to-linalg"].anchor == "func.func"


def test_graph_passes_are_in_it(by_name: dict[str, PassInfo]) -> None:
    assert by_name["drop-identities"].level == "graph"


def test_finding_out_about_passes_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of MLIR's writes what it is run on, to a file of its own name where it is told of none."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ir.Context():
        found = pass_as_registered("snapshot-op-locations", "")
    assert found is not None
    assert found.anchor == "builtin.module"
    assert list(tmp_path.iterdir()) == []
