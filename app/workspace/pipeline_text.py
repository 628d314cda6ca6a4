"""Prints and parses the passes of a recipe in MLIR's pipeline syntax. Does not import Textual.

    graph(flash-attention, linear-sums)
    builtin.module(canonicalize, func.func(convert-linalg-to-loops), one-shot-bufferize{dump-alias-sets=true})

There are two extensions: graph passes are in `graph(...)`, and a comment with a pass, such as `// cse`, is a disabled
pass. A value that is too long for a line, such as the IR of `replace-ir`, is printed as `@` and a hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import groupby

from buddy.compiler.protocol import PassInfo
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import Level, OptionValue, PassStep, digest, is_plain_number, option_text

MODULE, GRAPH = "builtin.module", "graph"
# A value with more characters is printed as a hash.
_MAX_VALUE_LENGTH = 200
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_SPACE_OR_COMMENTS = re.compile(r"(?:\s|//[^\n]*(?:\n|$))*")
_COMMENT = re.compile(r"//[ \t]*([^\n]*)")
_PASS_IN_COMMENT = re.compile(r"([A-Za-z_][\w.\-]*)(?:\{(.*)\})?,?\s*")
_OPTION_NAME = re.compile(r"[\w.\-]+")
_UNQUOTED_VALUE = re.compile(r"[^\s{}\"']*")
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
# The numbers that MLIR accepts. Python prints them as they are read, except for the digits of a fraction.
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?")


class PipelineError(BuddyError, ValueError):
    """The text is not a valid pipeline, or has an unknown or misplaced pass or option.

    `offset` is the position in the text, in characters.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message, self.offset = message, offset


@dataclass(frozen=True)
class PipelineItem:
    """A pass in the text. `offset` is the position of its name, `option_offsets` are those of its options' names.

    A graph pass has the anchor "". A disabled pass has no `option_offsets`.
    """

    name: str
    anchor: str
    options: tuple[tuple[str, OptionValue], ...]
    enabled: bool
    offset: int
    option_offsets: tuple[int, ...] = ()

    @property
    def level(self) -> Level:
        return "graph" if self.anchor == "" else "mlir"


# ---- values ----------------------------------------------------------------------------------------------------------


def option_value(text: str) -> OptionValue:
    """Returns the value that `text` stands for: a boolean, a number, or the text itself.

    A number that a recipe cannot store stays text, which MLIR accepts or rejects.
    """
    if text in ("true", "false"):
        return text == "true"
    if not _NUMBER.fullmatch(text):
        return text  # Python also reads 1_000 and 007, which MLIR does not
    try:
        number: int | float = int(text) if _WHOLE_NUMBER.fullmatch(text) else float(text)
    except ValueError:  # Python limits the number of digits
        return text
    return number if is_plain_number(number) else text


def option_error(text: str, default: str, allowed: Sequence[str] = ()) -> str:
    """Returns the error message if `text` is not a valid value for an option with the default `default`; otherwise "".

    `allowed` are the values of the option, if there is a fixed list. Without it, a default that is a boolean, a whole
    number or a list of whole numbers defines the type of the option. Options with other defaults are not checked.
    """
    if not text:
        return ""
    if allowed:
        return "" if text in allowed else f"{text} is not one of {', '.join(allowed)}"
    if "," in default and all(map(_WHOLE_NUMBER.fullmatch, default.split(","))):
        errors = (_whole_number_error(part.strip()) for part in text.split(","))
        return next((error for error in errors if error), "")
    if default in ("true", "false"):
        return "" if text.lower() in ("true", "false", "1", "0") else f"{text} is not true or false"
    return _whole_number_error(text) if _WHOLE_NUMBER.fullmatch(default) else ""


def _whole_number_error(text: str) -> str:
    """Returns the error message if `text` is not a whole number of 64 bits; otherwise ""."""
    if not _WHOLE_NUMBER.fullmatch(text):
        return f"{text or 'an empty text'} is not a whole number"
    return "" if -(2**63) <= int(text) < 2**64 else f"{text} does not fit into 64 bits"


def _short_value(value: OptionValue) -> str:
    """Returns the value in one line: as it is, or in quotes.

    A value that is long or empty, or has a line end or a quote, becomes `@` and a hash.
    """
    text = option_text(value)
    if len(text) > _MAX_VALUE_LENGTH or "\n" in text or '"' in text or not text:
        return f"@{digest(text)[:12]}"
    return text if _UNQUOTED_VALUE.fullmatch(text) or text.startswith("{") else f'"{text}"'


def spell_step(step: PassStep) -> str:
    """Returns a step in pipeline syntax, without its anchor."""
    options = " ".join(f"{name}={_short_value(value)}" for name, value in step.options)
    return f"{step.name}{{{options}}}" if options else step.name


