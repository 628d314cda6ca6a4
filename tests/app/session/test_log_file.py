"""The file of `--log`: rotation, and a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.app.session.engine_options import MAX_OLD_FILES, LogFile


def test_a_long_log_is_rotated_and_the_oldest_file_is_dropped(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", max_bytes=10)
    for number in range(MAX_OLD_FILES + 3):
        log.write(f"number {number}".encode())
    log.close()
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"log": "number 5", "log.1": "number 4", "log.2": "number 3", "log.3": "number 2"}


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for text in (b"one ", b"two"):
        log = LogFile(tmp_path / "log")
        log.write(text)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"one two"
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0, "it is for the user alone"


def test_two_writers_rotate_a_log_once(tmp_path: Path) -> None:
    one, other = (LogFile(tmp_path / "log", max_bytes=24) for _ in range(2))
    for number in range(9):
        (one, other)[number % 2].write(f"number {number}".encode())
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        "log": "number 6number 7number 8",
        "log.1": "number 3number 4number 5",
        "log.2": "number 0number 1number 2",
    }


def test_a_deleted_log_is_created_again(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.write(b"one")
    (tmp_path / "log").rename(tmp_path / "mine")
    log.write(b"two")
    assert (tmp_path / "log").read_bytes() == b"two"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full here")
def test_data_that_cannot_be_written_is_dropped() -> None:
    log = LogFile(Path("/dev/full"))
    log.write(b"never mind")
    log.close()


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        LogFile(tmp_path / "nowhere" / "log")
