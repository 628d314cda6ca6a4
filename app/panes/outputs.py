"""The outputs pane: errors, the outputs compared with eager, the timings, and the output of the script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.pane import Pane
from buddy.app.reports import formatting
from buddy.app.reports.formatting import Glyphs, short_location
from buddy.app.reports.run_report import RUNTIME_LABELS, divergence_texts, marked_table
from buddy.app.screens.detail import diagnostic_lines
from buddy.app.session.state import State, Topic
from buddy.app.widgets.look import Cells, cut_cells, wrap_text
from buddy.app.widgets.textual_helpers import pane_bindings
from buddy.app.workspace.session_file import RunRecord
from buddy.compiler.protocol import COMPILER_NAMES, NOT_APPLIED, OutputReport, RunReport, SideReport, Timing
from buddy.compiler.protocol.recipe import NATIVE, Recipe
from buddy.compiler.protocol.run_report import InputChoice

# The text and the role of each verdict.
VERDICTS = {
    "ok": ("OK", "ok"),
    "mismatch": ("MISMATCH", "bad"),
    "missing": ("MISSING", "bad"),
    "unchecked": ("RAN", "warn"),
    "nan": ("NaN", "bad"),
}
# The names of backends and of other runtimes before their timings.
BACKEND_NAMES = {NATIVE: "buddy", **COMPILER_NAMES, **RUNTIME_LABELS}
# The maximum number of lines that are shown of the output of the script.
MAX_PRINTED_LINES = 200
# Larger distances from eager, in ULP, are not shown: eager's value is near zero.
MAX_ULP = 10_000
# The maximum number of previous runs whose timings are shown.
MAX_PREVIOUS_RUNS = 3
# Of the nodes whose values differ in another runtime, at most this many are shown.
MAX_MARKED_NODES = 20
# The width of the first column, which has verdicts and names of runs, in characters.
LABEL_WIDTH = 9
# The indentation of lines without a text in the first column.
INDENT = " " * LABEL_WIDTH
# The widths of bars of timings, in characters.
MIN_BAR_WIDTH, MAX_BAR_WIDTH = 6, 40
# The names, medians and quartiles around a bar need this many characters.
WIDTH_WITHOUT_BAR = 40
# The smallest time, in seconds, that a bar of full length stands for, so that no time is divided by zero.
MIN_FULL_BAR_SECONDS = 1e-12


def outputs_lines(state: State, recipe: Recipe, width: int, glyphs: Glyphs, changed: Sequence[str] = ()) -> list[Cells]:
    """Returns all lines of the pane: the problem, the outputs, the timings, notes, and the output of the script.

    `changed` are the names of the program's files that have changed on disk.
    """
    lines: list[Cells] = []
    if state.problem is not None:
        lines += [*diagnostic_lines(state.problem, width), []]
    lines += _report_lines(state, recipe, width, glyphs, changed) if state.report else _placeholder_lines(state)
    lines += _graph_break_lines(state, width) + _note_lines(state, width)
    return lines + _printed_lines(state, width)


def _placeholder_lines(state: State) -> list[Cells]:
    """Returns the lines that are shown instead of a report before the first run."""
    if "run" in state.running_jobs(state.graph):
        return [[("running, and comparing with eager", "dim")]]
    if "run" in state.problems or "open" in state.problems:
        return []
    hint: Cells = [("press ", "dim"), (key_of("run"), "key"), (" to run and compare with eager", "dim")]
    if state.info is not None and state.info.is_dump:
        return [[("the stages of a dump can be read, searched and compared, but not run", "dim")]]
    if state.captured:
        return [hint]
    return [[("Results, errors and the output of the script appear here", "dim")]] if not state.printout else []


def _stale_line(state: State, recipe: Recipe, changed: Sequence[str]) -> Cells:
    """Returns the reason why the results are out of date, and the key to press; empty if they are up to date."""
    run_again: Cells = [(key_of("run"), "key"), (" to run again", "dim")]
    if (run := state.graph_state.restored_run) is not None:
        return [("STALE: ", "stale"), (f"from an earlier session, {run.end_date}; press ", "dim"), *run_again]
    if state.run_recipe != recipe:
        return [("STALE: ", "stale"), ("the recipe has changed; press ", "dim"), *run_again]
    if changed:
        reload: Cells = [(key_of("rerun"), "key"), (" to reload", "dim")]
        return [("STALE: ", "stale"), (f"{', '.join(changed)} changed on disk; press ", "dim"), *reload]
    if state.graph_state.inputs != state.next_inputs:
        return [("STALE: ", "stale"), (f"results are for {state.graph_state.inputs}; press ", "dim"), *run_again]
    return []


def _report_lines(state: State, recipe: Recipe, width: int, glyphs: Glyphs, changed: Sequence[str]) -> list[Cells]:
    """Returns the lines about the last run: why it is out of date, the outputs, the timings, and other facts."""
    report = state.report
    assert report is not None
    previous = {output.name: output for output in (state.previous_report.outputs if state.previous_report else ())}
    lines: list[Cells] = []
    lines += [stale] if (stale := _stale_line(state, recipe, changed)) else []
    for output in report.outputs:
        lines += _output_lines(output, previous.get(output.name), width, glyphs)
    return [
        *lines,
        *_timing_lines(report, state, width, glyphs),
        *_fact_lines(report, state.graph_state.inputs, width, glyphs),
    ]


def _output_lines(output: OutputReport, previous: OutputReport | None, width: int, glyphs: Glyphs) -> list[Cells]:
    """Returns the verdict and the errors of an output, its error in the previous run, and its difference map."""
    verdict_text, role = VERDICTS[output.verdict]
    shape = ",".join(map(str, output.shape))
    line: Cells = [
        (f"{verdict_text:<{LABEL_WIDTH}}", role),
        (f"{output.name} ", "title"),
        (f"{output.dtype}[{shape}]", "syntax:type"),
    ]
    if output.verdict == "unchecked":
        return [line, *output_details(output, width, glyphs)]
    line += [(f"  max|{glyphs.delta}| ", "dim"), (formatting.difference_text(output.max_abs), "text")]
    line += [("  rel ", "dim"), (formatting.difference_text(output.max_rel), "text")]
    if previous is not None and previous.max_abs != output.max_abs:
        line.append((f"  (was {formatting.difference_text(previous.max_abs)})", "dim"))
    return [line, *output_details(output, width, glyphs), *_difference_map(output, width, glyphs)]


def output_details(output: OutputReport, width: int, glyphs: Glyphs) -> list[Cells]:
    """Returns lines with the conditions of the verdict and other facts about an output, and its histogram."""
    facts = [
        f"first differs at {output.where}" if output.where else "",
        f"{output.max_ulp:.0f} ULP" if 0 < output.max_ulp < MAX_ULP else "",
        formatting.nan_counts_text(output),
        "set equal_nan to treat NaN as equal to NaN" if output.verdict == "nan" else "",
        f"{output.infs} Inf" if output.infs else "",
        f"{output.zero_signs} zeros with the opposite sign" if output.zero_signs else "",
    ]
    facts_text = f" {glyphs.dot} ".join(fact for fact in facts if fact)
    texts = [*formatting.verdict_texts(output), *([facts_text] if facts_text else [])]
    role = "warn" if output.verdict != "ok" else "dim"
    pieces = [piece for text in texts for piece in wrap_text(text, width - LABEL_WIDTH)]
    return [*([(f"{INDENT}{piece}", role)] for piece in pieces), *distribution_lines(output, glyphs)]


def distribution_lines(output: OutputReport, glyphs: Glyphs) -> list[Cells]:
    """Returns the histogram of an output and its statistics, in one line; none for an output without finite values."""
    if not output.histogram:
        return []
    bars = formatting.histogram(output.histogram, glyphs)
    statistics = f"  mean {output.mean:.3g}  std {output.deviation:.3g}"
    statistics += f"  {output.zeros} zeros" if output.zeros > 0 else ""
    return [[(f"{INDENT}{output.low:.3g} ", "dim"), (bars, "bar"), (f" {output.high:.3g}{statistics}", "dim")]]


def _difference_map(output: OutputReport, width: int, glyphs: Glyphs) -> list[Cells]:
    """Returns the difference map of an output that does not match: a character per block, darker if it differs more."""
    if output.verdict == "ok" or not output.map:
        return []
    finite_differences = [block for row in output.map for block in row if math.isfinite(block)]
    greatest = max(finite_differences, default=0.0) or 1.0
    top_level = len(glyphs.levels) - 1
    lines: list[Cells] = [[(f"{INDENT}difference map, one character per block:", "dim")]]
    for row in output.map:
        characters = [glyphs.levels[difference_level(block / greatest, top_level)] for block in row]
        lines.append([(INDENT, "dim"), ("".join(characters)[: width - LABEL_WIDTH], "bad")])
    return lines


def difference_level(share: float, top_level: int) -> int:
    """Returns the darkness of a block of a difference map, 0 to `top_level`.

    `share` is its difference divided by the largest finite difference. The darkness is `top_level` for a difference
    that is not finite, and at least 1 for any difference.
    """
    if not math.isfinite(share):
        return top_level
    return max(1, round(share * top_level)) if share > 0 else 0


def _timing_lines(report: RunReport, state: State, width: int, glyphs: Glyphs) -> list[Cells]:
    """Returns the timings of compiled code, eager, other backends and previous runs, as bars of a common scale."""
    timed_sides = [side for side in report.sides if not side.problem]
    previous_runs = _previous_runs(state)
    other_timings = [*(side.timing for side in timed_sides), *(run.report.compiled for run in previous_runs)]
    timings = [report.eager, report.compiled, *other_timings]
    slowest = max(MIN_FULL_BAR_SECONDS, *(timing.median for timing in timings))
    bar_width = max(MIN_BAR_WIDTH, min(MAX_BAR_WIDTH, width - WIDTH_WITHOUT_BAR))
    compiled_line = _timing_line(BACKEND_NAMES[report.backend], report.compiled, slowest, bar_width, "bar", glyphs)
    if report.not_compared:
        pieces = wrap_text(f"not compared with eager: {report.not_compared}", width)
        return [[], compiled_line, *([(piece, "warn")] for piece in pieces)]
    lines = [_timing_line("eager", report.eager, slowest, bar_width, "bar-other", glyphs), compiled_line]
    if report.compiled.median > 0:
        ratio: Cells = [(INDENT, "text"), (f"{report.eager.median / report.compiled.median:.2f}x", "title")]
        lines.append([*ratio, (" eager's speed", "dim"), *_previous_time(state.previous_report)])
    for side in timed_sides:
        lines.append(_timing_line(BACKEND_NAMES[side.name], side.timing, slowest, bar_width, "bar-other", glyphs))
        lines += _side_lines(side, report.eager, state, width, glyphs)
    for side in report.sides:
        lines += _side_problem_lines(side, width) if side.problem else []
    previous_lines = [
        _timing_line(run.end_time, run.report.compiled, slowest, bar_width, "bar-other", glyphs)
        for run in previous_runs
    ]
    heading: Cells = [(f"previous runs (press {key_of('runs')} to list all)", "dim")]
    return [[], *lines, *([heading, *previous_lines] if previous_lines else [])]


def _previous_runs(state: State) -> list[RunRecord]:
    """Returns the runs of the graph before the latest one, at most `MAX_PREVIOUS_RUNS`, the newest first."""
    earlier_runs = [run for run in state.runs if run.recipe.graph == state.graph][:-1]
    return earlier_runs[-MAX_PREVIOUS_RUNS:][::-1]


def _side_lines(side: SideReport, eager: Timing, state: State, width: int, glyphs: Glyphs) -> list[Cells]:
    """Returns the lines below the timing of another backend: its speed, and where its values differ from eager."""
    role = "warn" if side.verdict != "ok" else "dim"
    lines = [_speed_line(side, eager, glyphs)]
    for text in divergence_texts(side, state.info):
        lines += [[(f"{INDENT}{piece}", role)] for piece in wrap_text(text, width - LABEL_WIDTH)]
    return [*lines, *_marked_lines(side, state, width)]


def _side_problem_lines(side: SideReport, width: int) -> list[Cells]:
    """Returns the reason why another backend was not run, after its name."""
    pieces = wrap_text(f"not run: {side.problem}", width - LABEL_WIDTH)
    labels = [BACKEND_NAMES[side.name], *[""] * (len(pieces) - 1)]
    return [[(f"{label:<{LABEL_WIDTH}}", "dim"), (piece, "warn")] for label, piece in zip(labels, pieces, strict=True)]


def _speed_line(side: SideReport, eager: Timing, glyphs: Glyphs) -> Cells:
    """Returns the speed and the error of another backend's code compared with eager, and its compile time."""
    verdict_text, role = VERDICTS[side.verdict]
    speed = eager.median / side.timing.median if side.timing.median else 0.0
    error = f" eager's speed  max|{glyphs.delta}| {formatting.difference_text(side.max_abs)}  "
    verb = "exported" if side.name in RUNTIME_LABELS else "compiled"
    compile_text = f"  {verb} in {formatting.seconds(side.compile_seconds)}"
    return [
        (INDENT, "text"),
        (f"{speed:.2f}x", "title"),
        (error, "dim"),
        (verdict_text, role),
        (compile_text, "dim"),
    ]


