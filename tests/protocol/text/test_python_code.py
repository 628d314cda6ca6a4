"""The structure of Python code: kinds of lines, blocks, encodings, and code that does not parse."""

from __future__ import annotations

import sys

import pytest

from buddy.compiler.protocol.text.structure import MAX_PARSED_CHARACTERS, decode_python, python_structure

CODE = '''"""A module
of two lines."""
import torch
from a import (
    b,
)

@decorated
@twice
class Model(
    Base,
):
    # A comment.
    def forward(self, x):
        """Doc."""
        if x:
            y = 1
        elif z:
            y = 2
        else:
            y = 3

        for k in range(3):
            y = f(
                k,
            )
        try:
            y = 4
        except ValueError:
            y = 5
        match y:
            case 1:
                y = 6
        return y
    def one(self): return 1
'''


def test_each_line_has_a_kind() -> None:
    # s: a string, i: an import, d: the header of a definition, a space: other code.
    expected = "ss" + "iiii" + "." + "ddddd" + "#" + "d" + "s" + " " * 6 + "." + " " * 12 + "d" + "."
    assert python_structure(CODE).kinds.decode() == expected


def test_blocks_contain_lines() -> None:
    structure = python_structure(CODE)
    lines = CODE.split("\n")

    def blocks(part: str, *kinds: str) -> list[tuple[str, int]]:
        found = structure.blocks_at(next(k for k, line in enumerate(lines) if part in line), *kinds)
        return [(block.name, block.head) for block in found]

    assert blocks("y = 1", "function", "class") == [("Model.forward", -1), ("Model", -1)]
    assert blocks("y = 1", "branch") == [("if", 15)]
    assert blocks("y = 2", "branch") == [("if", 17)]
    assert blocks("y = 3", "branch") == [("else", 17)]
    assert blocks("y = 5", "branch") == [("except", 28)]
    assert blocks("y = 6", "branch") == [("case", 31)]
    assert blocks("y = 4", "branch") == []
    assert [name for name, _ in blocks("return 1", "function")] == ["Model.one"]
    (statement,) = structure.blocks_at(24, "statement")
    assert (statement.first, statement.last) == (23, 25)


def test_only_strings_are_strings() -> None:
    code = 'class A:\n    """Doc."""\n    ...\n    1\n    b"x"\n'
    assert python_structure(code).kinds.decode() == "ds  s."


@pytest.mark.skipif(sys.version_info < (3, 11), reason="`except*` is new in Python 3.11")
def test_handlers_of_groups_are_branches() -> None:
    (branch,) = python_structure("try:\n    y = 1\nexcept* ValueError:\n    y = 2\n").blocks_at(3, "branch")
    assert (branch.name, branch.head) == ("except", 2)


@pytest.mark.parametrize("code", ["def f(:\n", "x = '\0'\n", "(" * 100_000, "x = 1\n" * MAX_PARSED_CHARACTERS])
def test_code_that_is_not_parsed_has_no_structure(code: str) -> None:
    structure = python_structure(code)
    assert (structure.kinds, structure.blocks) == (b"", ())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb\rc\n", "a\nb\nc\n"),
        (b"a\x0cb\x0b\xc2\x85c\n", "a\x0cb\x0b\x85c\n"),
        ("\ufeffé\n".encode(), "é\n"),
        ("# coding: latin-1\né\n".encode("latin-1"), "# coding: latin-1\né\n"),
        (b"# coding: unknown-8\n\xff\n", "# coding: unknown-8\n\ufffd\n"),
        (b"x = '\xff'\n", "x = '\ufffd'\n"),
        (b"", ""),
    ],
)
def test_files_are_decoded_as_python_does(data: bytes, text: str) -> None:
    assert decode_python(data) == text
