"""Names on a line of IR: which one is picked, where it is defined and used, and the patterns to find that."""

from __future__ import annotations

import re
from collections.abc import Sequence

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_folds import StageSymbols
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_search import IrSearch
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.search_hits import StageHits, case_sensitive_regex
from buddy.compiler.protocol import Hits

VALUE = re.compile(r"%[\w$.\-]+")
RESULTS = re.compile(r"^\s*(%[\w$.\-]+(?::\d+)?(?:,\s*%[\w$.\-]+(?::\d+)?)*)\s*=")
# Values, symbols, labels of blocks and of assembly, aliases of attributes and types. `#arith.fastmath<…>` is no alias.
NAME = re.compile(r'[%^@][\w$.\-]+|@"[^"\n]*"|\.L\w+|(?<![\w"])[#!](?!dbg)[A-Za-z_]\w*\b(?![.<])|(?<![\w"])[#!]\d+\b')
_STRING = re.compile(r'(?<!@)"(?:[^"\\\n]|\\.)*"')
_TAIL = r"(?![\w$.\-])"
_OP = re.compile(r'^\s*(?:%[\w:#, %$.\-]+\s=\s)?"?([a-z_]\w*(?:\.\w+)+|call|return|module)\b')
# Ops that are printed without their dialect.
_DEFAULT_DIALECT = {"call": "func.call", "return": "func.return", "module": "builtin.module"}


def defined_values(line: str) -> list[str]:
    """The values that the line's op defines."""
    found = RESULTS.match(line)
    return VALUE.findall(found.group(1)) if found else []


def used_values(line: str) -> list[str]:
    """The values that the line uses, each once, in order."""
    found = RESULTS.match(line)
    return list(dict.fromkeys(VALUE.findall(line[found.end() :] if found else line)))


def all_names(line: str) -> list[str]:
    """Every name on the line, each once, in order: values, symbols, labels, aliases."""
    return list(dict.fromkeys(NAME.findall(_STRING.sub("", line))))


def op_name(line: str) -> str:
    """The op of an MLIR line with its dialect, or an empty string for a line without an op."""
    found = _OP.match(line)
    return _DEFAULT_DIALECT.get(found[1], found[1]) if found else ""


def definition_pattern(name: str) -> str:
    """A pattern for the op, block argument, function, block or alias that defines `name`."""
    escaped = re.escape(name)
    if name[0] == "@":
        generic = rf"sym_name = \"{re.escape(name[1:])}\""
        return rf"(\.(func|global)|\bmodule|^define|^declare)\s[^@\n]*{escaped}{_TAIL}|{generic}"
    if name[0] in "#!":
        return rf"^({escaped}|attributes {escaped}) ="
    if name[0] == "^":
        return rf"^\s*{escaped}[:(]"
    if name[0] == ".":
        return rf"^{escaped}:"
    label = rf"|^{re.escape(name[1:])}:"
    return rf"(^|[(,\s]){escaped}((:\d+)?(,\s*%[\w$.:\-]+)*\s*=|: ){label}"


def use_pattern(name: str) -> str:
    """A pattern for every occurrence of `name`."""
    return rf"{re.escape(name)}{_TAIL}"


class IrNames:
    """The name under the cursor: the picked name of the line, else its first name. It is underlined on the screen."""

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument) -> None:
        self._context, self._view, self._document = context, view, document
        # The underlined name.
        self.value = ""
        # The row with a picked name, and the index of the name on it.
        self._picked = (-1, 0)

    @property
    def _on_line(self) -> list[str]:
        line = self._document.line_at(self._view.cursor)
        return all_names(line.text) if line else []

    @property
    def picked(self) -> str:
        """The picked name of the cursor's line, "" for none."""
        row, place = self._picked
        found = self._on_line if row == self._view.cursor else []
        return found[place % len(found)] if found else ""

    def mark(self) -> None:
        """Underline the name under the cursor everywhere on the screen."""
        before, found = self.value, self._on_line
        self.value = self.picked or (found[0] if found else "")
        if self.value == before:
            return
        for row in self._view.rows_on_screen():
            line = self._document.line_at(row)
            if line and any(value and value in line.text for value in (before, self.value)):
                self._view.refresh_row(row)

    def next_name(self) -> None:
        """Pick the next name of the line."""
        self._pick(1)

    def previous_name(self) -> None:
        """Pick the previous name of the line."""
        self._pick(-1)

    def _pick(self, by: int) -> None:
        found = self._on_line
        if not found:
            self._context.say("no name on this line")
            return
        place = found.index(self.value) + by if self.value in found else 0
        self._picked = (self._view.cursor, place % len(found))
        self.mark()
        self._context.say(f"{self.value}: {self._picked[1] + 1} of {len(found)} names on this line")

    def pick_at(self, text: str, place: int) -> None:
        """Pick the name at character `place` of `text`, the drawn text of the cursor's line."""
        hit = next((found[0] for found in NAME.finditer(text) if found.start() <= place < found.end()), "")
        if hit in self._on_line:
            self._picked = (self._view.cursor, self._on_line.index(hit))
            self.mark()


