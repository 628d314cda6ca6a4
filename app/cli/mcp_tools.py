"""The tools of `buddy-tui mcp`. Each returns a short object, and its docstring is what the agent reads about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace

from buddy.app.cli.agent import AgentProgram, check_recipe_file
from buddy.app.cli.headless import Failure
from buddy.app.cli.trace import find_nodes, node_json
from buddy.app.reports import formatting, numerics, profile
from buddy.app.reports.nodes import role_text, training_memory
from buddy.app.reports.run_report import failure_json
from buddy.app.reports.searches import bisection_lines
from buddy.app.reports.share.contents import SharedGraph
from buddy.app.reports.share.page import may_be_replaced, write_report
from buddy.app.reports.text.unified import unified_diff
from buddy.app.session.stages import align_stages
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.pipeline_text import PipelineError, option_value, parse_pipeline, to_steps
from buddy.compiler.protocol import (
    Bisect,
    Compare,
    CompareNodes,
    Criterion,
    FindOrigins,
    FollowNode,
    ListPasses,
    NodeRow,
    Profile,
    SearchEach,
    Stage,
)
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import MAX_THREADS, Precision, Recipe, to_toml
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice, OutputReport, RunReport

Json = dict[str, Any]

# Limits of an answer, so that it does not fill the context of a language model: the lines of a stage, the characters
# of a line, the lines of a diff, and the names of edited passes, nodes or settings.
_MAX_LINES = 500
_MAX_LINE_CHARACTERS = 400
_MAX_DIFF_LINES = 400
_MAX_EDITED_NAMES = 20
# The lines of a node that are requested for each stage.
_MAX_TRACED_LINES = 5
# The client replaces this number of a request by a new one.
_NEW_NUMBER = 0


class Tools:
    """The tools, each a method, whose docstring is the description that the agent reads.

    An answer that lists at most `count` entries also has the total number of entries.
    """

    def __init__(self, program: AgentProgram) -> None:
        self._program = program

    # ---- the program ---------------------------------------------------------------------------------------------

    async def open_program(
        self,
        path: str,
        arguments: list[str] | None = None,
        shapes: list[str] | None = None,
        preset: str = "",
        frontend: Literal["", "dynamo", "export", "torch-mlir"] = "",
        recipe: str = "",
        plugins: list[str] | None = None,
    ) -> Json:
        """Open a program in the folder: a Python script (which is executed), `script.py:name`, MLIR, ONNX, .pt2 or .pt.

        `arguments` are those of the script; `shapes`, such as `x=4x128`, replace the shapes of inputs; `recipe` is a
        recipe file in TOML; `plugins` are Python files that add ops, lowerings or passes.
        """
        folder = self._program.folder
        words = [f"--shape={shape}" for shape in shapes or ()]
        words += [f"--{key}={value}" for key, value in (("preset", preset), ("frontend", frontend)) if value]
        plugin_files = [folder.existing_file(plugin) for plugin in plugins or ()]
        words += [f"--plugin={file}" for file in plugin_files]
        if recipe:
            check_recipe_file(folder.existing_file(recipe), plugin_files)
            words.append(f"--recipe={folder.existing_file(recipe)}")
        await self._program.open(folder.resolve_source(path), arguments or (), words)
        graphs = [
            {"graph": number, "name": graph.name, "nodes": sum(row.opcode.startswith("call") for row in graph.rows),
             "inputs": graph.inputs, "parameters": graph.parameters,
             **({"break_reason": graph.break_reason} if graph.break_reason else {}),
             **({"training": memory.as_json()} if (memory := training_memory(graph)) is not None else {})}
            for number, graph in enumerate(self._program.graphs)
        ]  # fmt: skip
        current = self._program.recipe
        return {
            "graphs": graphs,
            "current_graph": current.graph,
            "preset": current.preset,
            "passes": len(current.steps),
            "printed": list(self._program.output)[-20:],
            "notes": self._program.take_notes(),
        }

    async def choose_graph(self, graph: str) -> Json:
        """Make another graph of the program the current one, by its name or number."""
        self._program.choose_graph(graph)
        return {"current_graph": self._program.recipe.graph, "name": self._program.info.name}

    async def list_nodes(self, filter: str = "", start: int = 0, count: int = 50) -> Json:
        """List nodes of the graph: op, result, how each is lowered and why, and its Python line.

        `filter` is words that must all occur, such as `mm eager` or `layer.3`.
        """
        _, assignments, _ = await self._program.compile()
        assignment_of_node = {assignment.node: assignment for assignment in assignments}
        nodes = []
        for row in self._program.info.rows:
            assignment = assignment_of_node.get(row.stable)  # the node's stable name
            node = {"node": row.display_name, "op": row.target if row.opcode.startswith("call") else row.opcode}
            node |= {"result": f"{row.dtype}[{row.shape}]", "line": row.location}
            node |= {"training": role_text(row)} if row.training else {}
            if assignment is not None:
                node |= {"lowering": assignment.lowering, "function": assignment.function}
                node |= {"reason": assignment.reason} if assignment.reason else {}
            if all(word in " ".join(node.values()).lower() for word in filter.lower().split()):
                nodes.append(node)
        return _page("nodes", nodes, start, min(count, 200))

    # ---- stages --------------------------------------------------------------------------------------------------

    async def list_stages(self, changed_only: bool = False) -> Json:
        """Compile the recipe, and list the stages: what each pass changed. After a failure, those before it."""
        stages, _, failure = await self._program.compile()
        rows = [_stage_row(stage) for stage in stages if stage.changed or stage.state != "done" or not changed_only]
        notes = self._program.take_notes()
        return {
            "ok": failure is None,
            **_failure_fields(failure),
            **({"notes": notes} if notes else {}),
            "stages": rows,
        }

    async def read_stage(self, stage: str, first: int = 1, count: int = 100, nodes: bool = False) -> Json:
        """Read lines of a stage, at most 500. With `nodes`, also the nodes that each line comes from."""
        chosen = await self._program.stage(stage)
        client = self._program.engine.client
        # `Stage.text` is the name of the text in the engine.
        window = await client.fetch_lines(chosen.text, first - 1, min(count, _MAX_LINES))
        lines = [_clip(line) for line in window.lines]
        result = {"stage": chosen.index, "name": chosen.name, "first": window.start + 1, "total": window.line_count}
        if nodes:
            names = [[window.names[index] for index in line[:8]] for line in window.nodes]
            rows = [{"text": text, "nodes": nodes_of_line} for text, nodes_of_line in zip(lines, names, strict=False)]
            return {**result, "lines": rows}
        return {**result, "text": "\n".join(lines)}

    async def search(
        self, pattern: str, stage: str = "", regex: bool = False, ignore_case: bool = False, count: int = 20
    ) -> Json:
        """Search one stage, or all stages: the number of matching lines in each, and the first ones."""
        stages: Sequence[Stage] = [await self._program.stage(stage)] if stage else (await self._program.compile())[0]
        texts = tuple(dict.fromkeys(searched.text for searched in stages))
        frame = SearchEach(_NEW_NUMBER, texts, pattern, regex, ignore_case, excerpts=min(count, 100))
        hits = {hit.text: hit for hit in (await self._program.engine.client.request(frame)).hits}
        rows = []
        listed_texts: set[str] = set()
        for searched in stages:
            hit = hits.get(searched.text)
            if hit is None:
                continue
            row: Json = {"stage": searched.index, "name": searched.name, "matches": len(hit.lines)}
            if searched.text not in listed_texts:  # the matches of equal texts are listed once
                matches = list(zip(hit.lines, hit.excerpts, strict=False))[: count if stage else 3]
                row["lines"] = [{"line": line + 1, "text": _clip(text)} for line, text in matches]
            listed_texts.add(searched.text)
            rows.append(row)
        return {"pattern": pattern, "stages": rows}

    async def diff(self, before: str, after: str = "", structural: bool = True, with_last_edit: bool = False) -> Json:
        """Compare two stages, as a unified diff. With `with_last_edit`, compare stage `before` with the same stage
        before the last edit of the recipe. `structural` ignores numbering, the order of attributes and comments.
        """
        new = await self._program.stage(before if with_last_edit else after)
        if with_last_edit:
            old = await self._stage_before_edit(new)
        elif after:
            old = await self._program.stage(before)
        else:
            raise BuddyError("diff needs two stages", "after", "give both, or set with_last_edit to true")
        client = self._program.engine.client
        diff_mode: Literal["structural", "line"] = "structural" if structural else "line"
        compared = await client.request(Compare(_NEW_NUMBER, old.text, new.text, diff_mode, new.language))
        result: Json = {
            "before": old.name, "after": new.name, "hunks": len(compared.hunks),
            "removed": sum(removed for _, removed, _, _ in compared.hunks),
            "added": sum(added for _, _, _, added in compared.hunks),
        }  # fmt: skip
        if compared.hunks:
            texts = await client.fetch_text(old.text), await client.fetch_text(new.text)
            lines = unified_diff(*texts, compared.hunks, old.name, new.name).splitlines()
            result["diff"] = "\n".join(map(_clip, lines[:_MAX_DIFF_LINES]))
            result |= {"lines_left_out": len(lines) - _MAX_DIFF_LINES} if len(lines) > _MAX_DIFF_LINES else {}
        return result

    async def _stage_before_edit(self, stage: Stage) -> Stage:
        """The stage that corresponds to `stage` before the last edit of the recipe. Raises `BuddyError`."""
        old_stages, _, _ = await self._program.compile(self._program.previous_recipe)
        pairs = align_stages(old_stages, (await self._program.compile())[0])
        old = next((old for old, new in pairs if new is stage), None)
        if old is None:
            raise BuddyError(f"stage {stage.name} did not exist before the edit", "", "compare another stage")
        return old

    async def trace(self, node: str = "", stage: str = "", line: int = 0) -> Json:
        """Follow a node through all stages: its lines in each. Or, with `stage` and `line`: the nodes of that line."""
        client = self._program.engine.client
        if stage:
            chosen = await self._program.stage(stage)
            origins = (await client.request(FindOrigins(_NEW_NUMBER, chosen.text, line - 1, line - 1))).origins
            rows = {row.stable: row for row in self._program.info.rows}
            return {"nodes": [node_json(rows[origin.node]) for origin in origins[:20] if origin.node in rows]}
        row = self._one_node(node)
        stages, _, _ = await self._program.compile()
        texts = tuple(dict.fromkeys(compiled.text for compiled in stages))
        frame = FollowNode(_NEW_NUMBER, texts, row.stable, limit=_MAX_TRACED_LINES)
        traces = {trace.text: trace for trace in (await client.request(frame)).traces}
        lines_of_stages = []
        for compiled in stages:
            trace = traces.get(compiled.text)
            if trace is not None and trace.lines and compiled.changed:
                first_lines = list(zip(trace.lines, trace.excerpts, strict=True))[:2]
                # All lines of the node in the stage, also those for which it was derived.
                line_count = trace.direct + trace.derived
                lines_of_stages.append({
                    "stage": compiled.index, "name": compiled.name, "lines": line_count,
                    "first": [{"line": number + 1, "text": _clip(text, 160)} for number, text in first_lines],
                })  # fmt: skip
        return {"node": node_json(row), "stages": lines_of_stages}

    def _one_node(self, name: str) -> NodeRow:
        """The only node that `name` selects. Raises `BuddyError` if it selects none or several."""
        rows = find_nodes(self._program.info, name)
        if len(rows) != 1:
            names = ", ".join(row.display_name for row in rows[:8])
            raise BuddyError(f"{name!r} names {len(rows)} nodes{names and f': {names}'}", "", "call list_nodes")
        return rows[0]

    # ---- the recipe ----------------------------------------------------------------------------------------------

    async def list_passes(self, all: bool = False) -> Json:
        """List the passes of the recipe with their numbers. With `all`, also those that are disabled."""
        rows = [
            {"pass": number, "name": step.name, "phase": step.phase,
             **({} if step.enabled else {"enabled": False}),
             **({"options": dict(step.options)} if step.options else {})}
            for number, step in enumerate(self._program.recipe.steps, 1) if step.enabled or all
        ]  # fmt: skip
        choices = {choice.node: choice.lowering for choice in self._program.recipe.choices}
        return {"passes": rows, "lowerings": choices}

    async def find_passes(self, filter: str = "", count: int = 20) -> Json:
        """Search the catalogue of passes by words in name or summary: what a pipeline may contain."""
        client = self._program.engine.client
        answer = await client.request(
            ListPasses(_NEW_NUMBER, str(self._program.folder.root), self._program.recipe.plugins)
        )
        words = filter.lower().split()
        rows = [
            {"name": info.name, "summary": info.summary, "anchor": info.anchor,
             "options": {option.name: option.default for option in info.options}}
            for info in answer.passes
            if all(word in f"{info.name} {info.summary}".lower() for word in words)
        ]  # fmt: skip
        return _page("passes", rows, 0, min(count, 100))

    async def set_pass(self, passes: str, enabled: bool | None = None, options: dict[str, str] | None = None) -> Json:
        """Enable or disable passes of the recipe, or set options. `passes` is a number of list_passes, or a name."""
        recipe = self._program.recipe
        indices = self._program.steps(passes)
        for index in indices:
            changes: Json = {} if enabled is None else {"enabled": enabled}
            if options:
                values = {key: option_value(value) for key, value in options.items()}
                changes["options"] = tuple({**dict(recipe.steps[index].options), **values}.items())
            recipe = recipe.with_step(index, **changes)
        return self._edit(recipe, [recipe.steps[index].name for index in indices])

    async def set_nodes(self, nodes: list[str], lowering: str) -> Json:
        """Lower nodes by a registry (`linalg`, `tosa`, …), in eager PyTorch (`eager`), or by default (`default`).

        `nodes` are names of list_nodes, or patterns such as `gelu*`.
        """
        rows = self._program.nodes(nodes)
        _, assignments, _ = await self._program.compile()
        recipe = self._program.with_lowering(rows, lowering, assignments)
        return self._edit(recipe, [row.display_name for row in rows])

    async def set_recipe(
        self,
        preset: str | None = None,
        dialect: Literal["linalg", "tosa", "stablehlo"] | None = None,
        partition: Literal["layers", "whole"] | None = None,
        threads: int | None = None,
        checks: Literal["eager", "none"] | None = None,
        precision: Precision | None = None,
    ) -> Json:
        """Change settings of the recipe. A preset replaces all passes."""
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise BuddyError(f"threads is {threads}", "set_recipe", f"give a number from 1 to {MAX_THREADS}")
        settings = {"preset": preset, "dialect": dialect, "partition": partition, "threads": threads}
        settings |= {"checks": checks, "precision": precision}
        return self._edit(self._program.with_settings(settings), [key for key, value in settings.items() if value])

    async def set_pipeline(self, pipeline: str) -> Json:
        """Replace all passes by a pipeline in MLIR's syntax: `builtin.module(canonicalize,func.func(cse))`."""
        recipe = self._program.recipe
        try:
            steps = to_steps(parse_pipeline(pipeline), recipe.steps)
        except PipelineError as error:
            where = f"the pipeline, character {error.offset + 1}"
            raise BuddyError(error.message, where, "correct the pipeline and call set_pipeline again") from error
        return self._edit(replace(recipe, steps=steps), [step.name for step in steps])

    async def undo(self) -> Json:
        """Undo the last edit of the recipe."""
        self._program.undo()
        return {"undone": True}

    def _edit(self, recipe: Recipe, names: Sequence[str]) -> Json:
        """Makes `recipe` the current one; the answer has whether it `changed`, and as `of` the first of `names`.

        `names` are the passes, nodes or settings that were edited.
        """
        changed = self._program.edit(recipe)
        more = {"and_more": len(names) - _MAX_EDITED_NAMES} if len(names) > _MAX_EDITED_NAMES else {}
        return {"changed": changed, "of": list(names[:_MAX_EDITED_NAMES]), **more}

    # ---- measurements --------------------------------------------------------------------------------------------

    async def run(self, repeats: int = 3, seed: int | None = None, equal_nan: bool = False) -> Json:
        """Compile and run the recipe, compare every output with eager PyTorch, and time both.

        With `seed`, on random inputs. `result` is `ok`, `MISMATCH`, `NaN` or `not compared`.
        """
        inputs = OWN_INPUTS if seed is None else InputChoice("random", seed)
        timeout = self._program.timeout
        compilation = await self._program.engine.run(self._program.recipe, max(repeats, 1), timeout, inputs, equal_nan)
        assert compilation.report is not None
        return _run_result(compilation.report, self._program.take_notes())

    async def profile(self, top: int = 10) -> Json:
        """Measure the time of each node in a run. Lists the slowest."""
        engine = self._program.engine
        frame = Profile(engine.client.new_request_id(), self._program.recipe, timeout=self._program.timeout)
        report, info = (await engine.request(frame)).report, self._program.info
        nodes = [
            {"node": node.row.display_name, "op": node.row.target, "ms": round(node.time.seconds * 1e3, 4),
             "share_of_run": round(node.time.seconds / (report.whole or 1), 4), "share_of_bound": round(node.share, 3)}
            for node in profile.timed_nodes(report, info)[: min(top, 50)]
        ]  # fmt: skip
        return {"summary": profile.summary_lines(report), "nodes": nodes}

    async def numerics(self, top: int = 10, reference: Literal["eager", "float64"] = "eager", own: bool = True) -> Json:
        """Compare the value of every node with eager: the first node out of tolerance, and the largest errors.

        With `own`, each node is also compiled alone, which distinguishes a wrong node from one with wrong inputs.
        """
        engine = self._program.engine
        request, timeout = engine.client.new_request_id(), self._program.timeout
        frame = CompareNodes(request, self._program.recipe, reference, own, timeout=timeout)
        report, info = (await engine.request(frame)).report, self._program.info
        rows = numerics.rows_by_stable_name(info)
        nodes = [
            {"node": rows[node.node].display_name if node.node in rows else node.node, "value": node.value_state,
             "ok": node.ok, "error": numerics.error_text(node.error),
             "of_tolerance": numerics.tolerance_multiple_text(node.error),
             "alone_of_tolerance": numerics.tolerance_multiple_text(node.own_error)}
            for node in numerics.worst_nodes(report, min(top, 50))
        ]  # fmt: skip
        return {"ok": report.ok, "summary": numerics.summary_lines(report, info), "nodes": nodes}

    async def bisect(
        self,
        criterion: Literal["any", "fails", "differs", "slower"] = "any",
        tolerance: float = 1.0,
        seconds: float = 300.0,
        adopt: bool = False,
    ) -> Json:
        """Find the pass, the lowering and the nodes that make the program fail, differ from eager, or run slowly.

        `passes` are the responsible passes with their numbers. With `adopt`, the correct recipe becomes current.
        """
        engine = self._program.engine
        limits = Criterion(criterion, tolerance, seconds=seconds)
        frame = Bisect(engine.client.new_request_id(), self._program.recipe, limits)
        finding = (await engine.request(frame)).finding
        if adopt and finding.confirmed:
            self._program.edit(finding.recipe)
        return {
            "found": bool(finding.steps or finding.lowerings or finding.in_eager),
            "summary": bisection_lines(finding),
            "passes": [
                {"pass": culprit.index + 1, "name": culprit.step.name, "from": culprit.origin}
                for culprit in finding.steps
            ],
            "lowerings": [
                {
                    "op": culprit.op,
                    "registry": culprit.registry,
                    "nodes": list(culprit.nodes[:10]),
                    "correct": list(culprit.correct),
                }
                for culprit in finding.lowerings
            ],
            "nodes": list(finding.nodes[:10]),
            "correct_with_these_in_eager": list(finding.in_eager[:10]),
            "confirmed": finding.confirmed,
            "adopted": adopt and finding.confirmed,
        }

    # ---- files ---------------------------------------------------------------------------------------------------

    async def write_recipe(self, path: str, overwrite: bool = False) -> Json:
        """Write the current recipe as TOML into the folder, for `buddy-tui run --recipe`."""
        file = self._program.folder.new_file(path, overwrite=overwrite)
        write_text_atomically(file, to_toml(self._program.recipe))
        return {"written": self._program.folder.name_of(file)}

    async def write_report(self, path: str, run: bool = True) -> Json:
        """Write one HTML file with every stage, the graph and the results into the folder, for a person to read.

        Python code that is outside of the folder is left out.
        """
        program = self._program
        file = program.folder.new_file(path, overwrite=True)
        if not may_be_replaced(file):
            raise BuddyError(f"{path} exists and is not a report", "", "give another name")
        stages, assignments, failure = await program.compile()
        problem = failure.diagnostic if failure is not None else None
        report = None
        if run and failure is None:
            try:
                report = (await program.engine.run(program.recipe, 3, program.timeout)).report
            except Failure as error:
                problem = error.diagnostic
        graph = SharedGraph(program.info, program.recipe, stages, assignments, report, problem=problem)
        client = program.engine.client
        size = await write_report(
            file, [graph], client.request, client.welcome, program.report, is_shared=program.folder.contains
        )
        return {"written": program.folder.name_of(file), "bytes": size}


