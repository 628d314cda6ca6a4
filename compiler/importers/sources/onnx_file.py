"""Loads programs in ONNX files."""

from __future__ import annotations

import msgspec
import torch

from buddy.compiler.frontend.graph_info import ir_graph_info, table_of_rows
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.types import NodeType, TensorMeta
from buddy.compiler.importers.onnx_files.importing import import_onnx
from buddy.compiler.importers.onnx_files.model import PreparedModel, build_graph, prepare_model
from buddy.compiler.importers.onnx_files.reference import DisturbedReference, Reference, quantises
from buddy.compiler.importers.sources.inputs import SEED, new_generator, random_tensor
from buddy.compiler.importers.sources.modules import parse_shapes
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.program import CapturedProgram
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.protocol.presets import ONNX
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.torch_values import to_torch_dtype


def load(opening: Opening) -> CapturedProgram:
    """Returns the model of a file as one graph, on random inputs; ONNX Runtime or ONNX's evaluator is the reference.

    Raises `SourceError`.
    """
    model = prepare_model(opening.path, parse_shapes(opening))
    name = model.model.graph.name or opening.stem
    graph = build_graph(model, name, opening.path)
    opening.report("importing by torch-mlir")
    text = import_onnx(model.model, opening.path)
    graph.imported_ir = ImportedIR(text)
    info = ir_graph_info(graph, name, graph.imported_ir.phase, (ONNX, "torch"))
    content = model.model.SerializeToString()
    reference = Reference(content, [value.name for value in model.model.graph.input])
    captured = CapturedGraph(
        graph, msgspec.structs.replace(info, compared=True), _make_tensors(graph, model), reference,
        table_of_rows(info.rows), parameters=frozenset(range(len(model.weights))), code=text, onnx_model=content,
        disturbed=DisturbedReference(content) if quantises(model.model) else None,
    )  # fmt: skip
    note = f"the inputs are random numbers (seed {SEED}); set others with --seed, or with --inputs from a file"
    return CapturedProgram([captured], [*model.notes, note])


def _make_tensors(graph: Graph, model: PreparedModel) -> list[torch.Tensor]:
    """Returns the weights, and random inputs. Integers are 0 or 1, which are valid both as positions and as masks."""
    generator = new_generator()
    return [
        torch.tensor(model.weights[op.name])
        if op.kind is NodeType.FakeNode
        else _make_random(op.tensor_meta, generator)
        for op in graph.placeholders
    ]


def _make_random(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """Returns random floats or booleans, or integers that are 0 or 1."""
    shape = tuple(int(size) for size in meta.shape)
    dtype = to_torch_dtype(meta.dtype)
    if dtype.is_floating_point or dtype is torch.bool:
        return random_tensor(shape, meta.dtype, generator)
    return torch.randint(2, shape, generator=generator).to(dtype)
