"""Finds the passes or lowerings that make a program wrong.

A bisection runs the unmodified program, finds its smallest failing subgraph, then the responsible pass or lowering in
that subgraph, and runs the whole program again without the culprit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from buddy.compiler.protocol import BisectionResult, Criterion, Culprit, WrongLowering
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.delta_debugging import Verdict
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect import faults, reproducing, slowness
from buddy.compiler.tools.bisect.trials import (
    UNTIL_END,
    OnProgress,
    RecipeOutcome,
    RecipeTrials,
    TrialSubject,
    make_subject,
    position_text,
    warm_up,
)
from buddy.compiler.tools.extract import Subgraph

# The maximum number of rounds; each finds one fault, which may have hidden another one.
_MAX_ROUNDS = 4
# The time limit in seconds for the reduction of a program that never ends.
_MAX_HANG_REDUCTION_SECONDS = 15.0


def bisect(
    requester: Channel,
    captured: CapturedGraph,
    recipe: Recipe,
    criterion: Criterion,
    on_progress: OnProgress | None = None,
) -> BisectionResult:
    """Finds what makes `captured` under `recipe` wrong by `criterion`.

    Every trial runs in a separate process, which is stopped if one step takes longer than a limit of at most
    `criterion.step_seconds`. After `criterion.seconds`, no trial starts that would only reduce the failing
    subgraph further. Raises `BisectionStopped` when the client stops the bisection or disconnects.
    """
    trials = RecipeTrials(requester, criterion, captured.user_lowerings)
    warm_up(trials, recipe.dialect)
    subgraph = Subgraph(captured.graph, captured.tensors, captured.numbers)
    assert captured.eager is not None  # graphs without a reference were rejected before
    subject = make_subject(subgraph, captured.eager)
    bisection = _Bisection(trials, subject, recipe, on_progress or (lambda _what, _done: None))
    return bisection.run()


@dataclass
class _Culprits:
    """The culprits found so far: steps of the recipe by index, and lowerings."""

    step_indices: list[int] = field(default_factory=list)
    lowerings: list[WrongLowering] = field(default_factory=list)


@dataclass
class _Bisection:
    """One bisection of the program `whole`; `original_outcome` is that of the unmodified program."""

    trials: RecipeTrials
    whole: TrialSubject
    recipe: Recipe
    on_progress: OnProgress
    original_outcome: RecipeOutcome = field(init=False)
    # Names the culprits once they are confirmed, for the progress messages of later trials.
    _confirmed_culprit: str = ""

    def run(self) -> BisectionResult:
        """Runs the unmodified program, and finds the culprits if it meets the criterion."""
        self._report("the unmodified program", 0.0)
        self.original_outcome = self.trials(self.whole, self.recipe)
        if self.trials.criterion.kind == "slower":
            return self._with_totals(
                slowness.find_slowing_step(self.trials, self.whole, self.recipe, self.original_outcome, self._report)
            )
        if not self._meets_criterion(self.original_outcome):
            return self._with_totals(
                BisectionResult(f"nothing to search for: {self.original_outcome.describe(self.recipe)}", self.recipe)
            )
        return self._with_totals(self._find_culprits())

    def _find_culprits(self) -> BisectionResult:
        """Finds one fault after another, until the whole program is right without them."""
        culprits = _Culprits()
        recipe, outcome = self.recipe, self.original_outcome
        first_small: TrialSubject | None = None
        for _ in range(_MAX_ROUNDS):
            small, step_indices, lowerings = self._find_fault(recipe, outcome)
            first_small = first_small or small
            if not step_indices and not lowerings:
                break
            culprits.step_indices += step_indices
            culprits.lowerings += lowerings
            recipe = faults.repair_lowerings(faults.without_steps(recipe, step_indices), lowerings)
            self._report("the whole program without the culprit", 0.7)
            outcome = self.trials(self.whole, recipe)
            if outcome.is_right or self.trials.time_is_up:
                break
        if outcome.is_right:
            confirmed = faults.make_culprits(self.recipe, culprits.step_indices)
            self._confirmed_culprit = f"{self._describe_culprits(confirmed, culprits.lowerings, is_right=True)}; "
        small = first_small or self._reduce(self.recipe, self.original_outcome)
        return self._make_result(small, recipe, outcome, culprits)

    def _find_fault(
        self, recipe: Recipe, outcome: RecipeOutcome
    ) -> tuple[TrialSubject | None, list[int], list[WrongLowering]]:
        """Finds one fault; returns a subgraph that shows it, and the responsible steps or lowerings.

        First tries to disable the pass that failed, crashed or did not end, or else the pass of a plug-in. If the
        program is then right, no subgraph is needed, and `None` is returned for the subgraph.
        """
        judge = self._make_judge(outcome, recipe)
        suspects = [outcome.step] if outcome.step >= 0 else faults.steps_of_only_plugin_pass(recipe)
        if suspects:
            name = recipe.steps[suspects[0]].name
            reason = "the pass that did not finish" if outcome.step >= 0 else "which a plug-in defines"
            self._report(f"without {name}, {reason}", 0.1)
            if judge(self.trials(self.whole, faults.without_steps(recipe, suspects))) == "good":
                return None, suspects, []
        small = self._reduce(recipe, outcome)
        return small, *self._find_responsible(small, recipe, judge, outcome)

    def _find_responsible(
        self, small: TrialSubject, recipe: Recipe, judge: faults.Judge, outcome: RecipeOutcome
    ) -> tuple[list[int], list[WrongLowering]]:
        """Returns the steps responsible for the fault in `small`; if there are none, the responsible lowerings.

        Lowerings of plug-ins are tried before the steps that every pipeline requires.
        """
        plugin_lowerings: list[WrongLowering] = []

        def find_plugin_lowerings() -> bool:
            plugin_lowerings.extend(
                faults.find_wrong_lowerings(self.trials, self.whole, small, recipe, judge, of_plugins=True)
            )
            return bool(plugin_lowerings)

        def try_recipe(changed: Recipe) -> RecipeOutcome:
            enabled, total = len(faults.enabled_steps(changed)), len(faults.enabled_steps(recipe))
            self._report(f"{enabled} of {total} passes on {_size_text(small)}", 0.5)
            return self.trials(small, changed)

        step_indices = faults.find_culprit_steps(recipe, try_recipe, judge, outcome.step, find_plugin_lowerings)
        if step_indices or plugin_lowerings:
            return step_indices, plugin_lowerings
        self._report("lowerings", 0.6)
        return [], faults.find_wrong_lowerings(self.trials, self.whole, small, recipe, judge)

    def _reduce(self, recipe: Recipe, failure: RecipeOutcome) -> TrialSubject:
        """Returns the smallest subgraph that fails like `failure` by itself; takes half of the remaining time.

        If the program never ends, each failing trial takes the whole time limit of a step, so the reduction gets less
        time.
        """
        half = (self.trials.criterion.seconds - self.trials.seconds) / 2
        deadline = self.trials.seconds + (min(half, _MAX_HANG_REDUCTION_SECONDS) if failure.kind == "hangs" else half)
        judge = self._make_judge(failure, recipe)
        # If the failing pass succeeds on a subgraph, the rest of the pipeline need not run.
        until = failure.step if failure.step >= 0 else UNTIL_END

        def fails(part: TrialSubject) -> bool:
            if self.trials.seconds > deadline and not self.trials.has_outcome(part, recipe, until):
                return False
            self._report(f"{_size_text(part)} of {len(self.whole.subgraph.graph.operations)}", 0.2)
            return judge(self.trials(part, recipe, until)) == "bad"

        return faults.smallest_failing_part(self.whole, recipe, fails)

    def _make_result(
        self, small: TrialSubject, recipe: Recipe, outcome: RecipeOutcome, culprits: _Culprits
    ) -> BisectionResult:
        """Returns the result for `culprits`; `recipe` is the one without them, and `outcome` that of the whole program.

        If the program is still wrong, the recipe of the result runs some nodes in eager, if this makes it right.
        """
        step_indices, lowerings = sorted(culprits.step_indices), culprits.lowerings
        culprits_of_steps = faults.make_culprits(self.recipe, step_indices)
        in_eager, recipe_in_eager = self._find_eager_nodes(small, lowerings)
        faulty_index = step_indices[0] if step_indices else self.original_outcome.step
        reproducer = reproducing.make_reproducer(self.trials, small, self.recipe, faulty_index)
        repaired_recipe = recipe if outcome.is_right or not in_eager else recipe_in_eager
        return BisectionResult(
            self._describe_culprits(culprits_of_steps, lowerings, is_right=outcome.is_right or bool(in_eager)),
            repaired_recipe,
            self.original_outcome.describe(self.recipe),
            culprits_of_steps,
            tuple(lowerings),
            tuple(faults.computing_nodes(small.subgraph)),
            in_eager,
            outcome.is_right or bool(in_eager),
            reproducer.functions,
            reproducer.file_name,
            reproducer.before,
            reproducer.after,
            reproducer.command,
            notes=self._notes(step_indices, small),
        )

    def _find_eager_nodes(
        self, small: TrialSubject, lowerings: Sequence[WrongLowering]
    ) -> tuple[tuple[str, ...], Recipe]:
        """Returns a small set of nodes that, run in eager, make the whole program right; and the recipe for them.

        The set is empty if none was found. It contains either all or none of the corresponding nodes of equal layers.
        If lowerings are responsible, the search starts from their nodes. Some faults move to another node whenever a
        node runs in eager, so this search takes at most half of the time that the bisection has taken so far.
        """
        deadline = 1.5 * self.trials.seconds
        groups: list[tuple[str, ...]] = []
        recipe, outcome = self.recipe, self.original_outcome
        names = [name for lowering in lowerings for name in lowering.nodes] or faults.computing_nodes(small.subgraph)
        for _ in range(_MAX_ROUNDS):
            new_groups = faults.layer_groups(self.whole.subgraph, self.recipe, names)
            groups += [group for group in new_groups if group not in groups]
            recipe = faults.with_nodes_in_eager(self.recipe, groups)
            self._report(f"{sum(map(len, groups))} nodes in eager", 0.8)
            outcome = self.trials(self.whole, recipe)
            is_late = self.trials.time_is_up or self.trials.seconds > deadline
            judge = self._make_judge(self.original_outcome, self.recipe)
            if outcome.is_right or is_late or judge(outcome) != "bad":
                break
            names = faults.computing_nodes(self._reduce(recipe, outcome).subgraph)
        if not outcome.is_right:
            return (), self.recipe
        groups = self._minimize_groups(groups)
        return tuple(name for group in groups for name in group), faults.with_nodes_in_eager(self.recipe, groups)

    def _minimize_groups(self, groups: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Returns the groups without those that need not run in eager, as far as the time allows."""
        for group in list(groups):
            others = [other for other in groups if other is not group]
            if not others or self.trials.time_is_up:
                break
            if self.trials(self.whole, faults.with_nodes_in_eager(self.recipe, others)).is_right:
                groups = others
        return groups

    # ---- verdicts and texts --------------------------------------------------------------------------------------

    def _meets_criterion(self, outcome: RecipeOutcome) -> bool:
        """Returns whether an outcome is a failure that the criterion asks for: by default, any."""
        kinds = {"differs": ("differs",), "fails": ("fails", "crashes", "hangs")}
        return outcome.kind in kinds.get(self.trials.criterion.kind, ("fails", "crashes", "hangs", "differs"))

    def _make_judge(self, failure: RecipeOutcome, recipe: Recipe) -> faults.Judge:
        """Returns a function that judges outcomes: right is good, a failure like `failure` bad, any other neither.

        Failures are alike if they are of the same kind and occur in the same pass; for differences, the kind suffices.
        """
        name = _pass_name(failure.step, recipe)

        def verdict(outcome: RecipeOutcome) -> Verdict:
            if outcome.is_right:
                return "good"
            same_pass = failure.kind == "differs" or _pass_name(outcome.step, recipe) == name
            return "bad" if outcome.kind == failure.kind and same_pass else "neither"

        return verdict

    def _describe_culprits(
        self, culprits: Sequence[Culprit], lowerings: Sequence[WrongLowering], *, is_right: bool
    ) -> str:
        """Returns a sentence that names the culprits; `is_right` is true if the program is right without them."""
        if culprits:
            # A pass that is the culprit at several steps is named once; `BisectionResult.steps` has all of them.
            names = list(dict.fromkeys(faults.culprit_label(culprit) for culprit in culprits))
            what = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} at fault"
        elif lowerings:
            what = "; ".join(faults.describe_wrong_lowering(lowering) for lowering in lowerings)
        else:
            original = self.original_outcome
            position = f"failure {position_text(original.step, self.recipe)}"
            failure = "difference from eager" if original.kind == "differs" else position
            what = f"no single pass or lowering is responsible for the {failure}"
            return what if is_right else f"{what}: no trial makes the whole program right"
        return what if is_right else f"{what}, and there are other culprits: no trial makes the whole program right"

    def _notes(self, step_indices: list[int], small: TrialSubject) -> tuple[str, ...]:
        """Returns notes on responsible passes that are right with their default options, and on the time limit."""
        notes = []
        for index in step_indices:
            step = self.recipe.steps[index]
            with_defaults = faults.with_default_options(self.recipe, index)
            if step.options and not self.trials.time_is_up and self.trials(small, with_defaults).is_right:
                notes.append(f"{step.name} is right with its options at their defaults, instead of {step.spelling()}")
        if self.trials.time_is_up:
            notes.append("the time limit was reached: more time may give a smaller failing subgraph")
        return tuple(notes)

    def _report(self, what: str, fraction: float) -> None:
        self.on_progress(f"trial {self.trials.count + 1}: {self._confirmed_culprit}{what}", fraction)

    def _with_totals(self, result: BisectionResult) -> BisectionResult:
        return msgspec.structs.replace(result, trials=self.trials.count, seconds=self.trials.seconds)


def _pass_name(step: int, recipe: Recipe) -> object:
    """Returns the name of the pass of a step, or `step` itself if it stands for another part of a trial."""
    return recipe.steps[step].name if step >= 0 else step


def _size_text(subject: TrialSubject) -> str:
    count = len(subject.subgraph.graph.operations)
    return f"{count} node{'s' * (count != 1)}"
