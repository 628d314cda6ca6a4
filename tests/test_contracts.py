"""Who may import what, seen in `sys.modules` of real processes and in the source; and that `buddy` is ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import import_diagram

ROOT = Path(__file__).resolve().parent.parent
TORCH_AND_MLIR = ("torch", "torch_mlir", "mlir", "llvmlite")
TERMINAL = ("textual", "rich")
# Imports the modules named on the command line, then prints which of the packages before `--` have been loaded.
LOADED = """
import importlib, sys
cut = sys.argv.index("--")
for name in sys.argv[cut + 1:]:
    importlib.import_module(name)
print(*sorted(set(sys.argv[1:cut]) & set(sys.modules)))
"""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("buddy", *(part for part in parts if part != "__init__")))


def sources(folder: str, pattern: str = "*.py") -> list[Path]:
    return sorted((ROOT / folder).rglob(pattern))


def modules(folder: str, pattern: str = "*.py") -> list[str]:
    return [module_name(path) for path in sources(folder, pattern) if path.stem != "__main__"]


def imported_names(path: Path) -> Iterator[str]:
    """Full names in every import statement of a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offenders(paths: list[Path], packages: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in imported_names(path)
        if any(name == package or name.startswith(f"{package}.") for package in packages)
    ]


def is_public(name: str) -> bool:
    """Whether a client may import the compiler's module `name`."""
    return name == "buddy.compiler" or name.startswith("buddy.compiler.protocol")


@pytest.fixture
def loaded(run_python, tmp_path):
    """`loaded(packages, modules)`: those of `packages` that importing `modules` in a fresh process brings in."""

    def probe(packages: tuple[str, ...], names: list[str]) -> list[str]:
        result = run_python("-c", LOADED, *packages, "--", *names, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout.split()

    return probe


@pytest.mark.parametrize("name", ["buddy.app", "buddy.compiler.engine", *modules("compiler/protocol")])
def test_what_clients_import_loads_neither_torch_nor_mlir(loaded, name):
    assert loaded((*TORCH_AND_MLIR, *TERMINAL), [name]) == []


def test_no_module_of_the_application_loads_torch_or_mlir(loaded):
    names = modules("app")
    assert "buddy.app.workbench.app" in names
    assert loaded(TORCH_AND_MLIR, names) == []


def test_the_headless_commands_load_no_terminal_library(loaded):
    names = modules("app/cli")
    assert "buddy.app.cli" in names
    assert loaded((*TORCH_AND_MLIR, *TERMINAL), names) == []


@pytest.mark.parametrize("folder", ["compiler/graph", "compiler/protocol/text"])
def test_the_graph_and_the_stage_text_are_plain_data(loaded, folder):
    assert loaded((*TORCH_AND_MLIR, *TERMINAL), modules(folder)) == []


def test_lexers_work_without_textual(loaded):
    names = modules("themes", "*lexer*.py")
    assert names
    assert loaded((*TORCH_AND_MLIR, *TERMINAL), names) == []


def test_a_terminal_library_brings_in_what_these_tests_look_for(loaded):
    assert loaded(TERMINAL, ["textual.app"]) == sorted(TERMINAL)


@pytest.mark.slow
def test_the_compiler_names_no_terminal_library():
    assert offenders(sources("compiler"), (*TERMINAL, "buddy.app", "buddy.themes")) == []


def test_the_application_imports_the_protocol_alone():
    """Only verbs that work on this machine by themselves reach further: no engine elsewhere stands between."""
    local = [
        ROOT / "app" / "cli" / f"{verb}.py"
        for verb in ("bench", "cache", "coverage", "doctor", "engine", "fuzz", "reduce")
    ]
    local.append(ROOT / "app" / "commands" / "reduce.py")  # a module is reduced by the user's own tools
    clients = [path for path in sources("app") if path not in local]
    inside = tuple(name for name in modules("compiler") if not is_public(name))
    assert offenders(clients, inside) == []


def test_no_module_imports_the_mlir_package_by_name():
    """The bindings find it at run time, in `compiler/mlir/bindings.py`."""
    everywhere = [path for folder in ("app", "compiler", "themes") for path in sources(folder)]
    assert offenders(everywhere, ("torch_mlir", "mlir")) == []


@pytest.mark.parametrize("part", ["app", "compiler", "themes"])
def test_a_folder_is_not_imported_under_a_second_name(run_python, part):
    result = run_python("-c", f"import {part}", cwd=ROOT)
    assert result.returncode != 0
    assert f"write `import buddy.{part}`" in result.stderr


@pytest.mark.parametrize("files", [("__init__.py", "compiler/__init__.py"), ("compiler/__init__.py",)])
def test_a_stranger_that_hides_the_compiler_is_named(run_python, tmp_path, files):
    """A Buddy-MLIR build is a regular package `buddy`; a bare checkout may be a part of the namespace."""
    for name in files:
        (tmp_path / "buddy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "buddy" / name).touch()
    result = run_python("-m", "buddy_tui", "passes", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert f"buddy.compiler is {tmp_path / 'buddy' / 'compiler'}" in result.stderr
    assert f"Take {tmp_path} off PYTHONPATH" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_is_said_when_all_parts_are_ours(run_python, tmp_path):
    result = run_python("-c", "import buddy_tui; print(repr(buddy_tui.shadowing_message()))", cwd=tmp_path)
    assert result.stdout.strip() == "''", result.stderr


def test_the_architecture_page_shows_the_imports_of_today() -> None:
    page = import_diagram.PAGE.read_text("utf-8")
    assert import_diagram.written(page) == page, "run: python -m tests.import_diagram --write"


@pytest.mark.parametrize("part", ["app", "compiler"])
def test_the_architecture_page_lists_the_layers_in_their_order(part: str) -> None:
    page = import_diagram.PAGE.read_text("utf-8")
    section = page.partition(f"## Layers of `{part}/`\n")[2].partition("\n## ")[0]
    rows = [name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)/`", row)]
    (contract,) = [found for found in import_diagram.contracts() if found["containers"] == [f"buddy.{part}"]]
    assert rows == [name for layer in contract["layers"] for name in layer.split(" : ")]


def test_no_folder_imports_itself_through_others_but_for_the_exceptions() -> None:
    siblings = {f"app/{name}" for name in ("panes", "screens")}
    assert set(import_diagram.cycles(import_diagram.folder_edges(exceptions=False))) <= siblings


def test_no_python_code_runs_between_fork_and_exec():
    """`preexec_fn` is not safe in a process with threads, such as the user's."""
    texts = {path: path.read_text("utf-8") for part in ("api", "app", "compiler") for path in sources(part)}
    assert texts
    assert [str(path) for path, text in texts.items() if "preexec_fn" in text] == []


def takes_any(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if an annotation of a parameter or of the result contains `Any`."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [function.returns, *(parameter.annotation for parameter in parameters if parameter)]
    return any(
        isinstance(node, ast.Name) and node.id == "Any"
        for annotation in annotations
        if annotation
        for node in ast.walk(annotation)
    )


def test_few_signatures_say_any() -> None:
    # Lower these bounds when signatures get types. The rest is mostly arguments of nodes and JSON.
    bounds = {"compiler/passes": 0.01, "app": 0.02, "": 0.038}
    for folder, bound in bounds.items():
        functions = [
            node
            for base in ("api", "app", "compiler", "themes")
            for path in (ROOT / base).rglob("*.py")
            if str(path.relative_to(ROOT)).startswith(folder)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        share = sum(map(takes_any, functions)) / len(functions)
        assert share <= bound, f"{share:.1%} of the signatures in {folder or 'all folders'} contain Any"
