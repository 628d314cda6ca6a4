"""A process that loads a program, or a graph that another process wrote, and tries recipes on it.

The process receives a `LoadForTuning` or a `LoadBundle`, then the requests that `serve_attempts` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import Diagnostic, GraphInfo
from buddy.compiler.protocol.recipe import OWN_FRONTENDS
from buddy.compiler.protocol.worker_messages import Done, Refused, Trouble
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import results_of
from buddy.compiler.support.processes.channel import Channel, serves, traceback_of
from buddy.compiler.tools.tune.measure import serve_attempts
from buddy.compiler.tools.tune.messages import Beginning, LoadBundle, LoadForTuning, TuningRequest

_GRAPH, _VALUES = "graph.bin", "values.pt"


def write_bundle(folder: Path, graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> None:
    """Writes `graph` and its inputs, in placeholder order, into `folder`. Raises `OSError`."""
    (folder / _GRAPH).write_bytes(serialize.to_bytes(graph))
    torch.save({"tensors": [_copy_alone(tensor) for tensor in tensors], "numbers": list(numbers)}, folder / _VALUES)


def read_bundle(folder: Path) -> CapturedGraph:
    """Reads the output of `write_bundle` from `folder`; eager computes it node by node.

    Raises `OSError`, and the readers' exceptions for a damaged file.
    """
    graph = serialize.from_bytes((folder / _GRAPH).read_bytes())
    values = torch.load(folder / _VALUES, weights_only=True, mmap=True)
    numbers = tuple(values["numbers"])
    eager = partial(results_of, graph, numbers=numbers)
    return CapturedGraph(graph, GraphInfo(graph.name, ()), values["tensors"], eager, numbers=numbers)


def _copy_alone(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the rest of its storage, which `torch.save` would write for a view."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain if plain.untyped_storage().nbytes() == plain.nbytes else plain.clone()


@serves(Beginning | TuningRequest)
def serve(channel: Channel) -> None:
    begin = channel.receive()
    if isinstance(begin, Beginning) and (captured := _load_graph(channel, begin)) is not None:
        channel.send(Done())
        serve_attempts(channel, captured)


def _load_graph(channel: Channel, begin: Beginning) -> Any:
    """The graph, or `None` after sending the reason."""
    import torch

    # This process must not start torch's threads: a child that it forks would hang in its first parallel op.
    torch.set_num_threads(1)
    try:
        return _load_program(channel, begin) if isinstance(begin, LoadForTuning) else _load_bundle(begin)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        known = getattr(error, "diagnostic", None)
        where = begin.load.source if isinstance(begin, LoadForTuning) else begin.folder
        what = known if isinstance(known, Diagnostic) else Diagnostic(f"{type(error).__name__}: {error}", where)
        channel.send(Refused(what))
    return None


def _load_bundle(begin: LoadBundle) -> Any:

    return read_bundle(Path(begin.folder))


def _load_program(channel: Channel, begin: LoadForTuning) -> Any:
    from buddy.compiler.frontend.torch_dialect import import_in_child
    from buddy.compiler.graph import plugins
    from buddy.compiler.importers.sources import load_program

    load = begin.load
    plugins.plugin_problems([*plugins.installed_plugins(), *map(plugins.load_file, load.plugins)])
    shapes, frontend = load.shapes, load.frontend
    graphs = load_program(
        load.source, load.arguments, load.directory, shapes=shapes, frontend=frontend, trusts=load.trusts
    ).graphs
    if begin.graph >= len(graphs):
        channel.send(Refused(Diagnostic(f"there is no graph {begin.graph} of {load.source} here")))
        return None
    captured = graphs[begin.graph]
    if frontend not in OWN_FRONTENDS and captured.graph.imported_ir is None:
        reply = import_in_child(channel, captured)
        if isinstance(reply, Refused):
            channel.send(reply)
            return None
        captured.graph.imported_ir = reply.given
    return captured
