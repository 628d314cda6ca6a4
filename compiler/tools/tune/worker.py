"""A process that loads a program itself and tries recipes on it, for machines without an engine.

It gets a `LoadForTuning` or a `LoadBundle`, then the messages that `serve_attempts` answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.recipe import OWN_FRONTENDS
from buddy.compiler.protocol.worker_messages import Done, Refused, Trouble
from buddy.compiler.support.processes.channel import Channel, serves, traceback_of
from buddy.compiler.tools.tune.measure import serve_attempts
from buddy.compiler.tools.tune.messages import Beginning, LoadBundle, LoadForTuning, TuningRequest


@serves(Beginning | TuningRequest)
def serve(channel: Channel) -> None:
    begin = channel.receive()
    if isinstance(begin, Beginning) and (captured := _captured(channel, begin)) is not None:
        channel.send(Done())
        serve_attempts(channel, captured)


def _captured(channel: Channel, begin: Beginning) -> Any:
    """The graph, or `None` after sending the reason."""
    import torch

    # A child of a process that has used torch's threads hangs in its first parallel op.
    torch.set_num_threads(1)
    try:
        return _loaded(channel, begin) if isinstance(begin, LoadForTuning) else _handed(begin)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        known = getattr(error, "diagnostic", None)
        where = begin.load.source if isinstance(begin, LoadForTuning) else begin.folder
        what = known if isinstance(known, Diagnostic) else Diagnostic(f"{type(error).__name__}: {error}", where)
        channel.send(Refused(what))
    return None


def _handed(begin: LoadBundle) -> Any:
    from buddy.compiler.tools.tune import handed

    return handed.read_bundle(Path(begin.folder))


def _loaded(channel: Channel, begin: LoadForTuning) -> Any:
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
    if frontend not in OWN_FRONTENDS and captured.graph.given is None:
        reply = import_in_child(channel, captured)
        if isinstance(reply, Refused):
            channel.send(reply)
            return None
        captured.graph.given = reply.given
    return captured
