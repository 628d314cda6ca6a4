"""Draws random programs as scripts that the workbench can open: statement by statement, each tried in eager first."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from buddy.compiler.tools.fuzz.operands import fill_template, tensors
from buddy.compiler.tools.fuzz.statements import KINDS, STATEMENTS

# The maximum number of elements of a statement's value; statements with larger values are dropped.
MAX_ELEMENTS = 8192
# The kind of the statements that write to their operands, whose values get no name.
IN_PLACE = "in place"
# A weight in a statement, with its shape. In the script, it becomes a parameter of the module.
_WEIGHT = re.compile(r"self\.weight\(([\d, ]+)\)")
_SCRIPT = '''"""A random program: open it with `buddy-tui` to see what each pass makes of it."""

import torch

torch.manual_seed({seed})


def weight(*shape):
    return torch.nn.Parameter(torch.randn(shape) * 0.5)


class Program(torch.nn.Module):
    def __init__(self):
        super().__init__(){weights}

    def forward(self, {names}):
        {body}
        return {results}


example_inputs = (
    {inputs},
)
model = Program().eval()
'''


# Called with each statement before eager runs it, and with "" afterwards.
OnStatement = Callable[[str], object]


def ignore_statement(text: str) -> None:
    """Does nothing; this is an `OnStatement`."""


class GeneratedProgram(NamedTuple):
    """A program as a script, and the kinds of its statements."""

    script: str
    kinds: tuple[str, ...]


@dataclass
class ProgramDraft:
    """A program so far: its inputs, its statements, and the value of each name in eager.

    Statements in `crashing`, which crash eager, are skipped.
    """

    seed: int
    on_statement: OnStatement
    crashing: Collection[str] = ()
    inputs: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def add_input(self, text: str) -> None:
        """Adds an input with the value of the expression `text`."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(text)
        self.values[name] = _evaluate(text, {})

    def try_statement(self, kind: str, text: str, name: str) -> bool:
        """Adds a statement if eager evaluates it to a tensor that is small enough; returns whether it was added.

        Its value is called `name`, unless that is empty.
        """
        if text in self.crashing:
            return False
        self.on_statement(text)
        value = _evaluate(text, self.values)
        self.on_statement("")
        if not isinstance(value, torch.Tensor) or value.numel() > MAX_ELEMENTS:
            return False
        self.body.append(f"{name} = {text}" if name else text)
        self.kinds.append(kind)
        if name:
            self.values[name] = value
        return True

    def script(self) -> str:
        """Returns the program as a script, in which weights are parameters."""
        shapes: list[str] = []
        body = [_WEIGHT.sub(lambda match: _add_weight(shapes, match[1]), line) for line in self.body]
        weights = [f"self.w{number} = weight({shape})" for number, shape in enumerate(shapes)]
        return _SCRIPT.format(
            seed=self.seed,
            weights="".join(f"\n        {line}" for line in weights),
            names=", ".join(f"x{number}" for number in range(len(self.inputs))),
            body="\n        ".join(body),
            results="".join(f"{name}, " for name in self.results).rstrip(),  # a tuple, also of one result
            inputs=",\n    ".join(self.inputs),
        )


def _add_weight(shapes: list[str], shape: str) -> str:
    """Appends the shape of a weight to `shapes`, and returns the parameter's name in `forward`."""
    shapes.append(shape)
    return f"self.w{len(shapes) - 1}"


class _Weights:
    """Stands for `self` in statements while a program is drawn."""

    @staticmethod
    def weight(*shape: int) -> torch.Tensor:
        return torch.ones(shape)


def _evaluate(text: str, values: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Returns the value of an expression in eager, `None` if eager raises an error."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(text, {"torch": torch, "self": _Weights, **values})
    except Exception:  # any error of eager
        return None


@st.composite
def scripts(
    draw: st.DrawFn,
    max_statements: int = 10,
    on_statement: OnStatement = ignore_statement,
    crashing: Collection[str] = (),
) -> GeneratedProgram:
    """Draws a script of up to `max_statements` statements that eager evaluates.

    `on_statement` and `crashing` are those of `ProgramDraft`.
    """
    draft = ProgramDraft(draw(st.integers(0, 99)), on_statement, crashing)
    torch.manual_seed(draft.seed)
    for text in draw(st.lists(tensors(), min_size=1, max_size=3)):
        draft.add_input(text)
    for number in range(draw(st.integers(1, max_statements))):
        _draw_statement(draw, draft, f"v{number}")
    names = [name for name in draft.values if name.startswith("v")] or ["x0"]
    drawn_names = draw(st.lists(st.sampled_from(names), max_size=5, unique=True))
    draft.results = list(dict.fromkeys([*drawn_names, names[-1]]))
    if not draft.body:
        draft.try_statement("operators", "x0 + 1", "v0")
        draft.results = ["v0"]
    return GeneratedProgram(draft.script(), tuple(draft.kinds))


def _draw_statement(draw: st.DrawFn, draft: ProgramDraft, name: str) -> None:
    """Draws a statement, and adds it to `draft` with `name` for its value, unless eager rejects it."""
    kind = draw(st.sampled_from(KINDS))
    template = draw(st.sampled_from(STATEMENTS[kind]))
    draft.try_statement(kind, fill_template(template, draw, draft.values), "" if kind == IN_PLACE else name)
