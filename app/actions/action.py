"""Defines `Action`, a command with its keys; the panes; the keys of the user's settings; and preconditions of actions.

A precondition is a function of a `Situation`, the state of the workbench. It returns the reason why an action is
disabled, or an empty string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from buddy.app.actions.synonyms import SYNONYMS
from buddy.compiler.protocol import Assignment, NodeRow, Stage
from buddy.compiler.protocol.recipe import INDUCTOR, NATIVE, OTHER_COMPILERS, Backend, PassStep

# Where an action works: in one pane, in the pane that has focus whichever it is ("any"), or in the whole workbench
# ("app").
Pane = Literal["app", "any", "graph", "passes", "ir", "source", "plugin", "outputs"]
PANES: tuple[Pane, ...] = ("graph", "passes", "ir", "source", "plugin", "outputs")
PANE_TITLES: dict[Pane, str] = {
    "graph": "Graph", "passes": "Passes", "ir": "IR", "source": "Source", "plugin": "Plug-in",
    "outputs": "Outputs",
}  # fmt: skip

# Returns the reason why an action is disabled in a situation; empty if it is enabled.
Precondition = Callable[["Situation"], str]

# All actions by id. `buddy.app.actions` fills it, because the modules that define actions import this one.
BY_ID: dict[str, Action] = {}
# The keys that the user's settings assign, by action id.
_user_keys: dict[str, tuple[str, ...]] = {}


def replace_keys(keys: Mapping[str, tuple[str, ...]]) -> None:
    """Assigns `keys` to the actions with these ids, and restores the default keys of all others."""
    _user_keys.clear()
    _user_keys.update(keys)


@dataclass(frozen=True)
class Action:
    """A command of the workbench.

    `blocked` returns the reason why the action is disabled, or an empty string. `handler` is `TARGET.METHOD`; the
    target is the id of a pane, `pane` for the pane that has focus, or a name in `Workbench.targets`. With `footer`, the
    key line lists the action under this name. With `anywhere`, the keys work in all panes. `instead` maps a pane to the
    id of another action, which is performed while that pane has focus and this action is disabled.
    """

    id: str
    default_keys: tuple[str, ...]
    title: str
    tooltip: str
    handler: str
    pane: Pane = "app"
    blocked: Precondition = lambda situation: ""
    footer: str = ""
    anywhere: bool = False
    instead: Mapping[Pane, str] = field(default_factory=dict, compare=False)

    @property
    def synonyms(self) -> tuple[str, ...]:
        """More words by which the palette finds the action."""
        return tuple(SYNONYMS.get(self.id, "").split())

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in use: those of the user's settings, or the default keys."""
        return _user_keys.get(self.id, self.default_keys)

    @property
    def target(self) -> str:
        """The name of the object whose method performs the action."""
        return self.handler.partition(".")[0]

    @property
    def method(self) -> str:
        """The name of the method that performs the action."""
        return self.handler.partition(".")[2]

    def works_in(self, pane: str) -> bool:
        """Whether the keys of the action work while `pane` has focus."""
        return self.pane in (pane, "any", "app") or self.anywhere

    @property
    def is_remapped(self) -> bool:
        """Whether the user's settings assign the keys, perhaps none."""
        return self.id in _user_keys

    @property
    def key(self) -> str:
        """The first key in use, or an empty string."""
        return self.keys[0] if self.keys else ""


def key_of(action_id: str) -> str:
    """The first key in use of an action, for a message; without a key, the title that the palette lists."""
    action = BY_ID[action_id]
    return action.key or f"{action.title!r} in the palette"


