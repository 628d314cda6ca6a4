"""Finds what is at fault: the responsible step among the optional steps of a recipe, or the lowerings of nodes in the
smallest subgraph that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from buddy.compiler.graph import partition as partitioning
from buddy.compiler.graph import plugins
from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.graph.serialization import ExtractionError
from buddy.compiler.ops import registries
from buddy.compiler.protocol import Culprit, WrongLowering
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, PassStep, Recipe
from buddy.compiler.runtime.graph_interpreter import compute_results
from buddy.compiler.support.delta_debugging import Verdict, smallest_failing, turning_point
from buddy.compiler.tools.bisect.trials import RecipeOutcome, RecipeTrials, TrialSubject, make_subject
from buddy.compiler.tools.extract import Subgraph, extract_subgraph

# ---- passes ----------------------------------------------------------------------------------------------------------


# The preset of the shortest pipeline to machine code: the steps that a recipe shares with it are required.
_SHORTEST_PRESET = "upstream"

TryRecipe = Callable[[Recipe], RecipeOutcome]
# Returns whether an outcome is good, bad in the same way as the program, or neither.
Judge = Callable[[RecipeOutcome], Verdict]


def enabled_steps(recipe: Recipe) -> list[int]:
    """Returns the indices of the enabled steps."""
    return [index for index, step in enumerate(recipe.steps) if step.enabled]


def optional_steps(recipe: Recipe) -> list[int]:
    """Returns the indices of the enabled steps that are not in the shortest pipeline, in order.

    A recipe compiles without them, to slower code, because other steps replace them.
    """
    shortest = [_step_key(step) for step in presets()[_SHORTEST_PRESET].recipe.steps if step.enabled]
    indices = enabled_steps(recipe)
    required = _common_subsequence([_step_key(recipe.steps[index]) for index in indices], shortest)
    return [index for position, index in enumerate(indices) if position not in required]


def without_steps(recipe: Recipe, indices: Collection[int]) -> Recipe:
    """Returns the recipe with the steps of these indices disabled."""
    for index in indices:
        recipe = recipe.with_step(index, enabled=False)
    return recipe


def find_culprit_steps(
    recipe: Recipe,
    try_recipe: TryRecipe,
    judge: Judge,
    failing_step: int = -1,
    find_likelier_culprit: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Returns the steps without which `recipe`, which is bad, is good; empty if there are no such steps.

    First tries to disable the step `failing_step`, then steps of plug-ins, alone and all steps of a pass together. Then
    searches the optional steps for the one that turns the recipe bad while all later ones are disabled. If the recipe
    is bad without all optional steps, each required step is disabled alone if `find_likelier_culprit` returns false.
    """
    optional, disabled = optional_steps(recipe), list[int]()
    for suspects in _suspects(recipe, failing_step):
        if judge(try_recipe(without_steps(recipe, suspects))) == "good":
            return suspects
    while True:
        reduced = without_steps(recipe, disabled)
        remaining = [index for index in optional if index not in disabled]
        turning_steps = _find_turning_steps(reduced, remaining, try_recipe, judge)
        if not turning_steps:
            if not disabled and find_likelier_culprit():
                return []
            return _find_required_step(reduced, try_recipe, judge, disabled)
        disabled += turning_steps
        verdict = judge(try_recipe(without_steps(recipe, disabled)))
        if verdict == "good":
            return sorted(disabled)
        if verdict == "neither":
            # Later steps require the disabled step, so they are disabled too.
            return sorted({*disabled, *(index for index in remaining if index >= turning_steps[0])})


def steps_of_only_plugin_pass(recipe: Recipe) -> list[int]:
    """Returns the enabled steps of plug-ins if all of them are the same pass, else an empty list."""
    indices = _plugin_steps(recipe)
    return indices if len({recipe.steps[index].name for index in indices}) == 1 else []


def _suspects(recipe: Recipe, failing_step: int) -> list[list[int]]:
    """Returns sets of steps to disable first: the failing step, each step of a plug-in, all steps of such a pass."""
    indices = _plugin_steps(recipe)
    alone = [index for index in enabled_steps(recipe) if index == failing_step or index in indices]
    by_pass: dict[str, list[int]] = {}
    for index in indices:
        by_pass.setdefault(recipe.steps[index].name, []).append(index)
    return [*([index] for index in alone), *(group for group in by_pass.values() if len(group) > 1)]


def _plugin_steps(recipe: Recipe) -> list[int]:
    return [index for index in enabled_steps(recipe) if plugin_of_step(recipe.steps[index])]


def _find_turning_steps(recipe: Recipe, optional: Sequence[int], try_recipe: TryRecipe, judge: Judge) -> list[int]:
    """Returns the optional step that turns the pipeline bad; empty if the pipeline is bad without all of `optional`.

    Returns several steps if the pipeline is neither good nor bad between them.
    """

    def verdict(count: int) -> Verdict:
        return judge(try_recipe(without_steps(recipe, optional[count:])))

    if not optional or verdict(0) != "good":
        return []
    low, high = turning_point(len(optional), verdict)
    return list(optional[low:high])


