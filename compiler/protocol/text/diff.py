"""The difference of two stage texts, line by line or by structure, and of any two sequences.

Two sequences are compared as in patience diff (Bram Cohen): items that occur once in each are anchors, of which the
longest increasing run of pairs is used, and the gaps between anchors are compared in the same way. A gap without
anchors is compared by the algorithm of E. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), with a
bounded number of edits at a time: if more are needed, the search continues from the furthest point that it has reached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

from buddy.compiler.protocol.text.line_keys import AliasTable, LineKey, defined_names, line_keys

# Maximum number of edits that one search in a gap without anchors makes: the work grows with its square. The second
# value is for sequences that have little in common.
_MAX_EDITS = 128
_MAX_EDITS_IF_UNLIKE = 16
# The maximum number of lines by which lines that only one text has are moved.
MAX_SLIDE = 200


class Hunk(NamedTuple):
    """`removed` items from `before` on in one sequence correspond to `added` items from `after` on in the other."""

    before: int
    removed: int
    after: int
    added: int


# The positions of two equal items: `x` in the first sequence (the text before), `y` in the second one (the text after).
Pair = tuple[int, int]


def hunks(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Hunk]:
    """Returns what to replace in `before` to get `after`, in order; between the hunks both are equal."""
    numbers: dict[Hashable, int] = {}
    one = [numbers.setdefault(item, len(numbers)) for item in before]
    other = [numbers.setdefault(item, len(numbers)) for item in after]
    return hunks_between(matches(one, other), len(one), len(other))


def hunks_between(pairs: Sequence[Pair], before: int, after: int) -> list[Hunk]:
    """Returns the hunks between the equal pairs of two sequences, which have `before` and `after` items."""
    result: list[Hunk] = []
    # The positions after the previous pair.
    next_x = next_y = 0
    for x, y in (*pairs, (before, after)):
        if x > next_x or y > next_y:
            result.append(Hunk(next_x, x - next_x, next_y, y - next_y))
        next_x, next_y = x + 1, y + 1
    return result


def matches(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Returns pairs of positions of equal items, increasing in both sequences."""
    pairs: list[Pair] = []
    # The gaps that are still to be compared.
    gaps = [_Gap(0, len(one), 0, len(other))]
    while gaps:
        x, end_x, y, end_y = gaps.pop()
        while x < end_x and y < end_y and one[x] == other[y]:
            pairs.append((x, y))
            x, y = x + 1, y + 1
        while x < end_x and y < end_y and one[end_x - 1] == other[end_y - 1]:
            end_x, end_y = end_x - 1, end_y - 1
            pairs.append((end_x, end_y))
        if x == end_x or y == end_y:
            continue
        gap = _Gap(x, end_x, y, end_y)
        anchors = _find_anchors(one, other, gap)
        if anchors:
            pairs += anchors
            gaps += _gaps_around(anchors, gap)
        else:
            edit_pairs = _match_by_edits(one[x:end_x], other[y:end_y])
            pairs += [(x + edit_x, y + edit_y) for edit_x, edit_y in edit_pairs]
    pairs.sort()
    return pairs


class _Gap(NamedTuple):
    """Items `x` to `end_x - 1` of the first sequence, and items `y` to `end_y - 1` of the second one."""

    x: int
    end_x: int
    y: int
    end_y: int


def _gaps_around(anchors: list[Pair], gap: _Gap) -> list[_Gap]:
    """Returns the gaps before, between and after the anchors in `gap`."""
    gaps = []
    start_x, start_y = gap.x, gap.y
    for x, y in (*anchors, (gap.end_x, gap.end_y)):
        if x > start_x and y > start_y:
            gaps.append(_Gap(start_x, x, start_y, y))
        start_x, start_y = x + 1, y + 1
    return gaps


def _find_anchors(one: Sequence[int], other: Sequence[int], gap: _Gap) -> list[Pair]:
    """Returns the longest increasing run of pairs of items that occur once in each of the two ranges of `gap`."""
    left, right = _unique_positions(one, gap.x, gap.end_x), _unique_positions(other, gap.y, gap.end_y)
    pairs = [(position, right[item]) for item, position in left.items() if item in right]
    # For each length of a run, minus 1: the smallest `y` at which a run of this length ends, and the index of that
    # pair. `previous` has for each pair the index of the one before it in its run, -1 for none.
    end_positions: list[int] = []
    end_pairs: list[int] = []
    previous: list[int] = []
    for index, (_, y) in enumerate(pairs):
        length = bisect_left(end_positions, y)
        previous.append(end_pairs[length - 1] if length else -1)
        end_positions[length : length + 1], end_pairs[length : length + 1] = [y], [index]
    run: list[Pair] = []
    index = end_pairs[-1] if end_pairs else -1
    while index >= 0:
        run.append(pairs[index])
        index = previous[index]
    return run[::-1]


