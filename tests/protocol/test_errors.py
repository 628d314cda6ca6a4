"""One base class of all errors, with what happened, where, and what to do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from buddy.compiler.frontend.errors import FrontendError, OptionError
from buddy.compiler.mlir.bindings import BindingsError
from buddy.compiler.protocol.errors import BuddyError, Diagnostic, diagnostic_of
from buddy.compiler.protocol.plugin_code import plugin_problem
from buddy.compiler.protocol.source_locations import syntax_error
from buddy.compiler.tools.export import ExportError

ROOT = Path(__file__).resolve().parents[2]
PYTHONS_OWN = {"Exception", "ValueError", "RuntimeError", "OSError", "ImportError", "ModuleNotFoundError"}


def classes() -> dict[str, list[str]]:
    """The public classes of both packages by name, with the names of their bases."""
    found = {}
    for part in ("app", "compiler"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return found


def test_every_public_error_has_the_base() -> None:
    bases = classes()

    def is_error(name: str) -> bool:
        return name in PYTHONS_OWN or any(map(is_error, bases.get(name, ())))

    def has_base(name: str) -> bool:
        return name == "BuddyError" or any(map(has_base, bases.get(name, ())))

    errors = [name for name in bases if is_error(name)]
    assert len(errors) > 60
    assert [name for name in errors if not has_base(name)] == []


def test_an_error_has_the_parts_of_its_message() -> None:
    error = ExportError("it cannot be exported", "the export", "name another folder")
    assert (error.diagnostic.what, error.where, error.todo) == (
        "it cannot be exported",
        "the export",
        "name another folder",
    )
    assert str(error) == "it cannot be exported · the export · name another folder"
    diagnostic = Diagnostic("an op is unknown", "linear.0", node="linear.0")
    assert FrontendError(diagnostic).diagnostic is diagnostic


@pytest.mark.parametrize(("error", "also"), [(OptionError("x"), ValueError), (BindingsError("x", "y"), ImportError)])
def test_an_error_is_also_one_of_pythons(error: Exception, also: type[Exception]) -> None:
    assert isinstance(error, also)
    assert isinstance(error, BuddyError)


def test_only_an_error_that_says_where_is_its_own_diagnostic() -> None:
    error = ExportError("it cannot be exported", "the export")
    assert diagnostic_of(error, "failed", "a process") is error.diagnostic
    assert diagnostic_of(OptionError("x"), "failed", "a process") == Diagnostic("failed: OptionError: x", "a process")


def test_a_syntax_error_without_a_line_is_in_its_file(tmp_path: Path) -> None:
    error = SyntaxError("source code string cannot contain null bytes")  # as `compile` raises it
    file = str(tmp_path / "own.py")
    assert plugin_problem("plug-in own.py", error, file).where == file
    assert syntax_error(file, error).diagnostic.where == file
