"""Runs a script as Python does, and records what TorchDynamo compiles in it.

Dynamo's structured trace names graph breaks, guards and compilations. Hooks add the values that guards check, and how
often they are checked. If a version of PyTorch lacks a hooked function, the report has a note; 2.13 lacks none.
"""

from __future__ import annotations

import contextlib
import enum
import json
import linecache
import logging
import os
import re
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from buddy.compiler.protocol.errors import Diagnostic, diagnostic_of
from buddy.compiler.protocol.one_shot_messages import RecordScript, ScriptEnded, TraceRecord
from buddy.compiler.protocol.source_files import kind_of
from buddy.compiler.protocol.source_locations import locate_source
from buddy.compiler.support.dynamo_internals import convert_frame, list_cache_entries
from buddy.compiler.support.dynamo_internals import guards as dynamo_guards
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.explain.records import is_user_file
from buddy.compiler.tools.explain.report import READ_ARTIFACTS, READ_RECORDS
from buddy.compiler.tools.explain.trace_files import structured_record

if TYPE_CHECKING:
    from torch._C._dynamo.guards import GuardManager
    from torch._dynamo.guards import CheckFunctionManager, GuardManagerWrapper
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.types import CacheEntry
    from torch._guards import Guard


Send = Callable[[Any], None]
# The starts of sources that are not described: their values never change, or belong to libraries.
_LIBRARY_SOURCES = ("G['__import_", "G['__builtins")
# The maximum number of sources that are described per compilation, which bounds the time that this adds to it.
_MAX_SOURCES = 2000
# The maximum number of changed values per failed guard, and of characters of a value's text.
_MAX_CHANGES = 20
_MAX_TEXT = 80
# The pause in seconds between two counts of the checks of guards.
_COUNT_SECONDS = 2.0
# Parts of Dynamo's warning that a function reached a limit of recompilations.
_LIMIT_WARNING = re.compile(r"torch\._dynamo hit config\.(\w+)")
_FUNCTION_DESCRIPTION = re.compile(r"'(.+)' \((.+):(\d+)\)")


@serves(RecordScript)
def serve(channel: Channel) -> None:
    """Runs the script that the first message names."""
    request: RecordScript = channel.receive()
    recorder = Recorder(channel.send)
    with recorder.recording():
        problem = _run(request)
    channel.send(ScriptEnded(problem))


