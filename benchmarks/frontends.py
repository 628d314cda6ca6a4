"""The same programs by every frontend: captured, exported, imported by torch-mlir, or loaded from a file.

Each is compiled and run on the script's own inputs, and compared with the script's model in eager. Prints the table of
docs/explanation/frontends.md; each number is the greatest difference of a result, divided by the greatest number in
it. `--write FILE` inserts the table between that page's marks. Arguments select programs by name; `--whole` uses full
sizes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.graph.types import NodeType
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe, presets
from buddy.compiler.protocol.recipe import TORCH_MLIR, Dialect, Frontend, Recipe, preset_of
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
PROGRAMS = ("mlp", "resnet18", "bert")
_BEGIN, _END = "<!-- table -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Model:
    """A sample's model with its inputs, and the sample's arguments."""

    name: str
    words: tuple[str, ...]
    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]

    def results(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return [leaf for leaf in tree_leaves(self.module(**self.inputs)) if isinstance(leaf, torch.Tensor)]


class Positional(torch.nn.Module):
    """The model with positional tensors as inputs and outputs, for exporters."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module, self.names = model.module, tuple(model.inputs)

    def forward(self, *tensors: torch.Tensor) -> Any:
        results = self.module(**dict(zip(self.names, tensors, strict=True)))
        return results if isinstance(results, torch.Tensor) else tuple(tree_leaves(results))


def model_of(name: str, whole: bool = False) -> Model:
    """Returns the sample of that name, in its tiny form unless `whole`."""
    words = () if whole or name == "mlp" else ("--tiny",)
    names: dict[str, Any] = {"__name__": name, "__doc__": ""}
    kept, sys.argv = sys.argv, [name, *words]
    try:
        exec(compile((SAMPLES / f"{name}.py").read_text(), f"{name}.py", "exec"), names)
    finally:
        sys.argv = kept
    inputs = names["example_inputs"]
    if isinstance(inputs, torch.Tensor):
        inputs = {"x" if name == "mlp" else "image": inputs}
    return Model(name, words, names["model"], inputs)


Loaded = tuple[list[CapturedGraph], Recipe]


def by_frontend(frontend: Frontend, dialect: Dialect = "linalg") -> Callable[[Model, Path], Loaded]:
    """Loads a script through a frontend."""

    def load(model: Model, folder: Path) -> Loaded:
        source = str(SAMPLES / f"{model.name}.py")
        graphs = load_program(source, model.words, frontend=frontend).graphs
        for captured in graphs if frontend == TORCH_MLIR else ():
            captured.graph.imported_ir = captured.torch_dialect()
        return graphs, presets()[preset_of(frontend, dialect)].recipe

    return load


def by_file(suffix: str, save: Callable[[Model, Path], None]) -> Callable[[Model, Path], Loaded]:
    """Loads a file that `save` writes."""

    def load(model: Model, folder: Path) -> Loaded:
        path = folder / f"{model.name}{suffix}"
        save(model, path)
        types = {torch.float32: "f32", torch.int64: "i64"}
        sizes = {name: "x".join(map(str, value.shape)) for name, value in model.inputs.items()}
        said = [f"{n}={sizes[name]}x{types[model.inputs[name].dtype]}" for n, name in enumerate(model.inputs)]
        graphs = load_program(str(path), shapes=tuple(said) if suffix == ".pt" else ()).graphs
        return graphs, adapt_to_phase(default_recipe(), graphs[0].info.entry_phase, graphs[0].info.dialects)

    return load


def _exported(model: Model, path: Path) -> None:
    with torch.no_grad():
        torch.export.save(torch.export.export(model.module, (), model.inputs, strict=False), path)


def _scripted(model: Model, path: Path) -> None:
    with torch.no_grad():
        torch.jit.trace(Positional(model).eval(), tuple(model.inputs.values()), check_trace=False).save(str(path))


def _as_onnx(model: Model, path: Path) -> None:
    """Exports by the exporter that needs only the onnx package."""
    arguments = tuple(model.inputs.values())
    with torch.no_grad():
        torch.onnx.export(Positional(model).eval(), arguments, str(path), input_names=list(model.inputs), dynamo=False)


FRONTENDS: dict[str, Callable[[Model, Path], Loaded]] = {
    "TorchDynamo": by_frontend("dynamo"),
    "torch.export": by_frontend("export"),
    "torch-mlir, linalg": by_frontend(TORCH_MLIR, "linalg"),
    "torch-mlir, TOSA": by_frontend(TORCH_MLIR, "tosa"),
    "torch-mlir, StableHLO": by_frontend(TORCH_MLIR, "stablehlo"),
    ".pt2": by_file(".pt2", _exported),
    "TorchScript": by_file(".pt", _scripted),
    "ONNX": by_file(".onnx", _as_onnx),
}


def compared(model: Model, frontend: str, folder: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Compares each result of the frontend `frontend`, on the script's own inputs, with eager's.

    If the program is cut into several graphs (a TorchScript trace that reads a number out of a tensor), each is
    compared with eager on the inputs that it was captured with.
    """
    graphs, recipe = FRONTENDS[frontend](model, folder)
    for captured in graphs:
        program = LoadedProgram(compile_graph(captured.graph, recipe), frozen=True)
        given = dict(zip(captured.graph.placeholders, captured.tensors, strict=True))
        if len(graphs) == 1:
            inputs = [op for op in given if op.kind is NodeType.InputNode]
            given.update(zip(inputs, model.inputs.values(), strict=True))
        tensors = list(given.values())
        assert captured.eager is not None
        theirs = model.results() if len(graphs) == 1 else captured.eager(tensors)
        yield from zip(program(tensors), theirs, strict=True)


def error(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Returns the greatest difference of a result, divided by the greatest number in it."""
    return max(
        float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-30))
        for ours, theirs in pairs
    )


def table(names: Sequence[str], whole: bool) -> str:
    """Returns the table in Markdown, a row for each frontend."""
    models = [model_of(name, whole) for name in names]
    lines = ["| frontend | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for frontend in FRONTENDS:
        with tempfile.TemporaryDirectory() as folder:
            cells = [f"{error(list(compared(model, frontend, Path(folder)))):.1e}" for model in models]
        lines.append(f"| {frontend} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="some of: " + ", ".join(PROGRAMS))
    parser.add_argument("--whole", action="store_true", help="the samples at full size, not in their tiny form")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the marks of this page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = table(options.programs or PROGRAMS, options.whole)
    print(text)
    if options.write:
        page = options.write.read_text()
        before, _, rest = page.partition(_BEGIN)
        options.write.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{rest.partition(_END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
