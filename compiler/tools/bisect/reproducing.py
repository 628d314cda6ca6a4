"""Makes a reproducer of a failing pass: the IR before and after it, and the command that runs the pass on a file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import msgspec

from buddy.compiler.driver import snapshots
from buddy.compiler.driver.pipeline import Observer, run_mlir_passes
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import lower, new_context
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import run_pass
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Message, Reply
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect.trials import RecipeTrials, TrialSubject

REDUCED_FILE = "reduced.mlir"
_ONE_PASS_MODULE = "buddy.compiler.driver.one_pass"


class ModuleBefore(Message, frozen=True):
    """The module before the pass, as text; it is sent before the pass runs, which may crash."""

    text: str


class ModuleAfter(Reply, frozen=True):
    """The module after the pass, as text, and the functions that the pass has changed."""

    text: str
    functions: tuple[str, ...]


class GraphTexts(Reply, frozen=True):
    """The graph before and after a graph pass, as texts."""

    before: str
    after: str


@dataclass
class Reproducer:
    """The texts before and after a pass; `after` is "" if the pass does not finish.

    `functions` are the names of the functions that the pass changes. `file_name` is the name of a file with the text
    `before`, and `command` runs the pass on this file.
    """

    before: str = ""
    after: str = ""
    functions: tuple[str, ...] = ()
    file_name: str = ""
    command: str = ""


def make_reproducer(trials: RecipeTrials, subject: TrialSubject, recipe: Recipe, index: int) -> Reproducer:
    """Returns the reproducer for step number `index` on a subgraph; a negative `index` stands for the lowering.

    The input of a graph pass is a printed graph, for which there is no command.
    """
    if index >= 0 and recipe.steps[index].level == "graph":
        return _reproduce_graph_pass(trials, subject, recipe, index)
    result = _reproduce_mlir_pass(trials, subject, recipe, index)
    result.file_name = REDUCED_FILE
    result.command = one_pass_command(recipe, index) if index >= 0 else ""
    return result


def _reproduce_graph_pass(trials: RecipeTrials, subject: TrialSubject, recipe: Recipe, index: int) -> Reproducer:
    def work(_channel: Channel) -> Reply:
        steps = recipe.steps
        before, after = (
            snapshots.graph_after(subject.subgraph.graph, msgspec.structs.replace(recipe, steps=steps[:end]))
            for end in (index, index + 1)
        )
        return GraphTexts(str(before), str(after))

    reply = trials.run_in_child(work, GraphTexts)
    name = REDUCED_FILE.replace(".mlir", ".graph")
    return Reproducer(reply.before, reply.after, file_name=name) if isinstance(reply, GraphTexts) else Reproducer()


def _reproduce_mlir_pass(trials: RecipeTrials, subject: TrialSubject, recipe: Recipe, index: int) -> Reproducer:
    """Returns the input and output of step number `index` on `subject`; for a negative `index`, the top-level IR."""
    result = Reproducer()

    def store_text_before(message: Message) -> None:
        if isinstance(message, ModuleBefore):
            result.before = message.text

    def work(channel: Channel) -> Reply:
        graph = snapshots.graph_after(subject.subgraph.graph, recipe)
        locations, context = LocationSets(), new_context()
        module = lower(graph, recipe, context, locations, trials.overrides()).module.operation
        prefix = msgspec.structs.replace(recipe, steps=recipe.steps[: max(index, 0)])
        run_mlir_passes(module, prefix, locations, Observer(), "never")
        before = _symbol_texts(module)
        channel.send(ModuleBefore(_module_text(module)))
        if index >= 0:
            run_pass(module, recipe.steps[index], PassContext.of(recipe, locations), verify=False)
        after = _symbol_texts(module)
        changed_functions = tuple(name for name, text in after.items() if before.get(name) != text)
        return ModuleAfter(_module_text(module), changed_functions)

    reply = trials.run_in_child(work, ModuleBefore | ModuleAfter, store_text_before, subject=subject)
    if isinstance(reply, ModuleAfter):
        result.after, result.functions = reply.text, reply.functions
    return result


def _module_text(module: ir.Operation) -> str:
    return str(module.get_asm(assume_verified=True))


def _symbol_texts(module: ir.Operation) -> dict[str, str]:
    """Returns the texts of the functions and other symbols of a module, by name."""
    ops = [op.operation for op in module.regions[0].blocks[0]]
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: str(op.get_asm(assume_verified=True))
        for op in ops
        if "sym_name" in op.attributes
    }


def one_pass_command(recipe: Recipe, index: int) -> str:
    """Returns the command that runs step number `index` alone on the file `REDUCED_FILE`."""
    step = recipe.steps[index]
    words = ["python", "-m", _ONE_PASS_MODULE, REDUCED_FILE, "--pass", step.spelling(), "--anchor", step.anchor]
    words += ["--threads", str(recipe.threads)] if recipe.threads > 1 else []
    for file in recipe.plugins:
        words += ["--plugin", file.path]
    return shlex.join(words)