def _marked_lines(side: SideReport, state: State, width: int) -> list[Cells]:
    """Returns a table of the nodes whose values differ in another runtime, in graph order, if all were compared."""
    compared_nodes = side.divergence.marked if side.divergence is not None else ()
    differing = [node for node in compared_nodes if node.verdict != "ok"][:MAX_MARKED_NODES]
    lines = marked_table(differing, state.info).splitlines() if differing else []
    return [[(f"{INDENT}{line}"[:width], "dim")] for line in lines]


def _previous_time(report: RunReport | None) -> Cells:
    """Returns the median time of the previous run, `report`, if there is one."""
    return [(f"  (was {formatting.seconds(report.compiled.median)})", "dim")] if report else []


def _timing_line(name: str, timing: Timing, slowest: float, bar_width: int, role: str, glyphs: Glyphs) -> Cells:
    """Returns a name, the median time, a bar, and the quartiles. The bar of the time `slowest` fills `bar_width`."""
    quartiles = f"{glyphs.to}".join((formatting.seconds(timing.low), formatting.seconds(timing.high)))
    bar = formatting.progress_bar(timing.median / slowest, bar_width, glyphs)
    median = f"{formatting.seconds(timing.median):>8} "
    return [
        (f"{name:<{LABEL_WIDTH}}", "dim"),
        (median, "text"),
        (f"{bar:<{bar_width}}", role),
        (f" {quartiles}", "dim"),
    ]