# ---- writing ---------------------------------------------------------------------------------------------------------


def pipeline_text(steps: Sequence[PassStep]) -> str:
    """Returns the steps as text, one pass per line."""
    graph_steps = [step for step in steps if step.level == "graph"]
    mlir_steps = [step for step in steps if step.level != "graph"]
    parts = [_nested_text(GRAPH, [(step, spell_step(step)) for step in graph_steps], 0)] if graph_steps else []
    return "\n".join([*parts, _nested_text(MODULE, list(_module_entries(mlir_steps)), 0), ""])


def mlir_pipeline(steps: Sequence[PassStep]) -> str:
    """Returns the enabled MLIR passes on one line, for `mlir-opt --pass-pipeline`."""
    enabled = [step for step in steps if step.level != "graph" and step.enabled]
    parts = []
    for anchor, group in groupby(enabled, key=lambda step: step.anchor):
        passes = ",".join(step.spelling() for step in group)
        parts.append(passes if anchor == MODULE else f"{anchor}({passes})")
    return f"{MODULE}({','.join(parts)})"


def _module_entries(steps: Sequence[PassStep]) -> Iterator[tuple[PassStep | None, str]]:
    """Yields the entries inside of `builtin.module`: steps with their text, and nested pipelines (without a step)."""
    for anchor, group in groupby(steps, key=lambda step: step.anchor):
        entries = [(step, spell_step(step)) for step in group]
        if anchor == MODULE:
            yield from entries
        else:
            yield None, _nested_text(anchor, list(entries), 1)


def _nested_text(anchor: str, entries: Sequence[tuple[PassStep | None, str]], depth: int) -> str:
    """Returns `anchor(...)` with one entry per line.

    Disabled passes are comments, so the last enabled entry has no comma.
    """
    indent, lines = "  " * depth, []
    enabled = [step is None or step.enabled for step, _ in entries]
    last_enabled = max((index for index, is_enabled in enumerate(enabled) if is_enabled), default=-1)
    for index, (_, text) in enumerate(entries):
        comma = "," if index < last_enabled else ""
        lines.append(f"{indent}  {text.lstrip()}{comma}" if enabled[index] else f"{indent}  // {text}")
    return "\n".join([f"{indent}{anchor}(", *lines, f"{indent})"])


# ---- reading ---------------------------------------------------------------------------------------------------------


def parse_pipeline(text: str) -> list[PipelineItem]:
    """Parses the passes in `text`, in order. Raises `PipelineError`."""
    return _Parser(text).parse_pipeline()


