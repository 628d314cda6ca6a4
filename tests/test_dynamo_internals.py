"""The private parts of TorchDynamo: this PyTorch has them, the tested versions are named, and one module names them."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.protocol.environment import FIRST_TORCH, LAST_TORCH, torch_warning
from buddy.compiler.support.dynamo_internals import PRIVATE_PARTS, PrivatePart, running_compile_call

ROOT = Path(__file__).resolve().parent.parent
HOME = "compiler/support/dynamo_internals.py"
# Documented by PyTorch, some of them also as `torch.compiler.NAME`.
DOCUMENTED = {"config", "disable", "disallow_in_graph", "mark_dynamic", "reset"}
# Dynamo's own classes by which a signature is typed.
TYPES_ONLY = {"guards", "output_graph", "types"}


@pytest.mark.parametrize("part", PRIVATE_PARTS, ids=lambda part: part.name)
def test_this_pytorch_has_it_or_was_not_tested(part: PrivatePart) -> None:
    if not torch_warning(torch.__version__):
        # `torch._dynamo` does not import all of its modules.
        assert pkgutil.resolve_name(f"torch._dynamo.{part.name}") is not None


def test_each_was_tested_with_the_versions_that_are_supported() -> None:
    assert {(part.first, part.last) for part in PRIVATE_PARTS} == {(FIRST_TORCH, LAST_TORCH)}
    assert len({part.name for part in PRIVATE_PARTS}) == len(PRIVATE_PARTS)
    assert all(part.use for part in PRIVATE_PARTS)


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_frames_of_dynamo_have_the_list_of_a_calls_end() -> None:
    """Without it, the line of a summary would come once for each graph."""
    ends = []

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        ends.append(running_compile_call())
        return module.forward

    f = torch.compile(lambda x: x + 1, backend=backend)
    f(torch.ones(2))
    ((compiled_by, at_end),) = ends
    assert compiled_by is not None
    assert isinstance(at_end, list)


def names_below_dynamo(tree: ast.AST) -> Iterator[str]:
    """What a module imports from `torch._dynamo` outside of `if TYPE_CHECKING`, and reads as its attribute."""
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._dynamo"):
            first = (node.module or "").split(".")[2:3]
            names = first or [alias.name for alias in node.names]
            yield from (name for name in names if not (id(node) in typed and name in TYPES_ONLY))
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[2] for alias in node.names if alias.name.startswith("torch._dynamo."))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch._dynamo":
            yield node.attr


def test_no_other_module_names_them() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for part in ("api", "app", "compiler")
        for path in sorted((ROOT / part).rglob("*.py"))
        if (names := set(names_below_dynamo(ast.parse(path.read_text("utf-8")))) - DOCUMENTED)
    }
    imported = {part.name.split(".")[0] for part in PRIVATE_PARTS}
    assert found == {HOME: imported}, f"import it from {HOME}, and add it to PRIVATE_PARTS there"


def test_names_are_found_in_every_form() -> None:
    code = "import torch._dynamo.exc\nfrom torch._dynamo import guards\nfrom torch._dynamo.utils import counters\n"
    code += "torch._dynamo.eval_frame.x\nif TYPE_CHECKING:\n    from torch._dynamo.types import CacheEntry\n"
    assert sorted(names_below_dynamo(ast.parse(code))) == ["eval_frame", "exc", "guards", "utils"]
