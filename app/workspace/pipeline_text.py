"""Prints and parses the passes of a recipe in MLIR's pipeline syntax. No Textual.

    graph(flash-attention, linear-sums)
    builtin.module(canonicalize, func.func(convert-linalg-to-loops), one-shot-bufferize{dump-alias-sets=true})

Two extensions: graph passes are in `graph(...)`, and a comment with a pass, such as `// cse`, is a disabled pass. Text
too long for a line (the IR of `replace-ir`) is represented by `@` and a hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import groupby

from buddy.compiler.protocol import PassInfo
from buddy.compiler.protocol.recipe import Level, OptionValue, PassStep, digest, is_plain_number

MODULE, GRAPH = "builtin.module", "graph"
LONGEST_VALUE = 200
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_SPACE = re.compile(r"(?:\s|//[^\n]*(?:\n|$))*")
_COMMENT = re.compile(r"//[ \t]*([^\n]*)")
_PASS = re.compile(r"([A-Za-z_][\w.\-]*)(?:\{(.*)\})?,?\s*")
_KEY = re.compile(r"[\w.\-]+")
_PLAIN = re.compile(r"[^\s{}\"']*")
_WHOLE = re.compile(r"[+-]?\d+")


class PipelineError(ValueError):
    """The text is not a valid pipeline, or names something unknown. `offset` is the position in characters."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message, self.offset = message, offset


@dataclass(frozen=True)
class PipelineItem:
    """A pass in the text. `offset` is the position of its name, `keys` are the positions of its options."""

    name: str
    anchor: str
    options: tuple[tuple[str, OptionValue], ...]
    enabled: bool
    offset: int
    keys: tuple[int, ...] = ()

    @property
    def level(self) -> Level:
        return "graph" if self.anchor == "" else "mlir"


# ---- values ----------------------------------------------------------------------------------------------------------


