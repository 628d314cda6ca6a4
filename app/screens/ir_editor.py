"""An editor for the IR of a stage, which MLIR verifies."""

from __future__ import annotations

from buddy.app.screens.editor import EditorScreen, TextProblem
from buddy.app.session.requests import Requester
from buddy.app.session.session import Session
from buddy.app.workspace.drafts import EditorDraft
from buddy.compiler.protocol import CheckIr


class IrEditor(EditorScreen):
    """An editor that accepts a module only if MLIR parses and verifies it."""

    def __init__(
        self, session: Session, title: str, text: str, wrong: TextProblem | None = None, before: str = "",
        draft: EditorDraft | None = None,
    ) -> None:  # fmt: skip
        super().__init__(title, text, wrong, before, draft)
        self._session = session

    async def check(self, text: str) -> TextProblem | None:
        return await check_module(self._session, text)


async def check_module(session: Session, text: str) -> TextProblem | None:
    """The first error that MLIR's parser or verifier finds in a module, or `None`."""
    problems: list[str] = []
    found = await Requester(session, problems.append).request(CheckIr(0, text))
    if found is None:
        return TextProblem("".join(problems))
    return TextProblem(found.message, found.line - 1, max(found.column - 1, 0)) if found.message else None
