"""The operands and users of graph nodes, and drawings of them as DOT (for Graphviz) or SVG. Does not import Textual."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from buddy.app.panes.node_filter import op_kind
from buddy.compiler.protocol import NodeRow

# Sizes in pixels of an SVG drawing: of characters and lines (at font size 12), padding of boxes, gaps between boxes.
_CHARACTER_WIDTH, _LINE_HEIGHT, _PADDING, _GAP_X, _GAP_Y = 7, 16, 8, 24, 40
# The distance in pixels from the bottom of a line to the baseline of its text.
_DESCENT = 2


class _Box(NamedTuple):
    """The box of a node in an SVG drawing, in pixels."""

    left: int
    top: int
    width: int
    height: int


class NodeNeighbours:
    """The edges of the graph with the nodes `rows`. The attribute `rows` has the nodes by index."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        self.rows = {row.index: row for row in rows}
        # The indices of the users of each node.
        self._users_of: dict[int, list[int]] = {row.index: [] for row in rows}
        for row in rows:
            for operand in row.inputs:
                self._users_of[operand].append(row.index)

    def producers(self, row: NodeRow) -> list[NodeRow]:
        """The nodes whose results `row` reads."""
        return [self.rows[operand] for operand in row.inputs]

    def users(self, row: NodeRow) -> list[NodeRow]:
        """The nodes that read the result of `row`."""
        return [self.rows[user] for user in self._users_of[row.index]]

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
    """Returns the lines of a node's label: its name, its op if the name does not contain it, and its type."""
    kind = op_kind(row) if row.opcode.startswith("call") else row.opcode
    return [
        row.display_name,
        *([kind] if kind not in row.display_name else []),
        " ".join(filter(None, (row.dtype, row.shape))),
    ]


def draw_dot(rows: Sequence[NodeRow], centre: NodeRow) -> str:
    """Returns the nodes and the edges between them in DOT. `centre` is emphasised."""
    indices = {row.index for row in rows}
    lines = ["digraph {", '  node [shape=box, fontname="monospace", fontsize=11];']
    for row in rows:
        label_text = "\\n".join(_escape(line) for line in _label_lines(row) if line)
        style = ", penwidth=3" if row.index == centre.index else ""
        lines.append(f'  n{row.index} [label="{label_text}"{style}];')
    lines += [f"  n{operand} -> n{row.index};" for row in rows for operand in row.inputs if operand in indices]
    return "\n".join([*lines, "}", ""])


def _escape(text: str) -> str:
    """Returns `text` for use in a string of DOT."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def draw_svg(rows: Sequence[NodeRow], centre: NodeRow) -> str:
    """Returns the nodes and the edges between them as SVG; each node is below its operands. `centre` is emphasised."""
    layers = _layers(rows)
    boxes = _boxes(layers)
    width = max(box.left + box.width for box in boxes.values()) + _PADDING
    height = max(box.top + box.height for box in boxes.values()) + _PADDING
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    elements += [
        _edge_element(boxes[operand], boxes[row.index]) for row in rows for operand in row.inputs if operand in boxes
    ]
    elements += [_box_element(boxes[row.index], row, is_centre=row.index == centre.index) for row in rows]
    return "\n".join([*elements, "</svg>", ""])


def _layers(rows: Sequence[NodeRow]) -> list[list[NodeRow]]:
    """Assigns nodes to layers, top down. `rows` must be in topological order."""
    # The length of the longest path to each node.
    depth: dict[int, int] = {}
    for row in rows:
        depth[row.index] = max((depth[operand] + 1 for operand in row.inputs if operand in depth), default=0)
    _move_inputs_down(rows, depth)
    layers: list[list[NodeRow]] = [[] for _ in range(max(depth.values()) + 1)]
    for row in rows:
        layers[depth[row.index]].append(row)
    return [layer for layer in layers if layer]


def _move_inputs_down(rows: Sequence[NodeRow], depth: dict[int, int]) -> None:
    """Move nodes without operands directly above their first user, to shorten edges."""
    for row in rows:
        if not any(operand in depth for operand in row.inputs):
            user_depths = [depth[other.index] for other in rows if row.index in other.inputs]
            depth[row.index] = max(min(user_depths, default=1) - 1, 0)


def _boxes(layers: Sequence[Collection[NodeRow]]) -> dict[int, _Box]:
    """Places the nodes of `layers`. Returns their boxes by the index of the node."""
    boxes: dict[int, _Box] = {}
    y = _PADDING
    for layer in layers:
        x, tallest = _PADDING, 0
        for row in layer:
            label = _label_lines(row)
            width, height = max(map(len, label)) * _CHARACTER_WIDTH + 2 * _PADDING, len(label) * _LINE_HEIGHT + _PADDING
            boxes[row.index] = _Box(x, y, width, height)
            x, tallest = x + width + _GAP_X, max(tallest, height)
        y += tallest + _GAP_Y
    return boxes


def _edge_element(start: _Box, end: _Box) -> str:
    """Returns a curve from the bottom of `start` to the top of `end`."""
    x1, y1, x2, y2 = start.left + start.width // 2, start.top + start.height, end.left + end.width // 2, end.top
    middle = (y1 + y2) // 2
    return f'<path d="M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}" fill="none" stroke="#888888"/>'


def _box_element(box: _Box, row: NodeRow, *, is_centre: bool) -> str:
    """Returns the box of a node with its label."""
    # Imported on demand: its tables of entities would make the start of the workbench slower.
    from html import escape

    x, y, width, height = box
    stroke_width = 3 if is_centre else 1
    text = "".join(
        f'<text x="{x + _PADDING}" y="{y + _LINE_HEIGHT * (k + 1) - _DESCENT}">{escape(line)}</text>'
        for k, line in enumerate(_label_lines(row))
    )
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="#f4f4f4" stroke="#222222" '
    return f'{shape}stroke-width="{stroke_width}"/>{text}'
