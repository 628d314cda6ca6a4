"""The check of phrases finds them in comments, strings and Markdown, and not in code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("page.md", "# Title\n\nThis is what\ncame of it.\n", [3]),
        ("page.md", "```\nwhat came of it\n```\nThe field `what came of it`.\n", []),
        ("code.py", '"""First line.\n\nThe search is under way.\n"""\n', [3]),
        ("code.py", "x = 1  # made anew\n", [1]),
        ("code.py", 'raise ValueError(f"the engine {name} is gone")\n', [1]),
        ("code.py", "anew = begun = 1\n", []),
    ],
)
def test_a_banned_phrase_is_found_at_its_line(name: str, text: str, lines: list[int], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert [finding.line for finding in prose.findings_in(tmp_path / name)] == lines


def test_a_finding_names_what_to_write_instead() -> None:
    (finding,) = prose.findings("compiled beside eager")
    assert (finding.phrase, finding.better) == ("beside eager", "compared with")


def test_each_checked_place_exists() -> None:
    assert all((prose.ROOT / name).exists() for name in (*prose.CHECKED, *prose.SPELLED))