def _unique_positions(items: Sequence[int], start: int, end: int) -> dict[int, int]:
    """Returns the positions of the items that occur once in the range, in order."""
    positions: dict[int, int] = {}
    repeated: set[int] = set()
    for position in range(start, end):
        if items[position] in positions:
            repeated.add(items[position])
        positions[items[position]] = position
    return {item: position for item, position in positions.items() if item not in repeated}


def _match_by_edits(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Returns the pairs on short edit paths, searched `_MAX_EDITS` edits at a time.

    Items that only one sequence has are removed before the search.
    """
    common = set(one).intersection(other)
    left = [position for position, item in enumerate(one) if item in common]
    right = [position for position, item in enumerate(other) if item in common]
    left_items, right_items = [one[position] for position in left], [other[position] for position in right]
    pairs: list[Pair] = []
    # The point (i, j) up to which the items are compared.
    i = j = 0
    while i < len(left_items) and j < len(right_items):
        # Sequences are alike if at least one item of eight has been paired so far.
        max_edits = _MAX_EDITS if len(pairs) * 8 >= i else _MAX_EDITS_IF_UNLIKE
        path, x, y = _path(left_items[i:], right_items[j:], max_edits)
        pairs += [(left[i + path_x], right[j + path_y]) for path_x, path_y in path]
        i, j = i + x, j + y
    return pairs


def _path(one: Sequence[int], other: Sequence[int], max_edits: int) -> tuple[list[Pair], int, int]:
    """Returns the pairs on a shortest edit path, and the point (x, y) where the path ends.

    The path ends at the end of both sequences, or at the furthest point within `max_edits` edits.
    """
    end_x, end_y = len(one), len(other)
    # The furthest `x` that was reached on each diagonal (`x - y`); `trail` has a copy from before each edit.
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(end_x + end_y, max_edits) + 1):
        trail.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            x = _entry_point(furthest, diagonal, edits)[0]
            while x < end_x and 0 <= x - diagonal < end_y and one[x] == other[x - diagonal]:
                x += 1
            furthest[diagonal] = x
            if x >= end_x and x - diagonal >= end_y:
                return _walk_back(trail, end_x, end_y), end_x, end_y
    # The last edit has reached every second diagonal. The entries of the other diagonals are from the edit before.
    parity = (len(trail) - 1) % 2
    ends = [
        (x, x - diagonal)
        for diagonal, x in furthest.items()
        if (diagonal - parity) % 2 == 0 and x <= end_x and 0 <= x - diagonal <= end_y
    ]
    x, y = max(ends, key=sum)
    return _walk_back(trail, x, y), x, y


def _entry_point(furthest: dict[int, int], diagonal: int, edits: int) -> tuple[int, int]:
    """Returns the `x` at which edit number `edits` enters `diagonal` (`x - y`), and the diagonal it comes from."""
    if diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]):
        return furthest[diagonal + 1], diagonal + 1
    return furthest[diagonal - 1] + 1, diagonal - 1


def _walk_back(trail: list[dict[int, int]], end_x: int, end_y: int) -> list[Pair]:
    """Returns the pairs on the path to (end_x, end_y); `trail` has the furthest points before each edit."""
    pairs: list[Pair] = []
    x, y = end_x, end_y
    for edits in range(len(trail) - 1, -1, -1):
        previous_diagonal = _entry_point(trail[edits], x - y, edits)[1]
        start_x = trail[edits][previous_diagonal]
        start_y = start_x - previous_diagonal
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start_x, start_y
    return pairs[::-1]


DiffMode = Literal["line", "structural"]


class Difference(NamedTuple):
    """`hunks` are the differences, in order; `before` and `after` are the numbers of lines.

    `aliases` has each alias of the text before, and the alias with the same definition in the text after, "" for none.
    """

    hunks: list[Hunk]
    before: int
    after: int
    aliases: tuple[tuple[str, str], ...] = ()


def difference(before: str, after: str, how: DiffMode = "line", language: str = "mlir") -> Difference:
    """Returns what to change in the text `before` to get `after`.

    A structural difference ignores lines that differ only by renamed values and aliases, order of attributes, locations
    and comments, and the order in which aliases are defined. Lines are split at "\\n" alone, as in `IndexedText`.
    """
    one, other = _lines(before), _lines(after)
    if before == after:
        return Difference([], len(one), len(other))
    if how == "line":
        return Difference(hunks(one, other), len(one), len(other))
    return _structural_difference(one, other, language)


def _lines(text: str) -> list[str]:
    """Returns the lines of a text, without an empty one after the last "\\n"."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _structural_difference(before: Sequence[str], after: Sequence[str], language: str) -> Difference:
    """Returns the structural difference of the lines of two texts, which `difference` describes."""
    definitions: dict[str, int] = {}
    aliases = [AliasTable(lines, language, definitions) for lines in (before, after)]
    one, other = list(line_keys(before, language, aliases[0])), list(line_keys(after, language, aliases[1]))
    # The printer orders definitions by use. Those that both texts have correspond in any order: they share a number.
    common = set(aliases[0].key_of_alias.values()).intersection(aliases[1].key_of_alias.values())
    numbers = dict.fromkeys(common, 0)
    keys = [[numbers.setdefault(line.key, len(numbers) + 1) for line in side] for side in (one, other)]
    renaming = _Renaming()
    pairs: list[Pair] = []
    next_x = next_y = 0
    for x, y in _Alignment(one, other, keys, matches(*keys)).pairs():
        renaming.forget(before[next_x:x], one[next_x:x], 0)
        renaming.forget(after[next_y:y], other[next_y:y], 1)
        if renaming.add_lines(one[x], other[y], before[x]):
            pairs.append((x, y))
        next_x, next_y = x + 1, y + 1
    new_aliases = {key: alias for alias, key in aliases[1].key_of_alias.items()}
    counterparts = tuple((alias, new_aliases.get(key, "")) for alias, key in aliases[0].key_of_alias.items())
    return Difference(hunks_between(pairs, len(before), len(after)), len(before), len(after), counterparts)


class _Alignment:
    """Moves pairs of lines with equal keys to where the names of both lines stand for the same values.

    If another `%1 = f(%a)` is inserted after `%0 = f(%a)`, the keys do not determine which of the two lines is new. The
    lines that use the values do: each pair of lines is a vote that the names in them stand for each other.

    `one` and `other` are the lines of both texts, `keys` has a number for each of their keys, and `pairs` are pairs of
    lines with equal numbers. A `side` is 0 for the first text, 1 for the second one.
    """

    def __init__(
        self, one: Sequence[LineKey], other: Sequence[LineKey], keys: Sequence[Sequence[int]], pairs: list[Pair]
    ) -> None:
        self._line_keys, self._keys, self._pairs = (one, other), keys, pairs
        # The number of the function that each line of the first text is in.
        self._scopes = list(accumulate(line_key.starts_scope for line_key in one))

    def pairs(self) -> list[Pair]:
        """Returns the pairs, in order, after the moves."""
        for index in range(len(self._pairs)):
            (x, y), (previous_x, previous_y) = self._pairs[index], self._pairs[index - 1] if index else (-1, -1)
            is_next_x, is_next_y = x - previous_x == 1, y - previous_y == 1
            if is_next_x != is_next_y:
                # Only one text has lines between the two pairs.
                self._slide(index, 1 if is_next_x else 0)
        return self._pairs

    def _slide(self, index: int, side: int) -> None:
        """Moves the lines before pair `index` that only text `side` has, up or down, if more names agree then.

        To move them past a pair, the line of the other text is paired with the line of text `side` that is `size` lines
        away, if both have the same key.
        """
        pairs = self._pairs
        # The number of lines that move.
        size = pairs[index][side] - (pairs[index - 1][side] if index else -1) - 1
        # The number of pairs to move past, negative for pairs above, and how many more votes agree then.
        best, best_gain = 0, 0
        for direction in (-1, 1):
            gain, count = 0, 0
            while count < MAX_SLIDE:
                position = index - 1 - count if direction < 0 else index + count
                moved = self._moved(position, side, -direction * size)
                if moved is None or (count and not self._follows(position, position - direction)):
                    break
                count += 1
                gain += self._agreement(moved, pairs[position]) - self._agreement(pairs[position], pairs[position])
                if gain > best_gain:
                    best, best_gain = direction * count, gain
        for count in range(abs(best)):
            position = index - 1 - count if best < 0 else index + count
            moved = self._moved(position, side, size if best < 0 else -size)
            assert moved is not None
            self._vote(pairs[position], -1)
            self._vote(moved, 1)
            pairs[position] = moved

    def _follows(self, position: int, neighbour: int) -> bool:
        """Returns whether the pairs at two neighbouring positions are next to each other in both texts."""
        one, other = self._pairs[position], self._pairs[neighbour]
        return abs(one[0] - other[0]) == abs(one[1] - other[1]) == 1

    def _moved(self, position: int, side: int, by: int) -> Pair | None:
        """Returns the pair at `position` with another line of text `side`; `None` if that line has another key."""
        if not 0 <= position < len(self._pairs):
            return None
        x, y = self._pairs[position]
        moved = (x + by, y) if side == 0 else (x, y + by)
        if not (0 <= moved[0] < len(self._keys[0]) and 0 <= moved[1] < len(self._keys[1])):
            return None
        return moved if self._keys[0][moved[0]] == self._keys[1][moved[1]] else None

    def _agreement(self, pair: Pair, current: Pair) -> int:
        """Returns the votes of other pairs of lines for the names of a pair.

        `current` is the pair before it is moved; its own votes do not count.
        """
        own = Counter(self._names(current))
        return sum(self._votes[names] - own[names] for names in self._names(pair))

    def _names(self, pair: Pair) -> list[tuple[int, str, str]]:
        """Returns the names that correspond if the two lines are a pair, each with the number of the function."""
        names, other_names = self._line_keys[0][pair[0]].names, self._line_keys[1][pair[1]].names
        scope = self._scopes[pair[0]]
        return [(scope, name, other_name) for name, other_name in zip(names, other_names, strict=False)]

    def _vote(self, pair: Pair, weight: int) -> None:
        """Adds the votes of a pair of lines, or removes them if `weight` is -1."""
        for names in self._names(pair):
            self._votes[names] += weight

    @cached_property
    def _votes(self) -> Counter[tuple[int, str, str]]:
        """How many pairs of lines have two names of a function in the same position: (function, name, other name)."""
        return Counter(names for pair in self._pairs for names in self._names(pair))


class _Renaming:
    """The one-to-one correspondence of the names in two texts, according to the lines that were added."""

    def __init__(self) -> None:
        # For the names of each text, the names of the other text.
        self._other_name: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def add_lines(self, one: LineKey, other: LineKey, line: str) -> bool:
        """Adds the names of two lines with equal keys. Returns whether they agree with the names added before.

        `line` is the text of `one`. A name that it defines may correspond to another name than before.
        """
        if one.starts_scope:
            self._forget_local_names()
        forth, back = self._other_name
        if len(one.names) != len(other.names):
            return False
        agrees, defined = True, None
        for name, other_name in zip(one.names, other.names, strict=True):
            if forth.get(name) == other_name and back.get(other_name) == name:
                continue
            if name in forth or other_name in back:
                defined = defined_names(line) if defined is None else defined
                if name not in defined:
                    agrees = False
                    continue
                self._drop(name, other_name)
            forth[name], back[other_name] = other_name, name
            # Names of different kinds, such as `%0` and `^bb0`, do not correspond.
            agrees = agrees and name[0] == other_name[0]
        return agrees

    def forget(self, lines: Sequence[str], keys_of_lines: Sequence[LineKey], text: int) -> None:
        """Removes the names that `lines` define, which only text number `text` has: a later use is another value."""
        forth, back = self._other_name[text], self._other_name[1 - text]
        for line, line_key in zip(lines, keys_of_lines, strict=True):
            if any(name in forth for name in line_key.names):
                for name in defined_names(line):
                    other = forth.pop(name, None)
                    if other is not None and back.get(other) == name:
                        del back[other]

    def _drop(self, name: str, other_name: str) -> None:
        """Removes the correspondences of `name` in the first text, and of `other_name` in the second one."""
        forth, back = self._other_name
        if name in forth:
            back.pop(forth.pop(name), None)
        if other_name in back:
            forth.pop(back.pop(other_name), None)

    def _forget_local_names(self) -> None:
        """Removes the names of values and labels, which are local to a function. Aliases and metadata are not."""
        for names in self._other_name:
            for name in [name for name in names if name[0] in "%^"]:
                del names[name]
