"""Plain values inside the frames of `protocol`: diagnostics, graphs, stages, passes, ops. Neither torch nor MLIR."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.recipe import OWN_FRONTENDS, Recipe

StageState = Literal["done", "failed", "stale"]
Severity = Literal["error", "warning", "note"]


class Diagnostic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message for a person: what happened, where, and what to do."""

    what: str
    where: str = ""
    todo: str = ""
    severity: Severity = "error"
    detail: str = ""
    step: int = -1
    node: str = ""

    def __str__(self) -> str:
        return " · ".join(part for part in (self.what, self.where, self.todo) if part)


class NodeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the FX table. `stable` survives renumbering; shapes are printed as `128x768`, several joined by `, `.

    `strides` are printed alike; `bytes` are those of all results, 0 where only a call tells. `inputs` are the rows of
    the nodes that it reads.
    """

    index: int
    stable: str
    opcode: str
    name: str
    target: str
    args: str
    kwargs: str
    shape: str = ""
    dtype: str = ""
    module: str = ""
    location: str = ""
    strides: str = ""
    bytes: int = 0
    inputs: tuple[int, ...] = ()


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a node is lowered under a recipe: the chosen registry, those that could, its function, and why."""

    node: str
    lowering: str
    choices: tuple[str, ...] = ()
    function: str = ""
    reason: str = ""


class GraphInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured graph of a program.

    `broke` says why Dynamo ended it before its function ended, `broke_at` on which line (`file:line`). `strict` graphs
    come from a script that allows no node in eager (`fallback="error"`). `code` names the text of the graph as Python.

    A graph that begins as IR `enters` the line in that phase, with ops of `dialects`. `compared` says whether there is
    anything to compare its results with.
    """

    name: str
    rows: tuple[NodeRow, ...]
    inputs: int = 0
    parameters: int = 0
    dtype: str = ""
    broke: str = ""
    broke_at: str = ""
    strict: bool = False
    code: str = ""
    enters: str = ""
    dialects: tuple[str, ...] = ()
    compared: bool = True


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One snapshot of the program on its way down.

    `step` is the index of the recipe's step that made it, or -1 for the line's own acts (`fx`, `graph`, `lower`,
    `translate`, `codegen`). `text` names the text in the engine's store; equal texts have equal names. `removed` is the
    number of ops that are gone, `added` of those that are new, since the stage before; `deltas` says which, by name,
    the greatest first. `origins` are how many ops, or bytes of machine code, lead to nodes of their own, to
    derived ones alone, and to none; `lost` of them led to none when the pass was done, and were given derived ones.
    `functions` are those whose machine code was made, with the milliseconds each took: in processes side by side.
    """

    index: int
    name: str
    phase: str
    text: str
    lines: int
    step: int = -1
    milliseconds: float = 0.0
    ops: int = 0
    added: int = 0
    removed: int = 0
    changed: bool = True
    state: StageState = "done"
    language: Literal["fx", "buddy", "mlir", "llvm", "asm", "ptx"] = "mlir"
    deltas: tuple[tuple[str, int], ...] = ()
    origins: tuple[int, int, int] = (0, 0, 0)
    lost: int = 0
    functions: tuple[tuple[str, float], ...] = ()


class OptionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option of a pass; `words` are all that it takes where it takes one of a few words."""

    name: str
    default: str
    summary: str = ""
    words: tuple[str, ...] = ()


class PassInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the pass catalogue; `origin` names the plug-in that it comes from, if it does."""

    name: str
    level: str
    summary: str
    anchor: str = "builtin.module"
    options: tuple[OptionInfo, ...] = ()
    ours: bool = False
    origin: str = ""


class DialectInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dialect that the bindings have registered, with how many ops it has; `module` is that of its Python classes."""

    name: str
    ops: int
    module: str = ""


class BindingsInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where MLIR comes from: the bindings' package, whether a variable names it, its version and folder.

    `tool` is the `mlir-opt` that is used beside them, "" without one; `tool_problem` why the one asked for is not.
    """

    package: str
    version: str
    folder: str
    named: bool = False
    tool: str = ""
    tool_problem: str = ""


class OpInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An ATen target that can be compiled, its op class, and the registries that lower the class.

    The class is "" for a target that a plug-in decomposes; `origin` names the plug-ins that had a part in it.
    """

    target: str
    op: str
    registries: tuple[str, ...]
    origin: str = ""


class Preset(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named pipeline and the phases it goes through, in order: `(name, language)`.

    `device` names what its programs run on where that is not the CPU that compiles them.
    """

    name: str
    summary: str
    recipe: Recipe
    phases: tuple[tuple[str, str], ...]
    device: str = ""

    def suits(self, recipe: Recipe) -> bool:
        """Whether the program of `recipe` can go down by it as it was opened, and run on this CPU."""
        return not self.device and (self.recipe.frontend in OWN_FRONTENDS) == (recipe.frontend in OWN_FRONTENDS)
