"""Plain values inside the frames: graphs, nodes, stages, and entries of catalogues. Imports neither torch nor MLIR."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from buddy.compiler.protocol.recipe import DUMP, EAGER, OWN_FRONTENDS, Recipe


class ImportedIR(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module as text, whose entry function takes the graph's placeholders and returns the graph's results.

    `phase` is the phase of the pipeline at which the module enters, `entry` the name of the entry function ("" if only
    one function is public). Every op names the nodes that it comes from by a name location, `loc("linear_1")`, or by a
    fused location of several.

    If a frontend imported the module in addition to capturing nodes, `frontend` is its name, and a recipe may compile
    the nodes instead. If `frontend` is "", only the module can be compiled.
    """

    text: str
    phase: str = "toplevel"
    entry: str = ""
    frontend: str = ""


# A stage is `skipped` if its pass is left out of a dump's steps.
StageState = Literal["done", "failed", "stale", "skipped"]


# What a node of a training graph passes on between forward and backward, or computes in both. "saved": a forward result
# that is kept in memory for the backward graph. "reread": an input or a weight that the backward graph gets again,
# without a copy. "recomputed": a value that both graphs compute. "viewed": a view that the backward graph makes again,
# which takes no memory.
TrainingRole = Literal["", "saved", "reread", "recomputed", "viewed"]


class NodeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of the FX table: one node.

    `stable` is a name that does not change if nodes are renumbered. `shape` and `strides` are printed as `128x768`,
    those of several results joined by `, `. `bytes` is the size of all results, 0 if it is known only at the call.
    `inputs` are the indices of the nodes that the node reads. `location` is the Python line that computes the node,
    `file:line`; `callers` are the lines that call it, the outermost first, as indices of `GraphInfo.caller_locations`.
    If `bytes` depends on sizes that vary, `captured_bytes` is the size in the captured call, 0 if that is unknown too.
    `training` is the role of the node in training.
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
    callers: tuple[int, ...] = ()
    captured_bytes: int = 0
    training: TrainingRole = ""

    @property
    def display_name(self) -> str:
        """The node's name for the user, as in the IR's locations: the module path, then the op and its number.

        An input or a weight has its name in the program.
        """
        return self.stable or self.name

    @property
    def short_name(self) -> str:
        """`display_name` without the module path."""
        return self.display_name.removeprefix(f"{self.module}/") if self.module else self.display_name


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lowering of a node under a recipe.

    `lowering` is the chosen registry or "eager", `choices` are the registries that have a lowering of the op, and
    "eager"; `function` is the function that contains the node, and `reason` says why other lowerings were not used.

    The code of a compiled node may call eager. `slow_path` is the condition on which eager computes the node's results,
    `error_path` the condition on which eager is called only for its error; "" if there is no such call. `rejections`
    lists the `choices` that cannot lower the node, as far as the compiler has tried them, each with the reason.

    `multiplies` says whether a recipe may select a precision for the node. `precision` is the reduced precision in
    which the node multiplies, "" if it multiplies as the program says; `precision_reason` says why the precision that
    the recipe selects is not applied. `integers` is the type of the integers that a node of a quantised program
    multiplies, such as "int8"; "" for other nodes.
    """

    node: str
    lowering: str
    choices: tuple[str, ...] = ()
    function: str = ""
    reason: str = ""
    slow_path: str = ""
    error_path: str = ""
    rejections: tuple[tuple[str, str], ...] = ()
    multiplies: bool = False
    precision: str = ""
    precision_reason: str = ""
    integers: str = ""

    def rejection(self, choice: str) -> str:
        """Returns the reason why `choice` cannot lower the node, "" if it can or has not been tried."""
        return dict(self.rejections).get(choice, "")

    @property
    def compiled_choices(self) -> list[str]:
        """The registries that may lower the node."""
        return [choice for choice in self.choices if choice != EAGER and not self.rejection(choice)]


class Guard(msgspec.Struct, frozen=True):
    """A condition on which Dynamo reuses a graph, and the line (`file:line`) that reads the value, "" if unknown."""

    condition: str
    line: str = ""


class GraphInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured graph of a program; `inputs` and `parameters` are numbers of placeholders.

    `break_reason` says why Dynamo broke the graph, `break_line` where (`file:line`), `break_fix` how to avoid it.
    `strict` graphs come from a script that allows no fallback (`fallback="error"`). `code` names the text of the graph
    as Python. `caller_locations` are the Python lines (`file:line`) from which nodes are called.

    A graph that starts as IR enters the pipeline at the phase `entry_phase`, with ops of `dialects`. `compared` says
    whether its results can be compared with a reference.
    """

    name: str
    rows: tuple[NodeRow, ...]
    inputs: int = 0
    parameters: int = 0
    dtype: str = ""
    break_reason: str = ""
    break_line: str = ""
    break_fix: str = ""
    guards: tuple[Guard, ...] = ()
    strict: bool = False
    code: str = ""
    entry_phase: str = ""
    dialects: tuple[str, ...] = ()
    compared: bool = True
    caller_locations: tuple[str, ...] = msgspec.field(default=(), name="places")

    @property
    def is_dump(self) -> bool:
        """Whether its stages come from a dump of another compiler; its rows are the source lines that they name."""
        return self.entry_phase == DUMP

    def nodes_named(self, name: str) -> list[NodeRow]:
        """Returns the nodes with the stable name or FX name `name`.

        If there is no such node, `name` may be the path of a module, or a stable name without its number: returns the
        node if exactly one matches, else [].
        """
        exact = [row for row in self.rows if name in (row.stable, row.name)]
        if exact or not name:
            return exact
        calls = [row for row in self.rows if row.opcode.startswith("call")]
        matches = [row for row in calls if name in (row.module, row.stable.rpartition(".")[0])]
        return matches if len(matches) == 1 else []


