"""Names in IR: the names on a line, the picked name, and the search for the definition and the uses of a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_folds import StageSymbols
from buddy.app.panes.ir_jumps import IrJumps, StageSearch
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.search_hits import StageHits, case_sensitive_regex
from buddy.app.widgets.search import ViewSearch
from buddy.compiler.protocol import Hits

# An SSA value.
VALUE = re.compile(r"%[\w$.\-]+")
# The results that an op defines, at the start of its line.
RESULTS = re.compile(r"^\s*(%[\w$.\-]+(?::\d+)?(?:,\s*%[\w$.\-]+(?::\d+)?)*)\s*=")
# Values, symbols, labels (of blocks and of assembly), aliases of attributes and types. An attribute of a dialect, such
# as `#arith.fastmath<…>`, is not a name.
NAME = re.compile(r'[%^@][\w$.\-]+|@"[^"\n]*"|\.L\w+|(?<![\w"])[#!](?!dbg)[A-Za-z_]\w*\b(?![.<])|(?<![\w"])[#!]\d+\b')
# A string literal, but not a quoted symbol such as `@"a b"`.
_STRING = re.compile(r'(?<!@)"(?:[^"\\\n]|\\.)*"')
# Matches only at the end of a name.
_NAME_END = r"(?![\w$.\-])"
# The start of a line with an op. The group is the name of the op.
_OP_LINE = re.compile(r'^\s*(?:%[\w:#, %$.\-]+\s=\s)?"?([a-z_]\w*(?:\.\w+)+|call|return|module)\b')
# Ops that are printed without their dialect.
_DEFAULT_DIALECT = {"call": "func.call", "return": "func.return", "module": "builtin.module"}


def defined_values(line: str) -> list[str]:
    """Returns the values that the op on a line defines."""
    results = RESULTS.match(line)
    return VALUE.findall(results[1]) if results else []


def used_values(line: str) -> list[str]:
    """Returns the values that the op on a line uses, each once, in order."""
    results = RESULTS.match(line)
    return list(dict.fromkeys(VALUE.findall(line[results.end() :] if results else line)))


def all_names(line: str) -> list[str]:
    """Returns the names on a line, each once, in order: values, symbols, labels, aliases."""
    return list(dict.fromkeys(NAME.findall(_STRING.sub("", line))))


def op_name(line: str) -> str:
    """Returns the name of the op on an MLIR line, with its dialect; empty for a line without an op."""
    match = _OP_LINE.match(line)
    return _DEFAULT_DIALECT.get(match[1], match[1]) if match else ""


def definition_pattern(name: str) -> str:
    """Returns a regular expression for the line that defines a value, block argument, function, block or alias."""
    escaped = re.escape(name)
    if name[0] == "@":
        generic = rf"sym_name = \"{re.escape(name[1:])}\""
        return rf"(\.(func|global)|\bmodule|^define|^declare)\s[^@\n]*{escaped}{_NAME_END}|{generic}"
    if name[0] in "#!":
        return rf"^({escaped}|attributes {escaped}) ="
    if name[0] == "^":
        return rf"^\s*{escaped}[:(]"
    if name[0] == ".":
        return rf"^{escaped}:"
    label = rf"|^{re.escape(name[1:])}:"
    return rf"(^|[(,\s]){escaped}((:\d+)?(,\s*%[\w$.:\-]+)*\s*=|: ){label}"


def use_pattern(name: str) -> str:
    """Returns a regular expression for every occurrence of `name`."""
    return rf"{re.escape(name)}{_NAME_END}"


class IrNames:
    """The current name, which is underlined on the screen: the name that the user has picked on the cursor's line.

    If the user has picked none there, it is the first name on the line.
    """

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument) -> None:
        self._context, self._view, self._document = context, view, document
        # The current name, "" for none.
        self.current = ""
        # The row on which the user has picked a name last, and the index of the name on it.
        self._picked = (-1, 0)

    @property
    def _names_on_line(self) -> list[str]:
        line = self._document.line_at(self._view.cursor)
        return all_names(line.text) if line else []

    @property
    def picked(self) -> str:
        """The picked name of the cursor's line, "" for none."""
        row, index = self._picked
        names = self._names_on_line if row == self._view.cursor else []
        return names[index % len(names)] if names else ""

    def update(self) -> None:
        """Sets the current name for the cursor's line, and draws the rows that contain it or the previous one."""
        previous, names = self.current, self._names_on_line
        self.current = self.picked or (names[0] if names else "")
        if self.current == previous:
            return
        for row in self._view.rows_on_screen():
            line = self._document.line_at(row)
            if line and any(name and name in line.text for name in (previous, self.current)):
                self._view.refresh_row(row)

    def next_name(self) -> None:
        self._pick(1)

    def previous_name(self) -> None:
        self._pick(-1)

    def _pick(self, offset: int) -> None:
        """Picks the name that is `offset` names after the current one on the cursor's line."""
        names = self._names_on_line
        if not names:
            self._context.say("no name on this line")
            return
        index = names.index(self.current) + offset if self.current in names else 0
        self._picked = (self._view.cursor, index % len(names))
        self.update()
        self._context.say(f"{self.current}: {self._picked[1] + 1} of {len(names)} names on this line")

    def pick_at(self, text: str, offset: int) -> None:
        """Picks the name at character `offset` of `text`, the drawn text of the cursor's line, if any."""
        name = next((match[0] for match in NAME.finditer(text) if match.start() <= offset < match.end()), "")
        if name in self._names_on_line:
            self._picked = (self._view.cursor, self._names_on_line.index(name))
            self.update()


