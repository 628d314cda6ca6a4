"""The compiler worker: takes graphs as plain data, and returns stages and an artifact. Does not import torch."""

from __future__ import annotations

import faulthandler
import importlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.errors import REPORT_BUG, BuddyError
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import (
    Assignments,
    CodeRemarks,
    CollectRemarks,
    CompileDone,
    CompileGraph,
    CompilerRequest,
    DescribeOps,
    DescribePasses,
    FailureReply,
    GraphsStored,
    LoadPlugins,
    LogText,
    Message,
    OpList,
    PassList,
    PluginsLoaded,
    Ready,
    Reply,
    StageData,
    StageNote,
    StepNote,
    StoreGraph,
)
from buddy.compiler.support.processes.channel import Channel, make_text_data, serves, traceback_of

if TYPE_CHECKING:
    from buddy.compiler.driver.compilation import Compiler
    from buddy.compiler.protocol.text.lines import StageText


# Maximum number of graphs whose `Compiler` is kept; the least recently used one is evicted.
MAX_GRAPHS = 8


class CompilerWorker:
    """Answers requests; keeps a `Compiler`, with its memoised snapshots, for each of the latest graphs."""

    def __init__(self, channel: Channel, problem: Diagnostic | None = None) -> None:
        """`problem` is the reason why nothing can be compiled, if any; the worker then rejects all requests with it."""
        self._channel, self._problem = channel, problem
        # A `Compiler` for each graph, by the graph's key; the least recently used first.
        self._compilers: OrderedDict[str, Any] = OrderedDict()
        self._handlers: dict[type, Callable[[Any], Reply]] = {
            LoadPlugins: _load_plugins,
            StoreGraph: self._store_graph,
            CompileGraph: self._compile,
            CollectRemarks: self._collect_remarks,
            DescribePasses: _describe_passes,
            DescribeOps: _describe_ops,
        }

    def serve(self) -> None:
        while (request := self._channel.receive()) is not None:
            self._channel.send(self._answer(request))

    def _answer(self, request: Message) -> Reply:
        if self._problem is not None:
            return FailureReply(self._problem)
        try:
            return self._handlers[type(request)](request)
        except BuddyError as error:  # such as an unknown backend
            return FailureReply(error.diagnostic)
        except Exception as error:
            self._channel.send(LogText(traceback_of(error)))
            what = f"internal error in the compiler: {type(error).__name__}: {error}"
            return FailureReply(Diagnostic(what, todo=REPORT_BUG))

    def _store_graph(self, request: StoreGraph) -> Reply:
        from buddy.compiler.driver.compilation import Compiler
        from buddy.compiler.graph.serialization import from_bytes

        self._compilers[request.key] = Compiler(from_bytes(request.graph))
        self._compilers.move_to_end(request.key)
        while len(self._compilers) > MAX_GRAPHS:
            self._compilers.popitem(last=False)
        return GraphsStored(tuple(self._compilers))

    def _compile(self, request: CompileGraph) -> Reply:
        self._compilers.move_to_end(request.key)
        compiler = self._compilers[request.key]
        if not request.stages:
            reply = _compile_without_stages(self._channel, compiler, request.recipe)
            if reply is not None:
                return reply
        return compile_recipe(self._channel, compiler, request.recipe, request.known_texts)

    def _collect_remarks(self, request: CollectRemarks) -> Reply:
        self._compilers.move_to_end(request.key)
        return collect_code_remarks(self._compilers[request.key], request.recipe)


def collect_code_remarks(compiler: Compiler, recipe: Recipe) -> Reply:
    """Collects LLVM's remarks on the code that a `Compiler` generates for `recipe`."""
    from buddy.compiler.codegen.objects.llvm_passes import RemarksError
    from buddy.compiler.driver.diagnosis import CompilationError

    try:
        return CodeRemarks(compiler.code_remarks(recipe))
    except CompilationError as error:
        return FailureReply(error.diagnostic)
    except RemarksError as error:
        return FailureReply(Diagnostic("LLVM's remarks are not available", "a separate process", detail=str(error)))


def compile_recipe(channel: Channel, compiler: Compiler, recipe: Recipe, known_texts: tuple[str, ...]) -> Reply:
    """Compiles `recipe` with `compiler`: sends each finished stage, and returns the reply with the artifact.

    If the backend takes top-level IR, the stages end there, and the artifact is the backend's.
    """
    from buddy.compiler.driver.backends import backend_named
    from buddy.compiler.driver.diagnosis import CompilationError

    sender, recipe = StageSender(channel, known_texts), recipe.for_backend()
    try:
        takes_top_level = backend_named(recipe.backend).takes == "toplevel"
        channel.send(Assignments(compiler.assignments(recipe, sender.send_step)))
        compile_stages = _compile_to_top_level if takes_top_level else _compile_to_objects
        compilation, artifact = compile_stages(compiler, recipe, sender)
    except CompilationError as error:
        return FailureReply(error.diagnostic, tuple(sender.to_data(stage, text) for stage, text in error.stages))
    return CompileDone(
        sender.stages(compilation.stages),
        artifact,
        tuple(compilation.assignments),
        tuple(compilation.remarks),
        compilation.seconds,
        compilation.reused,
    )