def _run(request: RecordScript) -> Diagnostic | None:
    """Runs the script like `python script.py`, or `python -m module`. Returns its error, if any."""
    from buddy.compiler.importers.sources.script import (
        register_script,
        reporting_user_errors,
        run_script,
        script_environment,
    )

    try:
        os.chdir(request.directory or os.getcwd())
        location = locate_source(request.source)
        if location.path is not None and (source_kind := kind_of(location.path)).kind != "script":
            what = f"{request.source} is not a script ({source_kind.kind}): no function is compiled when it is opened"
            return Diagnostic(what, request.source, "pass a script that calls functions of torch.compile")
        with script_environment(location.path, request.arguments):
            if location.path is not None:
                run_script(location.path, register_script(location.path, "__main__"))
            else:
                import runpy

                with reporting_user_errors(None, location.module):
                    runpy.run_module(location.module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        return (
            None if stop.code in (None, 0) else Diagnostic(f"{request.source} exited with {stop.code}", request.source)
        )
    except BaseException as error:
        return diagnostic_of(error, f"{request.source} could not be run", request.source, "check the path")
    return None


@dataclass
class _CountedCode:
    """Compiled code, with counts of the checks of its guards (`checked`) and of those that all guards passed (`calls`).

    `serial` numbers compilations. `sources` are the expressions of the values that its guards check, compiled; `values`
    describe these values at the time of the compilation. Checks while `is_paused` returns True do not count.
    """

    serial: int
    sources: Mapping[str, types.CodeType]
    values: dict[str, dict[str, Any]]
    is_paused: Callable[[], bool]
    checked: int = 0
    calls: int = 0

    def count_check(self, *_: object) -> bool:
        """Counts a check: as the first guard, which always passes."""
        self.checked += not self.is_paused()
        return True

    def count_call(self, *_: object) -> bool:
        """Counts a call: as the last guard, which is checked only if all others have passed."""
        self.calls += not self.is_paused()
        return True


class Recorder:
    """Sends a `TraceRecord` for each event of Dynamo while `recording` is active."""

    def __init__(self, send: Send) -> None:
        self._send, self._lock, self._owner = send, threading.Lock(), os.getpid()
        # By the guard manager of the code; the list has weak references to the managers, in order of compilation.
        self._entries: weakref.WeakKeyDictionary[Any, _CountedCode] = weakref.WeakKeyDictionary()
        self._all_entries: list[tuple[_CountedCode, Any]] = []
        # What the report lacks, according to notes that have been sent.
        self._noted: set[str] = set()
        # Whether Dynamo looks for a failed guard: it checks guards again, which must not count.
        self._is_explaining = False
        self._counted_at = time.monotonic()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While active, records what Dynamo does. At the end, sends the numbers of checks of guards."""
        trace, limits = logging.getLogger("torch.__trace"), logging.getLogger("torch._dynamo.convert_frame")
        with ExitStack() as stack:
            for logger, take_record in ((trace, self._take_record), (limits, self._take_warning)):
                handler = _Handler(take_record)
                logger.addHandler(handler)
                stack.callback(logger.removeHandler, handler)
            manager = dynamo_guards.CheckFunctionManager
            stack.enter_context(patch.object(manager, "__init__", self._wrap_guards(manager.__init__)))
            name = "get_and_maybe_log_recompilation_reasons"
            explain = self._wrap_recompilation(getattr(convert_frame, name))
            stack.enter_context(patch.object(convert_frame, name, explain))
            self._record("buddy_start", {"folder": str(Path(__file__).parents[2]), "torch": torch.__version__})
            try:
                yield
            finally:
                self._send_counts()

    def _record(self, name: str, fields: Any, compile_id: str = "", payload: str = "") -> None:
        self._send_record(TraceRecord(name, compile_id, json.dumps(fields, default=repr).encode(), payload))

    def _send_record(self, record: TraceRecord) -> None:
        """Sends a record, unless this process is a fork that the script has made."""
        if os.getpid() == self._owner:
            with self._lock:
                self._send(record)

    # ---- logs ----

    def _take_record(self, record: logging.LogRecord) -> None:
        """Sends a record of the structured trace, if the report needs it."""
        fields = getattr(record, "metadata", None)
        if not isinstance(fields, dict):
            return
        name = next(iter(fields), "")
        artifact = fields.get("artifact")
        if name in READ_RECORDS or (isinstance(artifact, dict) and artifact.get("name") in READ_ARTIFACTS):
            if name == "compilation_metrics":  # without the long texts of all settings
                fields = {**fields, name: {k: v for k, v in fields[name].items() if not str(k).endswith("_config")}}
            if name == "dynamo_start":
                fields = {**fields, name: {**fields[name], "callers": _callers()}}
            self._send_record(structured_record(fields, getattr(record, "payload", None) or ""))

    def _take_warning(self, record: logging.LogRecord) -> None:
        """Sends `buddy_limit` for a warning that a function reached a limit of recompilations."""
        match = _LIMIT_WARNING.search(str(record.msg) % record.args if record.args else str(record.msg))
        arguments = record.args if isinstance(record.args, tuple) else ()
        matches = (_FUNCTION_DESCRIPTION.fullmatch(str(argument)) for argument in arguments)
        function = next((match for match in matches if match), None)
        if match and function and len(arguments) > 1:
            fields = {
                "setting": match[1], "limit": int(str(arguments[1])), "function": function[1], "file": function[2],
                "line": int(function[3]),
            }  # fmt: skip
            self._record("buddy_limit", fields, _current_compile())

    # ---- hooks ----

    def _wrap_guards(self, build: Callable[..., None]) -> Callable[..., None]:
        """Wraps `CheckFunctionManager.__init__`, to describe the values that guards check and to count the checks."""

        @wraps(build)
        def build_guards(
            manager: CheckFunctionManager,
            code: types.CodeType,
            output_graph: OutputGraph,
            *args: object,
            **kwargs: object,
        ) -> None:
            build(manager, code, output_graph, *args, **kwargs)
            with self._noting_errors("the values that guards check are not recorded"):
                self._add_entry(manager.guard_manager, code, output_graph)

        return build_guards

    def _add_entry(self, guards: GuardManagerWrapper, code: types.CodeType, output_graph: OutputGraph) -> None:
        """Describes the values that the guards of new code check, sends them, and begins to count the checks."""
        sources = dict[str, types.CodeType]()
        for guard_source in _guarded_sources(guards.root):
            if not guard_source.startswith(_LIBRARY_SOURCES) and len(sources) < _MAX_SOURCES:
                with contextlib.suppress(SyntaxError, ValueError):
                    sources[guard_source] = compile(guard_source, "<guard>", "eval")
        values = _describe_sources(sources, guards, output_graph.local_scope)
        entry = _CountedCode(len(self._all_entries), sources, values, lambda: self._is_explaining)
        self._entries[guards] = entry
        self._all_entries.append((entry, weakref.ref(guards)))
        fields = {
            "serial": entry.serial, "values": entry.values, "closure": list(code.co_freevars),
            "frames": _frames_of(output_graph.guards),
        }  # fmt: skip
        self._record("buddy_values", fields, _current_compile())
        with self._noting_errors("checks of guards are not counted"):
            guards.root.add_lambda_guard(entry.count_check, ["True"], None)
            guards.root.add_epilogue_lambda_guard(entry.count_call, ["True"], None)
        if time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._send_counts()

    def _wrap_recompilation(self, explain: Callable[..., object]) -> Callable[..., object]:
        """Wraps Dynamo's function that finds why cached code was not reused, to record the changed values before it."""

        @wraps(explain)
        def explain_recompilation(
            cache_entries: list[CacheEntry] | CacheEntry | None,
            frame: FrameType,
            backend: object,
            *args: object,
            **kwargs: object,
        ) -> object:
            self._is_explaining = True
            try:
                with self._noting_errors("the values at failed guards are not recorded"):
                    failures = [
                        self._describe_failure(entry, frame, backend) for entry in list_cache_entries(cache_entries)
                    ]
                    self._record("buddy_failures", failures, _current_compile())
                return explain(cache_entries, frame, backend, *args, **kwargs)
            finally:
                self._is_explaining = False

        return explain_recompilation

    def _describe_failure(self, cache_entry: CacheEntry, frame: FrameType, backend: object) -> dict[str, Any]:
        """Returns the `FailureFields` for cached code whose guards failed in the call `frame`."""
        guards = cache_entry.guard_manager
        reason = dynamo_guards.get_guard_fail_reason(
            guards, cache_entry.code, frame.f_locals, cache_entry.compile_id, backend, skip_logging=True
        )
        compile_id, _, text = reason.partition(": ")
        failure: dict[str, object] = {"entry": compile_id, "reason": text}
        entry = self._entries.get(guards)
        if entry is None:
            return failure
        values_now = _describe_sources(entry.sources, guards, frame.f_locals)
        changes = {
            source: (value_before, values_now.get(source, {}))
            for source, value_before in entry.values.items()
            if value_before != values_now.get(source, {})
        }
        check = guards.check_verbose(frame.f_locals)
        stack = getattr(check, "user_stack", None) or ()
        return {
            **failure, "serial": entry.serial, "frames": [_frame_fields(user_frame) for user_frame in stack],
            "changes": _leaf_changes(changes),
        }  # fmt: skip

    def _send_counts(self) -> None:
        """Sends the numbers of checks so far. A script may be stopped, so they are sent also before its end."""
        self._counted_at = time.monotonic()
        counts = []
        for entry, reference in self._all_entries:
            guards = reference()
            failed = dict[str, int]()
            if guards is not None:
                with self._noting_errors("failures of guards are not counted"):
                    _count_failures(guards.root, failed)
            counts.append((entry.serial, entry.checked, entry.calls, failed))
        self._record("buddy_counts", counts)

    @contextmanager
    def _noting_errors(self, what: str) -> Iterator[None]:
        """Records an error in the block as a note, once for each `what`, because the script must continue."""
        try:
            yield
        except Exception as error:
            if what not in self._noted:
                self._noted.add(what)
                note = f"{what}: PyTorch {torch.__version__}: {type(error).__name__}: {error}"
                self._record("buddy_note", {"note": note})


class _Handler(logging.Handler):
    """Passes records on to a function, and suppresses its errors."""

    def __init__(self, take_record: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.DEBUG)
        self._take_record = take_record

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self._take_record(record)


def _callers() -> list[tuple[str, int, str, str]]:
    """Returns the user's frames on the stack, the innermost last: Dynamo's record of a compilation lacks some."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_stack(None)]
    return [
        (code.co_filename, line, code.co_name, linecache.getline(code.co_filename, line).strip())
        for code, line in reversed(frames) if is_user_file(code.co_filename)
    ]  # fmt: skip


def _current_compile() -> str:
    """Returns the id of the running compilation, such as `0/1`, "" if none is running."""
    compile_id = torch._guards.CompileContext.current_compile_id()
    return "" if compile_id is None else f"{compile_id.frame_id}/{compile_id.frame_compile_id}"


def _walk_managers(root: GuardManager) -> Iterator[GuardManager]:
    """Yields all guard managers of a tree, which check one value each."""
    pending = [root]
    while pending:
        manager = pending.pop()
        yield manager
        pending.extend(manager.get_child_managers())
        if hasattr(manager, "get_key_value_managers"):
            pending += [child for pair in manager.get_key_value_managers().values() for child in pair if child]


def _guarded_sources(root: GuardManager) -> dict[str, None]:
    """Returns the sources of a tree whose values have guards, as keys in their order.

    Dicts always count, because they do not list their guards.
    """
    return {
        source: None for manager in _walk_managers(root)
        if (source := manager.get_source())[:2] in ("L[", "G[")
        and (manager.get_leaf_guards() or hasattr(manager, "get_key_value_managers"))
    }  # fmt: skip


def _count_failures(manager: GuardManager, failed: dict[str, int]) -> int:
    """Adds the numbers of failures of the guards below `manager` to `failed`, by source; returns their sum."""
    failures_of_children = sum(_count_failures(child, failed) for child in manager.get_child_managers())
    total = int(manager.fail_count())
    if (source := manager.get_source()) and total > failures_of_children:
        failed[source] = failed.get(source, 0) + total - failures_of_children
    return total


def _frames_of(guards: Iterable[Guard]) -> dict[str, tuple[str, int, str, str]]:
    """Returns, for each source, the innermost of the user's lines that read it."""
    frames = dict[str, tuple[str, int, str, str]]()
    for guard in guards:
        name = guard.name() if callable(guard.name) else guard.name
        user_frames = [frame for frame in guard.user_stack or () if is_user_file(frame.filename)]
        if user_frames and name not in frames:
            frames[name] = _frame_fields(user_frames[-1])
    return frames


def _frame_fields(frame: traceback.FrameSummary) -> tuple[str, int, str, str]:
    """Returns a frame as a `records.PlainFrame`."""
    return frame.filename, int(frame.lineno or 0), frame.name, (frame.line or "").strip()


# ---- values ----------------------------------------------------------------------------------------------------------


def _describe_sources(
    sources: Mapping[str, types.CodeType], guards: GuardManagerWrapper, local_scope: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """Returns descriptions of the global state, and of the values of `sources` in a scope.

    `local_scope` has the local variables of the function. A source that cannot be evaluated there is left out.
    """
    names = {**(guards.closure_vars or {}), **(guards.global_scope or {}), "L": local_scope}
    values: dict[str, dict[str, object]] = {name: {"text": text} for name, text in _global_state().items()}
    for source, code in sources.items():
        with contextlib.suppress(Exception):
            values[source] = _describe_value(eval(code, names))
    return values


# The descriptions of a value before and after, {} if it had none.
Change = tuple[Mapping[str, object], Mapping[str, object]]


def _leaf_changes(changes: Mapping[str, Change]) -> dict[str, Change]:
    """Returns the changes without those of objects that contain a changed value, unless the objects' texts differ too.

    Returns at most `_MAX_CHANGES`, with the shortest sources first.
    """

    def is_leaf(source: str) -> bool:
        has_changed_part = any(other != source and other.startswith(source) for other in changes)
        return not has_changed_part or _has_text_change(changes[source])

    leaves = [source for source in sorted(changes, key=len, reverse=True) if is_leaf(source)]
    return {source: changes[source] for source in reversed(leaves[-_MAX_CHANGES:])}


def _has_text_change(change: Change) -> bool:
    return change[0].get("text") != change[1].get("text")


def _describe_value(value: object) -> dict[str, object]:
    """Returns a value as `records.ValueFields`: a short text, its type, and what guards check of it."""
    described: dict[str, object] = {"text": _short_text(value), "type": type(value).__qualname__}
    if isinstance(value, torch.Tensor):
        described["tensor"] = _tensor_fields(value)
    elif isinstance(value, list | tuple | dict | set | frozenset | str):
        described["length"] = len(value)
    if not isinstance(value, (*_REPR_TYPES, list, tuple, dict, set, frozenset)):
        described["id"] = id(value)
    return described


# The types whose `repr` describes a value: it does not contain an address.
_REPR_TYPES = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    types.NoneType,
    torch.dtype,
    torch.Tensor,
    torch.device,
    enum.Enum,
)


def _short_text(value: object) -> str:
    """Returns a text of at most `_MAX_TEXT` characters for plain values; names or types for others."""
    if isinstance(value, torch.Tensor):
        facts = _tensor_fields(value)
        return f"{facts['dtype']} {facts['size']}"
    if isinstance(value, _REPR_TYPES) or (
        isinstance(value, list | tuple) and all(isinstance(v, _REPR_TYPES) for v in value[:20])
    ):
        text = repr(value)
        if not isinstance(value, list | tuple) or len(text) <= _MAX_TEXT:
            return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        return f"{type(value).__name__} with {', '.join(list(value)[:8])}{', …' if len(value) > 8 else ''}"
    if isinstance(value, list | tuple | dict | set | frozenset):
        return f"{type(value).__name__} of {len(value)}"
    code = getattr(value, "__code__", None) if not isinstance(value, types.CodeType) else value
    if isinstance(code, types.CodeType):
        return f"{getattr(value, '__qualname__', code.co_name)} ({code.co_filename}:{code.co_firstlineno})"
    if isinstance(value, type | types.BuiltinFunctionType):
        return str(getattr(value, "__qualname__", value))
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    return f"{type(value).__qualname__} object"


def _tensor_fields(value: torch.Tensor) -> dict[str, str]:
    facts = {
        "dtype": str(value.dtype).removeprefix("torch."), "requires_grad": str(value.requires_grad),
        "device": str(value.device), "size": str(list(value.shape)), "stride": "",
    }  # fmt: skip
    with contextlib.suppress(RuntimeError):  # a sparse tensor has no strides
        facts["stride"] = str(list(value.stride()))
    return facts


def _global_state() -> dict[str, str]:
    """Returns the global state that Dynamo's guards check, by Dynamo's names of it."""
    readers: dict[str, Callable[[], Any]] = {
        "grad_mode": torch.is_grad_enabled,
        "inference_mode": torch.is_inference_mode_enabled,
        "default_dtype": torch.get_default_dtype,
        "num_threads": torch.get_num_threads,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "deterministic_algorithms_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        **{f"autocast({d})_enabled": partial(torch.is_autocast_enabled, d) for d in ("cpu", "cuda")},
        **{f"autocast({d})_dtype": partial(torch.get_autocast_dtype, d) for d in ("cpu", "cuda")},
    }  # fmt: skip
    return {name: str(read()).removeprefix("torch.") for name, read in readers.items()}
