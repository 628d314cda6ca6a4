"""A failed request shows its reason once. A path is checked, and confirmed if necessary, before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.session.requests import Requester, UnavailableError
from buddy.app.session.session import Session
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import DescribeOp


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A workbench whose engine has not been started."""
    return Session(Workspace("x.py", store=tmp_path), lambda topics: None)


@pytest.mark.parametrize(
    ("failed", "said"),
    [("", "the engine is not running"), ("not profiled", "not profiled: the engine is not running")],
)
async def test_a_failed_request_shows_the_reason(session: Session, failed: str, said: str) -> None:
    heard: list[str] = []
    assert await Requester(session, heard.append).request(DescribeOp(0, "arith.addi"), failed=failed) is None
    assert heard == [said]


async def test_a_cancelled_request_shows_another_message(session: Session) -> None:
    async def ended(cancelled: bool) -> str:
        raise UnavailableError("the run was cancelled", cancelled)

    heard: list[str] = []
    requester = Requester(session, heard.append)
    for cancelled in (True, False):
        assert await requester.await_answer(ended(cancelled), "not tuned", "the search was stopped") is None
    assert await requester.await_answer(ended(True), "not profiled") is None
    reason = "the run was cancelled"
    assert heard == ["the search was stopped", f"not tuned: {reason}", f"not profiled: {reason}"]


def test_a_path_is_used_at_once_or_after_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Workbench(str(tmp_path / "none.py"), store=tmp_path / "kept", settings=Settings())
    asked: list[str] = []
    said: list[str] = []
    used: list[tuple[Path, bool]] = []
    monkeypatch.setattr(app.context.dialogs, "confirm", lambda question, act: (asked.append(question), act()))
    monkeypatch.setattr(app.context.status, "say", said.append)

    def use(typed: str, question: str) -> None:
        app.context.files.use_path(typed, lambda path, over: used.append((path, over)), lambda path: question)

    use("  ", "never")
    use(f" {tmp_path} ", "")
    use(str(tmp_path), "Write over it?")
    use("a\0b", "")
    assert used == [(tmp_path, False), (tmp_path, True)]
    assert asked == ["Write over it?"]
    assert said == ["a\0b could not be written: a path cannot contain a null character"]