def _find_required_step(recipe: Recipe, try_recipe: TryRecipe, judge: Judge, disabled: Sequence[int]) -> list[int]:
    """Returns the steps `disabled` and a step of the shortest pipeline without which the recipe is good, or []."""
    indices = enabled_steps(recipe)
    shortest = without_steps(recipe, optional_steps(recipe))
    for index in indices:
        # The shortest pipeline is faster to try, but the full one has to be right.
        if (
            judge(try_recipe(without_steps(shortest, [index]))) == "good"
            and judge(try_recipe(without_steps(recipe, [index]))) == "good"
        ):
            return sorted({*disabled, index})
    return []


def with_default_options(recipe: Recipe, index: int) -> Recipe:
    """Returns the recipe with the options of step `index` at their defaults."""
    return recipe.with_step(index, options=())


def make_culprits(recipe: Recipe, indices: Sequence[int]) -> tuple[Culprit, ...]:
    """Returns the steps with these indices as culprits, each with the plug-in that defines its pass."""
    return tuple(Culprit(index, recipe.steps[index], plugin_of_step(recipe.steps[index])) for index in indices)


def culprit_label(culprit: Culprit) -> str:
    """Returns the name of the pass, and in parentheses its plug-in, if any."""
    return f"{culprit.step.name} ({culprit.origin})" if culprit.origin else culprit.step.name


def plugin_of_step(step: PassStep) -> str:
    """Returns the plug-in, or script, that defines a pass; "" for the package's own and MLIR's passes."""
    kind: plugins.RegistrationKind = "graph pass" if step.level == "graph" else "MLIR pass"
    return plugins.origin((kind, step.name))


def _step_key(step: PassStep) -> tuple[str, str, str]:
    return step.level, step.name, step.anchor


def _common_subsequence(left: Sequence[tuple[str, str, str]], right: Sequence[tuple[str, str, str]]) -> set[int]:
    """Returns the indices in `left` of a longest common subsequence of both."""
    # `lengths[i][j]` is the length of a longest common subsequence of `left[i:]` and `right[j:]`.
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            is_equal = left[i] == right[j]
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if is_equal else max(lengths[i + 1][j], lengths[i][j + 1])
    common, i, j = set(), 0, 0
    while i < len(left) and j < len(right):
        if left[i] == right[j] and lengths[i][j] == lengths[i + 1][j + 1] + 1:
            common.add(i)
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return common


# ---- lowerings -------------------------------------------------------------------------------------------------------


# The maximum number of nodes to try in eager: if a minimal subgraph has more, no single lowering is the cause.
_MAX_NODES_IN_EAGER = 12


def find_wrong_lowerings(
    trials: RecipeTrials,
    whole: TrialSubject,
    small: TrialSubject,
    recipe: Recipe,
    judge: Judge,
    of_plugins: bool = False,
) -> list[WrongLowering]:
    """Returns the wrong lowerings of nodes in `small`: the subgraph is right if one such node alone runs in eager.

    `whole` is the program of which `small` is a failing part. At most `_MAX_NODES_IN_EAGER` nodes are tried; with
    `of_plugins`, only nodes that plug-ins lower.
    """
    wrong: list[WrongLowering] = []
    candidates = [op for op in small.subgraph.graph.operations if not isinstance(op, GetItemOp)]
    if of_plugins:
        registry_of = trials(small, recipe).lowered
        candidates = [op for op in candidates if _plugin_of_lowering(registry_of.get(op.stable, ""), op, recipe)]
    for op in candidates[:_MAX_NODES_IN_EAGER]:
        if any(op.stable in lowering.nodes for lowering in wrong):
            continue
        if judge(trials(small, recipe.with_choice(op.stable, EAGER))) == "good":
            wrong.append(_make_wrong_lowering(trials, whole, small, recipe, op))
    return wrong


def _make_wrong_lowering(
    trials: RecipeTrials, whole: TrialSubject, small: TrialSubject, recipe: Recipe, op: Op
) -> WrongLowering:
    """Returns the wrong lowering of `op`, with all nodes of its class and the registries that lower it correctly."""
    op_class, registry = type(op).__name__, trials(small, recipe).lowered.get(op.stable, "")
    registry = registry or _first_registry(op_class, recipe)
    nodes = [other.stable for other in whole.subgraph.graph.operations if type(other) is type(op)]
    correct = []
    for key in (*registries(recipe.dialect), TORCH_MLIR):
        if key == registry:
            continue
        outcome = trials(small, recipe.with_choice(op.stable, key))
        if outcome.is_right and outcome.lowered.get(op.stable) == key:
            correct.append(key)
    return WrongLowering(op_class, registry, tuple(nodes), _plugin_of_lowering(registry, op, recipe), (*correct, EAGER))


def _plugin_of_lowering(registry: str, op: Op, recipe: Recipe) -> str:
    """Returns the plug-in that defines the lowering of `op` in `registry`, "" for the first that lowers it; or ""."""
    op_class = type(op).__name__
    registry = registry or _first_registry(op_class, recipe)
    return plugins.origin(("lowering", f"{registry}.{op_class}"), ("op class", op_class))