class _Parser:
    """A recursive-descent parser for pipelines. `_offset` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self._text, self._offset = text, 0
        self._items: list[PipelineItem] = []

    def parse_pipeline(self) -> list[PipelineItem]:
        self._read_comments("")
        while self._offset < len(self._text):
            self._parse_entry(MODULE, is_top_level=True)
            self._read_comments(MODULE)
            if self._next == ",":
                self._offset += 1
                self._read_comments(MODULE)
        return self._items

    @property
    def _next(self) -> str:
        """The next character; "" at the end of the text."""
        return self._text[self._offset : self._offset + 1]

    def _read_comments(self, anchor: str) -> None:
        """Goes past space and comments. A comment with a pass adds a disabled pass on `anchor`."""
        space = _SPACE_OR_COMMENTS.match(self._text, self._offset)
        assert space is not None
        for comment in _COMMENT.finditer(self._text, self._offset, space.end()):
            match = _PASS_IN_COMMENT.fullmatch(comment.group(1).strip())
            if match is None:
                continue
            name, options = match.group(1), match.group(2) or ""
            # A capitalized word without options or hyphen is a remark of the user.
            if options or "-" in name or name.islower():
                self._add_disabled_pass(name, options, anchor, comment.start(1))
        self._offset = space.end()

    def _add_disabled_pass(self, name: str, options_text: str, anchor: str, offset: int) -> None:
        """Adds the pass of a comment at `offset`. Raises `PipelineError` if its options are not valid."""
        options: tuple[tuple[str, OptionValue], ...] = ()
        if options_text:
            try:
                options = _Parser(f"{name}{{{options_text}}}").parse_pipeline()[0].options
            except PipelineError as error:
                raise PipelineError(f"in the disabled pass: {error.message}", offset + error.offset) from error
        pass_anchor = "" if anchor == GRAPH else anchor or MODULE
        self._items.append(PipelineItem(name, pass_anchor, options, enabled=False, offset=offset))

    def _parse_entry(self, anchor: str, is_top_level: bool = False) -> None:
        """Parses a pass, or a nested pipeline, inside of `anchor`."""
        match = _NAME.match(self._text, self._offset)
        if match is None:
            actual = f"{self._next!r}" if self._next else "the end of the text"
            raise PipelineError(f"expected a pass or an anchor, found {actual}", self._offset)
        name, offset = match.group(), match.start()
        self._offset = match.end()
        self._skip_blanks()
        if self._next == "(":
            self._parse_nested(name, anchor, offset, is_top_level)
        else:
            options, option_offsets = self._parse_options() if self._next == "{" else ((), ())
            pass_anchor = "" if anchor == GRAPH else anchor
            self._items.append(PipelineItem(name, pass_anchor, options, True, offset, option_offsets))

    def _skip_blanks(self) -> None:
        while self._next and self._next in " \t":
            self._offset += 1

    def _parse_nested(self, name: str, anchor: str, offset: int, is_top_level: bool) -> None:
        """Parses `(...)` after the anchor `name`, which is inside of `anchor`."""
        if name != GRAPH and "." not in name:
            raise PipelineError(f"{name!r} is not an anchor: use an op such as func.func, or {GRAPH}", offset)
        if anchor != MODULE or (name in (GRAPH, MODULE) and not is_top_level):
            raise PipelineError(f"{name} is not allowed inside {anchor}", offset)
        parenthesis = self._offset
        self._offset += 1
        self._read_comments(name)
        while self._next != ")":
            if not self._next:
                raise PipelineError(f"the parenthesis after {name} is not closed", parenthesis)
            self._parse_entry(name)
            self._read_comments(name)
            if self._next == ",":
                self._offset += 1
                self._read_comments(name)
            elif self._next != ")" and self._next:
                raise PipelineError("expected a comma or a closing parenthesis", self._offset)
        self._offset += 1

    def _parse_options(self) -> tuple[tuple[tuple[str, OptionValue], ...], tuple[int, ...]]:
        """Parses `{name=value ...}`. Returns the options, and the offsets of their names."""
        brace = self._offset
        self._offset += 1
        options: list[tuple[str, OptionValue]] = []
        offsets: list[int] = []
        while True:
            while self._next and self._next in " \t\n,":
                self._offset += 1
            if self._next == "}":
                self._offset += 1
                return tuple(options), tuple(offsets)
            match = _OPTION_NAME.match(self._text, self._offset)
            if match is None:
                if not self._next:
                    raise PipelineError("the brace of the options is not closed", brace)
                raise PipelineError(f"expected the name of an option, found {self._next!r}", self._offset)
            name = match.group()
            offsets.append(match.start())
            self._offset = match.end()
            if self._next != "=":
                raise PipelineError(f"option {name} has no value: write {name}=...", self._offset)
            self._offset += 1
            options.append((name, option_value(self._parse_value())))

    def _parse_value(self) -> str:
        """Parses a value: in quotes, in braces, or up to the next space or closing brace."""
        start, quote = self._offset, self._next
        if quote and quote in "\"'":
            end = self._text.find(quote, start + 1)
            if end < 0:
                raise PipelineError("the quotation mark is not closed", start)
            self._offset = end + 1
            return self._text[start + 1 : end]
        depth = 0
        while self._next and not (depth == 0 and (self._next.isspace() or self._next == "}")):
            depth += {"{": 1, "}": -1}.get(self._next, 0)
            self._offset += 1
        return self._text[start : self._offset]


# ---- checking --------------------------------------------------------------------------------------------------------


def check_pipeline(items: Sequence[PipelineItem], catalogue: Sequence[PassInfo]) -> None:
    """Raises `PipelineError` for the first unknown or misplaced pass, or unknown option."""
    by_name = {info.name: info for info in catalogue}
    for item in items:
        info = by_name.get(item.name)
        if info is None:
            raise PipelineError(f"unknown pass {item.name!r}{_suggestion(item.name, list(by_name))}", item.offset)
        if (info.level == "graph") != (item.level == "graph"):
            side = "inside" if info.level == "graph" else "outside"
            raise PipelineError(f"{item.name} must be {side} {GRAPH}(...)", item.offset)
        if info.ours and info.level != "graph" and item.anchor != info.anchor:
            raise PipelineError(f"{item.name} runs on {info.anchor}, not on {item.anchor}", item.offset)
        _check_options(item, info)


def _check_options(item: PipelineItem, info: PassInfo) -> None:
    """Raises `PipelineError` for the first unknown option of a pass."""
    option_names = [option.name for option in info.options]
    offsets = item.option_offsets or [item.offset] * len(item.options)
    for (name, _), offset in zip(item.options, offsets, strict=True):
        if name not in option_names:
            options = f": its options are {', '.join(option_names)}" if option_names else ": it has no options"
            hint = _suggestion(name, option_names) or options
            raise PipelineError(f"{item.name}: unknown option {name!r}{hint}", offset)


def _suggestion(name: str, valid_names: Sequence[str]) -> str:
    close = get_close_matches(name, valid_names, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def to_steps(items: Sequence[PipelineItem], old_steps: Sequence[PassStep]) -> tuple[PassStep, ...]:
    """Converts the items to steps, graph passes first.

    A step that is also in `old_steps` keeps its phase, a new step gets the phase of the previous step on its level. A
    hash in the text becomes the value in `old_steps` that it stands for.
    """
    ordered = [item for item in items if item.level == "graph"] + [item for item in items if item.level != "graph"]
    old_values = [value for step in old_steps for _, value in step.options]
    value_of_hash = {text: value for value in old_values if (text := _short_value(value)).startswith("@")}
    steps: list[PassStep] = []
    for item, old_step in zip(ordered, _match_items(ordered, old_steps), strict=True):
        # An unchanged value keeps its type: text that looks like a number is text again.
        unchanged = {(name, option_text(value)): value for name, value in (old_step.options if old_step else ())}
        options = tuple(
            (name, unchanged.get((name, option_text(value)), value_of_hash.get(str(value), value)))
            for name, value in item.options
        )
        phase = old_step.phase if old_step is not None else _phase_of_new_step(item, steps, old_steps)
        level = old_step.level if old_step is not None else item.level
        steps.append(PassStep(item.name, level, item.anchor, options, item.enabled, phase))
    return tuple(steps)


def _match_items(items: Sequence[PipelineItem], old_steps: Sequence[PassStep]) -> list[PassStep | None]:
    """Returns the old step for each item, `None` for a new item."""
    item_keys = [(item.name, item.anchor) for item in items]
    step_keys = [(step.name, "" if step.level == "graph" else step.anchor) for step in old_steps]
    matches: list[PassStep | None] = [None] * len(items)
    for block in SequenceMatcher(None, step_keys, item_keys, autojunk=False).get_matching_blocks():
        matches[block.b : block.b + block.size] = old_steps[block.a : block.a + block.size]
    return matches


def _phase_of_new_step(item: PipelineItem, steps: Sequence[PassStep], old_steps: Sequence[PassStep]) -> str:
    """Returns the phase of the last of `steps` on the item's level; without one, of the first of `old_steps` on it."""
    phases, old_phases = (
        [step.phase for step in candidates if step.phase and (step.level == "graph") == (item.level == "graph")]
        for candidates in (steps, old_steps)
    )
    return phases[-1] if phases else next(iter(old_phases), "")


