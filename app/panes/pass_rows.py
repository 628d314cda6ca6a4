"""Computes the rows of the passes pane, and where a new pass is inserted in a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby

from buddy.app.session.stages import PassRow, StageKey, StageRow
from buddy.compiler.protocol import PHASES_OF_COMPILERS, PassInfo, Stage
from buddy.compiler.protocol.recipe import NATIVE, PassStep, Recipe

# The smallest number of consecutive disabled passes that are folded to one row.
MIN_FOLDED_PASSES = 2


def pass_rows(recipe: Recipe, stages: list[StageRow]) -> list[PassRow]:
    """Returns the rows of the built-in steps and of the recipe's passes, in the order in which they run.

    The row of an enabled pass has its stage: the current one or, until the pass runs again, the outdated one. The
    recipe of a dump, which another compiler printed, has a row for each stage. `stages` are in the order of the board.
    """
    if recipe.is_dump:
        return [PassRow(row.stage.name, row.stage.step, _dump_step(row.stage), row) for row in stages]
    # Outdated stages come after current ones. In reverse order, a current stage replaces the outdated one in the dict.
    by_step = {(row.stage.step, row.stage.name): row for row in reversed(stages) if row.stage.step >= 0}
    built_in = {row.stage.name: row for row in reversed(stages) if row.stage.step < 0}

    def built_in_rows(*names: str) -> list[PassRow]:
        return [PassRow(name, -1, None, built_in.get(name)) for name in names]

    def step_rows(*, of_graph: bool) -> list[PassRow]:
        return [
            PassRow(step.name, index, step, by_step.get((index, step.name)) if step.enabled else None)
            for index, step in enumerate(recipe.steps)
            if (step.level == "graph") == of_graph
        ]

    rows = [*built_in_rows("fx", "graph"), *step_rows(of_graph=True), *built_in_rows("lower")]
    if not recipe.runs_passes:
        phases = PHASES_OF_COMPILERS[recipe.backend]
        # A compiler whose first phase is not MLIR takes the captured graph, so no step of this compiler runs.
        _, first_language = phases[0]
        earlier_rows = rows if first_language == "mlir" else built_in_rows("fx")
        return [*earlier_rows, *built_in_rows(*(name for name, _ in phases))]
    code_steps: tuple[str, ...] = ("translate", "codegen")
    if recipe.backend != NATIVE:
        # Only a compilation shows which code a plug-in's backend has, such as assembly. `built_in` is in reverse order.
        names = [name for name in reversed(built_in) if built_in[name].stage.language not in ("fx", "buddy", "mlir")]
        code_steps = tuple(names) or code_steps
    return [*rows, *step_rows(of_graph=False), *built_in_rows(*code_steps)]


def _dump_step(stage: Stage) -> PassStep | None:
    """Returns the pass that made a stage of a dump; `None` if the dump does not name the pass, which cannot rerun."""
    if stage.step < 0:
        return None
    return PassStep(stage.name, anchor=stage.anchor, enabled=stage.state != "skipped")


def fold_rows(
    rows: list[PassRow], preset: Recipe | None, is_dump: bool = False, shown_passes: Collection[StageKey] = ()
) -> list[PassRow]:
    """Returns the rows, with consecutive passes that are disabled in both the recipe and `preset` folded to one row.

    A pass that only the user has disabled keeps its row. In a dump, consecutive passes that changed nothing are folded.
    If the key of a pass (see `row_keys`) is in `shown_passes`, neither the pass nor its neighbours are folded.
    """
    steps = preset.steps if preset else ()
    enabled_in_preset = {step.name for step in steps if step.enabled}
    disabled_in_preset = {step.name for step in steps if not step.enabled} - enabled_in_preset
    result: list[PassRow] = []

    def is_foldable(row: PassRow) -> bool:
        step = row.step
        if is_dump:
            return row.stage is not None and not row.stage.stage.changed and row.stage.stage.state == "done"
        return step is not None and not step.enabled and step.name in disabled_in_preset

    keys = row_keys(rows) if shown_passes else []
    first = 0  # the index of the first row of the group
    for foldable, group in groupby(rows, is_foldable):
        group_rows = list(group)
        is_shown = any(key in shown_passes for key in keys[first : first + len(group_rows)])
        first += len(group_rows)
        if foldable and len(group_rows) >= MIN_FOLDED_PASSES and not is_shown:
            names = tuple(row.name for row in group_rows)
            state = "changed nothing" if is_dump else "off"
            result.append(PassRow(f"{len(names)} passes {state}", -1, None, None, names))
        else:
            result += group_rows
    return result


def row_keys(rows: Sequence[PassRow]) -> list[StageKey]:
    """Returns a key for each row: its name, and the number of earlier rows with that name.

    The key of the row's stage may differ: disabled passes have rows, but no stages.
    """
    counts: Counter[str] = Counter()
    keys = []
    for row in rows:
        keys.append((row.name, counts[row.name]))
        counts[row.name] += 1
    return keys


def insertion_index(steps: list[PassStep], after: int, level: str) -> int:
    """Returns the index at which to insert a pass of `level`: after step `after` (-1: at the start).

    Graph passes stay before all others.
    """
    n_graph_passes = sum(step.level == "graph" for step in steps)
    return min(after + 1, n_graph_passes) if level == "graph" else max(after + 1, n_graph_passes)


def new_step(info: PassInfo, steps: list[PassStep], index: int) -> PassStep:
    """Returns a step for the pass `info` of the catalogue, to be inserted into `steps` at `index`.

    The step has the phase of the nearest earlier step with a phase, or else of the nearest later one. Graph passes and
    other passes do not share phases.
    """
    level = info.level if info.level in ("graph", "mlir", "llvm") else "mlir"

    def has_phase(step: PassStep) -> bool:
        return bool(step.phase) and (step.level == "graph") == (level == "graph")

    neighbours = filter(has_phase, [*reversed(steps[:index]), *steps[index:]])
    phase = next((step.phase for step in neighbours), "")
    anchor = "" if level == "graph" else info.anchor
    return PassStep(info.name, level, anchor, phase=phase)  # type: ignore[arg-type]