def option_text(value: OptionValue) -> str:
    """The value of an option in MLIR's syntax."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def option_value(text: str) -> OptionValue:
    """The value of an option's text: a boolean, a number, or the text itself.

    A number that a recipe cannot store stays a text, which MLIR accepts or rejects.
    """
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if is_plain_number(number) else text
    return text


def option_error(text: str, default: str, words: Sequence[str] = ()) -> str:
    """The error if `text` is no valid value for an option with the default `default`, else "".

    A default that is a boolean, a whole number or a list of these defines the type of the option. `words` are the
    allowed values, if there is a fixed list. The pass itself checks all other options.
    """
    if not text:
        return ""
    if words:
        return "" if text in words else f"{text} is not one of {', '.join(words)}"
    if "," in default and all(map(_WHOLE.fullmatch, default.split(","))):
        wrong = (part.strip() for part in text.split(",") if option_error(part.strip() or "nothing", "0"))
        return next((f"{part or 'an empty text'} is not a whole number" for part in wrong), "")
    if default in ("true", "false"):
        return "" if text.lower() in ("true", "false", "1", "0") else f"{text} is not true or false"
    if _WHOLE.fullmatch(default):
        if not _WHOLE.fullmatch(text):
            return f"{text} is not a whole number"
        return "" if -(2**63) <= int(text) < 2**64 else f"{text} does not fit into 64 bits"
    return ""


def _short(value: OptionValue) -> str:
    text = option_text(value)
    if len(text) > LONGEST_VALUE or "\n" in text or (not text and value == ""):
        return f"@{digest(text)[:12]}"
    return text if _PLAIN.fullmatch(text) or text.startswith("{") else f'"{text}"'


def spell_step(step: PassStep) -> str:
    """A step in pipeline syntax, without its anchor."""
    options = " ".join(f"{key}={_short(value)}" for key, value in step.options)
    return f"{step.name}{{{options}}}" if options else step.name


# ---- writing ---------------------------------------------------------------------------------------------------------


def pipeline_text(steps: Sequence[PassStep]) -> str:
    """The steps as text, one pass per line."""
    graph = [step for step in steps if step.level == "graph"]
    rest = [step for step in steps if step.level != "graph"]
    parts = [_nest(GRAPH, [(step, spell_step(step)) for step in graph], 0)] if graph else []
    return "\n".join([*parts, _nest(MODULE, list(_inside(rest)), 0), ""])


def mlir_pipeline(steps: Sequence[PassStep]) -> str:
    """The enabled MLIR passes on one line, for `mlir-opt --pass-pipeline`."""
    enabled = [step for step in steps if step.level != "graph" and step.enabled]
    parts = []
    for anchor, group in groupby(enabled, key=lambda step: step.anchor):
        inside = ",".join(step.spelling() for step in group)
        parts.append(inside if anchor == MODULE else f"{anchor}({inside})")
    return f"{MODULE}({','.join(parts)})"


def _inside(steps: Sequence[PassStep]) -> Iterator[tuple[PassStep | None, str]]:
    """The entries of the module: its passes, and nested pipelines of passes on other ops."""
    for anchor, group in groupby(steps, key=lambda step: step.anchor):
        entries = [(step, spell_step(step)) for step in group]
        if anchor == MODULE:
            yield from entries
        else:
            yield None, _nest(anchor, list(entries), 1)


def _nest(name: str, entries: Sequence[tuple[PassStep | None, str]], depth: int) -> str:
    pad, lines = "  " * depth, []
    live = [k for k, (step, _) in enumerate(entries) if step is None or step.enabled]
    for k, (step, text) in enumerate(entries):
        comma = "," if live and k < live[-1] else ""
        on = step is None or step.enabled
        lines.append(f"{pad}  {text.lstrip()}{comma}" if on else f"{pad}  // {text}")
    return "\n".join([f"{pad}{name}(", *lines, f"{pad})"])


# ---- reading ---------------------------------------------------------------------------------------------------------


def parse(text: str) -> list[PipelineItem]:
    """Parse the passes in `text`, in order. Raises `PipelineError`."""
    return _Reader(text).pipeline()


class _Reader:
    """A recursive-descent parser for pipelines."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0
        self._items: list[PipelineItem] = []

    def pipeline(self) -> list[PipelineItem]:
        self._skip("")
        while self._place < len(self._text):
            self._entry(MODULE, top=True)
            self._skip(MODULE)
            if self._place < len(self._text) and self._next == ",":
                self._place += 1
                self._skip(MODULE)
        return self._items

    @property
    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _skip(self, anchor: str) -> None:
        """Skip to the next word. Comments on the way may contain disabled passes."""
        found = _SPACE.match(self._text, self._place)
        assert found is not None
        for comment in _COMMENT.finditer(self._text, self._place, found.end()):
            spelling = _PASS.fullmatch(comment.group(1).strip())
            if spelling is not None and (spelling.group(2) or "-" in spelling.group(1) or spelling.group(1).islower()):
                self._comment(spelling.group(1), spelling.group(2) or "", anchor, comment.start(1))
        self._place = found.end()

    def _comment(self, name: str, options: str, anchor: str, offset: int) -> None:
        try:
            found = _Reader(f"{name}{{{options}}}").pipeline() if options else [PipelineItem(name, "", (), False, 0)]
        except PipelineError as error:
            raise PipelineError(f"in the disabled pass: {error.message}", offset + error.offset) from error
        self._items.append(
            PipelineItem(name, "" if anchor == GRAPH else anchor or MODULE, found[0].options, False, offset)
        )

    def _entry(self, anchor: str, top: bool = False) -> None:
        found = _NAME.match(self._text, self._place)
        if found is None:
            what = f"{self._next!r}" if self._next else "the end of the text"
            raise PipelineError(f"expected a pass or an anchor, found {what}", self._place)
        name, offset = found.group(), found.start()
        self._place = found.end()
        self._skip_blank()
        if self._next == "(":
            self._nested(name, anchor, offset, top)
        else:
            options, keys = self._options() if self._next == "{" else ((), ())
            self._items.append(PipelineItem(name, "" if anchor == GRAPH else anchor, options, True, offset, keys))

    def _skip_blank(self) -> None:
        while self._next and self._next in " \t":
            self._place += 1

    def _nested(self, name: str, anchor: str, offset: int, top: bool) -> None:
        if name != GRAPH and "." not in name:
            raise PipelineError(f"{name!r} is not an anchor: use an op such as func.func, or {GRAPH}", offset)
        if anchor != MODULE or (name in (GRAPH, MODULE) and not top):
            raise PipelineError(f"{name} is not allowed inside {anchor}", offset)
        opened = self._place
        self._place += 1
        self._skip(name)
        while self._next != ")":
            if not self._next:
                raise PipelineError(f"the parenthesis after {name} is not closed", opened)
            self._entry(name)
            self._skip(name)
            if self._next == ",":
                self._place += 1
                self._skip(name)
            elif self._next != ")" and self._next:
                raise PipelineError("expected a comma or a closing parenthesis", self._place)
        self._place += 1

    def _options(self) -> tuple[tuple[tuple[str, OptionValue], ...], tuple[int, ...]]:
        opened = self._place
        self._place += 1
        options: list[tuple[str, OptionValue]] = []
        keys: list[int] = []
        while True:
            while self._next and self._next in " \t\n,":
                self._place += 1
            if self._next == "}":
                self._place += 1
                return tuple(options), tuple(keys)
            found = _KEY.match(self._text, self._place)
            if found is None:
                if not self._next:
                    raise PipelineError("the brace of the options is not closed", opened)
                raise PipelineError(f"expected the name of an option, found {self._next!r}", self._place)
            keys.append(found.start())
            self._place = found.end()
            if self._next != "=":
                raise PipelineError(f"option {found.group()} has no value: write {found.group()}=...", self._place)
            self._place += 1
            options.append((found.group(), option_value(self._value())))

    def _value(self) -> str:
        """Parse a value: in quotes, in braces, or up to the next space or closing brace."""
        start, quote = self._place, self._next
        if quote and quote in "\"'":
            end = self._text.find(quote, start + 1)
            if end < 0:
                raise PipelineError("the quotation mark is not closed", start)
            self._place = end + 1
            return self._text[start + 1 : end]
        depth = 0
        while self._next and not (depth == 0 and (self._next.isspace() or self._next == "}")):
            depth += {"{": 1, "}": -1}.get(self._next, 0)
            self._place += 1
        return self._text[start : self._place]


