"""The MLIR module of a Buddy graph for scripts, and a compilation as HTML for notebooks.

The HTML uses no script and no style sheet, since notebooks strip those from untrusted outputs, and inherits the page's
colours. Every text from the program is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from buddy.compiler.codegen import calling_convention
from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.backends import objects_of
from buddy.compiler.driver.compile_graph import run_in_place
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.partition import Partition
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.graph.types import DeviceType, NodeType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import NodeError, lower, new_context
from buddy.compiler.ops.parameter_packing import pack_parameters
from buddy.compiler.protocol.artifact import Artifact, ArtifactSymbol, TensorSpec
from buddy.compiler.protocol.plain_values import Assignment, Stage
from buddy.compiler.protocol.presets import default_recipe, without_packing
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.protocol.text.lines import StageText

if TYPE_CHECKING:
    import torch


# A function from torch tensors and numbers to the list of results.
Run = Callable[..., list[Any]]
Dialect = Literal["linalg", "tosa"]
# The names that the protocol `graph.graph.GraphLowering` requires of this module.
__all__ = ["TopLevelModule", "lower_to_llvm", "new_context", "runnable", "set_device", "top_level"]


class TopLevelModule(NamedTuple):
    """A top-level module, and the values to pass for each `buddy.source` of its entry's arguments."""

    module: Any
    arguments: tuple[TensorMeta, ...]


def top_level(graph: Graph, pack: bool, parts: Partition | None = None) -> TopLevelModule:
    """Lowers `graph` to a top-level module. With `pack`, its parameters become one 1-D tensor for each element type.

    `parts` lists the nodes that are calls of functions in other modules. Raises `GraphError` for a graph that cannot be
    executed and `CompilationError` for a node that can neither be compiled nor run in eager.
    """
    graph.check()
    settings = graph.settings
    recipe = Recipe(dialect=settings.dialect, partition="whole")
    try:
        lowered = lower(graph, recipe, graph._ctx, graph._locations, settings.user_registry(), parts, settings.on_node)
    except NodeError as error:
        raise CompilationError(diagnosis.of_node(error)) from error
    if graph.device is not DeviceType.CPU:
        set_device(lowered.module, graph._func_name, graph.device)
    arguments = tuple(op.tensor_meta for op in graph.placeholders)
    return TopLevelModule(lowered.module, _pack(graph, lowered.module) if pack else arguments)


def _pack(graph: Graph, module: ir.Module) -> tuple[TensorMeta, ...]:
    """Packs the parameters of the module's entry function, in place; returns its new arguments."""
    placeholders = list(enumerate(graph.placeholders))
    parameters = [(i, op.tensor_meta.dtype) for i, op in placeholders if op.kind is NodeType.FakeNode]
    inputs = [i for i, op in placeholders if op.kind is not NodeType.FakeNode]
    packs = pack_parameters(module, graph._func_name, parameters, inputs)
    return (*packs, *(graph.placeholders[i].tensor_meta for i in inputs))


def set_device(module: ir.Module, name: str, device: DeviceType) -> None:
    """Marks function `name` of a module with the device that it runs on."""
    for op in module.body:
        if ir.StringAttr(op.operation.attributes["sym_name"]).value == name:
            with module.context:
                op.operation.attributes["buddy.device"] = ir.StringAttr.get(device.value)


def lower_to_llvm(graph: Graph) -> None:
    """Lowers the module of `graph` to the LLVM dialect with the default pipeline, in place.

    Raises `CompilationError` if a pass fails.
    """
    run_in_place(graph._imported_module, default_recipe(dialect=graph.settings.dialect), graph._locations)


def runnable(lowered: TopLevelModule, graph: Graph) -> Run:
    """Compiles a top-level module that computes `graph`, in place, and returns a function that runs its code.

    The function takes the arguments of the module's entry as torch tensors, and the numbers that symbolic sizes are
    read from, in order; it returns a list of results. Raises `CompilationError`.
    """
    from buddy.compiler.runtime import LoadedProgram

    module, name = lowered.module, graph._func_name
    recipe = without_packing(default_recipe(dialect=graph.settings.dialect))  # each call may have other weights
    calls = eager_calls(module.operation)
    entry = run_in_place(module, recipe, graph._locations)
    if entry is None:
        raise CompilationError(diagnosis.no_entry(name))
    objects = objects_of(module.operation, graph._locations, recipe.opt_level)
    arguments = [_spec(meta) for meta in lowered.arguments]
    results = [_spec(op.tensor_meta) for op in graph.results if isinstance(op, Op)]
    images = [image.data for image in objects]
    program = LoadedProgram(
        calling_convention.artifact(
            name, entry, module.operation, images, arguments, results, calls, recipe.threads, _symbols(lowered, graph)
        )
    )

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        numbers = [value for value in values if isinstance(value, int)]
        return program([value for value in values if not isinstance(value, int)], numbers)

    return run


def _symbols(lowered: TopLevelModule, graph: Graph) -> list[ArtifactSymbol]:
    """Returns the symbols of `graph`, whose sources are the numbers of the module's arguments."""
    numbers = {id(meta): number for number, meta in enumerate(lowered.arguments)}
    sources = [numbers.get(id(op.tensor_meta), -1) for op in graph.placeholders]
    return [
        ArtifactSymbol(symbol.name, sources[symbol.source] if symbol.source >= 0 else -1, symbol.index)
        for symbol in symbols_of(graph)
    ]


