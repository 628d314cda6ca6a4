"""Main graph and subgraphs in one module, as a linker of MLIR would put them, taken to machine code and called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from buddy.compiler.driver.modules import Run, TopLevelModule, runnable
from buddy.compiler.graph import Graph, GraphDriver
from buddy.compiler.mlir.bindings import ir


def run_linked(driver: GraphDriver, graph: Graph, pack: bool) -> Run:
    """What the main graph computes with the functions that its subgraphs lower to."""
    main = driver._lower_main(pack)
    assert str(main.module) == str(driver.construct_main_graph(pack))
    for subgraph in driver.subgraphs:
        subgraph.lower_to_top_level_ir()
    module = _linked(main.module, [subgraph._imported_module for subgraph in driver.subgraphs])
    assert module.operation.verify()
    return runnable(TopLevelModule(module, main.arguments), graph)


def _linked(main: Any, others: Sequence[Any]) -> Any:
    """The functions of all modules; those that `main` only declares are private, and come from the others."""
    with main.context, ir.Location.unknown():
        module = ir.Module.create()
        names: set[str] = set()
        for source in (*others, main):
            for op in source.body:
                name = _name(op)
                if name not in names:
                    names.add(name)
                    module.body.append(op.operation.clone(ip=False))
        for op in module.body:
            if any(_name(op) == _name(declared) and _is_declaration(declared) for declared in main.body):
                op.operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
    return module


def _name(op: Any) -> str:
    return ir.StringAttr(op.operation.attributes["sym_name"]).value


def _is_declaration(op: Any) -> bool:
    return not op.operation.regions[0].blocks


def packs(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters as one 1-D tensor per element type, in alphabetical order of the types' names."""
    order = {"torch.bfloat16": "BFloat16", "torch.float32": "Float32", "torch.int64": "Int64", "torch.uint8": "UInt8"}
    dtypes = sorted({p.dtype for p in params}, key=lambda dtype: order[str(dtype)])
    return [torch.cat([p.detach().reshape(-1) for p in params if p.dtype == dtype]) for dtype in dtypes]
