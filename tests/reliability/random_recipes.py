"""Random recipes: a preset, and edits drawn from a seed, of which any subset also makes a recipe.

An edit refers to steps by keys that do not depend on other edits, so that a failing recipe can be reduced edit by edit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from buddy.compiler.protocol.plain_values import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import OptionValue, PassStep, Recipe

# The key for the end of the steps.
END = ""


@dataclass
class Draft:
    """A recipe under edit: `steps` by key, `name#2` for the second of that name in the preset."""

    recipe: Recipe
    steps: list[tuple[str, PassStep]] = field(default_factory=list)

    @classmethod
    def of(cls, recipe: Recipe) -> Draft:
        seen: Counter[str] = Counter()
        steps = []
        for step in recipe.steps:
            seen[step.name] += 1
            number = seen[step.name]
            steps.append((step.name if number == 1 else f"{step.name}#{number}", step))
        return cls(recipe, steps)

    def place(self, key: str) -> int:
        """The index of the step with that key, or the end."""
        return next((place for place, (found, _) in enumerate(self.steps) if found == key), len(self.steps))

    def has(self, key: str) -> bool:
        return self.place(key) < len(self.steps)

    def finished(self) -> Recipe:
        return msgspec.structs.replace(self.recipe, steps=tuple(step for _, step in self.steps))


@dataclass(frozen=True)
class Switch:
    """Enables or disables a step."""

    key: str

    def apply(self, draft: Draft) -> None:
        if draft.has(self.key):
            place = draft.place(self.key)
            step = draft.steps[place][1]
            draft.steps[place] = (self.key, msgspec.structs.replace(step, enabled=not step.enabled))


@dataclass(frozen=True)
class Remove:
    key: str

    def apply(self, draft: Draft) -> None:
        draft.steps = [(key, step) for key, step in draft.steps if key != self.key]


@dataclass(frozen=True)
class Insert:
    """Inserts `step` before the step with the key `before`; inserting a step of the recipe again duplicates it."""

    step: PassStep
    before: str

    def apply(self, draft: Draft) -> None:
        draft.steps.insert(draft.place(self.before), (f"+{len(draft.steps)}", self.step))


@dataclass(frozen=True)
class Move:
    key: str
    before: str

    def apply(self, draft: Draft) -> None:
        if draft.has(self.key) and self.key != self.before:
            moved = draft.steps.pop(draft.place(self.key))
            draft.steps.insert(draft.place(self.before), moved)


@dataclass(frozen=True)
class Change:
    """Changes fields of a step: its options, or its anchor."""

    key: str
    fields: tuple[tuple[str, Any], ...]

    def apply(self, draft: Draft) -> None:
        if draft.has(self.key):
            place = draft.place(self.key)
            draft.steps[place] = (self.key, msgspec.structs.replace(draft.steps[place][1], **dict(self.fields)))


@dataclass(frozen=True)
class Choose:
    node: str
    lowering: str

    def apply(self, draft: Draft) -> None:
        draft.recipe = draft.recipe.with_choice(self.node, self.lowering)


@dataclass(frozen=True)
class Set:
    """Sets a field of the recipe."""

    name: str
    value: Any

    def apply(self, draft: Draft) -> None:
        draft.recipe = msgspec.structs.replace(draft.recipe, **{self.name: self.value})


Edit = Switch | Remove | Insert | Move | Change | Choose | Set


def edited(recipe: Recipe, edits: Iterable[Edit]) -> Recipe:
    """`recipe` after `edits`; those that refer to missing steps change nothing."""
    draft = Draft.of(recipe)
    for edit in edits:
        edit.apply(draft)
    return draft.finished()


# ---- drawing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """What recipes are drawn from: presets for the program, passes by level, nodes of the graph."""

    presets: Sequence[Recipe]
    passes: Sequence[PassInfo]
    nodes: Sequence[str]

    def described(self, name: str) -> PassInfo | None:
        return next((info for info in self.passes if info.name == name), None)


# The numbers of edits of a recipe: mostly few, so that the first edit seldom causes a rejection.
_COUNTS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7, 10)
_WHOLE = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 64)
_LIMITS = (-1, -2, 1000, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64 - 1)
_FRACTIONS = (0.0, -0.0, 0.5, -1.0, 1.0, 5e-324, 1e308)
_TEXTS = (
    *("", "0", "-1", "8", "8,32", "1,1,1,1,1,1,1", "99999999999999999999", "all", "none", "true", "x"),
    *("a b", "{", "}", "'", '"', "=", "a=b", "é", "\n", "x" * 300, "func.func", "memref<?xf32>", "%0"),
)
_LOWERINGS = ("tosa", "linalg", "math", "torch-mlir", "func", "eager", "no-such-registry")
_FIELDS: tuple[tuple[str, Sequence[Any]], ...] = (
    ("dialect", ("linalg", "tosa", "tosa", "stablehlo")),
    ("partition", ("layers", "whole")),
    ("threads", (1, 2, 2, 3, 5, 64)),
    ("opt_level", (0, 1, 2, 3)),
    ("target", ("", "x86-64", "x86-64-v2", "x86-64-v3", "aarch64", "riscv64", "x86-64:nonsense", "no-such-machine")),
    ("backend", ("iree",)),
)


def recipe_of(chance: random.Random, choices: Choices) -> tuple[Recipe, tuple[Edit, ...]]:
    """A preset, and the edits that turn it into the recipe."""
    base = chance.choice(choices.presets)
    keys = [key for key, _ in Draft.of(base).steps]
    drawn = [_edit(chance, choices, base, keys) for _ in range(chance.choice(_COUNTS))]
    return base, tuple(edit for edit in drawn if edit is not None)


def _edit(chance: random.Random, choices: Choices, base: Recipe, keys: Sequence[str]) -> Edit | None:
    kinds: Sequence[tuple[int, Callable[[], Edit | None]]] = (
        (4, lambda: Switch(chance.choice(keys))),
        (1, lambda: Remove(chance.choice(keys))),
        (3, lambda: _doubled(chance, base, keys)),
        (3, lambda: Move(chance.choice(keys), _near(chance, keys))),
        (6, lambda: _inserted(chance, choices, keys)),
        (4, lambda: _changed(chance, choices, base, keys)),
        (4, lambda: _chosen(chance, choices)),
        (3, lambda: Set(*_field(chance))),
    )
    (draw,) = chance.choices([draw for _, draw in kinds], [weight for weight, _ in kinds])
    return draw()


def _near(chance: random.Random, keys: Sequence[str]) -> str:
    return chance.choice((*keys, END))


def _doubled(chance: random.Random, base: Recipe, keys: Sequence[str]) -> Edit:
    """Duplicates a step, directly after itself or anywhere."""
    place = chance.randrange(len(keys))
    following = keys[place + 1] if place + 1 < len(keys) else END
    step = msgspec.structs.replace(base.steps[place], enabled=True)
    return Insert(step, following if chance.random() < 0.5 else _near(chance, keys))


def _inserted(chance: random.Random, choices: Choices, keys: Sequence[str]) -> Edit:
    """Inserts a pass of the catalogue, ours as often as MLIR's."""
    ours = [info for info in choices.passes if info.ours]
    info = chance.choice(ours if chance.random() < 0.5 else choices.passes)
    options = _options(chance, info) if chance.random() < 0.5 else ()
    level = "graph" if info.level == "graph" else "mlir"
    return Insert(PassStep(info.name, level, info.anchor, options), _near(chance, keys))