# ---- checking --------------------------------------------------------------------------------------------------------


def check_pipeline(items: Sequence[PipelineItem], catalogue: Sequence[PassInfo]) -> None:
    """Raises `PipelineError` for the first unknown or misplaced pass or option."""
    known = {info.name: info for info in catalogue}
    for item in items:
        info = known.get(item.name)
        if info is None:
            raise PipelineError(f"unknown pass {item.name!r}{_suggestion(item.name, list(known))}", item.offset)
        if (info.level == "graph") != (item.level == "graph"):
            where = f"must be inside {GRAPH}(...)" if info.level == "graph" else f"must be outside {GRAPH}(...)"
            raise PipelineError(f"{item.name} {where}", item.offset)
        if info.ours and info.level != "graph" and item.anchor != info.anchor:
            raise PipelineError(f"{item.name} runs on {info.anchor}, not on {item.anchor}", item.offset)
        _check_options(item, info)


def _check_options(item: PipelineItem, info: PassInfo) -> None:
    names = [option.name for option in info.options]
    for (key, _), offset in zip(item.options, item.keys or [item.offset] * len(item.options), strict=True):
        if key not in names:
            there = f"its options are {', '.join(names)}" if names else "it has no options"
            raise PipelineError(f"{item.name}: unknown option {key!r}{_suggestion(key, names) or f': {there}'}", offset)


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def steps_of(items: Sequence[PipelineItem], before: Sequence[PassStep]) -> tuple[PassStep, ...]:
    """The items as steps, graph passes first. A step from `before` keeps its phase, a new one gets its neighbour's."""
    ordered = [item for item in items if item.level == "graph"] + [item for item in items if item.level != "graph"]
    long = {_short(value): value for step in before for _, value in step.options}
    old = _matched(ordered, before)
    steps: list[PassStep] = []
    for item, match in zip(ordered, old, strict=True):
        options = tuple((key, long.get(str(value), value)) for key, value in item.options)
        phase = match.phase if match is not None else _phase_near(steps, item, before)
        level = match.level if match is not None else item.level
        steps.append(PassStep(item.name, level, item.anchor, options, item.enabled, phase))
    return tuple(steps)


