"""What a pass written in this project is: a dataclass with a name, a summary, its options as fields, and `run`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from buddy.compiler.codegen.machines import target_of
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.recipe import OptionValue, Recipe
from buddy.compiler.protocol.step_options import typed_options
from buddy.compiler.support.target import Target, host


@dataclass(frozen=True)
class Remark:
    """What pass `pass_name` did, or why it did nothing, to the op that comes from `nodes`."""

    pass_name: str
    nodes: tuple[str, ...]
    text: str


@dataclass
class PassContext:
    """What a pass may consult beside the IR. `threads` are the recipe's; `protocol.pass_facts` says who reads them."""

    locations: LocationSets
    target: Target = field(default_factory=host)
    threads: int = 1
    remarks: list[Remark] = field(default_factory=list)

    @classmethod
    def of(cls, recipe: Recipe, locations: LocationSets) -> PassContext:
        """What the passes of `recipe` may consult. Raises `MachineError` for a target that is none."""
        return cls(locations, target_of(recipe.target), recipe.threads)

    def remark(self, pass_name: str, location: Any, text: str) -> None:
        nodes = self.locations.sets[self.locations.number_of(location)]
        self.remarks.append(Remark(pass_name, nodes, text))


class MlirPass:
    """A pass over MLIR written in Python. Subclasses are frozen dataclasses whose fields are the options."""

    name: ClassVar[str]
    summary: ClassVar[str]
    anchor: ClassVar[str] = "builtin.module"

    def run(self, root: Any, context: PassContext) -> None:
        """Rewrite `root` (an operation of kind `anchor`) in place.

        Raises `PassError` where the IR is not what the pass can work on and leaving it alone would be wrong.
        """
        raise NotImplementedError

    @classmethod
    def options(cls) -> dict[str, OptionValue]:
        """Option names with their defaults."""
        return {f.name.replace("_", "-"): cast(OptionValue, f.default) for f in dataclasses.fields(cast(Any, cls))}

    @classmethod
    def create(cls, options: dict[str, OptionValue]) -> MlirPass:
        """The pass with `options`.

        Raises `ValueError` that names an option it does not have, and those it has, or what an option takes.
        """
        given = typed_options(cls.name, cls.options(), options)
        return cls(**{key.replace("-", "_"): value for key, value in given.items()})


class PassError(Exception):
    """A pass of ours met IR that it must refuse; the text says what and where."""


_REGISTRY: dict[str, type[MlirPass]] = {}


def register(cls: type[MlirPass]) -> type[MlirPass]:
    """Class decorator: put a pass into the catalogue under its name."""
    _REGISTRY[cls.name] = cls
    return cls


def registered() -> dict[str, type[MlirPass]]:
    return dict(_REGISTRY)
