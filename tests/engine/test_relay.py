"""The folder of the engines' sockets: a relay uses it only if it is this user's, and no one else can open it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from buddy.compiler.engine.relay import RelayError, end_engine, engines_folder, run_relay

REFUSAL = "is accessible to other users: remove it, or set TMPDIR to another place"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder will be looked for."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"buddy-tui-{os.getuid()}"


def test_a_new_folder_is_the_users_alone(place: Path) -> None:
    before = os.umask(0)
    try:
        assert engines_folder() == place
    finally:
        os.umask(before)
    assert (place.stat().st_mode & 0o777, place.stat().st_uid) == (0o700, os.getuid())
    assert engines_folder() == place, "an engine was there before"


@pytest.mark.parametrize("bit", [1 << number for number in range(6)], ids="{:03o}".format)
def test_a_folder_that_others_can_open_is_refused(place: Path, bit: int) -> None:
    place.mkdir()
    place.chmod(0o700 | bit)
    with pytest.raises(RelayError, match=REFUSAL):
        engines_folder()


def test_a_folder_of_another_user_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever may write to the folder for temporary files could make it first, and answer in an engine's place."""
    other = os.getuid() + 1
    theirs = place.with_name(f"buddy-tui-{other}")
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(RelayError, match=REFUSAL):
        engines_folder()
    assert (run_relay("some-engine", 1.0, start=False), end_engine("some-engine")) == (1, 1)
    assert REFUSAL in capfd.readouterr().out


def _linked_to_a_folder(place: Path) -> None:
    own = place.with_name("elsewhere")
    own.mkdir(mode=0o700)
    place.symlink_to(own)


def _linked_to_nothing(place: Path) -> None:
    place.symlink_to(place.with_name("nothing"))


def _a_file(place: Path) -> None:
    place.touch(mode=0o600)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(_linked_to_a_folder, REFUSAL), (_linked_to_nothing, "File exists"), (_a_file, "File exists")],
    ids=["a link to a folder", "a link to nothing", "a file"],
)
def test_what_is_no_folder_is_refused(place: Path, make: Callable[[Path], None], reason: str) -> None:
    make(place)
    with pytest.raises(RelayError, match=reason):
        engines_folder()
