"""Message handlers, which Textual itself calls for every base class of a widget."""

from __future__ import annotations

import ast
from pathlib import Path

APP = Path(__file__).resolve().parents[3] / "app"


def twice(function: ast.AST) -> bool:
    """Whether a handler calls the handler of its base class without `prevent_default`, so that it would run twice."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call, ast.Attribute)]
    base = any(call.attr == function.name and ast.unparse(call.value) == "super()" for call in named)  # type: ignore[attr-defined]
    return base and not any(call.attr == "prevent_default" for call in named)


def test_no_handler_runs_its_base_handler_twice() -> None:
    found = [
        f"{path.relative_to(APP)}: {node.name}"
        for path in APP.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        # `on_event` takes all messages, and is not a handler of one.
        if isinstance(node, ast.FunctionDef) and node.name.startswith("on_") and twice(node)
    ]
    assert found == []
