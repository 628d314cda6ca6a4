"""The preconditions of actions. Each function returns the reason why an action is disabled, or an empty string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from buddy.compiler.protocol import Assignment, NodeRow, Stage
from buddy.compiler.protocol.recipe import IREE, NATIVE, Backend, PassStep


@dataclass(frozen=True)
class Situation:
    """The state of the workbench that the preconditions of actions read."""

    engine: str = "starting"
    busy: bool = False
    captured: bool = False
    recipe: bool = False
    graphs: int = 0
    can_undo: bool = False
    can_redo: bool = False
    others: bool = False
    node: NodeRow | None = None
    assignment: Assignment | None = None
    step: PassStep | None = None
    stage: Stage | None = None
    catalogue: bool = False
    presets: bool = False
    found: bool = False
    diff: bool = False
    problem: bool = False
    edited: bool = False
    picked: int = 0
    tree: bool = False
    compiling: bool = False
    extract: bool = False
    runs: bool = False
    wrapped: bool = False
    profile: bool = False
    backend: Backend = NATIVE
    report: bool = False


def needs_engine(s: Situation) -> str:
    reasons = {"ready": "", "starting": "the engine is starting"}
    return reasons.get(s.engine, "the engine has exited: press R to restart it")


def needs_recipe(s: Situation) -> str:
    return needs_engine(s) or ("" if s.recipe else "the engine has not sent its presets yet")


def needs_captured(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.captured else "no graph has been captured yet")


def needs_node(s: Situation) -> str:
    if s.node is None:
        return "no node is selected"
    return "" if s.assignment else f"{s.node.name} is a {s.node.opcode}, which has no lowering"


def needs_row(s: Situation) -> str:
    return needs_captured(s) or ("" if s.node else "no node is under the cursor")


def needs_tree(s: Situation) -> str:
    return "" if s.tree else "the table is flat: press g m to show modules"


def needs_toggle_node(s: Situation) -> str:
    if s.picked > 1:
        return needs_captured(s)
    return _needs_assignment(
        s,
        lambda node, found: (
            f"no registry lowers {node.target}, so it runs in eager"
            if found.lowering == "eager" and not found.compiled_choices
            else ""
        ),
    )


def needs_lowering(s: Situation) -> str:
    return _needs_assignment(s, lambda node, found: "" if found.choices else f"{node.target} has no other lowering")


def _needs_assignment(s: Situation, more: Callable[[NodeRow, Assignment], str]) -> str:
    """The reason why no lowered node is selected, else the reason that `more` gives for the selected one."""
    reason = needs_captured(s) or needs_node(s)
    if reason or s.node is None or s.assignment is None:
        return reason
    return more(s.node, s.assignment)


def needs_step(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.step else "this row is a built-in step, which cannot be changed")


def needs_options(s: Situation) -> str:
    return needs_step(s) or ("" if s.catalogue else "the engine has not sent the pass catalogue yet")


def needs_insert(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.catalogue else "the engine has not sent the pass catalogue yet")


def needs_stage(s: Situation) -> str:
    return "" if s.stage else "no IR yet: the recipe has not been compiled"


def needs_engine_stage(s: Situation) -> str:
    return needs_stage(s) or needs_engine(s)


def needs_assembly(s: Situation) -> str:
    if s.stage is None or s.stage.language != "asm":
        return needs_stage(s) or "only assembly, the last phase, has jumps and machine code"
    return "not available in a diff: press d to leave it" if s.diff else ""


def needs_cut(s: Situation) -> str:
    return "long lines are wrapped: press W to truncate them" if s.wrapped else ""


def needs_found(s: Situation) -> str:
    return "" if s.found or s.diff else "no search yet: press / to search"


def needs_diff(s: Situation) -> str:
    return "" if s.diff else "no diff is shown: press d to show one"


def needs_busy(s: Situation) -> str:
    return "" if s.busy else "nothing is running"


def needs_runs(s: Situation) -> str:
    return needs_captured(s) or ("" if s.runs else "no run yet: press r to run the program")


def needs_profile(s: Situation) -> str:
    return needs_captured(s) or ("" if s.profile else "no profile yet: press g c to profile")


def needs_report(s: Situation) -> str:
    return needs_captured(s) or ("" if s.report else "no run of this graph yet: press r to run it")


def needs_other_backend(s: Situation) -> str:
    missing = needs_recipe(s)
    if missing or s.backend == IREE:
        return missing
    name = "this compiler" if s.backend == NATIVE else s.backend
    return f"{name} takes passes, not flags: press g i to choose another backend"


def needs_mlir(s: Situation) -> str:
    if s.backend == IREE:
        return f"{s.backend} compiles the graph: press g i to choose this compiler"
    reason = needs_engine_stage(s)
    if reason or s.stage is None:
        return reason
    if s.stage.language != "mlir" or s.stage.state == "failed":
        return "only MLIR that verifies can be edited"
    return "the recipe is still compiling" if s.busy or s.compiling else ""


def needs_undo(s: Situation) -> str:
    return "" if s.can_undo else "nothing to undo"


def needs_redo(s: Situation) -> str:
    return "" if s.can_redo else "nothing to redo"


def needs_edits(s: Situation) -> str:
    return "" if s.can_undo or s.can_redo or s.others else "nothing has been edited yet"


def needs_graphs(s: Situation) -> str:
    return needs_captured(s) or ("" if s.graphs > 1 else "the program has only one graph")


def needs_presets(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.presets else "the engine has not sent its presets yet")


def needs_edited(s: Situation) -> str:
    return needs_recipe(s) or ("" if s.edited else "the recipe equals the preset")


def needs_problem(s: Situation) -> str:
    return "" if s.problem else "nothing has failed"


def needs_computing(s: Situation) -> str:
    """The reason why neither a picked node nor the node under the cursor computes anything."""
    if s.picked > 1 or s.assignment is not None:
        return needs_captured(s)
    return needs_captured(s) or ("no node is selected" if s.node is None else f"{s.node.name} computes nothing")


def needs_extract(s: Situation) -> str:
    return needs_captured(s) or ("" if s.extract else "the graph on the screen is not an extracted subgraph")
