"""The input of the workbench without a screen: reads lines, and finds the actions and nodes that they name."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from buddy.app.actions import ACTIONS, BY_ID, Action
from buddy.app.workbench.palette import command_score
from buddy.compiler.protocol import NodeRow

# The number of actions that an unknown command suggests.
_MAX_SUGGESTIONS = 5
# The text that `help` prints.
COMMANDS_HELP = """Commands:
  graph, passes, ir, outputs   go to a pane and print its rows
  show [FROM-TO]               print rows of the pane, or of the open list
  node NAME                    go to a node of the graph
  stages                       list the stages of the compilation
  stage NAME|NUMBER            show a stage in IR
  toggle NAME                  switch a pass on or off, or a node between compiled code and eager
  where                        print the program, the pane and the row
  help [WORDS]                 print this list, or what an action does
  actions                      print the keys and actions of this pane
  ACTION [ANSWER]              perform an action by its name, its title or its key: run, undo, profile, search TEXT
An action may ask for a text or a choice: answer on the next line, or on the same line. `cancel` leaves the question.
Ctrl+c cancels what runs, ctrl+d or quit ends the workbench."""


def find_action(text: str, pane: str) -> Action | None:
    """Return the action with the id `text`, else with that key, title or id after the dot; `None` without one.

    If several match, those of `pane` take precedence. Keys are those that work in `pane`.
    """
    if text in BY_ID:
        return BY_ID[text]
    ordered = sorted(ACTIONS, key=lambda action: _pane_rank(action, pane))
    active = [action for action in ordered if _pane_rank(action, pane) < _NOT_IN_PANE]
    # What to search, and whether an action is the named one: the first criterion with a match decides.
    criteria: Iterable[tuple[Iterable[Action], Callable[[Action], bool]]] = (
        (active, lambda action: any(text in (key, key.replace(" ", "")) for key in action.keys)),
        (ordered, lambda action: action.title.lower() == text.lower()),
        (ordered, lambda action: action.id.rpartition(".")[2] == text.lower()),
    )
    return next((action for actions, matches in criteria for action in actions if matches(action)), None)


# The rank of an action that does not work in the pane.
_NOT_IN_PANE = 3


def _pane_rank(action: Action, pane: str) -> int:
    """Return the precedence of an action in a pane: 0 is the highest."""
    if action.pane == pane:
        return 0
    if action.pane in ("any", "app"):
        return 1
    return 2 if action.anywhere else _NOT_IN_PANE


def similar_actions(text: str) -> list[Action]:
    """Return the actions that are most similar to a command, best first, at most `_MAX_SUGGESTIONS`."""
    scored = [(command_score(action, text), action) for action in ACTIONS]
    best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])
    return [action for _, action in best[:_MAX_SUGGESTIONS]]


class Candidates(NamedTuple):
    """The names that match a user's words, if there is not exactly one: no name, or several."""

    names: tuple[str, ...]


def find_node(name: str, named_rows: Sequence[tuple[str, NodeRow]]) -> NodeRow | Candidates:
    """Return the node called `name`, else the only one that matches it as a pattern, or whose name contains it.

    `named_rows` has each node with its displayed name. Returns the candidates if no node or several nodes match.
    """
    for matches in (
        lambda displayed, row: name in (displayed, row.stable, row.name),
        lambda displayed, row: fnmatchcase(displayed, name),
        lambda displayed, row: name.lower() in displayed.lower(),
    ):
        matching = [(displayed, row) for displayed, row in named_rows if matches(displayed, row)]
        if len(matching) == 1:
            return matching[0][1]
        if matching:
            return Candidates(tuple(displayed for displayed, _ in matching))
    return Candidates(())


def read_lines(descriptor: int, loop: asyncio.AbstractEventLoop, put: Callable[[str | None], None]) -> None:
    """Call `put` in `loop` with each line of a file descriptor, and with `None` at its end.

    Runs in a thread. It does not use `sys.stdin`, whose lock would block the exit of the process.
    """
    for line in _lines_of(descriptor):
        _put(loop, put, line)
    _put(loop, put, None)


def _put(loop: asyncio.AbstractEventLoop, put: Callable[[str | None], None], line: str | None) -> None:
    """Call `put` with a line in `loop`. Does nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(put, line)


def _lines_of(descriptor: int) -> Iterator[str]:
    """Yield the lines of a file descriptor, decoded from UTF-8, up to its end."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:
            data = b""
        text += decoder.decode(data, final=not data)
        *lines, text = text.split("\n")
        yield from lines
        if not data:
            if text:
                yield text
            return
