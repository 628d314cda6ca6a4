"""The passes that a recipe may name, ours and those that the bindings register, and the values of their options.

They are those of MLIR 20 to 22 (`Passes.td` of the dialects), without those that this build rejects.
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
from buddy.compiler.protocol.recipe import OptionValue

_LAYOUTS = ("infer-layout-map", "identity-layout-map", "fully-dynamic-layout-map")
WORDS: dict[str, tuple[str, ...]] = {
    "analysis-heuristic": ("bottom-up", "top-down", "bottom-up-from-terminators", "fuzzer"),
    "emission-kind": ("None", "Full", "LineTablesOnly", "DebugDirectivesOnly"),
    "function-boundary-type-conversion": _LAYOUTS,
    "region-simplify": ("disabled", "normal", "aggressive"),
    "unknown-type-conversion": _LAYOUTS,
    "vector-contract-lowering": ("dot", "matmul", "outerproduct", "parallelarith"),
    "vector-transpose-lowering": ("eltwise", "flat", "shuffle1d", "shuffle16x16"),
}


def words_of(name: str, anchor: str, option: str) -> tuple[str, ...]:
    """Returns the words that the option of a pass accepts, () if it accepts other values. Needs an open context."""
    return tuple(word for word in WORDS.get(option, ()) if _accepts(f"{name}{{{option}={word}}}", anchor))


def _accepts(step: str, anchor: str) -> bool:
    nested = step if anchor == "builtin.module" else f"{anchor}({step})"
    try:
        passmanager.PassManager.parse(f"builtin.module({nested})")
    except (ValueError, ir.MLIRError):
        return False
    return True


_OPTION = re.compile(r"([\w-]+)=(\{[^}]*\}|\"[^\"]*\"|\S*)")
_ANCHORS = ("builtin.module", "func.func", "gpu.module")


def catalogue() -> tuple[PassInfo, ...]:
    """Returns the passes, sorted by name: graph passes, those written in Python, MLIR's, and those of `mlir-opt`.

    MLIR's passes are those in `upstream.txt` that this build registers; `discovery` finds others.
    """
    graph = [_graph_pass_info(name, transform) for name, transform in transforms().items()]
    ours = [_own_pass_info(found) for found in own_passes().values()]
    known = {info.name for info in (*graph, *ours)}
    upstream = [info for info in _upstream_passes() if info.name not in known]
    known |= {info.name for info in upstream}
    tools = [info for info in mlir_opt.passes() if info.name not in known]
    return tuple(sorted((*graph, *ours, *upstream, *tools), key=lambda info: info.name))


# torch-mlir's passes abort on a context without its dialects, so their anchor is found by parsing, without a run.
_TORCH_MLIR = "torch-mlir"


# This pass runs on any anchor, and writes a file if no file name is given, so it is only parsed too.
_WRITES = "snapshot-op-locations"


@lru_cache(maxsize=1)
def _upstream_passes() -> tuple[PassInfo, ...]:
    torch_dialect()  # registers torch-mlir's passes
    with ir.Context():
        return tuple(info for listed in _upstream() if (info := pass_as_registered(*listed)))


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].rstrip(".")


def _graph_pass_info(name: str, transform: Transform) -> PassInfo:
    options = tuple(OptionInfo(key, _option_text(default)) for key, default in options_of(transform).items())
    whose = origin(("graph pass", name))
    return PassInfo(name, "graph", _first_line(transform.__doc__), "", options, not whose, whose)


def _own_pass_info(found: type[MlirPass]) -> PassInfo:
    options = tuple(OptionInfo(name, _option_text(default)) for name, default in found.options().items())
    whose = origin(("MLIR pass", found.name))
    return PassInfo(found.name, "mlir", found.summary, found.anchor, options, not whose, whose)


def _option_text(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _upstream() -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns names and summaries of MLIR's passes, and their list options, which MLIR does not print when empty."""
    text = resources.files(__package__).joinpath("upstream.txt").read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    fields = (line.split("  ") for line in lines)
    return [(name, summary.strip(), tuple(lists)) for name, summary, *lists in fields]


def pass_as_registered(name: str, summary: str, lists: tuple[str, ...] = ()) -> PassInfo | None:
    """Returns the pass as this build of MLIR registers it, with its default options and its anchor.

    `lists` are options that MLIR does not print.
    """
    for anchor in _ANCHORS:
        nested = name if anchor == "builtin.module" else f"{anchor}({name})"
        try:
            manager = passmanager.PassManager.parse(f"builtin.module({nested})")
        except (ValueError, ir.MLIRError):
            continue
        if summary.startswith(_TORCH_MLIR) or name == _WRITES or _can_be_scheduled(manager):
            options = (*_options(str(manager), name, anchor), *(OptionInfo(option, "") for option in lists))
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


def _options(printed: str, name: str, anchor: str) -> tuple[OptionInfo, ...]:
    start = printed.find(name + "{")
    if start < 0:
        return ()
    body = printed[start + len(name) + 1 : _closing_brace(printed, start + len(name))]
    found = _OPTION.findall(body)
    return tuple(OptionInfo(key, value, words=words_of(name, anchor, key)) for key, value in found)


def _closing_brace(text: str, start: int) -> int:
    """Returns the position of the brace that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return len(text)
