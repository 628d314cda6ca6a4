"""The base class of this project's passes, their context, and the registry of passes written in Python."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, cast

from buddy.compiler import passes
from buddy.compiler.codegen.machines import target_of
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.errors import BuddyError, check_registration, duplicate_name_error
from buddy.compiler.protocol.recipe import OptionValue, Recipe, typed_options
from buddy.compiler.support.target import Target, host

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


@dataclass(frozen=True)
class Remark:
    """A note of pass `pass_name` on an op: what the pass changed, or why it changed nothing.

    `nodes` has the stable names of the graph nodes that the op comes from.
    """

    pass_name: str
    nodes: tuple[str, ...]
    text: str


@dataclass
class PassContext:
    """The inputs of a pass besides the IR, and the remarks that the pass adds.

    `locations` maps the locations of ops to graph nodes. `target` is the processor that the code will run on. `threads`
    is the recipe's number of threads; `protocol.pass_facts` says which passes read it.
    """

    locations: LocationSets
    target: Target = field(default_factory=host)
    threads: int = 1
    remarks: list[Remark] = field(default_factory=list)

    @classmethod
    def of(cls, recipe: Recipe, locations: LocationSets) -> PassContext:
        """Returns the context for the passes of `recipe`. Raises `MachineError` for an unknown target."""
        return cls(locations, target_of(recipe.target), recipe.threads)

    def remark(self, pass_name: str, location: ir.Location, text: str) -> None:
        """Adds a remark about the op at `location`."""
        nodes = self.locations.sets[self.locations.number_of(location)]
        self.remarks.append(Remark(pass_name, nodes, text))


class MlirPass:
    """An MLIR pass written in Python. Subclasses are frozen dataclasses whose fields are the options.

    `name` is the name in recipes, with hyphens. `summary` is the description in the list of passes. `anchor` is the
    kind of op that the pass runs on.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    anchor: ClassVar[str] = "builtin.module"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        """Rewrites `root`, an op of kind `anchor`, in place.

        Raises `PassError` if the pass cannot handle the IR, and leaving it unchanged would be wrong.
        """
        raise NotImplementedError

    @classmethod
    def options(cls) -> dict[str, OptionValue]:
        """Returns option names with their defaults."""
        return {f.name.replace("_", "-"): cast(OptionValue, f.default) for f in dataclasses.fields(cast(Any, cls))}

    @classmethod
    def create(cls, options: dict[str, OptionValue]) -> MlirPass:
        """Creates the pass with `options`.

        Raises `ValueError` for an unknown option, listing the known ones, and for an invalid value.
        """
        typed = typed_options(cls.name, cls.options(), options)
        return cls(**{key.replace("-", "_"): value for key, value in typed.items()})


class PassError(BuddyError):
    """A pass of this project cannot handle the IR; the text says what and where."""


_REGISTRY: dict[str, type[MlirPass]] = {}
# The passes that are defined in the module of another pass.
_IN_OTHER_MODULES = ("chain-packings",)


@lru_cache(maxsize=1)
def own_pass_names() -> frozenset[str]:
    """Returns the names of this package's passes. Modules without a pass contribute names too, which does no harm.

    The names come from the names of the modules, which are not imported: a plug-in also registers passes in processes
    without MLIR, where the modules cannot be imported.
    """
    modules = (module.name.replace("_", "-") for module in iter_modules(passes.__path__))
    return frozenset((*modules, *_IN_OTHER_MODULES))


def register(cls: type[MlirPass]) -> type[MlirPass]:
    """Class decorator: adds a pass to the catalogue under its name.

    Raises `BuddyError` if another class has registered the name, or if a class from outside has the name of a pass of
    this package.
    """
    if not cls.__module__.startswith(f"{passes.__name__}.") and cls.name in own_pass_names():
        raise duplicate_name_error("pass", cls.name, passes.__name__, cls.__module__)
    check_registration("pass", cls.name, _REGISTRY.get(cls.name), cls)
    _REGISTRY[cls.name] = cls
    return cls


def registered_passes() -> dict[str, type[MlirPass]]:
    """Returns the registered passes by name."""
    return dict(_REGISTRY)
