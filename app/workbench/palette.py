"""The command palette: lists the actions and the panes of plug-ins, and ranks the actions that match a query."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar, cast

from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from buddy.app.actions import ACTIONS, PANE_TITLES, Action
from buddy.app.workbench.key_sequences import ActionHost


class Palette(CommandPalette):
    """The command palette, which ctrl+c closes like every other screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "escape", show=False, priority=True)]


# The palette lists neither itself nor the action that needs the number of a phase.
UNLISTED_ACTIONS = {"palette", "phase.number"}


class ActionCommands(Provider):
    """Provides the entries of the palette: enabled actions, disabled ones with the reason, and panes of plug-ins."""

    @property
    def _workbench(self) -> ActionHost:
        return cast(ActionHost, self.app)

    async def discover(self) -> Hits:
        for action in self._sorted_actions():
            yield DiscoveryHit(
                _command_title(action), partial(self._workbench.perform, action), help=self._help(action)
            )
        for title, text, show in self._workbench.pane_commands():
            yield DiscoveryHit(title, show, help=text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._sorted_actions():
            title = _command_title(action)
            score = command_score(action, query) or matcher.match(title) / _FUZZY_DIVISOR
            if score > 0:
                command = partial(self._workbench.perform, action)
                yield Hit(score, matcher.highlight(title), command, text=title, help=self._help(action))
        for title, text, show in self._workbench.pane_commands():
            score = _words_score(query, (title, "", text)) or matcher.match(title) / _FUZZY_DIVISOR
            if score > 0:
                yield Hit(score, matcher.highlight(title), show, text=title, help=text)

    def _sorted_actions(self) -> list[Action]:
        """Return the listed actions, the enabled ones first."""
        situation = self._workbench.situation()
        return sorted(filter(is_listed, ACTIONS), key=lambda action: bool(action.blocked(situation)))

    def _help(self, action: Action) -> str:
        """Return the text below an entry: what the action does, its keys, and why it is disabled."""
        reason = action.blocked(self._workbench.situation())
        keys = f"  ({', '.join(action.keys)})" if action.keys else ""
        return f"{action.tooltip}{keys}" + (f". Disabled: {reason}" if reason else "")


def is_listed(action: Action) -> bool:
    """Whether the palette lists an action. Cursor movements are not listed either."""
    return action.id not in UNLISTED_ACTIONS and not action.id.startswith("move.")


# Textual's scores for similar titles are below 1000. Divided by this, they are below every score of matching words.
_FUZZY_DIVISOR = 1000.0


def command_score(action: Action, query: str) -> float:
    """Return how well a query matches an action: 5 if it is a key of the action, otherwise as `_words_score`."""
    query = query.strip()
    if query and any(query in (key, key.replace(" ", "")) for key in action.keys):
        return 5.0
    return _words_score(query, (_command_title(action), " ".join(action.synonyms), action.tooltip))


def _words_score(query: str, texts: tuple[str, str, str]) -> float:
    """Return how well the words of a query match an entry, from 0 (a word matches nothing) to 4.

    `texts` are the title, the synonyms and the description. A word of the query matches a word that starts with it: in
    the title with 4 points, in the synonyms with 3, in the description with 2. The score is the mean over the words of
    the query, of which each has the points of its best match.
    """
    scored_words = [(4.0 - index, word) for index, text in enumerate(texts) for word in _words(text)]
    best_scores: list[float] = []
    for query_word in dict.fromkeys(_words(query)):
        scores = [score for score, word in scored_words if word.startswith(query_word)]
        if not scores:
            return 0.0
        best_scores.append(max(scores))
    return sum(best_scores) / len(best_scores) if best_scores else 0.0


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return re.findall(r"[^\s,:;()`]+", text.lower())


def _command_title(action: Action) -> str:
    """Return the title of an action in the palette, which starts with the pane that the action is limited to."""
    pane = PANE_TITLES.get(action.pane)
    return f"{pane}: {action.title}" if pane else action.title
