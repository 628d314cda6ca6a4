"""Compiles an FX graph by Inductor, and returns the stages between its passes, the generated code, and its origins.

For the engine, compiles a captured graph: sends each stage with its provenance, and makes the reply.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from unittest import mock

import msgspec
import torch

from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.plain_values import Assignment
from buddy.compiler.protocol.programs import NOT_APPLIED
from buddy.compiler.protocol.recipe import F32, INDUCTOR, Recipe
from buddy.compiler.protocol.text.lines import Origins, StageText
from buddy.compiler.protocol.worker_messages import Activity, Assignments, CompileDone, FailureReply, Reply
from buddy.compiler.runtime.graph_interpreter import symbol_values
from buddy.compiler.runtime.inductor import provenance
from buddy.compiler.runtime.inductor.fusions import FusionDecision, FusionLog
from buddy.compiler.runtime.inductor.program import FxProgram, InductorError, fx_program, settings_of
from buddy.compiler.runtime.inductor.provenance import FxOrigins, KernelLines, Line, NodeNames
from buddy.compiler.support.target import CXX_TODO

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode

    from buddy.compiler.runtime.captured import CapturedGraph
    from buddy.compiler.support.processes.channel import Channel


# The maximum lengths of the detail and of the first line of an error of Inductor, in characters.
_MAX_DETAIL_CHARS, _MAX_MESSAGE_CHARS = 4000, 300
Language = Literal["python", "cpp", "asm", "text"]


class InductorStage(NamedTuple):
    """A stage: its name, which is also its phase, its language, its lines, and the seconds since the stage before.

    `items` is the number of nodes, pairs of nodes or kernels in it, 0 for other text.
    """

    name: str
    language: Language
    lines: list[Line]
    seconds: float
    items: int = 0


class InductorArtifact(msgspec.Struct, frozen=True):
    """The Python module that Inductor has generated, which contains its kernels as C++, and the module's constants.

    `constants` is the output of `torch.save`. `values` maps the name of each buffer that holds the value of one node to
    the stable name of the node.
    """

    source: str
    constants: bytes
    settings: dict[str, Any]
    values: dict[str, str] = {}


OnStage = Callable[[InductorStage], None]
# Called with a text on the current step, and the fraction of the compilation that is done, from 0 to 1.
OnActivity = Callable[[str, float], None]


def compile_program(
    program: FxProgram, inputs: Sequence[torch.Tensor], flags: Sequence[str], threads: int,
    on_stage: OnStage = lambda _stage: None, on_activity: OnActivity = lambda _what, _done: None,
) -> InductorArtifact:  # fmt: skip
    """Compiles `program` for inputs of these sizes and strides, with `flags` and code for `threads` threads.

    Calls `on_stage` with each stage as soon as it is complete. Inductor's cache of FX graphs is not read, because its
    entries have no stages; its cache of compiled kernels is. Raises `InductorError`.
    """
    from torch._inductor.compile_fx import compile_fx

    settings = settings_of(flags, threads)
    compilation = _Compilation(FxOrigins(program.stable), on_stage, on_activity)
    try:
        with torch.no_grad(), compilation.recording(settings):
            compile_fx(program.module, list(inputs))
    except InductorError:
        raise
    except Exception as error:
        raise _make_error(error, compilation, program) from error
    if compilation.artifact is None:
        raise InductorError("Inductor generated no code: the graph has no op", todo="choose the native backend")
    return msgspec.structs.replace(compilation.artifact, settings=settings)


@dataclass
class _Compilation:
    """Collects the stages of one compilation.

    Inductor's settings have hooks for some stages; where it has none, its functions are wrapped. `stages` are the names
    of the stages so far. `artifact` is `None` until the code has been generated.
    """

    origins: FxOrigins
    on_stage: OnStage
    on_activity: OnActivity
    stages: list[str] = field(default_factory=list)
    artifact: InductorArtifact | None = None
    _start: float = field(default_factory=time.perf_counter)
    # The C++ texts of the kernels by name, once the code has been generated.
    _kernel_texts: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def recording(self, settings: Mapping[str, object]) -> Iterator[None]:
        """While active, records the stages of a compilation with Inductor's `settings`, and its artifact."""
        from torch._inductor import config
        from torch._inductor.graph import GraphLowering

        self._kernels, self._fusions = KernelLines(self.origins), FusionLog()
        generate = GraphLowering.codegen

        def generate_code(lowering: GraphLowering) -> tuple[object, ...]:
            result = generate(lowering)
            self._add_code(lowering, result[0])
            return result

        # Inductor makes deep copies of its settings: functions are not copied, but bound methods with their object are.
        hooks = {
            "pre_grad_custom_pass": lambda graph: self._add_graph("pre-grad", graph),
            "joint_custom_post_pass": lambda graph: self._add_graph("joint", graph),
            "_pre_fusion_custom_pass": lambda nodes: self._before_fusion(nodes),
            "_post_fusion_custom_pass": lambda nodes: self._after_fusion(nodes),
        }
        self.on_activity("Inductor: passes over FX graphs", 0.05)
        with ExitStack() as contexts:
            contexts.enter_context(config.patch({**settings, **hooks}))
            contexts.enter_context(mock.patch.object(GraphLowering, "codegen", generate_code))
            contexts.enter_context(self._kernels.recording())
            contexts.enter_context(self._fusions.recording())
            self._libraries = contexts.enter_context(provenance.recording_libraries(self._begin_kernel))
            self._start = time.perf_counter()
            yield
            self._add_assembly()

    def _add(self, name: str, language: Language, lines: list[Line], items: int = 0) -> None:
        """Reports a stage, unless there is one with this name; the time until the next stage starts now."""
        seconds = time.perf_counter() - self._start
        # Subgraphs, such as those of control flow, run the same passes later. The whole graph has the first stage.
        if name not in self.stages:
            self.stages.append(name)
            self.on_stage(InductorStage(name, language, lines, seconds, items))
        self._start = time.perf_counter()

    # ---- graphs --------------------------------------------------------------------------------------------------

    def _add_graph(self, name: str, graph: torch.fx.Graph) -> None:
        """Adds a stage with the Python code of an FX graph; a line has the Buddy nodes that it computes."""
        text = graph.owning_module.print_readable(print_output=False, include_stride=True)
        names_by_fx_name = {node.name: self.origins.of(node) for node in graph.nodes}
        output = next(iter(reversed(graph.nodes)))
        names_of_results = self.origins.of_all(output.all_input_nodes)
        lines = []
        for line in text.rstrip("\n").split("\n"):
            if line.lstrip().startswith("# No stacktrace"):
                continue
            assignment = _ASSIGNMENT.match(line)
            names: NodeNames = ()
            if assignment:
                names = names_by_fx_name.get(assignment[1], ())
            elif line.lstrip().startswith("return "):
                names = names_of_results
            lines.append(Line(line, names))
        self._add(name, "python", lines, sum(node.op.startswith("call_") for node in graph.nodes))

    # ---- the scheduler -------------------------------------------------------------------------------------------

    def _before_fusion(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        """Adds the stages before fusion: the last FX graph, and the scheduler's nodes. Returns the nodes unchanged."""
        from torch._inductor.virtualized import V

        self._add_graph("post-grad", V.graph.module.graph)
        self._add("scheduler", "python", self._scheduled_lines(nodes), len(nodes))
        self.on_activity("Inductor: fusion", 0.3)
        return nodes

    def _after_fusion(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        """Adds the stages after fusion: the fused nodes, and the decisions. Returns the nodes unchanged."""
        self._add("fused", "python", self._scheduled_lines(nodes), len(nodes))
        decisions = self._fusions.finish(nodes)
        parts = {part.get_name(): part for node in nodes for part in node.get_nodes()}
        names = {name: self.origins.of_scheduled(part) for name, part in parts.items()}
        self._add("fusions", "text", fusion_lines(decisions, names), len(decisions))
        self.on_activity("Inductor: generating code", 0.4)
        return nodes

    def _scheduled_lines(self, nodes: Sequence[BaseSchedulerNode]) -> list[Line]:
        """Returns Inductor's own text of scheduler nodes, one after another; fused nodes contain their parts."""
        lines: list[Line] = []
        for node in nodes:
            parts = node.get_nodes()
            names = self.origins.of_scheduled(node)
            lines.append(Line(f"# {', '.join(names)}".rstrip(), names))
            if len(parts) > 1:
                lines.append(Line(f"{node.get_name()}: {type(node).__name__} of {len(parts)} nodes", names))
            indent = "    " * (len(parts) > 1)
            for part in parts:
                names = self.origins.of_scheduled(part)
                lines += [Line(f"{indent}{text}".rstrip(), names) for text in part.debug_str().split("\n")]
            lines.append(Line(""))
        return lines[:-1]

    # ---- code ----------------------------------------------------------------------------------------------------

    def _add_code(self, lowering: GraphLowering, code: Any) -> None:
        """Stores the generated code as the artifact, and adds its stages: the wrapper and the kernels.

        Ignores the code of subgraphs, which follows that of the whole graph.
        """
        if self.artifact is not None:
            return
        constants = BytesIO()
        torch.save(dict(lowering.constants), constants)
        values = self.origins.values_of(lowering.module.graph, _exact_nodes(lowering))
        self.artifact = InductorArtifact(code.value, constants.getvalue(), {}, values)
        wrapper, self._kernel_texts = split_code(code.value)
        self._add("wrapper", "python", self._wrapper_lines(wrapper, lowering))
        lines: list[Line] = []
        for name, text in self._kernel_texts.items():
            lines += [Line(f"// {name}", self._names_of_kernel(name)), *self._kernel_lines(name, text), Line("")]
        self._add("kernels", "cpp", lines[:-1], len(self._kernel_texts))

    def _names_of_kernel(self, name: str) -> NodeNames:
        """Returns the Buddy nodes of all lines of a kernel."""
        lines = self._kernels.kernels.get(name, ())
        return tuple(dict.fromkeys(node_name for names, _is_derived in lines for node_name in names))

    def _kernel_lines(self, name: str, text: str) -> list[Line]:
        """Returns the lines of a kernel with their nodes; without nodes if it has other lines than were recorded."""
        recorded = self._kernels.kernels.get(name, [])
        texts = text.strip("\n").split("\n")
        if len(recorded) != len(texts):
            recorded = [((), True)] * len(texts)
        return [Line(line, names, derived) for line, (names, derived) in zip(texts, recorded, strict=True)]

    def _wrapper_lines(self, text: str, lowering: GraphLowering) -> list[Line]:
        """Returns the lines of the wrapper.

        A call has the nodes that Inductor's comment before it names by a handle, or else those of its kernel. Any other
        line has the nodes of the buffers in it.
        """
        names_by_buffer = self._names_of_buffers(lowering)
        names_by_handle = self._names_of_calls()
        lines: list[Line] = []
        names_of_next_call: NodeNames = ()
        for line in text.rstrip("\n").split("\n"):
            variables = _VARIABLE.findall(line)
            kernels = [variable for variable in variables if variable in self._kernels.kernels]
            handle = _HANDLE.search(line)
            names = tuple(dict.fromkeys(name for variable in variables for name in names_by_buffer.get(variable, ())))
            if handle:
                names_of_next_call = names = names_by_handle.get(handle[1], ())
            elif line.lstrip().startswith("#"):
                names = ()
            elif names_of_next_call and _CALL.match(line):
                lines.append(Line(line, names_of_next_call))
                names_of_next_call = ()
                continue
            elif kernels:
                names = self._names_of_kernel(kernels[0])
            lines.append(Line(line, names, is_derived=True) if names else Line(line))
        return lines

    def _names_of_buffers(self, lowering: GraphLowering) -> dict[str, NodeNames]:
        """Returns the nodes of each buffer and input, by the name of its variable."""
        names = {node.name: self.origins.of(node) for node in lowering.module.graph.nodes if node.op == "placeholder"}
        for scheduled in lowering.scheduler.nodes:
            for part in scheduled.get_nodes():
                names |= {name: self.origins.of_scheduled(part) for name in part.get_buffer_names()}
        return names

    def _names_of_calls(self) -> dict[str, NodeNames]:
        """Returns the nodes of each call of a kernel, by Inductor's handle of the call, such as `kernel:3`."""
        from torch._inductor import debug
        from torch._inductor.virtualized import V

        by_name = {node.name: node for node in V.graph.module.graph.nodes}
        handles = getattr(debug, "_inductor_triton_kernel_to_post_grad_node_info", {})
        return {
            handle: self.origins.of_all(by_name[name] for name in names if name in by_name)
            for handle, names in handles.items()
        }

    # ---- machine code --------------------------------------------------------------------------------------------

    def _begin_kernel(self, number: int) -> None:
        """Reports that the C++ compiler starts to compile kernel `number`, from 1."""
        # Subgraphs have kernels that are not among the texts.
        count = max(len(self._kernel_texts), number)
        done = 0.5 + 0.45 * (number - 1) / count
        self.on_activity(f"Inductor: compiling kernel {number}/{count} by the C++ compiler", done)

    def _add_assembly(self) -> None:
        """Adds the stage with the machine code of the kernels whose libraries were recorded."""
        lines: list[Line] = []
        for name, text in self._kernel_texts.items():
            path = self._libraries.get(text.strip())
            if path is not None:
                lines += provenance.disassemble(path, name, self._kernel_lines(name, text))
        if lines:
            self._add("asm", "asm", lines[:-1])


def _exact_nodes(lowering: GraphLowering) -> dict[str, torch.fx.Node]:
    """Maps the name of each buffer that holds the value of exactly one FX node to this node."""
    buffers = {buffer.get_name(): buffer for buffer in lowering.buffers}
    nodes = {name: getattr(buffer, "origin_node", None) for name, buffer in buffers.items()}
    return {name: node for name, node in nodes.items() if node is not None}


# A line of FX code that computes a node: its name, and perhaps its type.
_ASSIGNMENT = re.compile(r"\s+(\w+)(?:\s*:[^=]*)?\s=\s")
# A variable of the wrapper: a buffer, an input or a kernel.
_VARIABLE = re.compile(r"\b(?:buf|arg|primals_|tangents_|cpp_fused_)\w*")
# The comment before a call of a kernel, with Inductor's handle of the call.
_HANDLE = re.compile(r"\[Provenance debug handles\] (\S+)")
# A line that calls a function, perhaps with results.
_CALL = re.compile(r"\s*(?:[\w, ]+ = )?[\w.]+\(")
# The definition of a kernel: its name, and its code as a string literal.
_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.\w+\((?:.*?, )?r?(?P<quotes>'''|\"\"\")(?P<code>.*?)(?P=quotes)[^\n]*$",
    re.MULTILINE | re.DOTALL,
)


def split_code(source: str) -> tuple[str, dict[str, str]]:
    """Splits generated code into the wrapper without the texts of its kernels, and these texts by kernel."""
    kernels = {match["name"]: match["code"] for match in _KERNEL.finditer(source)}
    wrapper = _KERNEL.sub(lambda match: f"{match[0].partition(match['quotes'])[0]}…)  # see kernels", source)
    return re.sub(r"\n{3,}", "\n\n", wrapper), kernels


def fusion_lines(decisions: Sequence[FusionDecision], names: Mapping[str, NodeNames]) -> list[Line]:
    """Returns the decisions as a table: result, both nodes, and the reason of those that are not fused.

    A list of the scheduler nodes follows, each with the Buddy nodes that it computes, its entry in `names`.
    """
    fused = sum(decision.is_fused for decision in decisions)
    lines = [Line(f"{len(decisions)} pairs considered: {fused} fused, {len(decisions) - fused} not fused"), Line("")]
    if not decisions:
        return lines[:1]
    rows = [("result", "first", "second", "reason")]
    rows += [(d.result, "_".join(d.first), "_".join(d.second), d.reason) for d in decisions]
    widths = [min(40, max(len(row[column]) for row in rows)) for column in range(3)]
    for row, decision in zip(rows, [None, *decisions], strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        scheduled = () if decision is None else (*decision.first, *decision.second)
        nodes = tuple(dict.fromkeys(name for part in scheduled for name in names.get(part, ())))
        lines.append(Line("  ".join([*cells, row[3]]).rstrip(), nodes))
    parts = dict.fromkeys(part for decision in decisions for part in (*decision.first, *decision.second))
    width = max(map(len, parts))
    return [*lines, Line(""), *(Line(f"{part:{width}}  {', '.join(names[part])}", names[part]) for part in parts)]


def _make_error(error: Exception, compilation: _Compilation, program: FxProgram) -> InductorError:
    """Returns the error of Inductor, with the stage after which it occurred, and the first node that its text names."""
    after = f"Inductor, after its stage {compilation.stages[-1]}" if compilation.stages else "Inductor"
    cause = getattr(error, "inner_exception", None) or error
    text = str(cause).strip()
    name = type(cause).__name__
    if name in ("InvalidCxxCompiler", "CppCompileError"):
        what = "the C++ compiler failed" if name == "CppCompileError" else "no C++ compiler was found"
        return InductorError(what, after, CXX_TODO, detail=text[:_MAX_DETAIL_CHARS])
    first = next(iter(text.splitlines()), "")
    names = (stable for fx, stable in program.stable.items() if re.search(rf"\b{re.escape(fx)}\b", first))
    node = next(names, ("",))[0]
    return InductorError(f"{name}: {first[:_MAX_MESSAGE_CHARS]}", after, node=node, detail=text[:_MAX_DETAIL_CHARS])


# ---- stages for the engine -------------------------------------------------------------------------------------------


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
            len(stages), name=finished.name, phase=finished.name, text="", lines=0,
            milliseconds=1e3 * finished.seconds, ops=finished.items, language=finished.language, origins=text.origins,
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
    return CompileDone(sender.stages(tuple(stages)), data, assignments, _remarks(recipe), seconds, reused=0)


def text_of(lines: Sequence[Line]) -> StageText:
    """Returns the text of lines, with the number of the set of nodes that each line comes from.

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
