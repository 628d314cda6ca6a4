"""The parts of the workbench that panes, screens and commands use."""

from __future__ import annotations

from dataclasses import dataclass

from buddy.app.panes.jobs import Jobs, Status
from buddy.app.panes.layout import Layout
from buddy.app.panes.selection import Selection
from buddy.app.panes.stage_queries import StageQueries
from buddy.app.reports.formatting import Glyphs
from buddy.app.screens.dialogs import Dialogs, FileWriter
from buddy.app.screens.results import Results
from buddy.app.session.recipe_editor import RecipeEditor
from buddy.app.session.session import Session
from buddy.app.session.state import State
from buddy.app.workspace.session_file import Bookmarks
from buddy.app.workspace.workspace import Workspace


@dataclass(frozen=True)
class WorkbenchContext:
    """The parts of a workbench that its panes and commands share. The application creates it and passes it to them.

    | to … | use |
    |---|---|
    | read the state of the engine | `state` |
    | ask the engine | `session`; `queries`, which shows a message if a request fails |
    | change the recipe | `edits`; `workspace` has the current one |
    | show a message | `say` |
    | ask the user something | `dialogs` |
    | write a file | `files` |
    | show the result of a job | `results` |
    | run a job in the background | `jobs` |
    | go to a pane or a node | `layout`, `selection` |
    """

    session: Session
    queries: StageQueries
    edits: RecipeEditor
    status: Status
    dialogs: Dialogs
    files: FileWriter
    results: Results
    jobs: Jobs
    layout: Layout
    selection: Selection
    bookmarks: Bookmarks
    glyphs: Glyphs

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def workspace(self) -> Workspace:
        return self.session.workspace

    def say(self, message: str) -> None:
        """Show a message on the status line for a few seconds."""
        self.status.say(message)
