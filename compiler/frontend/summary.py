"""Logs one line for each model that `torch.compile` compiles: its graphs, and the nodes that fall back to eager.

The line is logged when the first call of the model returns, because each graph break delays the graphs after it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch._dynamo import config
from torch.fx import Node

from buddy.compiler.frontend.aten import AtenGraph
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.dynamo import ALLOW_RNN
from buddy.compiler.support.dynamo_internals import counters, running_compile_call

if TYPE_CHECKING:
    import torch


# The default of the option `summary`: "0" or "off" disables the line.
SUMMARY_VARIABLE = "BUDDY_SUMMARY"
# The maximum number of ops in eager that the line names; the line counts the others.
MAX_OPS = 6
_log = logging.getLogger("buddy.summary")


class _Stderr(logging.Handler):
    """Writes to stderr if the program has configured no handlers for the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and sys.stderr is not None:
            print(self.format(record), file=sys.stderr)


_log.addHandler(_Stderr())
if _log.level == logging.NOTSET:
    _log.setLevel(logging.INFO)


@dataclass
class _Counts:
    """The number of compiled nodes of an ATen graph, and the ops of its nodes in eager, by name.

    `is_graph` is false for nodes between pieces, which do not add to the number of graphs.
    """

    compiled: int
    in_eager: tuple[str, ...]
    is_graph: bool = True


@dataclass
class _DynamoGraph:
    """The counts of the ATen graphs of one Dynamo graph, or of the pieces into which they are cut.

    Keys are kind, piece and body of the ATen graphs (`_key`), and () for a Dynamo graph that runs in eager. A graph
    that is traced again replaces its counts.
    """

    pieces: dict[tuple[object, ...], _Counts] = field(default_factory=dict)


@dataclass
class _Model:
    """The graphs of one `torch.compile` call. Once its line is logged, later graphs are not counted."""

    graphs: list[_DynamoGraph] = field(default_factory=list)
    is_logged: bool = False

    def log(self) -> None:
        """Logs the line, once."""
        if not self.is_logged:
            self.is_logged = True
            pieces = [piece for graph in self.graphs for piece in graph.pieces.items()]
            kinds = Counter(key[0] for key, _ in pieces if key)
            _log.info(_summary_line([counts for _, counts in pieces], kinds["forward"] > kinds["backward"]))


# The models by the object of their `torch.compile` call.
_models: WeakKeyDictionary[Any, _Model] = WeakKeyDictionary()
# The Dynamo graph whose nodes are counted now.
_current: ContextVar[_DynamoGraph | None] = ContextVar("current", default=None)
# Returns a context in which the nodes of a Dynamo graph are counted: for versions that are compiled at later calls.
Counting = Callable[[], Any]


@contextmanager
def counting_graph(enabled: bool) -> Iterator[Counting]:
    """Counts the nodes of a Dynamo graph that is compiled in the `with` block.

    Yields a function that returns a context for versions of the graph that are compiled later.

    The line is logged when the call of the model ends; if no call is found, when the context ends.
    """
    if not enabled:
        with _counting(None):
            yield lambda: _counting(None)
        return
    compile_call, functions_at_end = running_compile_call()
    model = _models.setdefault(compile_call, _Model()) if compile_call is not None else _Model()
    if model.is_logged:
        with _counting(None):
            yield lambda: _counting(None)
        return
    graph = _DynamoGraph()
    with _counting(graph):
        yield lambda: _counting(None if model.is_logged else graph)
    # A graph whose compilation raises is not counted: it runs again, or the exception is the user's.
    model.graphs.append(graph)
    if functions_at_end is None:
        model.log()
    elif model.log not in functions_at_end:
        functions_at_end.append(model.log)


@contextmanager
def _counting(graph: _DynamoGraph | None) -> Iterator[None]:
    """Adds the counts of the `with` block to `graph`; counts nothing if it is `None`."""
    token = _current.set(graph)
    try:
        yield
    finally:
        _current.reset(token)


# ---- counting --------------------------------------------------------------------------------------------------------


