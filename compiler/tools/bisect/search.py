"""Searches for the passes or lowerings that make a program wrong.

A search runs the unmodified program, finds its smallest failing subgraph, then the responsible pass or lowering in that
subgraph, and runs the whole program again without the culprit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from buddy.compiler.protocol import BisectionResult, Criterion, Culprit, WrongLowering
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect import nodes, reproducing, slowness, steps
from buddy.compiler.tools.bisect.delta import Verdict
from buddy.compiler.tools.bisect.trials import (
    EVERY,
    RecipeOutcome,
    RecipeTrials,
    Tell,
    TrialSubject,
    place,
    subject_of,
    warm_up,
)
from buddy.compiler.tools.extract import Subgraph

# Maximum number of rounds; each finds one fault that another one may hide.
_ROUNDS = 4
# Time limit in seconds for the reduction of a program that never ends.
_PATIENCE = 15.0


def bisect(
    master: Channel, captured: CapturedGraph, recipe: Recipe, criterion: Criterion, tell: Tell | None = None
) -> BisectionResult:
    """Finds what makes `captured` under `recipe` wrong by `criterion`.

    Every trial runs in a separate process, and stops after `criterion.each` seconds; after `criterion.within` seconds
    no trial starts that would only make the answer smaller. Raises `Stopped` when `master` disconnects.
    """
    trials = RecipeTrials(master, criterion, captured.user_lowerings)
    warm_up(trials, recipe.dialect)
    part = Subgraph(captured.graph, captured.tensors, captured.numbers)
    assert captured.eager is not None  # graphs without a reference were rejected before
    search = _Search(trials, subject_of(part, captured.eager), recipe, tell or (lambda _what, _done: None))
    return search.run()


@dataclass
class _Blame:
    """The culprits: steps by index, and lowerings."""

    gone: list[int] = field(default_factory=list)
    wrong: list[WrongLowering] = field(default_factory=list)


@dataclass
class _Search:
    trials: RecipeTrials
    whole: TrialSubject
    recipe: Recipe
    tell: Tell
    first: RecipeOutcome = field(init=False)
    # The culprit, once it is confirmed: shown in the progress of later trials.
    _named: str = ""

    def run(self) -> BisectionResult:
        self._report("the unmodified program", 0.0)
        self.first = self.trials(self.whole, self.recipe)
        if self.trials.criterion.kind == "slower":
            return self._with_totals(
                slowness.find_slowing_step(self.trials, self.whole, self.recipe, self.first, self._report)
            )
        if not self._meets_criterion(self.first):
            return self._with_totals(
                BisectionResult(f"nothing to search for: {self.first.describe(self.recipe)}", self.recipe)
            )
        return self._with_totals(self._find_culprits())

    def _find_culprits(self) -> BisectionResult:
        """The responsible passes, or else the lowerings, one fault after another until the whole program is right."""
        blame = _Blame()
        recipe, outcome = self.recipe, self.first
        seen: TrialSubject | None = None
        for _ in range(_ROUNDS):
            small, found, lowered = self._find_fault(recipe, outcome)
            seen = seen or small
            if not found and not lowered:
                break
            blame.gone += found
            blame.wrong += lowered
            recipe = nodes.repair_lowerings(steps.without_steps(recipe, found), lowered)
            self._report("the whole program without the culprit", 0.7)
            outcome = self.trials(self.whole, recipe)
            if outcome.right or self.trials.time_is_up:
                break
        if outcome.right:
            self._named = f"{self._describe_culprits(steps.culprits(self.recipe, blame.gone), blame.wrong, True)}; "
        small = seen or self._reduce(self.recipe, self.first)
        return self._make_result(small, recipe, outcome, blame)

    def _find_fault(
        self, recipe: Recipe, outcome: RecipeOutcome
    ) -> tuple[TrialSubject | None, list[int], list[WrongLowering]]:
        """Finds one fault: the subgraph that shows it, and the responsible steps or lowerings.

        A pass that fails, crashes or never ends is known, and a pass of a plug-in is likely to be the culprit: if the
        program is right without it, no reduction is needed.
        """
        judge = self._judge(outcome, recipe)
        suspects = [outcome.step] if outcome.step >= 0 else steps.steps_of_plugin(recipe)
        if suspects:
            name = recipe.steps[suspects[0]].name
            why = "the pass that did not finish" if outcome.step >= 0 else "which a plug-in defines"
            self._report(f"without {name}, {why}", 0.1)
            if judge(self.trials(self.whole, steps.without_steps(recipe, suspects))) == "good":
                return None, suspects, []
        small = self._reduce(recipe, outcome)
        return small, *self._find_responsible(small, recipe, judge, outcome)

    def _find_responsible(
        self, small: TrialSubject, recipe: Recipe, judge: steps.Judge, outcome: RecipeOutcome
    ) -> tuple[list[int], list[WrongLowering]]:
        """The responsible steps in `small`; if there are none, the lowerings.

        A lowering of a plug-in is tried before the steps that every pipeline needs.
        """
        lowered: list[WrongLowering] = []

        def excused() -> bool:
            lowered.extend(nodes.wrong_lowerings(self.trials, self.whole, small, recipe, judge, of_plugins=True))
            return bool(lowered)

        def attempt(changed: Recipe) -> RecipeOutcome:
            self._report(
                f"{len(steps.enabled_steps(changed))} of {len(steps.enabled_steps(recipe))} passes on {_size(small)}",
                0.5,
            )
            return self.trials(small, changed)

        found = steps.culprit_steps(recipe, attempt, judge, outcome.step, excused)
        if found or lowered:
            return found, lowered
        self._report("lowerings", 0.6)
        return [], nodes.wrong_lowerings(self.trials, self.whole, small, recipe, judge)

    def _reduce(self, recipe: Recipe, wrong: RecipeOutcome) -> TrialSubject:
        """Finds the smallest subgraph that is `wrong` by itself, within half of the remaining time.

        A program that never ends uses up the time limit of each failing trial, so it gets a smaller share of the time.
        """
        half = (self.trials.criterion.within - self.trials.seconds) / 2
        limit = self.trials.seconds + (min(half, _PATIENCE) if wrong.kind == "hangs" else half)
        judge = self._judge(wrong, recipe)
        # Once a subgraph gets past the failing pass, the rest of the pipeline does not matter.
        until = wrong.step if wrong.step >= 0 else EVERY

        def fails(part: TrialSubject) -> bool:
            if self.trials.seconds > limit and not self.trials.knows(part, recipe, until):
                return False
            self._report(f"{_size(part)} of {len(self.whole.part.graph.operations)}", 0.2)
            return judge(self.trials(part, recipe, until)) == "bad"

        return nodes.smallest_failing_part(self.whole, recipe, fails)

    def _make_result(
        self, small: TrialSubject, recipe: Recipe, outcome: RecipeOutcome, blame: _Blame
    ) -> BisectionResult:
        gone, wrong = sorted(blame.gone), blame.wrong
        blamed = steps.culprits(self.recipe, gone)
        in_eager, by_eager = self._find_eager_nodes(small, wrong)
        place_of_fault = gone[0] if gone else self.first.step
        made = reproducing.reproducer(self.trials, small, self.recipe, place_of_fault)
        right = recipe if outcome.right or not in_eager else by_eager
        return BisectionResult(
            self._describe_culprits(blamed, wrong, outcome.right or bool(in_eager)),
            right,
            self.first.describe(self.recipe),
            blamed,
            tuple(wrong),
            tuple(nodes.computing_nodes(small.part)),
            in_eager,
            outcome.right or bool(in_eager),
            made.functions,
            made.name,
            made.before,
            made.after,
            made.command,
            notes=self._notes(gone, small),
        )

    def _find_eager_nodes(self, small: TrialSubject, wrong: Sequence[WrongLowering]) -> tuple[tuple[str, ...], Recipe]:
        """The smallest set of nodes that must run in eager so that the whole program is right; empty if unknown.

        Identical layers are treated together. If lowerings are responsible, these are their nodes. A fault that moves
        to another node when one is removed has no such set, so the search takes at most half of the time of the earlier
        steps.
        """
        limit = 1.5 * self.trials.seconds
        groups: list[tuple[str, ...]] = []
        recipe, outcome = self.recipe, self.first
        names = [name for found in wrong for name in found.nodes] or nodes.computing_nodes(small.part)
        for _ in range(_ROUNDS):
            found = nodes.equals_of(self.whole.part, self.recipe, names)
            groups += [group for group in found if group not in groups]
            recipe = nodes.in_eager(self.recipe, groups)
            self._report(f"{sum(map(len, groups))} nodes in eager", 0.8)
            outcome = self.trials(self.whole, recipe)
            late = self.trials.time_is_up or self.trials.seconds > limit
            if outcome.right or late or self._judge(self.first, self.recipe)(outcome) != "bad":
                break
            names = nodes.computing_nodes(self._reduce(recipe, outcome).part)
        if not outcome.right:
            return (), self.recipe
        groups = self._minimize_groups(groups)
        return tuple(name for group in groups for name in group), nodes.in_eager(self.recipe, groups)

    def _minimize_groups(self, groups: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Removes groups that are not needed, until the time is up."""
        for group in list(groups):
            rest = [other for other in groups if other is not group]
            if rest and not self.trials.time_is_up and self.trials(self.whole, nodes.in_eager(self.recipe, rest)).right:
                groups = rest
        return groups

    # ---- words and verdicts --------------------------------------------------------------------------------------

    def _meets_criterion(self, outcome: RecipeOutcome) -> bool:
        wanted = {"differs": ("differs",), "fails": ("fails", "crashes", "hangs")}
        return outcome.kind in wanted.get(self.trials.criterion.kind, ("fails", "crashes", "hangs", "differs"))

    def _judge(self, wrong: RecipeOutcome, recipe: Recipe) -> steps.Judge:
        """Judges outcomes: right is good, wrong in the same way at the same pass is bad, other failures are neither."""
        name = _name(wrong.step, recipe)

        def verdict(outcome: RecipeOutcome) -> Verdict:
            if outcome.right:
                return "good"
            same = outcome.kind == wrong.kind and (wrong.kind == "differs" or _name(outcome.step, recipe) == name)
            return "bad" if same else "neither"

        return verdict

    def _describe_culprits(self, blamed: Sequence[Culprit], wrong: Sequence[WrongLowering], right: bool) -> str:
        if blamed:
            # Several steps of one pass are one fault: their indices are reported separately.
            of = (f"{culprit.step.name}{culprit.origin and f' ({culprit.origin})'}" for culprit in blamed)
            names = list(dict.fromkeys(of))
            what = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} at fault"
        elif wrong:
            what = "; ".join(nodes.lowering_text(found) for found in wrong)
        else:
            what = f"no single pass or lowering is responsible {place(self.first.step, self.recipe)}"
        return what if right else f"{what}, and there are other culprits: no trial makes the whole program right"

    def _notes(self, gone: list[int], small: TrialSubject) -> tuple[str, ...]:
        """Additional findings: a responsible pass is right with its default options."""
        found = []
        for number in gone:
            step = self.recipe.steps[number]
            plain = steps.with_default_options(self.recipe, number)
            if step.options and not self.trials.time_is_up and self.trials(small, plain).right:
                found.append(f"{step.name} is right with its options at their defaults, instead of {step.spelling()}")
        if self.trials.time_is_up:
            found.append("the time limit was reached: more time may give a smaller answer")
        return tuple(found)

    def _report(self, what: str, done: float) -> None:
        self.tell(f"trial {self.trials.count + 1}: {self._named}{what}", done)

    def _with_totals(self, finding: BisectionResult) -> BisectionResult:
        return msgspec.structs.replace(finding, trials=self.trials.count, seconds=self.trials.seconds)


def _name(step: int, recipe: Recipe) -> object:
    return recipe.steps[step].name if step >= 0 else step


def _size(part: TrialSubject) -> str:
    count = len(part.part.graph.operations)
    return f"{count} node{'s' * (count != 1)}"
