"""Compiles the architectures and compares them with eager, each in a separate process, and writes the results.

`python -m tests.architectures.sweep --page docs/reference/models.md` runs all; names select some. The status is 1 if a
result is wrong or a program died.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from buddy.compiler.driver.compilation import CompilationError, Compiler
from buddy.compiler.frontend.aten import AtenGraph, Runner
from buddy.compiler.frontend.backend import BackendSettings, buddy_backend, compile_aten
from buddy.compiler.frontend.convert import to_buddy
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.graph_splitter import cut_around
from buddy.compiler.graph.operations.effects import PhiloxOp
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.runtime.compare import compare
from buddy.compiler.tools.coverage.check import captured_backend
from tests.architectures.page import page
from tests.architectures.zoo import SEED, Architecture, all_architectures, tensors_in

SECONDS = 600.0


@dataclass
class Outcome:
    """What came of an architecture. `eager` counts nodes that stay in eager by target and reason."""

    name: str
    kind: str
    parameters: int = 0
    graphs: int = 0
    nodes: int = 0
    eager: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    fault: str = ""
    seconds: float = 0.0


class Watch:
    """A Dynamo back end that compiles as "buddy" does and counts graphs, nodes, and nodes in eager."""

    def __init__(self) -> None:
        self.graphs = self.nodes = 0
        self.draws = False
        self.eager: Counter[str] = Counter()

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        return buddy_backend(module, inputs, compile_graph=self._compile)

    def _compile(self, aten: AtenGraph, settings: BackendSettings) -> Runner:
        self.graphs += 1
        self._count(aten, settings)
        return compile_aten(aten, settings)

    def _count(self, aten: AtenGraph, settings: BackendSettings) -> None:
        try:
            graph = to_buddy(aten).graph
        except UnsupportedGraphError as refusal:
            cut = cut_around(aten, refusal, to_buddy)
            self.eager.update(cut.rejected.values())
            self.nodes += len(cut.rejected)
            for piece in cut.compiled:
                self._count(piece.aten, settings)
            return
        self.draws = self.draws or any(isinstance(op, PhiloxOp) for op in graph.operations)
        targets = {op.stable: op.target for op in graph.operations}
        try:
            found = Compiler(graph).assignments(settings.recipe())
        except CompilationError as error:
            self.eager[f"a whole graph: {error.diagnostic.what}"] += len(targets)
            self.nodes += len(targets)
            return
        self.nodes += len(found)
        self.eager.update(f"{targets[a.node]}: {a.reason}" for a in found if a.lowering == EAGER)


def run(architecture: Architecture) -> Outcome:
    """The architecture compiled and in eager, in this process, from the same weights, inputs and seed."""
    outcome, watch, start = Outcome(architecture.name, architecture.kind), Watch(), time.perf_counter()
    torch._dynamo.reset()
    try:
        expected = _results(architecture, lambda module: module)
        with torch._dynamo.config.patch(allow_rnn=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _results(architecture, lambda module: torch.compile(module, backend=watch))
            if watch.draws:  # numbers that are made of a seed are others than eager's
                torch._dynamo.reset()
                expected = _results(architecture, lambda module: torch.compile(module, backend=captured_backend))
        outcome.fault, outcome.error = _compared(found, expected)
    except Exception as error:
        outcome.fault = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
    outcome.parameters = sum(parameter.numel() for parameter in architecture.built()[0].parameters())
    outcome.graphs, outcome.nodes, outcome.eager = watch.graphs, watch.nodes, dict(watch.eager)
    outcome.seconds = round(time.perf_counter() - start, 1)
    return outcome


def _results(architecture: Architecture, compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    module, use = architecture.built()
    torch.manual_seed(SEED)
    with torch.no_grad():
        results = list(tensors_in(use(compiled(module))))
    return [*results, *module.buffers()]


def _compared(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[str, float]:
    if len(found) != len(expected):
        return f"{len(found)} results, eager has {len(expected)}", 0.0
    pairs = enumerate(zip(found, expected, strict=True))
    reports = [compare(str(i), ours, theirs, equal_nan=True) for i, (ours, theirs) in pairs]
    wrong = [report for report in reports if report.verdict != "ok"]
    said = f"result {wrong[0].name} {wrong[0].verdict}: {wrong[0].max_abs:.2g} at {wrong[0].where}" if wrong else ""
    return said, max((report.max_abs for report in reports), default=0.0)


# ---- processes -------------------------------------------------------------------------------------------------------


def run_apart(architecture: Architecture, seconds: float = SECONDS) -> Outcome:
    """The same in a forked process, which may die. This one must have run nothing on several threads before."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(run(architecture)))
    process.start()
    theirs.close()
    try:
        if ours.poll(seconds):
            return ours.recv()  # type: ignore[no-any-return]
        return Outcome(architecture.name, architecture.kind, fault=f"there was no result in {seconds:g} s")
    except EOFError:
        process.join()
        return Outcome(architecture.name, architecture.kind, fault=_death(process.exitcode or 0))
    finally:
        process.kill()
        process.join()


def _death(code: int) -> str:
    return f"the process died of {signal.Signals(-code).name}" if code < 0 else f"the process ended with status {code}"


def sweep(architectures: Mapping[str, Architecture], seconds: float) -> list[Outcome]:
    outcomes = []
    for name, architecture in architectures.items():
        outcome = run_apart(architecture, seconds)
        outcomes.append(outcome)
        eager = sum(outcome.eager.values())
        said = outcome.fault or f"right, {outcome.graphs} graphs, {eager} of {outcome.nodes} nodes in eager"
        print(f"{name}: {said} ({outcome.seconds:g} s)", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all where none is named")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the Markdown page there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep outcomes there; those not named now stay")
    parser.add_argument("--timeout", type=float, default=SECONDS, metavar="S", help="seconds for each (%(default)g)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = all_architectures()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"there is no architecture {unknown[0]!r}; there are {', '.join(known)}")
    found = {} if options.json is None or not options.names else _read(options.json)
    found |= {o.name: o for o in sweep({name: known[name] for name in options.names or known}, options.timeout)}
    outcomes = [found[name] for name in known if name in found]
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n", "utf-8")
    if options.page:
        options.page.write_text(page(outcomes), "utf-8")
    return int(any(outcome.fault for outcome in outcomes))


def _read(path: Path) -> dict[str, Outcome]:
    """The outcomes of an earlier sweep, by name."""
    return {entry["name"]: Outcome(**entry) for entry in json.loads(path.read_text("utf-8"))} if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
