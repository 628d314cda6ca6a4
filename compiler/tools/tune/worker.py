"""A process that loads a program, or a graph that another process wrote, and tries recipes on it.

The process receives a `LoadForTuning` or a `LoadBundle`, then the requests that `serve_attempts` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import Diagnostic, GraphInfo
from buddy.compiler.protocol.errors import diagnostic_of
from buddy.compiler.protocol.recipe import OWN_FRONTENDS
from buddy.compiler.protocol.worker_messages import Done, FailureReply, LogText
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import compute_results
from buddy.compiler.runtime.torch_values import resolve_lazy
from buddy.compiler.support.processes.channel import Channel, serves, traceback_of
from buddy.compiler.tools.tune.measure import serve_attempts
from buddy.compiler.tools.tune.messages import LoadBundle, LoadForTuning, LoadMessage, TuningRequest

# The names of the files of a bundle: the graph, and its inputs.
_GRAPH_FILE, _VALUES_FILE = "graph.bin", "values.pt"


def write_bundle(folder: Path, graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> None:
    """Writes `graph` and its inputs, in placeholder order, into `folder`. Raises `OSError`."""
    (folder / _GRAPH_FILE).write_bytes(serialization.to_bytes(graph))
    torch.save(
        {"tensors": [_without_spare_storage(tensor) for tensor in tensors], "numbers": list(numbers)},
        folder / _VALUES_FILE,
    )


def read_bundle(folder: Path) -> CapturedGraph:
    """Reads the graph and inputs that `write_bundle` wrote to `folder`; their eager program runs node by node.

    Raises `OSError`, and other exceptions for damaged files.
    """
    graph = serialization.from_bytes((folder / _GRAPH_FILE).read_bytes())
    values = torch.load(folder / _VALUES_FILE, weights_only=True, mmap=True)
    numbers = tuple(values["numbers"])
    eager = partial(compute_results, graph, numbers=numbers)
    return CapturedGraph(graph, GraphInfo(graph.name, ()), values["tensors"], eager, numbers=numbers)


def _without_spare_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with a storage of its own: for a view, `torch.save` would write the whole storage."""
    dense_tensor = resolve_lazy(tensor.detach())
    return dense_tensor if dense_tensor.untyped_storage().nbytes() == dense_tensor.nbytes else dense_tensor.clone()


@serves(LoadMessage | TuningRequest)
def serve(channel: Channel) -> None:
    """Loads the graph of the first message, and answers the requests that follow."""
    load_message = channel.receive()
    if isinstance(load_message, LoadMessage) and (captured := _load_graph(channel, load_message)) is not None:
        channel.send(Done())
        serve_attempts(channel, captured)


def _load_graph(channel: Channel, load_message: LoadMessage) -> Any:
    """Returns the graph to try recipes on; if it cannot be loaded, sends the reason and returns `None`."""
    # This process must not start torch's threads: a child that it forks would hang in its first parallel op.
    torch.set_num_threads(1)
    try:
        return (
            _load_program(channel, load_message)
            if isinstance(load_message, LoadForTuning)
            else _load_bundle(load_message)
        )
    except Exception as error:
        channel.send(LogText(traceback_of(error)))
        where = load_message.load.source if isinstance(load_message, LoadForTuning) else load_message.folder
        channel.send(FailureReply(diagnostic_of(error, "the program could not be loaded", where)))
    return None


def _load_bundle(load_message: LoadBundle) -> Any:
    return read_bundle(Path(load_message.folder))


def _load_program(channel: Channel, load_message: LoadForTuning) -> Any:
    from buddy.compiler.frontend.torch_dialect import import_in_child
    from buddy.compiler.graph import plugins
    from buddy.compiler.importers.sources import load_program

    load = load_message.load
    plugins.plugin_problems([*plugins.installed_plugins(), *map(plugins.load_plugin_file, load.plugins)])
    shapes, frontend = load.shapes, load.frontend
    graphs = load_program(
        load.source, load.arguments, load.directory, shapes=shapes, frontend=frontend, trusts=load.trusts
    ).graphs
    if load_message.graph >= len(graphs):
        channel.send(FailureReply(Diagnostic(f"there is no graph {load_message.graph} of {load.source} here")))
        return None
    captured = graphs[load_message.graph]
    if frontend not in OWN_FRONTENDS and captured.graph.imported_ir is None:
        reply = import_in_child(channel, captured)
        if isinstance(reply, FailureReply):
            channel.send(reply)
            return None
        captured.graph.imported_ir = reply.imported
    return captured
