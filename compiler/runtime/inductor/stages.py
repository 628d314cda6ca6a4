"""Compiles a captured graph by Inductor for the engine: sends stages with provenance, and makes the reply."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.plain_values import Assignment
from buddy.compiler.protocol.programs import NOT_APPLIED
from buddy.compiler.protocol.recipe import F32, INDUCTOR, Recipe
from buddy.compiler.protocol.text.lines import Origins, StageText
from buddy.compiler.protocol.worker_messages import Activity, Assignments, CompileDone, FailureReply, Reply
from buddy.compiler.runtime.graph_interpreter import symbol_values
from buddy.compiler.runtime.inductor.compiling import InductorStage, compile_program
from buddy.compiler.runtime.inductor.program import InductorError, fx_program
from buddy.compiler.runtime.inductor.provenance import Line, NodeNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from buddy.compiler.runtime.captured import CapturedGraph
    from buddy.compiler.support.processes.channel import Channel


def compile_captured(channel: Channel, captured: CapturedGraph, recipe: Recipe, sender: Any) -> Reply:
    """Compiles a captured graph by Inductor; sends each finished stage, and returns the reply with the artifact.

    `sender` sends stages to the engine.
    """
    started = time.perf_counter()
    stages: list[Stage] = []
    assignments = tuple(Assignment(op.stable, INDUCTOR) for op in captured.graph.operations)

    def report_stage(finished: InductorStage) -> None:
        text = text_of(finished.lines)
        stage = Stage(
            len(stages), finished.name, finished.name, "", 0, milliseconds=1e3 * finished.seconds, ops=finished.items,
            language=finished.language, origins=text.origins,
        )  # fmt: skip
        stages.append(stage)
        sender.send_stage(stage, text)

    channel.send(Assignments(assignments))
    try:
        problem = _unsupported(captured)
        if problem is not None:
            return FailureReply(problem)
        program = fx_program(captured.graph, symbol_values(captured.graph, captured.tensors, captured.numbers))
        artifact = compile_program(
            program, captured.tensors, recipe.backend_flags, recipe.threads, report_stage,
            lambda what, done: channel.send(Activity(what, done)),
        )  # fmt: skip
    except InductorError as error:
        return FailureReply(msgspec.structs.replace(error.diagnostic, node=error.node, detail=error.detail))
    seconds = time.perf_counter() - started
    data = msgspec.msgpack.encode(artifact)
    return CompileDone(sender.stages(tuple(stages)), data, assignments, _remarks(recipe), seconds, 0)


def text_of(lines: Sequence[Line]) -> StageText:
    """Returns the text of lines with their nodes, which are numbered sets.

    The nodes of a set are either all direct or all derived, so the same names may be two sets. Set 0 has no nodes.
    """
    set_numbers: dict[tuple[NodeNames, bool], int] = {((), False): 0}
    line_sets = []
    for line in lines:
        key = (line.names, line.is_derived and bool(line.names))
        line_sets.append(set_numbers.setdefault(key, len(set_numbers)))
    derived = {number: names for (names, is_derived), number in set_numbers.items() if is_derived}
    has_machine_code = any(line.machine_code for line in lines)
    # Counted in bytes of machine code, or in lines that are not empty.
    amounts = Counter[str]()
    for line in lines:
        kind = "unmapped" if not line.names else "derived" if line.is_derived else "direct"
        amounts[kind] += len(line.machine_code) if has_machine_code else bool(line.text.strip())
    origins = Origins(amounts["direct"], amounts["derived"], amounts["unmapped"])
    machine = tuple(line.machine_code for line in lines) if has_machine_code else ()
    content = "\n".join(line.text for line in lines) + "\n"
    return StageText(content, tuple(line_sets), tuple(names for names, _ in set_numbers), derived, origins, machine)


def _unsupported(captured: CapturedGraph) -> Diagnostic | None:
    """Returns the reason why Inductor cannot take a graph at all, or `None`."""
    if captured.graph.imported_ir is not None and not captured.graph.imported_ir.frontend:
        what = f"{captured.info.name} starts as IR: Inductor compiles graphs of PyTorch ops"
        return Diagnostic(what, "the recipe's backend", "open the model that the IR was made from, if you have it")
    if not captured.graph.operations:
        return Diagnostic(f"{captured.info.name} has no op to compile", "the graph", "choose another graph")
    return None


def _remarks(recipe: Recipe) -> tuple[tuple[str, str, str], ...]:
    """Returns remarks on the lowerings and precisions of the recipe, which Inductor ignores.

    Each has its kind, the node (or "" for all), and the text.
    """
    reason = "has no effect: Inductor compiles the captured graph"
    choices = [(choice.node, f"the lowering {choice.lowering} {reason}") for choice in recipe.choices]
    choices += [(choice.node, f"the precision {choice.precision} {reason}") for choice in recipe.precisions]
    if recipe.precision != F32:
        choices.append(("", f"the precision {recipe.precision} {reason}"))
    return tuple((NOT_APPLIED, node, text) for node, text in choices)
