"""The IREE worker, and its messages: compiles programs with IREE, and returns IREE's phases as stages.

The artifact is a module for IREE's runtime. Each compilation runs IREE's compiler in a separate process, which is
killed when this one exits. Importing this module loads neither torch nor MLIR nor IREE.
"""

from __future__ import annotations

import faulthandler
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from buddy.compiler.codegen.iree import options as iree_flags
from buddy.compiler.codegen.iree.options import (
    INSTALL_COMMAND,
    IreeArtifact,
    IreeMissingError,
    program_from,
    to_bytes,
    versions,
)
from buddy.compiler.engine.compiler import StageSender
from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.catalogue import DeviceInfo, FlagInfo
from buddy.compiler.protocol.errors import REPORT_BUG
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.worker_messages import (
    CompileDone,
    CompilerNote,
    FailureReply,
    LogText,
    Message,
    Ready,
    Reply,
)
from buddy.compiler.support.processes.channel import Channel, serves, traceback_of

if TYPE_CHECKING:
    from buddy.compiler.codegen.iree.compiler import IreeError


# ---- messages --------------------------------------------------------------------------------------------------------


class CompileByIree(Message, frozen=True):
    """Compile a program with IREE. Answered by a `StageNote` per phase, then `CompileDone`.

    `first` is the number of the first phase's stage. The artifact is an `IreeArtifact`. `known_texts` names the texts
    that the engine already has.
    """

    program: bytes
    flags: tuple[str, ...]
    known_texts: tuple[str, ...]
    first: int = 0


class DescribeIree(Message, frozen=True):
    """Describe IREE's flags and devices; answered by `IreeDescribed`."""


class CheckIreeFlags(Message, frozen=True):
    """Check whether IREE accepts these flags; answered by `IreeFlagsChecked`."""

    flags: tuple[str, ...]


class IreeDescribed(Reply, frozen=True):
    """The fields are those of `protocol.BackendDescribed`."""

    versions: dict[str, str]
    flags: tuple[FlagInfo, ...]
    defaults: tuple[str, ...]
    targets: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]


class IreeFlagsChecked(Reply, frozen=True):
    """`problem` is IREE's error message, "" if it accepts the flags."""

    problem: str


IreeRequest = CompileByIree | DescribeIree | CheckIreeFlags
IreeMessage = Ready | CompilerNote | CompileDone | IreeDescribed | IreeFlagsChecked | FailureReply


# ---- the worker ------------------------------------------------------------------------------------------------------


# Maximum number of cached compilations: switching flags back and forth needs no compilation.
_MAX_CACHED_RESULTS = 4


class _Compilation(NamedTuple):
    """A compilation by IREE: the stages, numbered from 0, with their texts, the artifact, and the compile time."""

    stages_and_texts: list[tuple[Stage, Any]]
    artifact: bytes
    seconds: float


