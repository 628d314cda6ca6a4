"""The stages shown during a compilation, and after a failure."""

from __future__ import annotations

import msgspec

from buddy.app.session.stages import StageBoard, align_stages, phase_of
from buddy.compiler.protocol import Stage


def names(board: StageBoard) -> list[str]:
    return [row.stage.name + ("~" if row.outdated_reason else "") for row in board.rows()]


def test_stages_appear_as_they_arrive(stages: list[Stage]) -> None:
    board = StageBoard()
    board.begin("compiling")
    for stage in stages[:2]:
        board.add(stage)
    assert names(board) == ["fx", "lower"]


def test_during_a_recompilation_later_stages_are_stale(stages: list[Stage]) -> None:
    board = StageBoard()
    board.finish(stages)
    board.begin("compiling")
    assert all(row.outdated_reason == "compiling" for row in board.rows())
    for stage in stages[:3]:
        board.add(stage)
    assert names(board) == ["fx", "lower", "canonicalize", "one-shot-bufferize~", "convert-linalg-to-loops~"]


def test_a_complete_compilation_leaves_nothing_stale(stages: list[Stage]) -> None:
    board = StageBoard()
    board.finish(stages)
    board.begin("compiling")
    board.finish(stages[:4])
    assert names(board) == ["fx", "lower", "canonicalize", "one-shot-bufferize"]


def test_after_a_failure_later_stages_stay_under_the_failing_pass_name(stages: list[Stage]) -> None:
    board = StageBoard()
    board.finish(stages)
    board.begin("compiling")
    for stage in stages[:3]:
        board.add(stage)
    failed = Stage(3, "one-shot-bufferize", "buffers", "t-half", 25, step=1, state="failed")
    board.fail((stages[2], failed), "one-shot-bufferize failed")
    assert names(board) == ["fx", "lower", "canonicalize", "one-shot-bufferize", "convert-linalg-to-loops~"]
    assert board.failed_stage == failed
    assert board.rows()[-1].outdated_reason == "one-shot-bufferize failed"


def test_the_text_of_a_failed_stage_is_not_reused(stages: list[Stage]) -> None:
    board = StageBoard()
    board.begin("compiling")
    board.fail((*stages[:2], Stage(2, "canonicalize", "fused", "t-half", 5, step=0, state="failed")), "failed")
    board.begin("compiling")
    assert names(board) == ["fx~", "lower~"]


def test_stages_of_one_name_are_numbered(stages: list[Stage]) -> None:
    board = StageBoard()
    board.finish([*stages, Stage(5, "canonicalize", "loops", "t-last", 40, step=3)])
    assert [row.key for row in board.rows() if row.stage.name == "canonicalize"] == [
        ("canonicalize", 0),
        ("canonicalize", 1),
    ]


def test_a_stage_without_a_phase_is_in_the_phase_before() -> None:
    board = StageBoard()
    board.finish([Stage(0, "lower", "toplevel", "a", 1), Stage(1, "mine", "", "b", 1, step=0)])
    assert phase_of(board.rows(), 1) == "toplevel"


def test_a_stage_before_the_last_edit_is_kept(stages: list[Stage]) -> None:
    board = StageBoard()
    board.finish(stages)
    assert board.stage_before_edit(("canonicalize", 0)) is None
    edited = [msgspec.structs.replace(stage, text=f"{stage.text}-edited") for stage in stages]
    board.begin("compiling")
    board.add(edited[0])
    former = board.stage_before_edit(("canonicalize", 0))
    assert former is not None
    assert former.text == "t-lower", "while it is compiled, the last whole compilation is what was before"
    board.finish(edited)
    board.finish(edited)
    former = board.stage_before_edit(("canonicalize", 0))
    assert former is not None
    assert former.text == "t-lower", "the same compilation told again is no edit"
    assert board.stage_before_edit(("cse", 0)) is None


def passes(*names: str) -> list[Stage]:
    """Stages of the passes `names`, each `PHASE.PASS`."""
    return [Stage(n, name.partition(".")[2], name.partition(".")[0], f"t-{n}", 1) for n, name in enumerate(names)]


def aligned(before: list[Stage], after: list[Stage]) -> list[tuple[int | None, int | None]]:
    return [(a and a.index, b and b.index) for a, b in align_stages(before, after)]


def test_a_pass_of_one_phase_is_not_compared_with_its_run_in_another() -> None:
    before = passes("buffers.canonicalize", "buffers.cse", "llvm.canonicalize")
    assert aligned(passes("buffers.cse", "llvm.canonicalize"), before) == [(None, 0), (0, 1), (1, 2)]


def test_of_several_runs_of_a_pass_those_after_the_same_pass_are_a_pair() -> None:
    before = passes("buffers.a", "buffers.cse", "buffers.b", "buffers.cse")
    assert aligned(before, passes("buffers.a", "buffers.b", "buffers.cse")) == [(0, 0), (1, None), (2, 1), (3, 2)]


def test_a_moved_pass_is_compared_with_itself() -> None:
    after = passes("buffers.b", "buffers.c", "buffers.a")
    assert aligned(passes("buffers.a", "buffers.b", "buffers.c"), after) == [(0, 2), (1, 0), (2, 1)]


def test_a_stage_before_the_last_edit_is_that_of_its_phase() -> None:
    board = StageBoard()
    board.finish(passes("buffers.canonicalize", "buffers.cse", "llvm.canonicalize"))
    board.finish(
        [
            msgspec.structs.replace(stage, text=f"new {stage.text}")
            for stage in passes("buffers.cse", "llvm.canonicalize")
        ]
    )
    before = board.stage_before_edit(("canonicalize", 0))
    assert before is not None
    assert before.phase == "llvm"
