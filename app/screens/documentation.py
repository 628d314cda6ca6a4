"""Shows the documentation in the terminal: the entries for a picker of pages, and a screen with one page.

The pages are in `docs/` of a git checkout; an installed package does not contain them.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Markdown

import buddy.app
from buddy.app.screens.modal import ReadOnlyScreen
from buddy.app.screens.picker import PickerChoice

# The folders of `docs/`, in the order in which a newcomer reads them.
_SECTIONS = ("tutorials", "how-to", "explanation", "reference")
# The summary of the keys at the bottom of the box.
_KEYS = "arrows and page keys scroll, a click follows a link, backspace goes back, escape closes"


def page_choices() -> list[PickerChoice]:
    """Returns an entry for each page, with the page's title and path. Returns none for an installed package."""
    folder = Path(buddy.app.__file__).resolve().parent.parent / "docs"
    pages = [path for section in _SECTIONS for path in sorted((folder / section).glob("*.md"))]
    return [PickerChoice(_title(path), path.relative_to(folder).as_posix(), path) for path in pages]


def _title(path: Path) -> str:
    """Returns the text of the first heading of a page, or, without one, the name of its file. Removes backquotes."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    headings = (line.removeprefix("# ") for line in lines if line.startswith("# "))
    return next(headings, path.stem).replace("`", "")


class PageScreen(ReadOnlyScreen[None]):
    """Shows the Markdown file `path`. Follows links to other pages, and shows the addresses of other links to copy."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("backspace,alt+left", "back", "Back", show=False),
        Binding("j", "scroll('scroll_down')", show=False),
        Binding("k", "scroll('scroll_up')", show=False),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        # The pages that were shown, the one on the screen last.
        self._history = [path]

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="page"), VerticalScroll():
            yield Markdown(open_links=False)

    async def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        await self._show(self._history[-1])

    async def _show(self, path: Path, anchor: str = "") -> None:
        """Shows a page from its heading `anchor` on, or from its start. Shows the reason if it cannot read the page."""
        box, document = self.query_one("#box"), self.query_one(Markdown)
        try:
            text = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            box.border_subtitle = f"cannot read {path.name}: {error}"
            return
        box.border_title, box.border_subtitle = f"{path.parent.name}/{path.name}", _KEYS
        await document.update(text)
        if not anchor or not document.goto_anchor(anchor):
            self.query_one(VerticalScroll).scroll_home(animate=False)

    async def on_markdown_link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Follows a link to a page, or shows the address of another link."""
        message.stop()
        page, _, anchor = message.href.partition("#")
        target = (self._history[-1].parent / page).resolve() if page else self._history[-1]
        if "://" in page or target.suffix != ".md":
            self.query_one("#box").border_subtitle = message.href
            return
        self._history.append(target)
        await self._show(target, anchor)

    async def action_back(self) -> None:
        """Goes back to the previous page; on the first page, closes the screen."""
        if len(self._history) == 1:
            self.action_close()
            return
        self._history.pop()
        await self._show(self._history[-1])

    def action_scroll(self, method: str) -> None:
        getattr(self.query_one(VerticalScroll), method)(animate=False)