class IreeWorker:
    """Answers requests; caches the latest compilations."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # The keys are hashes of program and flags; the least recently used first.
        self._results: OrderedDict[str, _Compilation] = OrderedDict()
        self._handlers: dict[type, Callable[[Any], Reply]] = {
            CompileByIree: self._compile,
            DescribeIree: _describe,
            CheckIreeFlags: _check_flags,
        }

    def serve(self) -> None:
        while (request := self._channel.receive()) is not None:
            self._channel.send(self._answer(request))

    def _answer(self, request: Message) -> Reply:
        try:
            return self._handlers[type(request)](request)
        except IreeMissingError as error:
            return FailureReply(Diagnostic(str(error), "the recipe's backend", INSTALL_COMMAND))
        except Exception as error:
            self._channel.send(LogText(traceback_of(error)))
            what = f"internal error in the IREE worker: {type(error).__name__}: {error}"
            return FailureReply(Diagnostic(what, todo=REPORT_BUG))

    def _compile(self, request: CompileByIree) -> Reply:
        sender = StageSender(self._channel, request.known_texts)
        key = digest(request.program, request.flags)
        compilation = self._results.get(key)
        if compilation is None:
            outcome = self._run_phases(request, sender)
            if isinstance(outcome, FailureReply):
                return outcome
            self._results[key] = compilation = outcome
            while len(self._results) > _MAX_CACHED_RESULTS:
                self._results.popitem(last=False)
            reused = 0
        else:
            reused = len(compilation.stages_and_texts)
            for stage, text in compilation.stages_and_texts:
                sender.send_stage(_renumber(stage, request.first), text)
        self._results.move_to_end(key)
        stages = sender.stages(tuple(_renumber(stage, request.first) for stage, _ in compilation.stages_and_texts))
        seconds = 0.0 if reused else compilation.seconds
        return CompileDone(stages, compilation.artifact, assignments=(), remarks=(), seconds=seconds, reused=reused)

    def _run_phases(self, request: CompileByIree, sender: StageSender) -> _Compilation | FailureReply:
        """Compiles, and sends each stage when its phase has ended."""
        started = time.perf_counter()
        from buddy.compiler.codegen.iree.compiler import IreeError, IreePhase, compile_phases
        from buddy.compiler.driver.snapshots import of_printed_module
        from buddy.compiler.mlir.printing import op_counts
        from buddy.compiler.mlir.provenance import LocationSets

        program = program_from(request.program)
        locations = LocationSets.of(program.sets, program.derived)
        stages: list[tuple[Stage, Any]] = []
        last_counts = op_counts(program.text)

        def report_phase(phase: IreePhase) -> None:
            nonlocal last_counts
            snapshot = of_printed_module(phase.name, phase.name, phase.text, locations, phase.seconds, last_counts)
            last_counts = snapshot.counts
            stage = _renumber(snapshot.stage, len(stages))
            stages.append((stage, snapshot.text))
            sender.send_stage(_renumber(stage, request.first), snapshot.text)

        try:
            module = compile_phases(program.text, request.flags, report_phase)
        except ValueError as error:
            return FailureReply(Diagnostic(str(error), "the recipe's backend_flags", "remove that flag"))
        except IreeError as error:
            names = locations.sets[error.node_set] if error.node_set < len(locations.sets) else ()
            return FailureReply(_diagnostic(error, names))
        all_flags = tuple(iree_flags.merge_flags(request.flags))
        artifact = to_bytes(IreeArtifact(module, program.convention, all_flags))
        return _Compilation(stages, artifact, time.perf_counter() - started)


def _renumber(stage: Stage, first: int) -> Stage:
    """Returns a stage with its index increased by `first`."""
    return msgspec.structs.replace(stage, index=stage.index + first)


def _diagnostic(error: IreeError, nodes: tuple[str, ...]) -> Diagnostic:
    """Returns the diagnostic of IREE's error, with the phase after which it occurred; `nodes` are the failed op's."""
    where = f"IREE, after its phase {error.after}" if error.after else "IREE, before its first phase"
    todo = "change the recipe's backend_flags, or choose the native backend"
    return Diagnostic(f"iree-compile: {error.message}", where, todo, detail=error.detail, node=next(iter(nodes), ""))


def _describe(_request: DescribeIree) -> Reply:
    from buddy.compiler.codegen.iree import compiler

    return IreeDescribed(
        versions(), compiler.list_flags(), iree_flags.DEFAULT_FLAGS, compiler.list_targets(), compiler.list_devices()
    )


def _check_flags(request: CheckIreeFlags) -> Reply:
    from buddy.compiler.codegen.iree.compiler import flag_problem

    return IreeFlagsChecked(flag_problem(request.flags))


@serves(IreeRequest)
def serve(channel: Channel) -> None:
    """Runs the process of the IREE worker until the engine closes the channel."""
    started = time.perf_counter()
    faulthandler.enable()
    channel.send(Ready(time.perf_counter() - started))
    IreeWorker(channel).serve()