# ---- completion ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completion:
    """A word that completes the input, and its description."""

    word: str
    summary: str


def completions(text: str, offset: int, catalogue: Sequence[PassInfo]) -> tuple[int, list[Completion]]:
    """Returns the start of the word before `offset`, and its completions: passes, or options of the enclosing pass."""
    start = offset
    while start > 0 and re.match(r"[\w.\-]", text[start - 1]):
        start -= 1
    word = text[start:offset]
    enclosing, bracket = _enclosing_bracket(text[:start])
    if bracket == "{":
        info = next((info for info in catalogue if info.name == enclosing), None)
        options = info.options if info else ()
        candidates = [
            Completion(f"{option.name}=", f"{option.default}  {option.summary}".strip()) for option in options
        ]
    else:
        in_graph = enclosing == GRAPH
        passes = [info for info in catalogue if (info.level == "graph") == in_graph]
        candidates = [Completion(info.name, info.summary) for info in passes]
        if enclosing in ("", MODULE):
            candidates.append(Completion("func.func(", "passes on each function"))
    return start, _rank(candidates, word)


def _rank(candidates: Sequence[Completion], word: str) -> list[Completion]:
    """Returns the candidates that start with `word`, then those that contain all parts of it, in any case."""
    parts = [part for part in re.split(r"[-_.]", word.lower()) if part]
    prefixed = [item for item in candidates if item.word.lower().startswith(word.lower())]
    containing = [
        item for item in candidates if item not in prefixed and all(part in item.word.lower() for part in parts)
    ]
    return [*prefixed, *containing]


# A comment, a word, blanks or a single character, so that a scan takes linear time.
_TOKENS = re.compile(r"//[^\n]*|(?P<word>[A-Za-z_][\w.\-]*)|[ \t]+|[^ \t]")


def _enclosing_bracket(text: str) -> tuple[str, str]:
    """Returns the name before the innermost open bracket, and that bracket; two empty strings at the top level."""
    stack: list[tuple[str, str]] = []
    word = ""
    for match in _TOKENS.finditer(text):
        token = match.group()
        if token in "({":
            stack.append((word, token))
        elif token in ")}" and stack:
            stack.pop()
        if not token.isspace():
            word = token if match.lastgroup else ""
    return stack[-1] if stack else ("", "")
