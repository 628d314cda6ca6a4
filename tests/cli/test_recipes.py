"""From options to a recipe: what is switched, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from buddy.app.cli import arguments, run
from buddy.app.cli.recipes import UsageError, base_recipes, graph_numbers, graph_recipes, read_recipe, with_eager_nodes
from buddy.app.workspace.presets import apply_overrides
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import Recipe, to_toml

GRAPH = GraphInfo(
    "forward",
    (
        NodeRow(0, "x", "placeholder", "arg0_1", "arg0_1", "()", "{}"),
        NodeRow(1, "gelu.0", "call_function", "gelu", "aten.gelu.default", "()", "{}"),
        NodeRow(2, "mm.0", "call_function", "mm_3", "aten.mm.default", "()", "{}"),
    ),
)


def recipe(*words: str) -> Recipe:
    return recipes(*words)[0]


def recipes(*words: str) -> list[Recipe]:
    options, script = arguments.parse_with_script_arguments(run.make_parser(), ["a.py", *words])
    return base_recipes(options, tuple(presets().values()), script)


def test_without_options_it_is_the_default_preset() -> None:
    found = recipe("--", "--tiny")
    assert found.steps == presets()["default"].recipe.steps
    assert (found.source, found.arguments, found.preset) == ("a.py", ("--tiny",), "default")


def test_options_change_their_fields() -> None:
    words = ("--preset", "upstream", "--dialect", "tosa", "--partition", "whole", "--threads", "2", "--checks", "none")
    found = recipe(*words)
    assert (found.preset, found.dialect, found.partition, found.threads) == ("upstream", "tosa", "whole", 2)
    assert found.checks == "none"
    assert found.steps == presets()["upstream"].recipe.steps


def test_a_pass_is_disabled_wherever_it_stands_or_once() -> None:
    all_off = [step.enabled for step in recipe("--disable", "canonicalize").steps if step.name == "canonicalize"]
    assert len(all_off) > 1
    assert not any(all_off)
    one_off = [step.enabled for step in recipe("--disable", "canonicalize#2").steps if step.name == "canonicalize"]
    assert one_off == [index != 1 for index in range(len(one_off))]


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_recipe_without_steps_gets_those_of_its_frontend(tmp_path: Path) -> None:
    found = recipe("--recipe", written(tmp_path / "mine.toml", "frontend = 'torch-mlir'\ndialect = 'tosa'"))
    assert (found.frontend, found.dialect) == ("torch-mlir", "tosa")
    assert found.steps == presets()["torch-mlir-tosa"].recipe.steps
    assert recipe("--recipe", str(tmp_path / "mine.toml"), "--preset", "default").frontend == "dynamo"


def test_a_recipes_file_names_plugins_and_files_only_where_it_is_trusted(tmp_path: Path) -> None:
    plugin = tmp_path / "theirs.py"
    text = f"[[plugins]]\npath = '{plugin}'\n[[steps]]\nname = 'snapshot-op-locations'\noptions = [['filename', 'x']]"
    path = written(tmp_path / "theirs.toml", text)
    with pytest.raises(UsageError, match=r"theirs\.py, which is Python code; .*--trust allows it"):
        recipe("--recipe", path)
    assert [found.path for found in recipe("--recipe", path, "--trust").plugins] == [str(plugin)]
    mine = written(tmp_path / "mine.toml", text.partition("[[steps]]")[0])
    named = recipe("--recipe", mine, "--plugin", str(plugin))
    assert {found.path for found in named.plugins} == {str(plugin)}, "the user has named it"
    with pytest.raises(UsageError, match=r"theirs\.toml is rejected"):
        read_recipe(path, [], ())


def test_recipes_of_several_frontends_are_refused(tmp_path: Path) -> None:
    files = [
        written(tmp_path / f"{n}.toml", f"graph = {n}\nfrontend = '{f}'") for n, f in ((0, "dynamo"), (1, "export"))
    ]
    with pytest.raises(UsageError, match=r"different frontends .dynamo and export."):
        recipes("--recipe", files[0], "--recipe", files[1])


def test_this_compiler_takes_no_flags_of_anothers(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.toml", "backend = 'iree'\nbackend_flags = ['--iree-opt-level=O3']")
    assert recipe("--recipe", path).backend_flags == ("--iree-opt-level=O3",)
    found = recipe("--recipe", path, "--backend", "native")
    assert (found.backend, found.backend_flags) == ("native", ())


def test_flags_of_a_backend_that_is_not_asked_for_are_refused_in_the_workbench_too() -> None:
    known, flags = tuple(presets().values()), {"backend_flags": ("--iree-opt-level=O3",)}
    with pytest.raises(ValueError, match="select another one with --backend"):
        apply_overrides(recipe(), known, flags)
    assert apply_overrides(recipe(), known, {**flags, "backend": "iree"}).backend_flags == flags["backend_flags"]


def test_a_recipe_from_a_file_keeps_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(recipe("--disable", "cse", "--dialect", "tosa")))
    found = recipe("--recipe", str(path), "--enable", "cse#1")
    assert found.dialect == "tosa"
    enabled = [step.enabled for step in found.steps if step.name == "cse"]
    assert enabled == [True] + [False] * (len(enabled) - 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--disable", "canonicalise"), "did you mean canonicalize"),
        (("--disable", "cse#99"), "unknown pass 'cse#99'"),
        (("--preset", "fast"), "known: default"),
        (("--recipe", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe(*words)


@pytest.mark.parametrize("pattern", ["gelu.0", "gelu", "aten.gelu.*", "ge?u"])
def test_nodes_are_named_as_the_table_names_them(pattern: str) -> None:
    (found,) = with_eager_nodes([Recipe()], [pattern], [GRAPH])
    assert found.choice_map() == {"gelu.0": "eager"}


@pytest.mark.parametrize("pattern", ["arg0_1", "gello"])
def test_a_node_that_does_not_compute_or_exist_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=pattern):
        with_eager_nodes([Recipe()], [pattern], [GRAPH])


def test_a_node_may_be_in_one_graph_alone() -> None:
    both = [Recipe(graph=0), Recipe(graph=1)]
    found = with_eager_nodes(both, ["gelu*"], [GraphInfo("empty", ()), GRAPH])
    assert [recipe.choice_map() for recipe in found] == [{}, {"gelu.0": "eager"}]
    with pytest.raises(UsageError, match="the graphs have no node 'conv'"):
        with_eager_nodes(both, ["conv"], [GRAPH, GRAPH])


def test_each_graph_takes_the_recipe_that_is_for_it_and_no_choice_of_another(tmp_path: Path) -> None:
    for number, dialect in ((0, "tosa"), (2, "linalg")):
        mine = msgspec.structs.replace(recipe("--dialect", dialect), graph=number).with_choice(f"n{number}", "eager")
        (tmp_path / f"{number}.toml").write_text(to_toml(mine))
    found = graph_recipes(recipes(*(f"--recipe={tmp_path}/{number}.toml" for number in (0, 2))), range(3))
    assert [entry.graph for entry in found] == [0, 1, 2]
    assert [entry.dialect for entry in found] == ["tosa", "tosa", "linalg"]
    assert [entry.choice_map() for entry in found] == [{"n0": "eager"}, {}, {"n2": "eager"}]


def test_two_recipes_for_one_graph_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(to_toml(recipe()))
    with pytest.raises(UsageError, match="for the same graph"):
        recipes("--recipe", str(tmp_path / "a.toml"), "--recipe", str(tmp_path / "a.toml"))


def test_a_graph_is_named_by_its_number_or_its_name() -> None:
    other = GraphInfo("Head #2", ())
    assert graph_numbers(None, [GRAPH, other]) == [0, 1]
    assert graph_numbers("1", [GRAPH, other]) == [1]
    assert graph_numbers("Head #2", [GRAPH, other]) == [1]


@pytest.mark.parametrize("wanted", ["2", "-1", "Head"])
def test_a_graph_that_does_not_exist_is_refused_with_those_that_do(wanted: str) -> None:
    with pytest.raises(UsageError, match=r"has 0 \(forward\), 1 \(Head #2\)"):
        graph_numbers(wanted, [GRAPH, GraphInfo("Head #2", ())])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipeline_of_others_names_no_files_unless_it_is_trusted(tmp_path: Path) -> None:
    text = "builtin.module(cse, snapshot-op-locations{filename=out.mlir})"
    file = written(tmp_path / "theirs.txt", text)
    with pytest.raises(UsageError, match=r"theirs\.txt is rejected: it asks for filename=out\.mlir .*--trust"):
        recipe("--pipeline", file)
    for words in (["--pipeline", file, "--trust"], ["--pipeline", text]):
        assert recipe(*words).steps[-1].options == (("filename", "out.mlir"),)


@pytest.mark.parametrize("option", ["--recipe", "--pipeline"])
def test_a_pipe_that_nobody_writes_to_is_refused_at_once_and_one_of_the_shell_is_read(
    tmp_path: Path, option: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is not a regular file"):
        recipe(option, str(pipe))
    reader, writer = os.pipe()
    os.write(writer, {"--recipe": to_toml(recipe()), "--pipeline": "builtin.module(cse)"}[option].encode())
    os.close(writer)
    try:
        assert recipe(option, f"/dev/fd/{reader}").steps
    finally:
        os.close(reader)