def _compile_without_stages(channel: Channel, compiler: Compiler, recipe: Recipe) -> Reply | None:
    """Compiles `recipe` without its stages; returns the reply.

    Returns `None` if the backend takes top-level IR, or if the compilation fails: one with stages shows the failure.
    """
    from buddy.compiler.driver.backends import backend_named
    from buddy.compiler.driver.diagnosis import CompilationError
    from buddy.compiler.protocol.artifact import to_bytes

    sender, recipe = StageSender(channel, ()), recipe.for_backend()
    if backend_named(recipe.backend).takes == "toplevel":
        return None
    try:
        done = compiler.compile_without_stages(
            recipe, lambda assignments: channel.send(Assignments(assignments)), sender.send_step
        )
    except CompilationError:
        return None
    return CompileDone((), to_bytes(done.artifact), done.assignments, done.remarks, done.seconds, done.reused)


def _compile_to_objects(compiler: Compiler, recipe: Recipe, sender: StageSender) -> tuple[Any, bytes]:
    """Returns all stages of the recipe, and the artifact with the objects. Raises `CompilationError`."""
    from buddy.compiler.protocol.artifact import to_bytes

    result = compiler.compile(recipe, sender.send_stage, sender.send_step)
    return result, to_bytes(result.artifact)


def _compile_to_top_level(compiler: Compiler, recipe: Recipe, sender: StageSender) -> tuple[Any, bytes]:
    """Returns the stages up to top-level IR, and the backend's artifact. Raises `CompilationError`."""
    from buddy.compiler.driver.backends import Code, backend_named

    result = compiler.top_level(recipe, sender.send_stage, sender.send_step)
    code = Code(result.graph, recipe, result.module, result.locations)
    backend = backend_named(recipe.backend)
    backend.check(code)
    return result, msgspec.msgpack.encode(backend.compile(code))


class StageSender:
    """Sends stages to the engine, with their texts except those that the engine has (`known_texts`)."""

    def __init__(self, channel: Channel, known_texts: tuple[str, ...]) -> None:
        self._channel, self._known_texts = channel, set(known_texts)
        # The stages that have been sent, by their index.
        self._sent: dict[int, Stage] = {}

    def send_step(self, step: int) -> None:
        self._channel.send(StepNote(step))

    def send_stage(self, stage: Stage, text: StageText) -> None:
        data = self.to_data(stage, text)
        self._sent[stage.index] = data.stage
        self._channel.send(StageNote(data))

    def to_data(self, stage: Stage, text: StageText) -> StageData:
        """Returns a stage with the name and line count of its text, and with the text unless the engine has it."""
        line_sets = array("I", text.line_sets).tobytes()
        data, lines = make_text_data(text.content, line_sets, text.sets, text.derived, text.machine)
        named = msgspec.structs.replace(stage, text=data.name, lines=lines)
        if data.name in self._known_texts:
            return StageData(named)
        self._known_texts.add(data.name)
        return StageData(named, data)

    def stages(self, final: tuple[Stage, ...]) -> tuple[StageData, ...]:
        """Returns the final stages of the compilation, with the text names and line counts that were sent before."""
        stages = []
        for stage in final:
            sent = self._sent[stage.index]
            stages.append(StageData(msgspec.structs.replace(stage, text=sent.text, lines=sent.lines)))
        return tuple(stages)


def _load_plugins(request: LoadPlugins) -> Reply:
    from buddy.compiler.graph import plugins

    loaded = [*plugins.installed_plugins(), *map(plugins.load_plugin_file, request.plugins)]
    return PluginsLoaded(plugins.plugin_problems(loaded))


def _describe_passes(request: Message) -> Reply:
    from buddy.compiler.driver.backends import describe_backends
    from buddy.compiler.graph.plugins import describe_installed
    from buddy.compiler.passes.catalogue import catalogue

    return PassList(tuple(catalogue()), describe_backends(), describe_installed())


def _describe_ops(request: Message) -> Reply:
    from buddy.compiler.ops import op_table

    return OpList(tuple(op_table()))


def _warm_up() -> Diagnostic | None:
    """Imports all that a compilation needs; returns the error if MLIR's bindings cannot be imported."""
    from buddy.compiler.mlir import bindings

    try:
        bindings.ir.Context()
        importlib.import_module("buddy.compiler.driver.compilation")
        # Imports all passes, so that the first pass of the first compilation does not.
        importlib.import_module("buddy.compiler.passes.pass_runner").own_passes()
    except bindings.BindingsError as error:
        return error.diagnostic
    return None


@serves(CompilerRequest)
def serve(channel: Channel) -> None:
    """Runs the process of the compiler worker until the engine closes the channel."""
    started = time.perf_counter()
    faulthandler.enable()
    problem = _warm_up()
    channel.send(Ready(time.perf_counter() - started))
    CompilerWorker(channel, problem).serve()