class IrReferences:
    """Goes to the definition and to the uses of names."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: IrView,
        document: IrDocument,
        stages: IrStages,
        symbols: StageSymbols,
        names: IrNames,
        jumps: IrJumps,
        search: IrSearch,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._symbols = stages, symbols
        self._names, self._jumps, self._search = names, jumps, search
        # The row of the last operand that was looked up, and the index of the operand.
        self._operand = (-1, 0)

    async def _function_at(self, line: int) -> range:
        """The lines of the function that contains `line`; outside functions, all lines."""
        stage = self._stages.stage
        found = await self._symbols.of(stage) if stage else ()
        around = next((symbol for symbol in found if symbol.first <= line <= symbol.last), None)
        return range(around.first, around.last + 1) if around else range(self._document.lines)

    def search_value(self) -> None:
        """Search for the name under the cursor."""
        if self._names.value:
            self._search.find(case_sensitive_regex(use_pattern(self._names.value)), jump=False)
        else:
            self._context.say("no name on this line")

    def go_to_definition(self) -> None:
        """Go to the definition of the picked name, else of an operand of the line: each time of the next operand."""
        self._context.jobs.begin("ir-search", self._go_to_definition)

    async def _go_to_definition(self) -> None:
        name = self._names.picked or self._next_operand()
        if not name:
            self._context.say("no operand on this line")
            return
        text, line = self._document.text, self._view.line_number
        found = await self._context.queries.search(text, case_sensitive_regex(definition_pattern(name)))
        if found is None:
            return
        place = _definition(found.lines, name, line, await self._function_at(line))
        if self._document.text != text:
            return
        if place is not None:
            self._jumps.go_to(place)
        else:
            where = "in this stage" if name[0] in "@#!" else "above"
            self._context.say(f"{name} is not defined {where}")

    def _next_operand(self) -> str:
        row = self._view.cursor
        line = self._document.line_at(row)
        operands = (used_values(line.text) or all_names(line.text)) if line else []
        if not operands:
            return ""
        origin, turn = self._operand
        turn = (turn + 1) % len(operands) if origin == row else 0
        self._operand = (row, turn)
        return operands[turn]

    def go_to_use(self) -> None:
        """Go to the next use of the name under the cursor, and make its uses the matches of the search."""
        self._context.jobs.begin("ir-search", self._go_to_use)

    async def _go_to_use(self) -> None:
        name, line = self._names.value, self._view.line_number
        hits = await self._uses(name, line)
        if hits is None:
            return
        below = [each for each in hits.lines if each > line]
        self._search.matches.clear(case_sensitive_regex(use_pattern(name)))
        self._search.matches.set_lines(below, hits.more)
        self._view.refresh()
        if below:
            self._search.go_to_match(below[0])
        else:
            self._context.say(f"{name} is not used below")

    def list_uses(self) -> None:
        """List the lines of the function with the name under the cursor."""
        self._context.jobs.open_after("ir-search", self._list_uses)

    async def _list_uses(self) -> None:
        name, row = self._names.value, self._stages.shown
        hits = await self._uses(name, self._view.line_number)
        if hits is not None and row is not None:
            self._search.matches.clear(case_sensitive_regex(use_pattern(name)))
            self._search.list_results(name, f"in {len(hits.lines):,} lines", [StageHits(row, hits)])

    async def _uses(self, name: str, line: int) -> Hits | None:
        """The lines with `name`, which is on line `line`: of its function for a value or a label, else of the stage.

        Returns `None` if another stage is shown when the engine answers.
        """
        if not name:
            self._context.say("no name on this line")
            return None
        text = self._document.text
        found = await self._context.queries.search_each([text], case_sensitive_regex(use_pattern(name)))
        if found is None or not found.hits:
            return None
        hits = found.hits[0]
        within = await self._function_at(line) if name[0] in "%^" else range(self._document.lines)
        if self._document.text != text:
            return None
        kept = [place for place, each in enumerate(hits.lines) if each in within]
        excerpts = [hits.excerpts[place] for place in kept if place < len(hits.excerpts)]
        return Hits(hits.text, tuple(hits.lines[place] for place in kept), tuple(excerpts), hits.more)


def _definition(lines: Sequence[int], name: str, here: int, function: range) -> int | None:
    """The line among `lines` that defines `name`: the last one above `here` in the function, else the first one."""
    if name[0] in "@#!":
        return lines[0] if lines else None
    inside = [line for line in lines if line in function]
    above = [line for line in inside if line < here]
    if above:
        return above[-1]
    # A block or label may be defined below the branch to it.
    return next((line for line in inside if line > here), None) if name[0] != "%" or _may_be_label(name) else None


def _may_be_label(name: str) -> bool:
    """Whether a value's name can be the name of a block, like LLVM's numbers."""
    return name[1:].isdecimal()