# ---- preconditions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """The state of the workbench that the preconditions of actions read.

    `engine` is "starting", "ready" or "lost". `busy` says that a job runs which the user can cancel, and `is_compiling`
    that the current recipe has not been compiled yet.

    `node` and its `assignment` are under the cursor of the graph pane. `step` is the pass under the cursor of the
    passes pane, and `is_folded` says that the row there stands for several passes. `stage` is the stage in the IR pane.
    `n_picked` counts the picked nodes, or those of the row under the cursor if none is picked. `is_tree` says that the
    graph pane shows a tree of modules.

    `is_edited` says that the recipe differs from its preset, and `has_edits_of_others` that another workbench with the
    same program has edited the recipe. `is_extract` says that the graph consists of nodes extracted from another graph,
    and `is_dump` that the program is a dump of another compiler. `has_problem` says that something has failed, with a
    diagnostic.
    """

    engine: str = "starting"
    busy: bool = False
    captured: bool = False
    has_recipe: bool = False
    n_graphs: int = 0
    can_undo: bool = False
    can_redo: bool = False
    has_edits_of_others: bool = False
    node: NodeRow | None = None
    assignment: Assignment | None = None
    step: PassStep | None = None
    is_folded: bool = False
    stage: Stage | None = None
    has_catalogue: bool = False
    has_presets: bool = False
    has_search: bool = False
    shows_diff: bool = False
    has_problem: bool = False
    is_edited: bool = False
    n_picked: int = 0
    is_tree: bool = False
    is_compiling: bool = False
    is_extract: bool = False
    has_runs: bool = False
    is_wrapped: bool = False
    has_profile: bool = False
    backend: Backend = NATIVE
    has_report: bool = False
    is_dump: bool = False


# Actions that need a pipeline, lowered nodes or runnable code, none of which a dump of another compiler has.
PIPELINE_ACTIONS = frozenset({
    "graph.numerics", "graph.toggle", "graph.lowering", "graph.extract", "graph.script", "graph.code", "graph.why",
    "graph.beside", "passes.options", "passes.insert", "passes.duplicate", "passes.anchor",
    "passes.pipeline", "passes.try", "passes.delete", "passes.down", "passes.up", "passes.dialect", "passes.preset",
    "passes.tune", "outputs.numerics", "ir.edit", "ir.edit-here", "ir.generic", "compare-recipes", "compare-presets",
    "runs", "inputs", "reproducer", "frontend", "backend", "backend.flags", "export", "target", "profile",
    "profile.modules", "profile.roofline", "profile.hot", "run", "run-all", "save", "threads", "auto", "fallbacks",
    "plots", "tour",
})  # fmt: skip


def needs_pipeline(s: Situation) -> str:
    return "a dump of another compiler has stages to read and compare, but no pipeline" if s.is_dump else ""


def needs_engine(s: Situation) -> str:
    reasons = {"ready": "", "starting": "the engine is starting"}
    return reasons.get(s.engine, f"the engine has exited: press {key_of('rerun')} to restart it")


def needs_recipe(s: Situation) -> str:
    return needs_engine(s) or ("" if s.has_recipe else "the engine has not sent its presets yet")


def needs_captured(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.captured else "no graph has been captured yet")


def needs_lowered_node(s: Situation) -> str:
    """Needs a node with an assignment; parameters, constants and outputs have none."""
    if s.node is None:
        return "no node is selected"
    return "" if s.assignment else f"{s.node.name} is a {s.node.opcode}, which has no lowering"


def needs_node(s: Situation) -> str:
    return needs_captured(s) or ("" if s.node else "no node is under the cursor")


def needs_tree(s: Situation) -> str:
    return "" if s.is_tree else f"the table is flat: press {key_of('graph.tree')} to show modules"


def _needs_our_lowerings(s: Situation) -> str:
    if s.backend == INDUCTOR:
        return f"Inductor lowers the graph itself: press {key_of('backend')} to choose another backend"
    return ""


def needs_switchable_node(s: Situation) -> str:
    """Needs several picked nodes, or one that a registry can lower, so that it can be switched to eager and back."""
    if s.n_picked > 1:
        return needs_captured(s) or _needs_our_lowerings(s)
    reason = needs_captured(s) or needs_lowered_node(s) or _needs_our_lowerings(s)
    if reason or s.node is None or s.assignment is None:  # an empty reason implies that both are set
        return reason
    only_eager = s.assignment.lowering == "eager" and not s.assignment.compiled_choices
    return f"no registry lowers {s.node.target}, so it runs in eager mode" if only_eager else ""


def needs_lowering(s: Situation) -> str:
    reason = needs_captured(s) or needs_lowered_node(s) or _needs_our_lowerings(s)
    if reason or s.node is None or s.assignment is None:  # an empty reason implies that both are set
        return reason
    return "" if s.assignment.choices else f"{s.node.target} has no other lowering"


def needs_step(s: Situation) -> str:
    if s.is_folded:
        return f"this row stands for several passes: press {key_of('passes.toggle')} to show them"
    if s.is_dump and s.step is None:
        return "the dump does not name this stage's pass with its argument, so it cannot be run again"
    return needs_recipe(s) or ("" if s.step else "this row is a built-in step, which cannot be changed")


def needs_folded(s: Situation) -> str:
    return "" if s.is_folded else "this row is a pass of its own"


def needs_options(s: Situation) -> str:
    return needs_step(s) or ("" if s.has_catalogue else "the engine has not sent the pass catalogue yet")


def needs_catalogue(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.has_catalogue else "the engine has not sent the pass catalogue yet")


def needs_stage(s: Situation) -> str:
    return "" if s.stage else "no IR yet: the recipe has not been compiled"


def needs_engine_stage(s: Situation) -> str:
    return needs_stage(s) or needs_engine(s)


def needs_assembly(s: Situation) -> str:
    if s.stage is None or s.stage.language != "asm":
        return needs_stage(s) or "only assembly, the last phase, has jumps and machine code"
    return f"not available in a diff: press {key_of('ir.diff')} to leave the diff" if s.shows_diff else ""


def needs_truncated_lines(s: Situation) -> str:
    return f"long lines are wrapped: press {key_of('ir.wrap')} to truncate them" if s.is_wrapped else ""


def needs_search(s: Situation) -> str:
    return "" if s.has_search else f"no search yet: press {key_of('search')} to search"


def needs_diff(s: Situation) -> str:
    return "" if s.shows_diff else f"no diff is shown: press {key_of('ir.diff')} to show one"


def needs_running_job(s: Situation) -> str:
    return "" if s.busy else "nothing is running"


def needs_runs(s: Situation) -> str:
    return needs_captured(s) or ("" if s.has_runs else f"no run yet: press {key_of('run')} to run the program")


def needs_profile(s: Situation) -> str:
    return needs_captured(s) or (
        "" if s.has_profile else f"no profile yet: press {key_of('profile')} to profile the program"
    )


def needs_report(s: Situation) -> str:
    return needs_captured(s) or ("" if s.has_report else f"no run of this graph yet: press {key_of('run')} to run it")


def needs_native_backend(s: Situation) -> str:
    reason = needs_recipe(s)
    if reason or s.backend == NATIVE:
        return reason
    return f"{s.backend} compiles the graph: press {key_of('backend')} to choose this compiler"


def needs_other_compiler(s: Situation) -> str:
    reason = needs_recipe(s)
    if reason or s.backend in OTHER_COMPILERS:
        return reason
    name = "this compiler" if s.backend == NATIVE else s.backend
    others = " or ".join(OTHER_COMPILERS)
    return f"{name} has passes, not flags: press {key_of('backend')} to choose the backend {others}"


def needs_editable_mlir(s: Situation) -> str:
    if s.backend in OTHER_COMPILERS:
        return f"{s.backend} compiles the graph: press {key_of('backend')} to choose this compiler"
    reason = needs_engine_stage(s)
    if reason or s.stage is None:
        return reason
    if s.stage.language != "mlir" or s.stage.state == "failed":
        return "only MLIR that verifies can be edited"
    return "the recipe is still compiling" if s.busy or s.is_compiling else ""


def needs_undo(s: Situation) -> str:
    return "" if s.can_undo else "nothing to undo"


def needs_redo(s: Situation) -> str:
    return "" if s.can_redo else "nothing to redo"


def needs_edit_history(s: Situation) -> str:
    return "" if s.can_undo or s.can_redo or s.has_edits_of_others else "nothing has been edited yet"


def needs_graphs(s: Situation) -> str:
    return needs_captured(s) or ("" if s.n_graphs > 1 else "the program has only one graph")


def needs_presets(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.has_presets else "the engine has not sent its presets yet")


def needs_changed_recipe(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.is_edited else "the recipe equals the preset")


def needs_diagnostic(s: Situation) -> str:
    return "" if s.has_problem else "nothing has failed"


def needs_call_node(s: Situation) -> str:
    """Needs several picked nodes, or a `call_*` node under the cursor."""
    reason = needs_captured(s)
    if reason or s.n_picked > 1 or s.assignment is not None:
        return reason
    return "no node is selected" if s.node is None else f"{s.node.name} is a {s.node.opcode}, which computes nothing"


def needs_extract(s: Situation) -> str:
    return needs_captured(s) or ("" if s.is_extract else "the graph on the screen is not an extracted subgraph")
