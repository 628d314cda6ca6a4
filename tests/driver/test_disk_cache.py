"""What is kept on disk is run later: nothing is taken that somebody else may have written."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import platformdirs
import pytest

from buddy.compiler.support import disk_cache
from buddy.compiler.support.disk_cache import KEY_FILE, OBJECTS, PROGRAMS

DATA = b"code" * 100


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds one object."""
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    OBJECTS.write("one", DATA)
    return tmp_path / "cache"


def test_what_is_kept_is_the_users_alone(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert OBJECTS.read("one") == DATA
    assert disk_cache.find_problem() == ""


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b.replace(b"code", b"evil", 1)])
def test_an_entry_that_was_changed_is_refused_and_made_anew(place: Path, change) -> None:
    entry = place / "objects" / "one"
    entry.write_bytes(change(entry.read_bytes()))
    assert OBJECTS.read("one") is None
    OBJECTS.write("one", DATA)
    assert OBJECTS.read("one") == DATA


@pytest.mark.parametrize("cache", disk_cache.CACHES, ids=lambda cache: cache.name)
def test_an_entry_of_another_format_counts_as_missing(
    place: Path, cache: disk_cache.DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("entry", DATA)
    with monkeypatch.context() as later:
        later.setattr(disk_cache, "FORMAT", disk_cache.FORMAT + 1)
        assert cache.read("entry") is None
        cache.write("entry", b"encoded differently")
        assert cache.read("entry") == b"encoded differently"
    assert cache.read("entry") is None
    cache.write("entry", DATA)
    assert cache.read("entry") == DATA


def test_an_entry_in_anothers_place_is_refused(place: Path) -> None:
    shutil.copy(place / "objects" / "one", place / "objects" / "two")
    PROGRAMS.write("other", b"")
    shutil.copy(place / "objects" / "one", place / "programs" / "one")
    assert OBJECTS.read("two") is None
    assert PROGRAMS.read("one") is None


def test_an_entry_sealed_with_another_key_is_refused(place: Path) -> None:
    (place / KEY_FILE).write_bytes(bytes(32))
    assert OBJECTS.read("one") is None
    (place / KEY_FILE).write_bytes(b"short")
    assert OBJECTS.read("one") is None
    OBJECTS.write("one", DATA)
    assert OBJECTS.read("one") == DATA
    assert len((place / KEY_FILE).read_bytes()) == disk_cache.KEY_BYTES


@pytest.mark.parametrize("name", ["objects", "objects/one", KEY_FILE, "."])
@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702], ids=oct)
def test_what_others_may_write_to_is_not_read(place: Path, name: str, mode: int) -> None:
    (place / name).chmod(mode)
    assert OBJECTS.read("one") is None


@pytest.mark.parametrize("name", ["objects", "objects/one", KEY_FILE, "."])
def test_what_others_may_only_read_is_read(place: Path, name: str) -> None:
    (place / name).chmod(0o755)
    assert OBJECTS.read("one") == DATA


@pytest.mark.parametrize("name", ["objects", "objects/one", KEY_FILE, "."])
def test_no_link_is_followed(place: Path, name: str) -> None:
    path = Path(os.path.normpath(place / name))
    path.rename(place.parent / "elsewhere")
    path.symlink_to(place.parent / "elsewhere")
    assert OBJECTS.read("one") is None
    assert name == "objects/one" or "is a link" in disk_cache.find_problem()


def test_nothing_is_written_through_a_link(place: Path, tmp_path: Path) -> None:
    shutil.rmtree(place / "objects")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o755)
    (place / "objects").symlink_to(tmp_path / "theirs")
    OBJECTS.write("one", DATA)
    assert not list((tmp_path / "theirs").iterdir())
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o755, "nor is the mode of that folder changed"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["objects", "objects/one", KEY_FILE, "."])
def test_what_another_user_owns_is_not_read(place: Path, name: str) -> None:
    os.chown(place / name, 65534, 65534)
    assert OBJECTS.read("one") is None


def test_a_folder_that_the_user_has_named_keeps_its_mode(place: Path) -> None:
    place.chmod(0o755)
    assert OBJECTS.read("one") == DATA
    place.chmod(0o777)
    OBJECTS.write("two", DATA)
    assert place.stat().st_mode & 0o777 == 0o777
    assert "is writable by others" in disk_cache.find_problem()
    assert not (place / "objects" / "two").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_in_a_files_place_keeps_nobody_waiting(place: Path) -> None:
    (place / "objects" / "one").unlink()
    os.mkfifo(place / "objects" / "one", 0o600)
    assert OBJECTS.read("one") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_is_not_read_even_if_it_gives_what_was_stored(place: Path) -> None:
    """Its content is written anew by whoever holds its other end, so nothing that was checked once stays so."""
    entry = place / "objects" / "one"
    content = entry.read_bytes()
    entry.unlink()
    os.mkfifo(entry, 0o600)
    other_end = os.open(entry, os.O_RDWR)
    try:
        os.write(other_end, content)
        assert OBJECTS.read("one") is None
    finally:
        os.close(other_end)


def test_where_nothing_can_be_written_it_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = place.parent / "closed"
    closed.mkdir()
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(closed / "not" / "there"))
    assert disk_cache.find_problem() == ""
    # Root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, how: Path(path) != closed or not how & os.W_OK)
    assert disk_cache.find_problem() == f"{closed} is not writable"


def test_where_nothing_can_be_written_a_missing_entry_costs_only_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").touch()
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(place / "file"))
    OBJECTS.write("two", DATA)
    assert (OBJECTS.read("two"), OBJECTS.list_keys()) == (None, [])
    with pytest.raises(OSError, match="file"):
        OBJECTS.store("two", DATA)


