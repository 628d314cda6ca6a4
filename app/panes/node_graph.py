"""The neighbourhood of a node, drawn as DOT (for Graphviz) or SVG. Does not import Textual."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from buddy.app.panes.node_list import op_kind
from buddy.compiler.protocol import NodeRow

# Sizes in pixels of an SVG drawing: of characters and lines (at font size 12), padding of boxes, gaps between boxes.
_CHARACTER_WIDTH, _LINE_HEIGHT, _PADDING, _GAP_X, _GAP_Y = 7, 16, 8, 24, 40


class NodeNeighbours:
    """The edges of a graph. `rows` are its nodes by index."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        self.rows = {row.index: row for row in rows}
        # The indices of the nodes that read each node.
        self._readers: dict[int, list[int]] = {row.index: [] for row in rows}
        for row in rows:
            for source in row.inputs:
                self._readers[source].append(row.index)

    def producers(self, row: NodeRow) -> list[NodeRow]:
        """The nodes whose results `row` reads."""
        return [self.rows[source] for source in row.inputs]

    def users(self, row: NodeRow) -> list[NodeRow]:
        """The nodes that read the result of `row`."""
        return [self.rows[reader] for reader in self._readers[row.index]]

    def within(self, row: NodeRow, distance: int) -> list[NodeRow]:
        """The nodes that are at most `distance` edges away from `row`, in graph order."""
        reached, frontier = {row.index}, [row]
        for _ in range(distance):
            neighbours = {
                other.index: other for node in frontier for other in (*self.producers(node), *self.users(node))
            }
            frontier = [other for index, other in neighbours.items() if index not in reached]
            reached |= set(neighbours)
        return [self.rows[index] for index in sorted(reached)]


def _label_lines(row: NodeRow) -> list[str]:
    """The lines of a node's label: its name, its op if the name does not contain it, and its type."""
    kind = op_kind(row) if row.opcode.startswith("call") else row.opcode
    return [
        row.display_name,
        *([kind] if kind not in row.display_name else []),
        " ".join(filter(None, (row.dtype, row.shape))),
    ]


def dot(rows: Sequence[NodeRow], centre: NodeRow) -> str:
    """The nodes and the edges between them in DOT. `centre` is emphasised."""
    indices = {row.index for row in rows}
    lines = ["digraph {", '  node [shape=box, fontname="monospace", fontsize=11];']
    for row in rows:
        label_text = "\\n".join(_escape(part) for part in _label_lines(row) if part)
        style = ", penwidth=3" if row.index == centre.index else ""
        lines.append(f'  n{row.index} [label="{label_text}"{style}];')
    lines += [f"  n{source} -> n{row.index};" for row in rows for source in row.inputs if source in indices]
    return "\n".join([*lines, "}", ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def svg(rows: Sequence[NodeRow], centre: NodeRow) -> str:
    """The nodes and the edges between them as SVG; each node is below its operands. `centre` is emphasised."""
    layers = _layers(rows)
    boxes = _boxes(layers)
    width = max(x + w for x, _, w, _ in boxes.values()) + _PADDING
    height = max(y + h for _, y, _, h in boxes.values()) + _PADDING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    parts += [_edge(boxes[source], boxes[row.index]) for row in rows for source in row.inputs if source in boxes]
    parts += [_box(boxes[row.index], row, row.index == centre.index) for row in rows]
    return "\n".join([*parts, "</svg>", ""])


def _layers(rows: Sequence[NodeRow]) -> list[list[NodeRow]]:
    """Assigns nodes to layers, top down. `rows` must be in topological order."""
    # The length of the longest path to each node.
    depth: dict[int, int] = {}
    for row in rows:
        depth[row.index] = max((depth[source] + 1 for source in row.inputs if source in depth), default=0)
    _move_sources_down(rows, depth)
    layers: list[list[NodeRow]] = [[] for _ in range(max(depth.values()) + 1)]
    for row in rows:
        layers[depth[row.index]].append(row)
    return [layer for layer in layers if layer]


def _move_sources_down(rows: Sequence[NodeRow], depth: dict[int, int]) -> None:
    """Move nodes without operands directly above their first user, to shorten edges."""
    for row in rows:
        if not any(source in depth for source in row.inputs):
            readers = [depth[other.index] for other in rows if row.index in other.inputs]
            depth[row.index] = max(min(readers, default=1) - 1, 0)


def _boxes(layers: Sequence[Collection[NodeRow]]) -> dict[int, tuple[int, int, int, int]]:
    """The left edge, top edge, width and height of each node's box."""
    boxes: dict[int, tuple[int, int, int, int]] = {}
    y = _PADDING
    for layer in layers:
        x, tallest = _PADDING, 0
        for row in layer:
            label = _label_lines(row)
            width, height = max(map(len, label)) * _CHARACTER_WIDTH + 2 * _PADDING, len(label) * _LINE_HEIGHT + _PADDING
            boxes[row.index] = (x, y, width, height)
            x, tallest = x + width + _GAP_X, max(tallest, height)
        y += tallest + _GAP_Y
    return boxes


def _edge(start: tuple[int, int, int, int], end: tuple[int, int, int, int]) -> str:
    x1, y1, x2, y2 = start[0] + start[2] // 2, start[1] + start[3], end[0] + end[2] // 2, end[1]
    middle = (y1 + y2) // 2
    return f'<path d="M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}" fill="none" stroke="#888888"/>'


def _box(box: tuple[int, int, int, int], row: NodeRow, centre: bool) -> str:
    # Imported on demand: its tables of entities would make the start of the workbench slower.
    from html import escape

    x, y, width, height = box
    stroke_width = 3 if centre else 1
    text = "".join(
        f'<text x="{x + _PADDING}" y="{y + _LINE_HEIGHT * (k + 1) - 2}">{escape(part)}</text>'
        for k, part in enumerate(_label_lines(row))
    )
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="#f4f4f4" stroke="#222222" '
    return f'{shape}stroke-width="{stroke_width}"/>{text}'