def _first_registry(op_class: str, recipe: Recipe) -> str:
    """Returns the name of the first registry that lowers `op_class`, or ""."""
    return next((name for name, registry in registries(recipe.dialect).items() if op_class in registry), "")


def repair_lowerings(recipe: Recipe, wrong: Sequence[WrongLowering]) -> Recipe:
    """Returns the recipe with the nodes of each wrong lowering lowered by the first correct one."""
    for lowering in wrong:
        for node in lowering.nodes:
            recipe = recipe.with_choice(node, lowering.correct[0])
    return recipe


def describe_wrong_lowering(wrong: WrongLowering) -> str:
    """Returns a sentence that names the lowering at fault, and the right ones."""
    origin = f" ({wrong.origin})" if wrong.origin else ""
    count = len(wrong.nodes)
    # Eager is always right, and the last entry.
    right = f"{', '.join(wrong.correct[:-1])} and eager are" if len(wrong.correct) > 1 else "eager is"
    return f"the lowering of {wrong.op} by {wrong.registry}{origin} is at fault ({count} nodes); {right} right"


# ---- the smallest failing part ---------------------------------------------------------------------------------------


# Returns whether a subgraph fails like the whole program.
FailureTest = Callable[[TrialSubject], bool]


@dataclass(frozen=True)
class NodeUnit:
    """Nodes that are tried together; `occurrences` is the number of equal layers with such nodes in the program."""

    nodes: tuple[Op, ...]
    occurrences: int = 1


def node_units(part: Subgraph, recipe: Recipe) -> list[NodeUnit]:
    """Returns a unit for each function of the partitioned graph, and for each run of nodes between its calls.

    The unit with the largest share of the nodes is first.
    """
    partition = partitioning.outline_layers(part.graph, recipe.node_settings())
    units = [NodeUnit(function.nodes, len(function.sites)) for function in partition.functions]
    for is_call, items in groupby(partition.body, key=lambda item: isinstance(item, partitioning.PartitionCall)):
        if not is_call:
            units.append(NodeUnit(tuple(item for item in items if isinstance(item, Op))))
    return sorted(units, key=lambda unit: -len(unit.nodes) * unit.occurrences)


def extract_subject(whole: TrialSubject, nodes: Sequence[Op]) -> TrialSubject | None:
    """Returns the subgraph of `nodes` with eager's inputs and results; `None` if it cannot be extracted."""
    try:
        part = extract_subgraph(whole.subgraph, nodes)
    except ExtractionError:
        return None
    return make_subject(part, lambda tensors: compute_results(part.graph, tensors))


def smallest_failing_part(whole: TrialSubject, recipe: Recipe, fails: FailureTest) -> TrialSubject:
    """Returns the smallest failing subgraph of a failing function in `whole`, or of `whole` if no function fails."""
    graph = whole.subgraph.graph
    start = next((function for function in function_subjects(whole, recipe) if fails(function)), None) or whole

    def nodes_fail(nodes: Sequence[Op]) -> bool:
        subject = extract_subject(start, nodes)
        return subject is not None and fails(subject)

    nodes = [op for op in start.subgraph.graph.operations if not isinstance(op, GetItemOp)]
    if start is whole and len(nodes) == len(graph.operations) == 1:
        return whole
    failing = smallest_failing(nodes, nodes_fail)
    subject = extract_subject(start, failing) if len(failing) < len(nodes) or start is whole else start
    return subject if subject is not None and fails(subject) else start


def function_subjects(whole: TrialSubject, recipe: Recipe) -> Iterator[TrialSubject]:
    """Yields the units of `whole` as subgraphs with their real inputs, in the order of `node_units`.

    Yields nothing for a graph that is not partitioned.
    """
    for unit in node_units(whole.subgraph, recipe):
        is_smaller = len(unit.nodes) < len(whole.subgraph.graph.operations)
        if is_smaller and (subject := extract_subject(whole, unit.nodes)) is not None:
            yield subject


def layer_groups(part: Subgraph, recipe: Recipe, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the groups that contain the nodes `names`: each has the corresponding nodes of all equal layers."""
    group_of: dict[str, tuple[str, ...]] = {}
    for function in partitioning.outline_layers(part.graph, recipe.node_settings()).functions:
        for position in range(len(function.nodes)):
            group = tuple(function.origins(position))
            group_of.update(dict.fromkeys(group, group))
    return list(dict.fromkeys(group_of.get(name, (name,)) for name in names))


def with_nodes_in_eager(recipe: Recipe, groups: Sequence[Sequence[str]]) -> Recipe:
    """Returns the recipe with the nodes of all groups in eager."""
    for group in groups:
        for name in group:
            recipe = recipe.with_choice(name, EAGER)
    return recipe


def computing_nodes(part: Subgraph) -> list[str]:
    """Returns the stable names of the nodes of a subgraph, except those that only select one of several results."""
    return [op.stable for op in part.graph.operations if not isinstance(op, GetItemOp)]