def _spec(meta: TensorMeta) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, meta.shape)), meta.dtype.value)


# The limits for the texts and tables in HTML: a notebook is saved with its outputs.
MAX_LINES, MAX_CHARACTERS = 160, 240
MAX_ROWS = 400
# CSS of table cells, and of all texts.
_CELL = "text-align:left;padding:0 1em 0 0;vertical-align:top"
_MONO = "font-family:monospace;font-size:90%"


class Compiled(Protocol):
    """The attributes of a `driver.compilation.Compilation` that are shown."""

    @property
    def stages(self) -> Sequence[Stage]: ...
    @property
    def texts(self) -> Sequence[StageText]: ...
    @property
    def artifact(self) -> Artifact: ...
    @property
    def assignments(self) -> Sequence[Assignment]: ...
    @property
    def remarks(self) -> Sequence[tuple[str, str, str]]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def reused(self) -> int: ...


def html_of(compilation: Compiled) -> str:
    """Returns a self-contained fragment of HTML with collapsible sections."""
    pairs = list(zip(compilation.stages, compilation.texts, strict=False))
    graph = next((text for stage, text in pairs if stage.language == "buddy"), None)
    sections = [
        _section(_nodes_title(compilation.assignments), _nodes_table(compilation.assignments, graph), is_open=True),
        _section(f"{len(compilation.stages)} stages", _stages_table(pairs), is_open=True),
    ]
    if compilation.remarks:
        rows = [(escape(name), escape(node), escape(text)) for name, node, text in compilation.remarks]
        sections.append(_section(f"{len(rows)} remarks", _table(("pass", "node", "remark"), rows)))
    return f'<div style="{_MONO}"><p>{_summary(compilation)}</p>{"".join(sections)}</div>'


def _summary(compilation: Compiled) -> str:
    size = sum(map(len, compilation.artifact.objects))
    reused = f", {compilation.reused} stages from the cache" if compilation.reused else ""
    threads = f"{compilation.artifact.threads} thread{'s' * (compilation.artifact.threads != 1)}"
    return f"<b>compiled</b> in {_time(compilation.seconds * 1e3)}{reused}: {size:,} bytes of objects for {threads}"


def _nodes_title(assignments: Sequence[Assignment]) -> str:
    eager = sum(assignment.lowering == EAGER for assignment in assignments)
    return f"{len(assignments)} nodes" + (f", {eager} in eager" if eager else "")


def _nodes_table(assignments: Sequence[Assignment], text: StageText | None) -> str:
    rows = [
        tuple(map(escape, (assignment.node, assignment.lowering, assignment.function, assignment.reason)))
        for assignment in assignments
    ]
    table = _table(("node", "lowering", "function", ""), rows)
    return table + (_section("as text", _text(text.content)) if text is not None else "")


def _stages_table(pairs: Sequence[tuple[Stage, StageText]]) -> str:
    longest = max((stage.milliseconds for stage, _ in pairs), default=0.0)
    rows = [
        (
            _stage_section(stage, text) if stage.changed else f"<span style='opacity:0.6'>{escape(stage.name)}</span>",
            escape(stage.phase),
            _bar(stage.milliseconds, longest),
            str(stage.ops or ""),
            _op_change(stage),
        )
        for stage, text in pairs
    ]
    return _table(("stage", "phase", "time", "ops", "added and removed"), rows)


def _stage_section(stage: Stage, text: StageText) -> str:
    return _section(stage.name, _text(text.content))


def _op_change(stage: Stage) -> str:
    if not stage.changed:
        return "no change"
    return f"+{stage.added} −{stage.removed}" if stage.added or stage.removed else ""


def _bar(milliseconds: float, longest: float) -> str:
    """Returns a time above a bar whose length is proportional to its share of the longest time."""
    share = 100 * milliseconds / longest if longest else 0.0
    style = f"background:currentColor;opacity:0.4;height:0.3em;width:{share:.1f}%"
    return f'<div style="width:8em">{_time(milliseconds)}<div style="{style}"></div></div>'


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.2f} s" if milliseconds >= 1e3 else f"{milliseconds:.1f} ms"


# ---- pieces of HTML --------------------------------------------------------------------------------------------------


def _section(title: str, content: str, is_open: bool = False) -> str:
    """Returns a collapsible section; `title` is text, `content` HTML."""
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>{content}</details>"


def _table(heads: Iterable[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Returns a table; `heads` are text, the cells of `rows` HTML."""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows[:MAX_ROWS]
    )
    more = f"<p>… {len(rows) - MAX_ROWS:,} more</p>" if len(rows) > MAX_ROWS else ""
    return f'<table style="{_MONO}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _text(content: str) -> str:
    lines = content.splitlines()
    shown = [line if len(line) <= MAX_CHARACTERS else line[:MAX_CHARACTERS] + "…" for line in lines[:MAX_LINES]]
    more = f"\n… {len(lines) - MAX_LINES:,} more lines" if len(lines) > MAX_LINES else ""
    style = "max-height:30em;overflow:auto;text-align:left;white-space:pre"
    return f'<pre style="{style}">{escape(chr(10).join(shown) + more)}</pre>'