def test_a_write_that_fails_leaves_nothing_behind(place: Path) -> None:
    (place / "objects" / "two").mkdir()
    with pytest.raises(IsADirectoryError):
        OBJECTS.store("two", DATA)
    assert OBJECTS.list_keys() == ["one", "two"]


def test_without_the_variable_the_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv(disk_cache.ENVIRONMENT_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, value)
        assert disk_cache.folder() == Path(platformdirs.user_cache_dir("buddy-tui"))


def test_a_derived_key_is_the_same_each_time_and_another_for_each_purpose(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = disk_cache.derive_key("archives"), disk_cache.derive_key("other")
    assert first == disk_cache.derive_key("archives")
    assert first != other
    assert first != (place / KEY_FILE).read_bytes()
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(place / "new" / "folder"))
    assert disk_cache.derive_key("archives") != first, "each folder has a key of its own, and is created for it"
    assert (place / "new" / "folder").stat().st_mode & 0o777 == 0o700


def test_a_file_system_without_hard_links_has_a_key_as_well(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    (place / KEY_FILE).unlink()
    monkeypatch.setattr(os, "link", refused)
    OBJECTS.write("one", DATA)
    assert OBJECTS.read("one") == DATA
    assert sorted(path.name for path in place.iterdir()) == ["key", "objects"]


def test_of_two_that_make_a_key_at_once_the_first_ones_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def after_another(name: str, path: Path) -> None:
        path.write_bytes(b"k" * disk_cache.KEY_BYTES)
        path.chmod(0o600)
        link(name, path)

    (place / KEY_FILE).unlink()
    monkeypatch.setattr(os, "link", after_another)
    OBJECTS.write("one", DATA)
    assert (place / KEY_FILE).read_bytes() == b"k" * disk_cache.KEY_BYTES
    assert OBJECTS.read("one") == DATA
    assert sorted(path.name for path in place.iterdir()) == ["key", "objects"]


def test_a_process_that_writes_much_keeps_to_the_limit(place: Path) -> None:
    cache = disk_cache.DiskCache("objects", 10_000)
    for number in range(40):
        cache.write(f"file-{number}", bytes(1_000))
        os.utime(place / "objects" / f"file-{number}", (number, number))
    assert sum(path.stat().st_size for path in (place / "objects").iterdir()) < 12_000
    assert cache.read("file-39") is not None
    assert cache.read("file-0") is None


def test_the_folder_is_listed_at_the_first_write_and_then_once_for_an_eighth_of_the_limit(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing a folder with thousands of files at each write would take longer than the write."""
    scandir, lists = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: lists.append(path) or scandir(path))
    cache = disk_cache.DiskCache("objects", 80_000)
    for number in range(41):
        cache.store(f"file-{number}", bytes(1_000))
    assert len(lists) == 1 + 40 * 1_000 // 10_000


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o704, 0o777])
def test_a_folder_of_the_program_is_made_private_again(place: Path, mode: int) -> None:
    (place / "objects").chmod(mode)
    OBJECTS.write("two", DATA)
    assert (place / "objects").stat().st_mode & 0o777 == 0o700
    assert OBJECTS.read("two") == DATA


def test_missing_folders_are_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default folder too, of which no variable says that its mode is to stay."""
    monkeypatch.delenv(disk_cache.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(disk_cache, "folder", lambda: tmp_path / "a" / "b" / "cache")
    before = os.umask(0)
    try:
        OBJECTS.store("one", DATA)
    finally:
        os.umask(before)
    (tmp_path / "a" / "b" / "cache").chmod(0o755)
    OBJECTS.store("two", DATA)
    assert (tmp_path / "a" / "b" / "cache").stat().st_mode & 0o777 == 0o700


def test_caches_are_listed_counted_and_cleared(place: Path) -> None:
    OBJECTS.write("two", b"")
    assert OBJECTS.list_keys() == ["one", "two"]
    assert PROGRAMS.list_keys() == []
    sizes = {path.name: path.stat().st_size for path in (place / "objects").iterdir()}
    assert disk_cache.count_files()["objects"] == (2, sum(sizes.values()))
    assert disk_cache.count_files()["programs"] == (0, 0)
    assert set(disk_cache.count_files()) == {cache.name for cache in disk_cache.CACHES}
    OBJECTS.remove("two")
    OBJECTS.remove("two")
    assert OBJECTS.list_keys() == ["one"]
    PROGRAMS.write("p", DATA)
    disk_cache.clear()
    assert OBJECTS.list_keys() == PROGRAMS.list_keys() == []
    assert (place / KEY_FILE).exists(), "entries that other programs hold stay valid"


def test_the_oldest_files_go_until_the_rest_fits_exactly(place: Path) -> None:
    cache = disk_cache.DiskCache("small", limit=1 << 20)
    for number in range(4):
        cache.write(str(number), bytes(1000))
        os.utime(place / "small" / str(number), (number, number))
    size = (place / "small" / "0").stat().st_size
    cache = disk_cache.DiskCache("small", limit=3 * size)
    cache.write("4", bytes(1000))
    assert cache.list_keys() == ["2", "3", "4"], "three files are within the limit"


def test_a_folder_that_cannot_be_examined_is_a_problem(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").write_text("")
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(place / "file"))
    assert disk_cache.find_problem() == f"{place / 'file'} is not a folder"
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(place / "file" / "below"))
    assert disk_cache.find_problem() == f"{place / 'file' / 'below'}: Not a directory"
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(place / "missing"))
    assert disk_cache.find_problem() == ""
    (place / "missing").mkdir()
    (place / "missing" / "tuned").mkdir(mode=0o700)
    (place / "missing" / "tuned").chmod(0o722)
    assert disk_cache.find_problem() == f"{place / 'missing' / 'tuned'} is writable by others", (
        "other folders do not exist"
    )
