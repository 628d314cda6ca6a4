"""Builds the report of a run from the records of TorchDynamo's trace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import msgspec

from buddy.compiler.protocol.dynamo import (
    BREAK_FIX,
    DynamoBreak,
    DynamoCompile,
    DynamoGuard,
    DynamoReport,
    GuardFailure,
    RecompileLimit,
    UserFrame,
    read_break,
)
from buddy.compiler.protocol.errors import Diagnostic
from buddy.compiler.protocol.one_shot_messages import TraceRecord
from buddy.compiler.tools.explain.guards import (
    TensorFacts,
    as_written,
    fix_for,
    is_library_source,
    read_reason,
    read_tree,
    scope_of,
)
from buddy.compiler.tools.explain.records import (
    RESUME_FUNCTION,
    CountFields,
    FailureFields,
    FunctionFields,
    LimitFields,
    MetricsFields,
    NoteFields,
    RecordedCompile,
    RunnerFields,
    SourceFields,
    StackFrame,
    StartFields,
    SymbolFields,
    TensorFields,
    ValuesFields,
    checked_values,
    compile_error,
    function_title,
    is_recompile_limit,
    is_user_file,
    read_frames,
    size_text,
    tidy_frame,
    user_stack_of,
    value_texts,
    without_repetitions,
)

# The records of the structured trace that the report is built from, and the artifacts among them by name.
READ_RECORDS = frozenset(
    ("str", "dynamo_start", "dynamo_cpp_guards_str", "describe_tensor", "describe_source", "create_symbol",
     "compilation_metrics")
)  # fmt: skip
READ_ARTIFACTS = frozenset(("dynamo_graph_break_reason", "recompile_reasons", "torch_version"))
# The kinds of reasons why a guard of the kind "tensor" fails: one guard checks all these properties.
_TENSOR_KINDS = dict.fromkeys(("size", "rank", "stride", "dtype", "requires_grad", "device"), "tensor")
# The maximum numbers of entries in a report. A large model has some thousand guards per compilation.
MAX_GUARDS = 5000
MAX_BREAKS = 1000
# The end of the `function_title` of code after a graph break.
_RESUMED_TITLE = re.compile(r" after line (\d+)$")
# In Dynamo's text of a graph break: the whole function runs in eager.
_SKIP_PHRASE = "which results in a skip"
# In the same text: the titles above the user's stack.
_TRACEBACK_TITLES = ("User code traceback:", "in the following user code:")


class ReportBuilder:
    """Builds a report from records: `take` adds the next record, `report` returns the report of the records so far."""

    def __init__(self) -> None:
        self._compiles: list[RecordedCompile] = []
        # By process and Dynamo's id: the last compilation with that id.
        self._by_id: dict[tuple[str, str], RecordedCompile] = {}
        # By the number of this project's hooks.
        self._by_serial: dict[int, RecordedCompile] = {}
        self._breaks: list[DynamoBreak] = []
        self._limits: list[RecompileLimit] = []
        # The texts that other records of a process refer to by number.
        self._strings: dict[tuple[str, int], str] = {}
        # The paths that records have named, as keys in their order.
        self._files: dict[str, None] = {}
        self._torch_version = ""
        # The folder of the package that runs the script: its frames are on every stack.
        self._runner = ""
        self._notes: list[str] = []
        self._handlers: dict[str, Callable[[TraceRecord, Any], None]] = {
            "buddy_start": self._take_runner,
            "str": self._take_string,
            "torch_version": self._take_version,
            "dynamo_start": self._take_start,
            "buddy_function": self._take_function,
            "dynamo_graph_break_reason": self._take_break,
            "recompile_reasons": self._take_reasons,
            "buddy_failures": self._take_failures,
            "describe_tensor": self._take_tensor,
            "describe_source": self._take_source,
            "create_symbol": self._take_symbol,
            "dynamo_cpp_guards_str": self._take_guards,
            "buddy_values": self._take_values,
            "buddy_counts": self._take_counts,
            "buddy_limit": self._take_limit,
            "buddy_note": self._take_note,
            "compilation_metrics": self._take_metrics,
            "buddy_compiled": self._close,
        }

    def take(self, record: TraceRecord) -> None:
        """Adds a record; those that the report does not need are ignored."""
        handler = self._handlers.get(record.name)
        if handler is not None:
            fields = json.loads(record.fields or b"{}")
            handler(record, fields)

    # ---- records ----

    def _compile_of(self, record: TraceRecord) -> RecordedCompile:
        """Returns the compilation of a record; a record after its end starts another one, because Dynamo was reset."""
        key = (record.process, record.compile)
        compile_ = self._by_id.get(key)
        if compile_ is None or compile_.closed:
            name = f"{record.process} {record.compile}".strip() or "?"
            # The id `3/1` is the second compilation of function 3.
            number = int(record.compile.rpartition("/")[2] or 0) + 1 if record.compile else 1
            compile_ = RecordedCompile(len(self._compiles), DynamoCompile(name, "", number=number), record.process)
            self._compiles.append(compile_)
            self._by_id[key] = compile_
        return compile_

    def _take_string(self, record: TraceRecord, fields: tuple[str, int]) -> None:
        text, number = fields
        self._strings[record.process, int(number)] = text
        self._note_file(text)

    def _take_runner(self, _record: TraceRecord, fields: RunnerFields) -> None:
        self._runner, self._torch_version = fields["folder"], fields["torch"]

    def _user_frames(self, frames: Iterable[UserFrame]) -> list[UserFrame]:
        user_frames = [frame for frame in frames if is_user_file(frame.file)]
        return [frame for frame in user_frames if not (self._runner and frame.file.startswith(self._runner))]

    def _note_file(self, path: str) -> None:
        self._files[path] = None

    def _take_version(self, record: TraceRecord, _fields: object) -> None:
        self._torch_version = str(json.loads(record.payload or "{}").get("pytorch_version", ""))

    def _take_start(self, record: TraceRecord, fields: StartFields) -> None:
        compile_ = self._compile_of(record)
        frames = [self._frame(record.process, frame) for frame in fields.get("stack") or ()]
        callers = [tidy_frame(UserFrame(*frame)) for frame in fields.get("callers") or ()]
        # The last frame is the function itself.
        user_frames = self._user_frames(callers or frames[:-1])
        if frames and (resumed := RESUME_FUNCTION.match(fields["stack"][-1].get("name", ""))):
            # The function's own frames before its graph break are not its callers.
            while user_frames and user_frames[-1].function.partition(" after line ")[0] == resumed[1]:
                user_frames.pop()
        compile_.info = msgspec.structs.replace(compile_.info, call=user_frames[-1] if user_frames else None)
        if frames:
            function_frame = fields["stack"][-1]
            self._take_function(
                record, {"function": function_frame.get("name", ""), "file": frames[-1].file, "line": frames[-1].line}
            )

    def _frame(self, process: str, fields: StackFrame) -> UserFrame:
        file = fields.get("filename")
        path = self._strings.get((process, file), "") if isinstance(file, int) else str(file or "")
        return tidy_frame(
            UserFrame(path, int(fields.get("line") or 0), str(fields.get("name", "")), fields.get("loc") or "")
        )

    def _take_function(self, record: TraceRecord, fields: FunctionFields) -> None:
        """Sets the function of a compilation, and of this function's earlier compilations that do not name it."""
        compile_ = self._compile_of(record)
        self._note_file(fields["file"])
        function = function_title(fields["function"])
        function_fields = {"function": function, "file": fields["file"], "line": fields["line"]}
        compile_.info = msgspec.structs.replace(compile_.info, **function_fields)
        for earlier in self._earlier_compiles(compile_):  # a text log names a function only when it is compiled again
            if not earlier.info.function:
                earlier.info = msgspec.structs.replace(earlier.info, **function_fields)

    def _take_break(self, record: TraceRecord, _fields: object) -> None:
        text = record.payload
        message = read_break(text)
        stack = next((text.partition(title)[2] for title in _TRACEBACK_TITLES if title in text), "")
        frames = self._user_frames(read_frames(stack))
        for frame in frames:
            self._note_file(frame.file)
        skipped, reason = _SKIP_PHRASE in text, message.reason
        if skipped:  # the text has the reason to skip, then the graph break
            message = read_break(text.rpartition("Unsupported: ")[2])
            reason = message.reason or reason
        fixes = message.fixes or (BREAK_FIX,)
        index = self._compile_of(record).index
        self._add_break(
            DynamoBreak(index, reason, message.explanation, fixes, without_repetitions(frames), message.link, skipped)
        )

    def _add_break(self, new: DynamoBreak) -> None:
        """Adds a break, or counts it if it has happened before: each compilation of a function has the same breaks."""
        for position, earlier in enumerate(self._breaks):
            if (earlier.reason, earlier.frames[-1:]) == (new.reason, new.frames[-1:]):
                skipped = earlier.skipped or new.skipped
                self._breaks[position] = msgspec.structs.replace(earlier, times=earlier.times + 1, skipped=skipped)
                return
        if len(self._breaks) < MAX_BREAKS:
            self._breaks.append(new)

    def _take_reasons(self, record: TraceRecord, _fields: object) -> None:
        compile_ = self._compile_of(record)
        if compile_.reasons:
            return  # this project's hooks have recorded the reasons, with more fields
        text = record.payload
        try:
            reasons = json.loads(text) if text.lstrip().startswith(("[", '"')) else [text]
        except ValueError:
            reasons = [text]
        if isinstance(reasons, str):
            reasons = [reasons]
        for reason in reasons:
            compile_id, _, rest = str(reason).partition(": ")
            compile_.reasons.append({"entry": compile_id, "reason": rest})

    def _take_failures(self, record: TraceRecord, fields: list[FailureFields]) -> None:
        self._compile_of(record).reasons = list(fields)

    def _take_tensor(self, record: TraceRecord, fields: TensorFields) -> None:
        facts = TensorFacts(
            size_text(fields.get("size")),
            size_text(fields.get("stride")),
            str(fields.get("dtype", "")).removeprefix("torch."),
            str(bool(fields.get("requires_grad"))),
        )
        self._compile_of(record).tensor_facts[fields.get("describer_id", 0), fields.get("id", 0)] = facts

    def _take_source(self, record: TraceRecord, fields: SourceFields) -> None:
        compile_ = self._compile_of(record)
        facts = compile_.tensor_facts.get((fields.get("describer_id", 0), fields.get("id", 0)))
        if facts is not None:
            compile_.values.tensors[as_written(str(fields.get("source", "")))] = facts

    def _take_symbol(self, record: TraceRecord, fields: SymbolFields) -> None:
        source, value = fields.get("source"), fields.get("val")
        if source and value is not None:
            self._compile_of(record).values.numbers[as_written(str(source))] = str(value)

    def _take_guards(self, record: TraceRecord, _fields: object) -> None:
        self._compile_of(record).tree = read_tree(record.payload)

    def _take_values(self, record: TraceRecord, fields: ValuesFields) -> None:
        compile_ = self._compile_of(record)
        self._by_serial[fields["serial"]] = compile_
        compile_.values.hooked = {as_written(source): value for source, value in fields["values"].items()}
        compile_.frames = {
            as_written(source): tidy_frame(UserFrame(*frame)) for source, frame in fields["frames"].items()
        }
        compile_.closure = frozenset(fields["closure"])

    def _take_counts(self, _record: TraceRecord, fields: list[CountFields]) -> None:
        for serial, checked, calls, failed in fields:
            compile_ = self._by_serial.get(serial)
            if compile_ is not None:
                compile_.counts = (checked, calls)
                compile_.failed = {as_written(source): count for source, count in failed.items()}

    def _take_limit(self, record: TraceRecord, fields: LimitFields) -> None:
        if record.compile and fields.get("function"):
            function_fields = FunctionFields(function=fields["function"], file=fields["file"], line=fields["line"])
            self._take_function(record, function_fields)
        compile_ = self._compile_of(record)
        info = self._with_function(compile_)
        is_known = any((info.function, info.location) == (known.function, known.location) for known in self._limits)
        if not is_known:
            setting, limit = fields["setting"], int(fields["limit"])
            self._limits.append(RecompileLimit(info.function, info.location, setting, limit, compile_.index))

    def _with_function(self, compile_: RecordedCompile) -> DynamoCompile:
        """Returns the compilation, with the function of an earlier one if its own records do not name it."""
        info, earlier = compile_.info, self._earlier_compiles(compile_)
        if info.function or not earlier:
            return info
        other = earlier[0].info
        return msgspec.structs.replace(info, function=other.function, file=other.file, line=other.line)

    def _earlier_compiles(self, compile_: RecordedCompile) -> list[RecordedCompile]:
        """Returns the earlier compilations of the same function, the newest first."""
        # An id is the process, and the numbers of the function and of its compilation: `rank 0 3/1`.
        function_id, earlier = compile_.info.id.rpartition("/")[0], list[RecordedCompile]()
        if compile_.info.number == 1:
            return earlier
        for other in reversed(self._compiles[: compile_.index]):
            if other.info.id.rpartition("/")[0] == function_id:
                earlier.append(other)
                if other.info.number == 1:  # earlier ones were made before Dynamo was reset
                    break
        return earlier

    def _take_note(self, _record: TraceRecord, fields: NoteFields) -> None:
        self._notes.append(fields["note"])

    def _take_metrics(self, record: TraceRecord, fields: MetricsFields) -> None:
        compile_ = self._compile_of(record)
        problem = compile_error(fields)
        if fields.get("co_name"):
            file, line = str(fields.get("co_filename")), int(fields.get("co_firstlineno") or 0)
            self._take_function(record, {"function": fields["co_name"], "file": file, "line": line})
        compile_.info = msgspec.structs.replace(
            compile_.info,
            seconds=float(fields.get("entire_frame_compile_time_s") or 0.0),
            backend_seconds=float(fields.get("backend_compile_time_s") or 0.0),
            guards=int(fields.get("guard_count") or 0),
            ops=int(fields.get("graph_op_count") or 0),
            problem="" if is_recompile_limit(problem) else problem,
        )
        if is_recompile_limit(problem):
            setting = "accumulated_recompile_limit" if "accumulated_recompile_limit" in problem else "recompile_limit"
            limit = re.search(r"currently set to (\d+)", problem)
            count = int(limit[1]) if limit else compile_.info.number - 1
            self._take_limit(record, {"setting": setting, "limit": count})
        elif fields.get("fail_type"):
            self._take_error(compile_, fields)
        self._close(record, fields)

    def _take_error(self, compile_: RecordedCompile, metrics: MetricsFields) -> None:
        """Adds the graph break that ended a compilation with `fullgraph=True`: Dynamo records it only as an error."""
        if not str(metrics["fail_type"]).rstrip("'>").endswith("Unsupported"):
            return
        message = read_break(str(metrics.get("fail_reason") or ""))
        file, line = str(metrics.get("fail_user_frame_filename") or ""), int(metrics.get("fail_user_frame_lineno") or 0)
        frames = (UserFrame(file, line),) if is_user_file(file) else ()
        is_known = any(known.compile == compile_.index and known.reason == message.reason for known in self._breaks)
        if not is_known:
            fixes = message.fixes or (BREAK_FIX,)
            index = compile_.index
            self._add_break(DynamoBreak(index, message.reason, message.explanation, fixes, frames, message.link))

    def _close(self, record: TraceRecord, _fields: object) -> None:
        self._compile_of(record).closed = True

    # ---- the report ----

    def report(self, notes: Sequence[str] = (), problem: Diagnostic | None = None) -> DynamoReport:
        """Returns the report of the records so far."""
        compiles = tuple(self._report_compile(compile_) for compile_ in self._compiles)
        failed = {
            (failure.compile, failure.source, _TENSOR_KINDS.get(failure.kind, failure.kind))
            for compiled in compiles for failure in compiled.failures
        }  # fmt: skip
        guards = [guard for compile_ in self._compiles for guard in self._report_guards(compile_, failed)]
        notes = (*self._notes, *notes)
        if len(guards) > MAX_GUARDS:
            notes = (*notes, f"{len(guards)} guards; the first {MAX_GUARDS} of them are in the report")
        return DynamoReport(
            compiles, tuple(self._breaks), tuple(guards[:MAX_GUARDS]), tuple(self._limits), tuple(notes),
            self._torch_version, problem,
        )  # fmt: skip

    def _report_compile(self, compile_: RecordedCompile) -> DynamoCompile:
        failures = tuple(self._report_failure(compile_, fields) for fields in compile_.reasons)
        calls = compile_.counts[1] + 1 if compile_.counts[1] >= 0 else -1  # the first call checks no guard
        info = self._with_function(compile_)
        module = compile_.values.hooked.get("fn")
        if info.function == "inner" and module:  # Dynamo's wrapper of a module of torch.nn
            info = msgspec.structs.replace(info, function=module["type"])
        return msgspec.structs.replace(info, failures=failures, calls=calls)

    def _report_failure(self, compile_: RecordedCompile, fields: FailureFields) -> GuardFailure:
        """Returns a failed guard of an earlier compilation, for which `compile_` was made, with advice."""
        reason = read_reason(fields["reason"])
        failed_compile = self._find_failed_compile(compile_, fields)
        source, scope = as_written(reason.source), ""
        if failed_compile is not None:
            line = next((line for line in failed_compile.tree.lines if line.key == source), None)
            scope = scope_of(line.source if line else reason.dynamo_source, failed_compile.closure)
        before, after = checked_values(reason, failed_compile, compile_, fields)
        frames = [tidy_frame(UserFrame(*frame)) for frame in fields.get("frames", ())] or user_stack_of(
            fields["reason"]
        )
        user_frames = self._user_frames(frames)
        frame = user_frames[-1] if user_frames else self._find_line(failed_compile, source)
        fix = fix_for(reason, scope, before, after)
        if reason.kind in ("dtype", "rank", "requires_grad", "device") and before:
            reason = reason._replace(expression=f"{reason.kind} of {source} is {before}")
        if (resumed := _RESUMED_TITLE.search(compile_.info.function)) and scope == "local":
            fix = f"remove the graph break at line {resumed[1]}, which makes {source} an input; or {fix}"
        changes = {
            as_written(name): change
            for name, change in fields.get("changes", {}).items()
            if as_written(name) != source and not is_library_source(name)
        }
        return GuardFailure(
            -1 if failed_compile is None else failed_compile.index, reason.kind, reason.expression, source, scope,
            before, after, frame, fix, tuple((name, *value_texts(*change)) for name, change in changes.items()),
        )  # fmt: skip

    def _find_failed_compile(self, compile_: RecordedCompile, fields: FailureFields) -> RecordedCompile | None:
        """Returns the earlier compilation whose guard failed, `None` if its records are missing."""
        if "serial" in fields:
            return self._by_serial.get(fields["serial"])
        return next(
            (other for other in self._earlier_compiles(compile_) if other.info.id.endswith(fields["entry"])), None
        )

    def _find_line(self, compile_: RecordedCompile | None, source: str) -> UserFrame | None:
        """Returns the user's line that reads `source`, from the guards of a compilation."""
        if compile_ is None or not source:
            return None
        if source in compile_.frames:
            return compile_.frames[source]
        frames = (line.frame for line in compile_.tree.lines if line.key == source and line.frame is not None)
        resolved = (self._resolve(frame) for frame in frames)
        return next((frame for frame in resolved if is_user_file(frame.file)), None)

    def _resolve(self, frame: UserFrame) -> UserFrame:
        """Returns the frame with its full path, if a record has named it: guards have only the end of a path."""
        path = next((path for path in self._files if f"/{path}".endswith(f"/{frame.file}")), frame.file)
        return tidy_frame(msgspec.structs.replace(frame, file=path))

    def _report_guards(self, compile_: RecordedCompile, failures: Set[tuple[int, str, str]]) -> Iterable[DynamoGuard]:
        """Yields the guards of a compilation, with the numbers of their failures.

        Dynamo counts failures by value. `failures` are (compilation, value, kind) of failed guards: they determine
        which of several guards on one value has failed.
        """
        checked, index = compile_.counts[0], compile_.index
        sources_with_failures = {source for number, source, _ in failures if number == index}
        for line in compile_.tree.lines:
            frame = compile_.frames.get(line.key) or (self._resolve(line.frame) if line.frame else None)
            is_known_failure = (index, line.key, line.kind) in failures
            is_unlikely_failure = line.key in sources_with_failures or line.library
            failure_count = compile_.failed.get(line.key, 0) if is_known_failure or not is_unlikely_failure else 0
            if checked < 0:
                failure_count = -1  # unknown
            yield DynamoGuard(
                index, line.kind, line.expression, line.key, scope_of(line.source, compile_.closure), frame,
                checked, failure_count, line.library,
            )  # fmt: skip