def _fact_lines(report: RunReport, inputs: InputChoice, width: int, glyphs: Glyphs) -> list[Cells]:
    """Returns facts about a run: nodes, compile time, threads, inputs, memory, the load of the machine, and notes."""
    n_nodes = report.nodes_compiled + report.nodes_eager
    counts = [f"{report.nodes_compiled}/{n_nodes} nodes compiled"]
    if report.nodes_eager:
        counts.append(f"{report.nodes_eager} in eager")
    elif not report.slow_paths:
        counts.append("no fallback")
    counts += formatting.eager_path_texts(report)
    facts = [
        ", ".join(filter(None, counts)),
        f"compiled in {formatting.seconds(report.compile_seconds)}",
        f"{formatting.thread_count(report.compiled.threads)}, {report.compiled.runs} runs",
    ]
    if inputs.kind != "script":
        facts.append(str(inputs))
    if report.memory is not None:
        memory = report.memory
        eager = f" (eager {formatting.size(memory.eager)})" if report.compared else ""
        facts.append(f"peak memory {formatting.size(memory.compiled)}{eager}")
        if memory.packed > 0:
            facts.append(f"packed weights {formatting.size(memory.packed)}")
        if memory.weights > 0:
            facts.append(f"weights {formatting.size(memory.weights)}")
    pieces = wrap_text(f" {glyphs.dot} ".join(facts), width - LABEL_WIDTH)
    pieces += wrap_text(formatting.load_text(report.load), width - LABEL_WIDTH) if report.load is not None else []
    pieces += [piece for note in report.notes for piece in wrap_text(note, width - LABEL_WIDTH)]
    lines: list[Cells] = [[(f"{INDENT}{piece}", "dim")] for piece in pieces]
    if not report.inputs_unchanged:
        lines.append([("MISMATCH ", "bad"), ("the run changed its inputs or weights", "text")])
    return lines


