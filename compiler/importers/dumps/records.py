"""The index of a dump: the position of each stage's text in its file, without the texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from buddy.compiler.importers.dumps.headers import MODULE
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.dump_files import DumpFormat
from buddy.compiler.protocol.plain_values import LANGUAGES, Language, StageState

# The first graph of a dump with several anchors: it has the stages of all of them.
ALL_STAGES = "all"
# Anchors beyond this number have no separate graph; their stages are only in `ALL_STAGES`.
MAX_ANCHORS = 2000
# The start of the names of a dump's texts in the engine's store.
TEXT_PREFIX = "dump-"
StageOrigin = Literal["dump", "re-run", "skipped"]
# The formats of dumps of one program. In other formats, each anchor is a separate program.
_ONE_PROGRAM_FORMATS = ("log", "mlir-tree", "ir-folder")


@dataclass(slots=True)
class DumpStage:
    """A stage: `length` bytes from `offset` on in file number `file` of the dump.

    `anchor` names the part of the program in the text: `module`, a function `@f`, or a graph. `ran_on` names the op or
    function that the pass ran on, and `op` is the full name of that op for a pass over MLIR. `pipeline` is the pass
    with its options, as far as the dump has them. The text is the IR after the pass; if `before` is set, the IR before
    the pass. `strip` names the prefix of each line that is not part of the text ("", "torch-log", "tab"). `digest` is a
    hash of the bytes. `changed` is false if the previous stage with the same anchor has the same hash. `ops` counts the
    ops by name, `None` if they were not counted; `deltas` are the differences of these counts from that previous stage.

    `origin` is "dump", "re-run", or "skipped" if a re-run skipped the pass: the stage before has the same text then.
    `step` is the number of the step of the pipeline, -1 if unknown.
    """

    title: str
    language: Language
    phase: str
    file: int
    offset: int
    length: int
    lines: int
    digest: str
    anchor: str = MODULE
    ran_on: str = ""
    changed: bool = True
    failed: bool = False
    strip: str = ""
    ops: Counter[str] | None = None
    deltas: tuple[tuple[str, int], ...] = ()
    pipeline: str = ""
    op: str = ""
    before: bool = False
    origin: StageOrigin = "dump"
    step: int = -1

    @property
    def text(self) -> str:
        """The name of the text in the engine's store."""
        return f"{TEXT_PREFIX}{self.digest}"

    def is_of(self, graph: str) -> bool:
        """Returns whether the stage is one of the graph with that name."""
        return graph in (ALL_STAGES, self.anchor)


@dataclass
class Dump:
    """The stages of a dump that have been found so far.

    `scanned` of `size` bytes have been read; `is_complete` is set when all files have been read to their end. `notes`
    report the parts that are not IR. `by_text` has the first stage with each text. `_last` has the last stage of each
    anchor and language, and `_counts` the number of stages of each anchor.
    """

    path: Path
    format: DumpFormat
    files: list[Path] = field(default_factory=list)
    stages: list[DumpStage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size: int = 0
    scanned: int = 0
    is_complete: bool = False
    by_text: dict[str, DumpStage] = field(default_factory=dict)
    _last: dict[tuple[str, str], DumpStage] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, stage: DumpStage) -> None:
        """Adds the next stage, and compares it with the previous stage of the same anchor and language."""
        before = self._last.get((stage.anchor, stage.language))
        if before is not None:
            stage.changed = before.digest != stage.digest
            if before.ops is not None and stage.ops is not None:
                stage.deltas = _deltas(before.ops, stage.ops)
        self._last[stage.anchor, stage.language] = stage
        self._counts[stage.anchor] = self._counts.get(stage.anchor, 0) + 1
        self.by_text.setdefault(stage.text, stage)
        self.stages.append(stage)

    def add_unchanged(self, title: str, ran_on: str) -> bool:
        """Adds a stage whose IR is not printed, as its pass changed nothing. Returns whether the dump has its IR."""
        # Tries each language, because a search in `_last` would be slow: a log may have thousands of functions.
        keys = ((anchor, language) for anchor in (ran_on, MODULE) for language in LANGUAGES)
        before = next((stage for key in keys if (stage := self._last.get(key)) is not None), None)
        if before is None:
            return False
        self.add(replace(before, title=title, ran_on=ran_on, deltas=(), failed=False))
        return True

    def drop_last(self) -> DumpStage | None:
        """Removes the last stage, which was read to the end of a file that has grown since."""
        if not self.stages:
            return None
        stage = self.stages.pop()
        self._counts[stage.anchor] -= 1
        self._counts = {anchor: count for anchor, count in self._counts.items() if count}
        before = next(
            (s for s in reversed(self.stages) if (s.anchor, s.language) == (stage.anchor, stage.language)), None
        )
        self._last.pop((stage.anchor, stage.language))
        if before is not None:
            self._last[stage.anchor, stage.language] = before
        return stage

    @property
    def graph_names(self) -> list[str]:
        """The names of the graphs: one for each anchor, preceded by `ALL_STAGES` if the anchors are of one program."""
        anchors = list(self._counts)[:MAX_ANCHORS]
        return anchors if len(anchors) <= 1 or self.format not in _ONE_PROGRAM_FORMATS else [ALL_STAGES, *anchors]

    def graph_name(self, graph: int) -> str:
        """Returns the name of a graph; that of all stages if there is no graph with that number."""
        names = self.graph_names
        return names[graph] if graph < len(names) else ALL_STAGES

    def stages_of(self, graph: int, first: int = 0, last: int | None = None) -> Iterator[DumpStage]:
        """Yields the stages of a graph, among the stages from number `first` to before number `last` of the dump."""
        name = self.graph_name(graph)
        for stage in self.stages[first:last]:
            if stage.is_of(name):
                yield stage


def client_stage(stage: DumpStage, index: int) -> Stage:
    """Returns the stage as clients see it, as stage number `index` of its graph."""
    added = sum(count for _, count in stage.deltas if count > 0)
    removed = -sum(count for _, count in stage.deltas if count < 0)
    state: StageState = "skipped" if stage.origin == "skipped" else "done"
    return Stage(
        index,
        stage.title,
        stage.phase,
        stage.text,
        stage.lines,
        ops=sum(stage.ops.values()) if stage.ops else 0,
        added=added,
        removed=removed,
        changed=stage.changed,
        state="failed" if stage.failed else state,
        language=stage.language,
        deltas=stage.deltas,
        anchor=stage.anchor,
        step=stage.step,
        again=stage.origin == "re-run",
    )


def _deltas(before: Counter[str], after: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Returns the ops whose counts differ, with the differences, the largest first."""
    differences = {name: after[name] - before[name] for name in (*before, *after)}
    changed = ((name, count) for name, count in differences.items() if count)
    return tuple(sorted(changed, key=lambda pair: (-abs(pair[1]), pair[0])))
