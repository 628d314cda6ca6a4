"""Records values from inside a graph: the nodes to record when the function from `dynamo_run` is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import torch

from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.types import GraphError

_KEYS = {"node", "id", "tag"}


class Trace:
    """Node names with the tags to record their values under. `values` are those of the last call, by tag.

    Constructed from None, a mapping from node name to a tag, an id or `{"id": 1, "tag": "conv1"}`, the path of a TOML
    file with a `[[trace]]` table for each (`node`, and `id` or `tag`), or an object with such a mapping as
    `trace_config`.
    """

    def __init__(self, tags: Mapping[str, str]) -> None:
        self.tags = dict(tags)
        self.values: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, value: Any) -> Trace:
        """Raises `ValueError` for any other type, and for two nodes with one tag."""
        if isinstance(value, (str, Path)):
            value = _from_file(Path(value))
        found = getattr(value, "trace_config", {} if value is None else value)
        if not isinstance(found, Mapping):
            raise ValueError(f"trace is {value!r}; give a mapping from node names to tags, or the path of a TOML file")
        tags = {name: _tag(name, entry) for name, entry in found.items()}
        twice = [tag for tag in tags.values() if list(tags.values()).count(tag) > 1]
        if twice:
            raise ValueError(f"trace has two nodes under the tag {twice[0]!r}; give each a different tag")
        return cls(tags)

    def added_to(self, graph: Graph) -> Graph:
        """A copy of `graph` that also returns the traced nodes, after its own results.

        Raises `GraphError` for an unknown name, and for a node that is not a single tensor.
        """
        if not self.tags:
            return graph
        found = serialize.from_bytes(serialize.to_bytes(graph))
        nodes = []
        for name in self.tags:
            if name not in found.node_table:
                near = ", ".join(get_close_matches(name, found.node_table)) or "print the graph to see its nodes"
                raise GraphError(f"there is no node {name} to trace · graph {graph.name} · {near}")
            node = found.node_table[name]
            if node.multiple or not node.metas or node.metas[0] is None:
                raise GraphError(
                    f"{name} is not a single tensor · graph {graph.name} · trace the getitem that picks one"
                )
            nodes.append(node)
        found.output._arguments = [(*found.results, *nodes)]
        found.link()
        return found

    def taken_off(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the graph's own results, and stores those of the traced nodes in `values`."""
        own = len(results) - len(self.tags)
        self.values = dict(zip(self.tags.values(), results[own:], strict=True))
        return list(results[:own])


def _tag(name: str, entry: Any) -> str:
    if isinstance(entry, Mapping) and {*entry} <= _KEYS:
        entry = entry.get("tag", entry.get("id"))
    if not isinstance(entry, (str, int)):
        raise ValueError(f"trace of {name!r} is {entry!r}; give a tag, an id, or both as {{'id': 1, 'tag': 'name'}}")
    return str(entry)


def _from_file(path: Path) -> dict[str, Any]:
    """Raises `ValueError` for a file that cannot be read, is not TOML, or has no `[[trace]]`."""
    try:
        entries = msgspec.toml.decode(path.read_bytes()).get("trace")
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(entries, list) or not all("node" in entry for entry in entries):
        raise ValueError(f"{path} has no [[trace]] tables with a `node` each")
    return {entry["node"]: entry for entry in entries}