# The languages of stages.
Language = Literal["fx", "buddy", "mlir", "llvm", "asm", "ptx", "hlo", "python", "cpp", "text"]


class LanguageFacts(NamedTuple):
    """Properties of a language: its name in messages (`title`), the suffix of its files, and the start of a comment."""

    title: str
    suffix: str
    comment: str


LANGUAGES: dict[str, LanguageFacts] = {
    "fx": LanguageFacts("an FX graph", ".txt", "#"),
    "buddy": LanguageFacts("a Buddy graph", ".txt", "#"),
    "mlir": LanguageFacts("MLIR", ".mlir", "//"),
    "llvm": LanguageFacts("LLVM IR", ".ll", ";"),
    "asm": LanguageFacts("assembly", ".s", "#"),
    "ptx": LanguageFacts("PTX", ".ptx", "//"),
    "hlo": LanguageFacts("HLO", ".hlo", "//"),
    "python": LanguageFacts("Python code", ".py", "#"),
    "cpp": LanguageFacts("C++", ".cpp", "//"),
    "text": LanguageFacts("text", ".txt", "#"),
}


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The IR after one pass.

    `step` is the index of the recipe's step that made it, or -1 for the built-in steps (`fx`, `graph`, `lower`,
    `translate`, `codegen`). `text` names the text in the engine's store; equal texts have equal names. `removed` and
    `added` are the numbers of ops removed and added since the previous stage; `deltas` are the differences by op name,
    the greatest first. `origins` are three numbers of ops (or bytes of machine code): those that name nodes, those that
    have only derived nodes, and those without nodes. `lost` is the number of ops that named no node after the pass, so
    that their nodes were derived. `functions` are the functions whose machine code was generated, each with the time in
    milliseconds; several processes may generate them in parallel.

    In a dump of another compiler, `step` is the number of the step in its pipeline. If the dump prints parts of the
    module, `anchor` names the part in the text: `module`, or `@f` for a function. If `again` is set, the text comes
    from a re-run of the step, not from the dump.
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
    language: Language = "mlir"
    deltas: tuple[tuple[str, int], ...] = ()
    origins: tuple[int, int, int] = (0, 0, 0)
    lost: int = 0
    functions: tuple[tuple[str, float], ...] = ()
    anchor: str = ""
    again: bool = False


class OptionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option of a pass; `words` are its valid values if only certain words are valid, else ()."""

    name: str
    default: str
    summary: str = ""
    words: tuple[str, ...] = ()


class PassInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the pass catalogue. `ours` says whether the pass is part of this compiler, not of MLIR.

    `origin` names the plug-in that the pass comes from, if any.
    """

    name: str
    level: str
    summary: str
    anchor: str = "builtin.module"
    options: tuple[OptionInfo, ...] = ()
    ours: bool = False
    origin: str = ""


class BackendInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A backend that a recipe may name: its input (`takes`: the IR at "toplevel" or "llvm"), and the phases it adds.

    `origin` names the plug-in that it comes from, if any.
    """

    name: str
    summary: str
    takes: str
    phases: tuple[str, ...] = ()
    origin: str = ""


class PluginInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An installed plug-in: its package with its version, what it registers, and its error if it does not load."""

    name: str
    contents: tuple[str, ...] = ()
    problem: str = ""


class DialectInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dialect that the bindings have registered, with its number of ops, and the Python module of its op classes."""

    name: str
    ops: int
    module: str = ""


class BindingsInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The MLIR bindings in use: their package, version and folder. `named`: an environment variable selects them.

    `tool` is the path of the `mlir-opt` that is used in addition, "" if none is; `tool_problem` is the reason why the
    requested `mlir-opt` is not used.
    """

    package: str
    version: str
    folder: str
    named: bool = False
    tool: str = ""
    tool_problem: str = ""


class OpInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An ATen target that can be compiled, its op class, and the registries that lower the class.

    The class is "" for a target that a plug-in decomposes. `origin` names the plug-ins that contribute to the target.
    """

    target: str
    op: str
    registries: tuple[str, ...]
    origin: str = ""


class Preset(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named pipeline and its phases, in order: `(name, language)`.

    `device` names the device that the compiled programs need, "" if they run on the CPU.
    """

    name: str
    summary: str
    recipe: Recipe
    phases: tuple[tuple[str, str], ...]
    device: str = ""

    def suits(self, recipe: Recipe) -> bool:
        """Returns whether the preset is for the CPU and can compile the program of `recipe` as it was opened."""
        return not self.device and (self.recipe.frontend in OWN_FRONTENDS) == (recipe.frontend in OWN_FRONTENDS)