def restart_count() -> None:
    """Forgets the counts of the current Dynamo graph, before it is traced again."""
    graph = _current.get()
    if graph is not None:
        graph.pieces.clear()


def count_artifact(aten: AtenGraph, artifact: Artifact, n_nodes: int) -> None:
    """Counts the nodes of a compiled ATen graph; `n_nodes` is their number before graph passes."""
    in_eager = tuple(map(_op_of_node, artifact.eager_nodes))
    _count(_key(aten), _Counts((artifact.n_nodes or n_nodes) - len(in_eager), in_eager))


def count_eager(aten: AtenGraph | None, nodes: Iterable[Node], between: bool = False) -> None:
    """Counts nodes that run in eager: all of the ATen graph `aten`, or those `between` its compiled pieces.

    With `None`, all nodes of the Dynamo graph.
    """
    if aten is None:
        restart_count()
    ops = tuple(_op_of_target(node.target) for node in nodes if node.op.startswith("call_") and node.target != getitem)
    key = _key(aten) if aten is not None else ()
    _count((*key, "between") if between else key, _Counts(0, ops, not between))


def _key(aten: AtenGraph) -> tuple[object, ...]:
    """Returns the key of a graph in `_DynamoGraph.pieces`."""
    return (aten.kind, aten.piece, aten.body)


def _count(key: tuple[object, ...], counts: _Counts) -> None:
    """Sets the counts of a graph of the current Dynamo graph; see `_DynamoGraph` for the key."""
    graph = _current.get()
    if graph is not None:
        graph.pieces[key] = counts


def _op_of_node(stable_name: str) -> str:
    """Returns the op in a stable name: `my_scale` for the node `encoder/my_scale.0`."""
    return stable_name.rpartition("/")[2].rpartition(".")[0] or stable_name


def _op_of_target(target: torch._ops.OpOverload) -> str:
    """Returns the name of an op without namespace and overload, such as `my_scale`, or the name of a function."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet)).rpartition(".")[2]


# ---- the line --------------------------------------------------------------------------------------------------------


def _summary_line(graphs: Sequence[_Counts], backward_follows: bool) -> str:
    """Returns the line of a model.

    `backward_follows` says that a backward graph is missing: it is usually compiled at the first backward pass.
    """
    n_graphs = sum(counts.is_graph for counts in graphs)
    ops = Counter(op for counts in graphs for op in counts.in_eager)
    n_compiled = sum(counts.compiled for counts in graphs)
    backward = " (its backward graph follows)" * backward_follows
    numbers = [
        f"{n_graphs} graph{'s' * (n_graphs != 1)}{backward}",
        f"{n_compiled} node{'s' * (n_compiled != 1)} compiled",
        f"{ops.total()} in eager ({_ops_text(ops)})" if ops else "none in eager",
    ]
    hint = f"; recurrent layers run in eager: set {ALLOW_RNN}" * _breaks_at_recurrent_layers()
    return f"buddy: {', '.join(numbers)}{hint}; explain: buddy-tui explain {_source()}"


def _breaks_at_recurrent_layers() -> bool:
    """True if Dynamo has left recurrent layers to eager in this process, and still does."""
    reasons = (*counters["graph_break"], *counters["unimplemented"])
    return not config.allow_rnn and any("RNN, GRU, or LSTM" in reason for reason in reasons)


def _ops_text(ops: Counter[str]) -> str:
    """Returns the most frequent ops, each with its number of nodes if there are several."""
    texts = [f"{op} x{count}" if count > 1 else op for op, count in ops.most_common(MAX_OPS)]
    more = len(ops) - len(texts)
    return ", ".join([*texts, *([f"{more} more ops"] if more else [])])


def _source() -> str:
    """Returns the path of the script that runs, quoted for a shell; `SOURCE` in an interpreter without a script."""
    path = Path(sys.argv[0]) if sys.argv else Path()
    is_script = path.suffix == ".py" and path.name != "__main__.py" and path.is_file()
    return shlex.quote(os.path.relpath(path)) if is_script else "SOURCE"