def _graph_break_lines(state: State, width: int) -> list[Cells]:
    """Returns lines about the graph break at the end of the graph, if any."""
    info = state.info
    if info is None or not info.break_reason:
        return []
    text = f"graph break at {short_location(info.break_line)}: {info.break_reason}"
    return [[], *([(piece, "dim")] for piece in wrap_text(text, width - 2))]


def _note_lines(state: State, width: int) -> list[Cells]:
    """Returns the notes of the compilation and of the capture, and the recipe's choices that were not applied."""
    notes = (
        *state.graph_state.notes,
        *state.notes,
        *(text for source, _node, text in state.remarks if source == NOT_APPLIED),
    )
    pieces = [piece for note in notes for piece in wrap_text(note, width - 2)]
    return [[], *([(piece, "dim")] for piece in pieces)] if pieces else []


def _printed_lines(state: State, width: int) -> list[Cells]:
    """Returns the last lines that the script has printed, without blank lines at the end."""
    printed_lines = state.printout[-MAX_PRINTED_LINES:]
    while printed_lines and not printed_lines[-1].strip():
        printed_lines = printed_lines[:-1]
    if not printed_lines:
        return []
    return [[], [("output of the program", "title")], *([(line.expandtabs(), "text")] for line in printed_lines)]


class OutputsPane(Pane):
    """Shows the lines of `outputs_lines`. Moving the cursor only scrolls."""

    pane_id: ClassVar[PaneId] = "outputs"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("outputs")
    BORDER_TITLE = "Outputs"
    has_broken_lines = True

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self._lines: list[Cells] = []

    @property
    def row_count(self) -> int:
        return len(self._lines)

    def row_cells(self, row: int, width: int) -> Cells:
        marker = ">" if row == self.cursor and self.has_focus else " "
        return [(marker, "key"), *cut_cells(self._lines[row], width - 1)]

    def row_text(self, row: int) -> str:
        return "".join(text for text, _ in self._lines[row])

    def on_resize(self) -> None:
        self._update_lines()

    def update_from(self, topics: frozenset[Topic]) -> None:
        if topics & {"outputs", "stages", "status"}:
            self._update_lines()
            self.redraw_changed_lines()

    def _update_lines(self) -> None:
        """Computes the lines for the current state and width."""
        width, changed = max(self.width - 1, 20), self.context.session.file_states.changed_names()
        self._lines = outputs_lines(self.state, self.workspace.recipe, width, self.glyphs, changed)

    def open_diagnostic(self) -> None:
        self.context.dialogs.open_problem(self.state.problem)

    def text_to_copy(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._lines)