class IrReferences:
    """Goes to the definition and to the uses of the current or picked name, and lists the uses."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: IrView,
        document: IrDocument,
        stages: IrStages,
        symbols: StageSymbols,
        names: IrNames,
        jumps: IrJumps,
        search: ViewSearch,
        stage_search: StageSearch,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._symbols = stages, symbols
        self._names, self._jumps, self._search, self._stage_search = names, jumps, search, stage_search
        # The row of the operand that was looked up last, and the index of the operand on the row.
        self._last_operand = (-1, 0)

    async def _function_at(self, line: int) -> range:
        """Returns the lines of the function that contains `line`; all lines if no function contains it."""
        stage = self._stages.chosen_stage
        symbols = await self._symbols.of(stage) if stage else ()
        function = next((symbol for symbol in symbols if symbol.first <= line <= symbol.last), None)
        return range(function.first, function.last + 1) if function else range(self._document.line_count)

    def search_value(self) -> None:
        if self._names.current:
            self._search.find(case_sensitive_regex(use_pattern(self._names.current)), jump=False)
        else:
            self._context.say("no name on this line")

    def go_to_definition(self) -> None:
        """Goes to the definition of the picked name. Without one, each call takes the next operand."""
        self._context.jobs.begin("ir-search", self._go_to_definition)

    async def _go_to_definition(self) -> None:
        """Searches for the definition of the picked name or of the next operand, and jumps to it."""
        name = self._names.picked or self._next_operand()
        if not name:
            self._context.say("no operand on this line")
            return
        text, line = self._document.text, self._view.line_number
        result = await self._context.queries.search(text, case_sensitive_regex(definition_pattern(name)))
        if result is None:
            return
        definition = _definition_line(result.lines, name, line, await self._function_at(line))
        if self._document.text != text:
            return
        if definition is not None:
            self._jumps.go_to(definition)
        else:
            where = "in this stage" if name[0] in "@#!" else "above"
            self._context.say(f"{name} is not defined {where}")

    def _next_operand(self) -> str:
        """Returns the operand of the cursor's line after the last result; on another line, the first; "" for none."""
        row = self._view.cursor
        line = self._document.line_at(row)
        operands = (used_values(line.text) or all_names(line.text)) if line else []
        if not operands:
            return ""
        last_row, last_index = self._last_operand
        index = (last_index + 1) % len(operands) if last_row == row else 0
        self._last_operand = (row, index)
        return operands[index]

    def go_to_use(self) -> None:
        """Goes to the next use of the current name. The uses below the cursor become the matches of the search."""
        self._context.jobs.begin("ir-search", self._go_to_use)

    async def _go_to_use(self) -> None:
        """Searches for the uses of the current name, and goes to the first one below the cursor."""
        name, line = self._names.current, self._view.line_number
        hits = await self._uses(name, line)
        if hits is None:
            return
        below = [use for use in hits.lines if use > line]
        self._search.set_matches(case_sensitive_regex(use_pattern(name)), below, hits.more)
        self._view.refresh()
        if below:
            self._search.go_to(below[0])
        else:
            self._context.say(f"{name} is not used below")

    def list_uses(self) -> None:
        """Lists the lines of the function or of the stage that contain the current name."""
        self._context.jobs.begin_opening("ir-search", self._list_uses)

    async def _list_uses(self) -> None:
        name, row = self._names.current, self._stages.chosen_row
        hits = await self._uses(name, self._view.line_number)
        if hits is not None and row is not None:
            self._search.set_matches(case_sensitive_regex(use_pattern(name)), hits.lines, hits.more)
            self._stage_search.list_results(name, f"in {len(hits.lines):,} lines", [StageHits(row, hits)])

    async def _uses(self, name: str, line: int) -> Hits | None:
        """Returns the lines of the stage that contain `name`; of a value or a block, those in the function of `line`.

        Returns `None` without a name, if the request fails, or if another stage is shown when the engine answers.
        """
        if not name:
            self._context.say("no name on this line")
            return None
        text = self._document.text
        result = await self._context.queries.search_each([text], case_sensitive_regex(use_pattern(name)))
        if result is None or not result.hits:
            return None
        hits = result.hits[0]
        scope = await self._function_at(line) if name[0] in "%^" else range(self._document.line_count)
        if self._document.text != text:
            return None
        indices = [index for index, use in enumerate(hits.lines) if use in scope]
        excerpts = [hits.excerpts[index] for index in indices if index < len(hits.excerpts)]
        return Hits(hits.text, tuple(hits.lines[index] for index in indices), tuple(excerpts), hits.more)


def _definition_line(lines: Sequence[int], name: str, use: int, function: range) -> int | None:
    """Returns the line among `lines` that defines `name`, which is used on line `use`; `None` without one.

    `lines` are in order, and match `definition_pattern`. `function` are the lines of the function with the use. The
    first of `lines` defines a symbol or an alias; another name, the last of `lines` in the function above `use`.
    """
    if name[0] in "@#!":
        return lines[0] if lines else None
    in_function = [line for line in lines if line in function]
    above = [line for line in in_function if line < use]
    if above:
        return above[-1]
    # A block or label may be defined below the branch to it.
    if name[0] != "%" or _may_be_label(name):
        return next((line for line in in_function if line > use), None)
    return None


def _may_be_label(name: str) -> bool:
    """Returns whether the name of a value may also be the name of a block: in LLVM IR, both may be `%7`."""
    return name[1:].isdecimal()
