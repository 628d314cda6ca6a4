"""The host worker: runs the user's script, captures its graphs, and holds weights, inputs and the eager callables.

Nothing dangerous runs here: compiled code runs in a process forked for it. The process keeps to one thread, because a
child of a process that has used torch's threads hangs in its first parallel op.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from array import array
from typing import Any

from buddy.compiler.engine.channel import Channel, connect, text_data, traceback_of
from buddy.compiler.engine.messages import (
    Activity,
    CapturedGraphData,
    Execute,
    HostRequest,
    Load,
    Loaded,
    Ready,
    Refused,
    Reply,
    StageData,
    Trouble,
)
from buddy.compiler.engine.runner_process import run_in_child
from buddy.compiler.protocol import Diagnostic, Stage

# A request that has waited for this process comes at once; only without one is there time to rehearse.
_A_MOMENT = 0.05


class Host:
    """Answers requests with the program that was loaded last."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._program: Any = None

    def serve(self) -> None:
        while (request := self._channel.receive()) is not None:
            if isinstance(request, Load):
                self._channel.send(self._load(request))
            elif isinstance(request, Execute):
                self._channel.send(self._execute(request))

    def _load(self, request: Load) -> Reply:
        started = time.perf_counter()
        try:
            self._program = _load_program(request, self._progress)
            graphs = tuple(_data(captured) for captured in self._program.graphs)
            return Loaded(graphs, tuple(self._program.notes), time.perf_counter() - started)
        except BaseException as error:
            self._channel.send(Trouble(traceback_of(error)))
            return Refused(_diagnostic(error, request.source))
        finally:
            _flush()

    def _execute(self, request: Execute) -> Reply:
        if self._program is None or request.graph >= len(self._program.graphs):
            return Refused(Diagnostic(f"graph {request.graph} is not loaded", todo="open the source again"))
        return run_in_child(self._channel, self._program.graphs[request.graph], request)

    def _progress(self, what: str) -> None:
        self._channel.send(Activity(what))


def _load_program(request: Load, progress: Any) -> Any:
    from buddy.compiler.sources import load_program

    return load_program(request.source, request.arguments, request.directory, on_progress=progress)


def _data(captured: Any) -> CapturedGraphData:
    from buddy.compiler.graph.serialize import to_bytes

    return CapturedGraphData(captured.info, to_bytes(captured.graph), _fx_stage(captured))


def _fx_stage(captured: Any) -> StageData:
    """The ATen graph as `print_tabular` gives it: a heading, a rule, then one line per node."""
    table = captured.table.rstrip("\n") + "\n"
    rows = captured.info.rows
    sets = ((), *((row.stable,) for row in rows))
    numbers = array("I", [0, 0, *range(1, len(rows) + 1)])
    text, lines = text_data(table, numbers.tobytes(), sets)
    ops = sum(row.opcode.startswith("call_") for row in rows)
    return StageData(Stage(0, "fx", "torch", text.name, lines, ops=ops, language="fx"), text)


def _diagnostic(error: BaseException, source: str) -> Diagnostic:
    """What the user is told; errors of the sources carry their own message."""
    found = getattr(error, "diagnostic", None)
    if isinstance(found, Diagnostic):
        return found
    what = f"{source} could not be loaded: {type(error).__name__}: {error}"
    return Diagnostic(what, source, "see the log for where it comes from")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _warm_up() -> None:
    """Import what every program needs, before the first one comes."""
    import torch

    torch.set_num_threads(1)
    for module in ("sources", "frontend", "runner"):
        importlib.import_module(f"buddy.compiler.{module}")


def _rehearse() -> None:
    """Capture a little program: what Dynamo imports and builds for its first one is a second of the first load."""
    import torch
    from torch.nn import functional

    from buddy.compiler.frontend.capture import capture

    def program(x: Any) -> Any:
        return functional.layer_norm(functional.gelu(functional.linear(x, x)), (2,))

    capture(program, (torch.ones(2, 2),))


def main() -> None:
    channel, started = connect(HostRequest), time.perf_counter()
    # Into a pipe Python would print in blocks; a person wants to see each line when it is printed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _warm_up()
    channel.send(Ready(time.perf_counter() - started))
    if not channel.ready(_A_MOMENT):
        _rehearse()
    Host(channel).serve()


if __name__ == "__main__":
    main()
