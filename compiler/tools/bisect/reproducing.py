"""Extracts the module before and after a pass, for a file that reproduces the fault with one command."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import msgspec

from buddy.compiler.driver import snapshots
from buddy.compiler.driver.pipeline import Observer, run_mlir_passes
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import lower, new_context
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import run_step
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Message, Reply
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect.trials import RecipeTrials, TrialSubject

NAME = "reduced.mlir"
_MODULE = "buddy.compiler.driver.one_pass"


class GraphBefore(Message, frozen=True):
    text: str


class GraphAfter(Reply, frozen=True):
    text: str
    functions: tuple[str, ...]


class ReproducedGraphs(Reply, frozen=True):
    before: str
    after: str


@dataclass
class Reduced:
    """A reduced module; `after` is "" if the pass does not finish, and `functions` are those that the pass changes."""

    before: str = ""
    after: str = ""
    functions: tuple[str, ...] = ()
    name: str = ""
    command: str = ""


def reproducer(trials: RecipeTrials, subject: TrialSubject, recipe: Recipe, place: int) -> Reduced:
    """Reproduces the fault of step `place`, or of the lowering before all passes, on a subgraph.

    The input of a graph pass is printed as a graph, which no command reads.
    """
    if place >= 0 and recipe.steps[place].level == "graph":
        return _reduce_graph(trials, subject, recipe, place)
    found = _reduce_module(trials, subject, recipe, place)
    found.name = NAME
    found.command = command(recipe, place) if place >= 0 else ""
    return found


def _reduce_graph(trials: RecipeTrials, subject: TrialSubject, recipe: Recipe, place: int) -> Reduced:
    def work(_channel: Channel) -> Reply:
        steps = recipe.steps
        before, after = (
            snapshots.graph_after(subject.part.graph, msgspec.structs.replace(recipe, steps=steps[:end]))
            for end in (place, place + 1)
        )
        return ReproducedGraphs(str(before), str(after))

    reply = trials.run_in_child(work, ReproducedGraphs)
    name = NAME.replace(".mlir", ".graph")
    return Reduced(reply.before, reply.after, name=name) if isinstance(reply, ReproducedGraphs) else Reduced()


def _reduce_module(trials: RecipeTrials, subject: TrialSubject, recipe: Recipe, place: int) -> Reduced:
    """The input and the output of step `place` of `recipe` on `subject`; with `place` -1, the top-level IR."""
    found = Reduced()

    def note(message: Any) -> None:
        if isinstance(message, GraphBefore):
            found.before = message.text

    def work(channel: Channel) -> Reply:
        graph = snapshots.graph_after(subject.part.graph, recipe)
        locations, context = LocationSets(), new_context()
        module = lower(graph, recipe, context, locations, trials.first()).module.operation
        prefix = msgspec.structs.replace(recipe, steps=recipe.steps[: max(place, 0)])
        run_mlir_passes(module, prefix, locations, Observer(), "never")
        before = _functions(module)
        channel.send(GraphBefore(_text(module)))
        if place >= 0:
            run_step(module, recipe.steps[place], PassContext.of(recipe, locations), verify=False)
        after = _functions(module)
        return GraphAfter(_text(module), tuple(name for name, text in after.items() if before.get(name) != text))

    reply = trials.run_in_child(work, GraphBefore | GraphAfter, note, subject=subject)
    if isinstance(reply, GraphAfter):
        found.after, found.functions = reply.text, reply.functions
    return found


def _text(module: Any) -> str:
    return str(module.get_asm(assume_verified=True))


def _functions(module: Any) -> dict[str, str]:
    """The text of each named op of a module."""
    ops = [op.operation for op in module.regions[0].blocks[0]]
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: str(op.get_asm(assume_verified=True))
        for op in ops
        if "sym_name" in op.attributes
    }


def command(recipe: Recipe, place: int) -> str:
    """The command that runs step `place` alone on the file `NAME`."""
    step = recipe.steps[place]
    words = ["python", "-m", _MODULE, NAME, "--pass", step.spelling(), "--anchor", step.anchor]
    words += ["--threads", str(recipe.threads)] if recipe.threads > 1 else []
    for file in recipe.plugins:
        words += ["--plugin", file.path]
    return shlex.join(words)
