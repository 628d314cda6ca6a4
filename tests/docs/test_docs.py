"""What the README and the pages of `docs/` say is so: commands, keys, options, code, messages, links."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from buddy.app.actions import ACTIONS, BY_ID, PANE_TITLES, Action
from buddy.app.cli import FAILURE, VERBS, arguments
from buddy.app.cli.passes import make_catalogue_parser
from buddy.app.workspace.settings import FIELD_SUMMARIES, read_settings
from buddy.themes.palette import FILES, FOLDER, read_theme, themes

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
WORKBENCH = ROOT / "docs" / "reference" / "workbench.md"
RECIPES, OPERATOR = ROOT / "docs" / "reference" / "recipes.md", ROOT / "docs" / "how-to" / "adding-an-operator.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, "" for those that name none."""
    return [text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == language]


def commands(page: Path) -> list[str]:
    """The lines of a page that start buddy-tui."""
    lines = (line for text in blocks(page, "") for line in text.splitlines())
    return [line for line in lines if line.startswith("buddy-tui ")]


def spelled(page: Path) -> str:
    return str(page.relative_to(ROOT))


def words(command: str) -> list[str]:
    """The words behind `buddy-tui`, without the comment and the brackets of what may be left out."""
    return [word.strip("[]") for word in shlex.split(re.sub(r"\s#.*", "", command))[1:]]


Run = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would try the commands: the samples, and the page's recipe written to a file."""
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "samples", place / "samples")
    (place / "mine.toml").write_text(next(text for text in blocks(RECIPES, "toml") if "[[choices]]" in text))
    return place


@pytest.mark.parametrize("command", [line for page in PAGES for line in commands(page) if words(line)])
def test_a_command_is_one_that_the_program_takes(command: str) -> None:
    rest = words(command)
    verb = rest.pop(0) if rest[0] in VERBS else "workbench"
    if verb == "ops":
        make_catalogue_parser(verb, "").parse_args(rest)
    elif verb in ("cache", "completion", "coverage", "doctor", "new", "passes", "replay"):
        import_module(f"buddy.app.cli.{verb}").make_parser().parse_args(rest)
    else:
        arguments.parse_with_script_arguments(import_module(f"buddy.app.cli.{verb}").make_parser(), rest)


def naming() -> list[str]:
    """The commands on recipes that name a pass, a stage, a node or a file: these could be wrong and still parse."""
    marks = ("--disable", "--eager", "--recipe", "#2 ", "buddy-tui passes ", "buddy-tui ops ")
    return [command for command in commands(RECIPES) if any(mark in command for mark in marks)]


@pytest.mark.slow
@pytest.mark.parametrize("command", naming())
def test_a_command_on_recipes_does_what_it_says(command: str, folder: Path, cli: Run) -> None:
    done = cli(*words(command), cwd=folder)
    assert done.returncode == (FAILURE if "# fails" in command else 0), done.stderr


@pytest.mark.slow
def test_the_message_on_the_page_of_the_workbench_is_what_a_failing_pass_says(folder: Path, cli: Run) -> None:
    (message,) = (text for text in blocks(WORKBENCH, "") if text.startswith("error"))
    done = cli("run", "samples/mlp.py", "--disable", "one-shot-bufferize", cwd=folder)
    assert done.returncode == FAILURE
    assert without_numbers(message) in without_numbers(done.stderr)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def python_blocks() -> Iterator[object]:
    for page in PAGES:
        for number, text in enumerate(blocks(page, "python"), 1):
            if not text.startswith("from divisions_to_products"):  # a test, run by tests/engine/test_plugins.py
                yield pytest.param(text, id=f"{spelled(page)} {number}")