def _matched(items: Sequence[PipelineItem], before: Sequence[PassStep]) -> list[PassStep | None]:
    """The step of `before` for each item, `None` for a new item."""
    keys = [(item.name, item.anchor) for item in items]
    old = [(step.name, "" if step.level == "graph" else step.anchor) for step in before]
    found: list[PassStep | None] = [None] * len(items)
    for block in SequenceMatcher(None, old, keys, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            found[block.b + k] = before[block.a + k]
    return found


def _phase_near(steps: Sequence[PassStep], item: PipelineItem, before: Sequence[PassStep]) -> str:
    """The phase of the last step of the same level, else of the first one in `before`."""
    same = [step.phase for step in steps if step.phase and (step.level == "graph") == (item.level == "graph")]
    first = [step.phase for step in before if step.phase and (step.level == "graph") == (item.level == "graph")]
    return same[-1] if same else next(iter(first), "")


# ---- completion ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completion:
    """A completion: the word and its description."""

    word: str
    summary: str


def completions(text: str, offset: int, catalogue: Sequence[PassInfo]) -> tuple[int, list[Completion]]:
    """The start of the word at `offset`, and its completions: passes, or options of the enclosing pass."""
    start = offset
    while start > 0 and re.match(r"[\w.\-]", text[start - 1]):
        start -= 1
    word = text[start:offset]
    around, opened = _around(text[:start])
    if opened == "{":
        info = next((info for info in catalogue if info.name == around), None)
        found = [Completion(f"{o.name}=", f"{o.default}  {o.summary}".strip()) for o in (info.options if info else ())]
    else:
        graph = around == GRAPH
        found = [Completion(info.name, info.summary) for info in catalogue if (info.level == "graph") == graph]
        if around in ("", MODULE):
            found.append(Completion("func.func(", "passes on each function"))
    return start, _ranked(found, word)


def _ranked(found: Sequence[Completion], word: str) -> list[Completion]:
    """The candidates that start with `word`, then those that contain it or all of its parts."""
    parts = [part for part in re.split(r"[-_.]", word.lower()) if part]
    starts = [each for each in found if each.word.lower().startswith(word.lower())]
    holds = [each for each in found if each not in starts and all(part in each.word.lower() for part in parts)]
    return [*starts, *holds]


# A comment, a word, blanks or a single character: a linear scan.
_PARTS = re.compile(r"//[^\n]*|(?P<word>[A-Za-z_][\w.\-]*)|[ \t]+|[^ \t]")


def _around(text: str) -> tuple[str, str]:
    """The name before the innermost open bracket, and that bracket; two empty strings at the top level."""
    stack: list[tuple[str, str]] = []
    word = ""
    for match in _PARTS.finditer(text):
        found = match.group()
        if found in "({":
            stack.append((word, found))
        elif found in ")}" and stack:
            stack.pop()
        if not found.isspace():
            word = found if match.lastgroup else ""
    return stack[-1] if stack else ("", "")