def _page(name: str, rows: Sequence[Json], start: int, count: int) -> Json:
    """The rows from `start`, at most `count`, as the entry `name`, with the total number of rows."""
    return {"total": len(rows), "start": start, name: list(rows[start : start + count])}


def _clip(line: str, width: int = _MAX_LINE_CHARACTERS) -> str:
    """A line; of a longer one, the first `width` characters and the number of the others."""
    return line if len(line) <= width else f"{line[:width]}… ({len(line) - width} more characters)"


def _stage_row(stage: Stage) -> Json:
    """A stage in the list of stages: `state` and `changed` only if they are not the usual ones."""
    row: Json = {"stage": stage.index, "name": stage.name, "phase": stage.phase, "language": stage.language}
    row |= {"lines": stage.lines, "ops": stage.ops, "ms": round(stage.milliseconds, 1)}
    if stage.state != "done":
        row["state"] = stage.state
    elif not stage.changed:
        row["changed"] = False
    return row | ({"added": stage.added, "removed": stage.removed} if stage.added or stage.removed else {})


def _failure_fields(failure: Failure | None) -> Json:
    """The entry `error` of an answer; empty without a failure."""
    return {} if failure is None else {"error": failure_json(failure.diagnostic)}


def _run_result(report: RunReport, notes: Sequence[str]) -> Json:
    """The report of a run: the verdict, the first 20 outputs, and the median times in seconds."""
    result: Json = {
        "result": report.word,
        "outputs": [_output_row(output) for output in report.outputs[:20]],
        "nodes": {"compiled": report.nodes_compiled, "eager": report.nodes_eager},
        "seconds": {"compiled": report.compiled.median, "eager": report.eager.median},
        "ratio": round(report.ratio, 3),
        "notes": [*notes, *report.notes[:10]],
    }
    return result if report.inputs_unchanged else {**result, "inputs_changed": True}


def _output_row(output: OutputReport) -> Json:
    """An output: name, type, verdict, largest error, and the conditions that decided the verdict."""
    conditions = formatting.verdict_texts(output)
    difference = {"first_difference": output.where} if output.where and output.verdict != "ok" else {}
    shape = "x".join(map(str, output.shape))
    row = {"name": output.name, "shape": shape, "dtype": output.dtype, "verdict": output.verdict}
    return {**row, "max_abs": f"{output.max_abs:.2e}", **difference, "conditions": conditions}
