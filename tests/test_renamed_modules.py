"""Imports by the module names of version 0.1 give the renamed module, with a warning that contains the new name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from buddy.compiler.support.renamed_modules import RENAMED, new_name


def test_every_new_name_is_a_module() -> None:
    missing = [name for name in RENAMED.values() if importlib.util.find_spec(f"buddy.compiler.{name}") is None]
    assert missing == []


def test_no_old_name_hides_a_module_of_today(root: Path) -> None:
    places = [root / "compiler" / name.replace(".", "/") for name in RENAMED]
    assert [place for place in places if place.with_suffix(".py").exists() or (place / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("protocol.recipe", ""),  # it is today's name
        ("recipe", "protocol.recipe"),
        ("text.lines", "protocol.text.lines"),
        ("engine.lifeline", "support.processes.lifetime"),
        ("engine.server", ""),
        ("graph.given", "protocol.plain_values"),
        ("recipes", ""),
    ],
)
def test_the_longest_part_that_was_renamed_decides(old: str, new: str) -> None:
    assert new_name(f"buddy.compiler.{old}") == (f"buddy.compiler.{new}" if new else "")


def test_an_old_name_gives_the_one_module_and_says_the_new_name() -> None:
    from buddy.compiler.protocol import recipe

    sys.modules.pop("buddy.compiler.recipe", None)
    spec = recipe.__spec__
    with pytest.warns(FutureWarning, match=r"buddy\.compiler\.recipe is now buddy\.compiler\.protocol\.recipe") as said:
        old = importlib.import_module("buddy.compiler.recipe")
    assert old is recipe
    assert recipe.__spec__ is spec
    assert len(said) == 1


def test_a_module_in_a_renamed_package_is_found() -> None:
    from buddy.compiler.protocol.text import lines

    for name in ("buddy.compiler.text", "buddy.compiler.text.lines"):
        sys.modules.pop(name, None)
    with pytest.warns(FutureWarning):
        assert importlib.import_module("buddy.compiler.text.lines") is lines


def test_what_neither_version_has_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"buddy\.compiler\.text\.nothing"):
        importlib.import_module("buddy.compiler.text.nothing")