@pytest.mark.slow
@pytest.mark.parametrize("code", python_blocks())
def test_python_on_a_page_runs(code: str, tmp_path: Path, run_warm: Run) -> None:
    (tmp_path / "example.py").write_text(code)
    done = run_warm("example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def guide_imports() -> Iterator[object]:
    for page in sorted((ROOT / "docs" / "how-to").glob("adding-*.md")):
        for number, text in enumerate(blocks(page, "python"), 1):
            if "from tests." not in text:  # a test inside the package
                yield pytest.param(text, id=f"{page.name} {number}")


@pytest.mark.parametrize("code", guide_imports())
def test_a_guide_for_extensions_uses_the_public_interface_alone(code: str) -> None:
    nodes = list(ast.walk(ast.parse(code)))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert {name for name in modules if name.partition(".")[0] in ("buddy", "mlir")} <= {"buddy.api"}
    names = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    assert [name for name in names if name.startswith("_") and not name.startswith("__")] == []


def test_an_op_of_the_example_is_not_known_without_it() -> None:
    """Otherwise the page's first example would show how to add what is there already."""
    import_module("buddy.compiler.graph.operations")
    known = import_module("buddy.compiler.graph.operation").default_ops_map()
    targets = re.findall(r'targets = \("([\w.]+)",\)', OPERATOR.read_text("utf-8"))
    assert targets
    assert not known.keys() & set(targets)


def key_rows() -> list[tuple[list[str], str]]:
    """The rows of the table of the most used keys: the keys, and the pane they are for."""
    section = WORKBENCH.read_text("utf-8").partition("### The most used keys")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", keys), where.strip()) for keys, where, _ in cells]


def reaches(action: Action, where: str) -> bool:
    if where == "everywhere":
        return action.pane == "app" or action.anywhere
    return action.pane == "any" if where == "every pane" else PANE_TITLES.get(action.pane) == where


@pytest.mark.parametrize(("keys", "where"), key_rows())
def test_a_key_does_something_where_the_page_says(keys: list[str], where: str) -> None:
    here = {key.replace(" ", "") for action in ACTIONS if reaches(action, where) for key in action.keys}
    there = {key.replace(" ", "") for action in ACTIONS if reaches(action, "every pane") for key in action.keys}
    assert keys
    assert set(keys) <= here | there


def test_the_page_of_the_workbench_names_every_theme() -> None:
    text = WORKBENCH.read_text("utf-8")
    assert [file for file in FILES if f"`{theme_name(file)}`" not in text] == []


def theme_name(file: str) -> str:
    found = re.search(r'^name = "(.*)"', (FOLDER / f"{file}.toml").read_text("utf-8"), re.M)
    assert found is not None
    return found.group(1)


def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    given, theme = blocks(WORKBENCH, "toml")
    file.write_text(given)
    settings, problem = read_settings(file)
    assert problem == ""
    assert settings.theme in {theme_name(file) for file in FILES}
    assert settings.keys
    assert set(settings.keys) <= set(BY_ID)
    rows = re.findall(r"^\| `(\[?\w+\]?)` \|", WORKBENCH.read_text("utf-8"), re.M)
    assert {f"[{name}]" if name == "keys" else name for name in FIELD_SUMMARIES} <= set(rows)
    mine = tmp_path / "mine.toml"
    mine.write_text(theme)
    assert read_theme(mine, themes()).roles["added"] == "bold #5fafff"


def test_every_variable_that_is_read_is_on_the_page_of_recipes() -> None:
    sources = [path for part in ("app", "compiler") for path in (ROOT / part).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r'"(BUDDY_[A-Z_]+)"', path.read_text("utf-8"))}
    listed = set(re.findall(r"^\| `(BUDDY_[A-Z_]+)`", RECIPES.read_text("utf-8"), re.M))
    assert listed == read


def links() -> Iterator[object]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
            if "://" not in target:
                yield pytest.param(page.parent / target, id=f"{spelled(page)} {target}")


@pytest.mark.parametrize("target", links())
def test_a_link_leads_somewhere(target: Path) -> None:
    assert target.exists()


@pytest.mark.parametrize(
    "page", [README, ROOT / "docs" / "explanation" / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=spelled
)
def test_a_path_on_a_page_exists(page: Path) -> None:
    """Paths are told by their slash; those in `build/` are made on the way."""
    text = BLOCK.sub("", page.read_text("utf-8"))
    paths = re.findall(r"`((?:app|benchmarks|compiler|docs|samples|tests|themes)/[\w./-]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
