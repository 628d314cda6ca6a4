"""The state of one graph: its stages, results and problems, each with the recipe that produced it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from buddy.app.session.stages import StageBoard
from buddy.app.workspace.session_file import RunRecord
from buddy.compiler import protocol as p
from buddy.compiler.protocol.numerics import NodeNumbers, NumericsReport
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice
from buddy.compiler.protocol.tuning import NodePrecision

Job = Literal["open", "compile", "run"]


class NodeComparison(NamedTuple):
    """A comparison of every node of `recipe` with its reference."""

    recipe: Recipe
    report: NumericsReport


@dataclass
class GraphState:
    """The state of one graph. Fields of results that do not exist yet are empty or `None`.

    `compiled_recipe`, `run_recipe` and `profiled_recipe` are the recipes of the last complete compilation, of `report`
    and of `profile`; they become `None` if the program has changed since.

    Of the last complete compilation: `remarks` are tuples (pass, node, text), `notes` say how the steps of a dump were
    run again, `compile_seconds` is its duration, and `n_reused_stages` of its stages came from the cache.
    `assignments` are the lowerings of the nodes, by stable name.

    `report` is the last run, on `inputs`, and `previous_report` the last run of another recipe. `restored_run` is the
    run of an earlier session that `report` is from, if it is. `problems` has the error of each kind of job that failed.
    `newest_request` is the number of the last request that compiles or runs the graph.

    By stable name of a node: `node_numbers` are its errors in `comparison`, the last comparison of every node;
    `f32_seconds` its time in the last profile in which it multiplied in f32; `precisions` the result for it of the last
    search for precisions.
    """

    board: StageBoard = field(default_factory=StageBoard)
    assignments: dict[str, p.Assignment] = field(default_factory=dict)
    remarks: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    compiled_recipe: Recipe | None = None
    compile_seconds: float = 0.0
    n_reused_stages: int = 0
    report: p.RunReport | None = None
    previous_report: p.RunReport | None = None
    run_recipe: Recipe | None = None
    restored_run: RunRecord | None = None
    inputs: InputChoice = OWN_INPUTS
    problems: dict[Job, p.Diagnostic] = field(default_factory=dict)
    newest_request: int = 0
    comparison: NodeComparison | None = None
    node_numbers: dict[str, NodeNumbers] = field(default_factory=dict)
    profile: p.ProfileReport | None = None
    profiled_recipe: Recipe | None = None
    f32_seconds: dict[str, float] = field(default_factory=dict)
    precisions: dict[str, NodePrecision] = field(default_factory=dict)

    def record_start(self, job: Job, request: int, recipe: Recipe) -> None:
        """Records that request number `request` for `recipe` was sent, and drops the last error of the same job."""
        self.newest_request = request
        self.problems.pop(job, None)
        if recipe != self.compiled_recipe:
            self.problems.pop("compile", None)
            self.board.begin("compiling")

    def record_compilation(self, recipe: Recipe | None, frame: p.Compiled) -> None:
        """Records that the compilation of `recipe` is complete."""
        self.compiled_recipe, self.remarks, self.notes = recipe, frame.remarks, frame.notes
        self.compile_seconds, self.n_reused_stages = frame.seconds, frame.reused
        self.problems.pop("compile", None)
        self.board.finish(frame.stages)

    def record_run(self, recipe: Recipe | None, report: p.RunReport) -> None:
        """Records a run of `recipe`. `previous_report` becomes the last report of another recipe."""
        if recipe != self.run_recipe:
            self.previous_report = self.report
        self.report, self.run_recipe, self.restored_run = report, recipe, None
        self.problems.pop("run", None)

    def record_comparison(self, recipe: Recipe, report: NumericsReport) -> None:
        """Records a comparison of every node of `recipe` with the reference."""
        self.comparison, self.node_numbers = NodeComparison(recipe, report), report.by_node()
