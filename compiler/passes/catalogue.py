"""Lists the passes that a recipe may name, their options, and the values that each option accepts.

MLIR's passes are those of MLIR 20 to 22 (`Passes.td` of the dialects) that the installed bindings accept.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from typing import Any

from buddy.compiler.graph.plugins import origin
from buddy.compiler.graph.transform import Transform, options_of, transforms
from buddy.compiler.mlir.bindings import ir, passmanager, torch_dialect
from buddy.compiler.passes import mlir_opt
from buddy.compiler.passes.base import MlirPass
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol import OptionInfo, PassInfo
from buddy.compiler.protocol.recipe import option_text

_LAYOUTS = ("infer-layout-map", "identity-layout-map", "fully-dynamic-layout-map")
# The words that options of MLIR's passes accept, by the name of the option. The bindings do not list them.
_OPTION_WORDS: dict[str, tuple[str, ...]] = {
    "analysis-heuristic": ("bottom-up", "top-down", "bottom-up-from-terminators", "fuzzer"),
    "emission-kind": ("None", "Full", "LineTablesOnly", "DebugDirectivesOnly"),
    "function-boundary-type-conversion": _LAYOUTS,
    "region-simplify": ("disabled", "normal", "aggressive"),
    "unknown-type-conversion": _LAYOUTS,
    "vector-contract-lowering": ("dot", "matmul", "outerproduct", "parallelarith"),
    "vector-transpose-lowering": ("eltwise", "flat", "shuffle1d", "shuffle16x16"),
}


def option_words(name: str, anchor: str, option: str) -> tuple[str, ...]:
    """Returns the words that `option` of the pass `name` accepts; () if it accepts other values, such as numbers.

    Tries the words that an option of this name has in any pass. Needs a current MLIR context.
    """
    return tuple(word for word in _OPTION_WORDS.get(option, ()) if _accepts(f"{name}{{{option}={word}}}", anchor))


def _accepts(step: str, anchor: str) -> bool:
    """True if MLIR's parser accepts `step`, a pass with options, on `anchor`."""
    return _parse_on(step, anchor) is not None


def _parse_on(step: str, anchor: str) -> Any | None:
    """Returns a pass manager with `step`, a pass with options, on `anchor`; `None` if MLIR's parser rejects it."""
    nested = step if anchor == "builtin.module" else f"{anchor}({step})"
    try:
        return passmanager.PassManager.parse(f"builtin.module({nested})")
    except (ValueError, ir.MLIRError):
        return None


# An option in a printed pipeline, and its value: in braces, in quotes, or a word.
_OPTION = re.compile(r"([\w-]+)=(\{[^}]*\}|\"[^\"]*\"|\S*)")
# The anchors on which a pass is tried, in this order.
_ANCHORS = ("builtin.module", "func.func", "gpu.module")
# Passes whose summary starts with this abort on a context without torch-mlir's dialects: they are parsed, never run.
_TORCH_MLIR_SUMMARY = "torch-mlir"
# This pass runs on any anchor, and writes a file if no file name is given, so it is only parsed too.
_FILE_WRITING_PASS = "snapshot-op-locations"


def python_passes() -> list[PassInfo]:
    """Returns the graph passes and the passes on MLIR that are written in Python, here or in plug-ins."""
    graph = [_graph_pass_info(name, transform) for name, transform in transforms().items()]
    return graph + [_python_pass_info(pass_class) for pass_class in own_passes().values()]


def catalogue() -> tuple[PassInfo, ...]:
    """Returns the passes, sorted by name: graph passes, passes written in Python, MLIR's, and those of `mlir-opt`.

    MLIR's passes are those in `upstream.txt` that the bindings register; `discovery` finds others.
    """
    python = python_passes()
    names = {info.name for info in python}
    upstream = [info for info in _upstream_passes() if info.name not in names]
    names |= {info.name for info in upstream}
    mlir_opt_passes = [info for info in mlir_opt.passes() if info.name not in names]
    return tuple(sorted((*python, *upstream, *mlir_opt_passes), key=lambda info: info.name))


@lru_cache(maxsize=1)
def _upstream_passes() -> tuple[PassInfo, ...]:
    """Returns the passes in `upstream.txt` that the bindings register."""
    torch_dialect()  # registers torch-mlir's passes
    with ir.Context():
        return tuple(info for entry in _read_upstream_list() if (info := pass_as_registered(*entry)))


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].rstrip(".")


def _graph_pass_info(name: str, transform: Transform) -> PassInfo:
    options = tuple(OptionInfo(key, option_text(default)) for key, default in options_of(transform).items())
    plugin = origin(("graph pass", name))
    return PassInfo(name, "graph", _first_line(transform.__doc__), "", options, not plugin, plugin)


def _python_pass_info(pass_class: type[MlirPass]) -> PassInfo:
    options = tuple(OptionInfo(name, option_text(default)) for name, default in pass_class.options().items())
    plugin = origin(("MLIR pass", pass_class.name))
    return PassInfo(pass_class.name, "mlir", pass_class.summary, pass_class.anchor, options, not plugin, plugin)


def _read_upstream_list() -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns the name and summary of MLIR's passes, and the names of options whose values are lists.

    MLIR does not print such an option if its list is empty, so that the names cannot be read from a printed pipeline.
    """
    text = resources.files(__package__).joinpath("upstream.txt").read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    fields = (line.split("  ") for line in lines)
    return [(name, summary.strip(), tuple(list_options)) for name, summary, *list_options in fields]


def pass_as_registered(name: str, summary: str, list_options: tuple[str, ...] = ()) -> PassInfo | None:
    """Returns the pass with the options, defaults and anchor with which the bindings register it.

    `list_options` are names of options that MLIR does not print. Returns `None` if no anchor accepts the pass.
    """
    for anchor in _ANCHORS:
        manager = _parse_on(name, anchor)
        if manager is None:
            continue
        if summary.startswith(_TORCH_MLIR_SUMMARY) or name == _FILE_WRITING_PASS or _can_be_scheduled(manager):
            options = (
                *_parse_options(str(manager), name, anchor),
                *(OptionInfo(option, "") for option in list_options),
            )
            return PassInfo(name, "mlir", summary, anchor, options)
    return None


def _can_be_scheduled(manager: Any) -> bool:
    """True if MLIR can schedule the pass on its anchor, which it checks only when the pass runs."""
    with ir.Location.unknown():
        empty = ir.Module.create()
    try:
        manager.run(empty.operation)
    except (ValueError, ir.MLIRError) as error:
        return "unable to schedule" not in str(error)
    return True


def _parse_options(pipeline: str, name: str, anchor: str) -> tuple[OptionInfo, ...]:
    """Returns the options of the pass `name`, with their default values.

    `pipeline` is the text of a pass manager with this pass: `builtin.module(name{option=value other={a b}})`.
    """
    start = pipeline.find(name + "{")
    if start < 0:
        return ()
    body = pipeline[start + len(name) + 1 : _closing_brace(pipeline, start + len(name))]
    pairs = _OPTION.findall(body)
    return tuple(OptionInfo(key, value, words=option_words(name, anchor, key)) for key, value in pairs)


def _closing_brace(text: str, start: int) -> int:
    """Returns the position of the brace that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return len(text)