def _changed(chance: random.Random, choices: Choices, base: Recipe, keys: Sequence[str]) -> Edit | None:
    """Other options for a step, or sometimes an unsupported anchor."""
    with_options = [
        (key, info)
        for key, step in zip(keys, base.steps, strict=True)
        if (info := choices.described(step.name)) is not None and info.options
    ]
    if chance.random() < 0.05 or not with_options:
        return Change(chance.choice(keys), (("anchor", chance.choice(("func.func", "gpu.module", "no.such", ""))),))
    key, info = chance.choice(with_options)
    return Change(key, (("options", _options(chance, info)), ("enabled", True)))


def _chosen(chance: random.Random, choices: Choices) -> Edit | None:
    if not choices.nodes:
        return None
    node = chance.choice(choices.nodes) if chance.random() < 0.95 else "no/such/node.0"
    return Choose(node, chance.choice(_LOWERINGS))


def _field(chance: random.Random) -> tuple[str, Any]:
    name, values = chance.choice(_FIELDS)
    return name, chance.choice(values)


def _options(chance: random.Random, info: PassInfo) -> tuple[tuple[str, OptionValue], ...]:
    """Some of a pass's options, mostly of the right type, and sometimes an unknown one."""
    some = [option for option in info.options if chance.random() < max(0.3, 1 / len(info.options))]
    found = [(option.name, _value(chance, option)) for option in some]
    if chance.random() < 0.03:
        found.append(("no-such-option", 1))
    return tuple(found)


def _value(chance: random.Random, option: OptionInfo) -> OptionValue:
    if option.words and chance.random() < 0.8:
        return chance.choice(option.words)
    if chance.random() < 0.05:
        return chance.choice((True, False, *_LIMITS, *_FRACTIONS, *_TEXTS))
    if option.default in ("true", "false"):
        return chance.random() < 0.5
    if option.default.lstrip("-").isdigit():
        return chance.choice(_WHOLE) if chance.random() < 0.7 else chance.choice(_LIMITS)
    if option.default.replace(".", "", 1).replace("e+", "").isdigit():
        return chance.choice(_FRACTIONS)
    return chance.choice(_TEXTS)
