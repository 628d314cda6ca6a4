"""Archives of the cache: complete and of a known author, or nothing of them is used."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import msgspec
import pytest

from buddy.compiler.driver import cache_archive
from buddy.compiler.driver.cache_archive import ArchiveContents, ArchiveEntry, ArchiveError, Trust
from buddy.compiler.driver.program_cache import installation
from buddy.compiler.support import disk_cache
from buddy.compiler.support.disk_cache import CATALOGUES, COMPILATIONS, OBJECTS, PROGRAMS

ANYONE = Trust(anyone=True)
FIRST, SECOND = "a" * 24, "b" * 24


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two objects and a program; the cache of another machine is in the folder `there`."""
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "here"))
    OBJECTS.write(FIRST, b"object 1")
    OBJECTS.write(SECOND, b"object 2")
    PROGRAMS.write(FIRST, b"program")
    CATALOGUES.write(FIRST, b"of the paths of this machine")
    return tmp_path


@pytest.fixture
def archive(caches: Path) -> Path:
    path = caches / "archive"
    cache_archive.write(path, cache_archive.collect())
    return path


def go_there(monkeypatch: pytest.MonkeyPatch, caches: Path) -> None:
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(caches / "there"))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "key")


def error_of(path: Path, trust: Trust) -> str:
    with pytest.raises(ArchiveError) as caught:
        cache_archive.read(path, trust)
    return str(caught.value)


def test_an_archive_has_all_valid_entries_of_the_portable_caches_and_seals_them_again(
    archive: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_there(monkeypatch, caches)
    result = cache_archive.store(cache_archive.read(archive, ANYONE))
    assert result.stored == {"objects": (2, 16), "programs": (1, 7)}
    assert not result.rejected
    assert (OBJECTS.read(FIRST), OBJECTS.read(SECOND), PROGRAMS.read(FIRST)) == (b"object 1", b"object 2", b"program")
    assert CATALOGUES.read(FIRST) is None
    first, second = ((caches / place / "objects" / FIRST).read_bytes() for place in ("here", "there"))
    assert first != second, "the seal of another machine is not copied"


def test_a_file_that_the_cache_did_not_write_is_not_exported(caches: Path) -> None:
    (caches / "here" / "objects" / ("c" * 24)).write_bytes(b"0" * 64 + b"\nfrom another author")
    (caches / "here" / "objects" / FIRST).write_bytes(b"changed")
    assert [entry.key for entry in cache_archive.collect().entries if entry.cache == "objects"] == [SECOND]


def test_without_any_trust_only_own_archives_are_read(
    archive: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(cache_archive.read(archive, Trust()).entries) == 3
    go_there(monkeypatch, caches)
    text = error_of(archive, Trust())
    assert "nothing shows who wrote it" in text
    assert all(option in text for option in ("--key", "--sha256", "--trust"))


def test_a_key_file_vouches_for_the_archives_that_it_sealed_and_for_no_other(
    archive: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("k1", "k2"):
        cache_archive.make_key(caches / name)
    key, other = (cache_archive.read_key(caches / name) for name in ("k1", "k2"))
    sealed = caches / "sealed"
    cache_archive.write(sealed, cache_archive.collect(), key)
    go_there(monkeypatch, caches)
    assert len(cache_archive.read(sealed, Trust(key)).entries) == 3
    assert "not sealed by this key" in error_of(sealed, Trust(other))
    assert "not sealed by this key" in error_of(archive, Trust(key))
    assert "not sealed by this key" in error_of(archive, Trust(key, anyone=True)), (
        "a wrong key is an error all the same"
    )


def test_the_hash_of_the_file_vouches_for_it(archive: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_there(monkeypatch, caches)
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert len(cache_archive.read(archive, Trust(sha256=sha256.upper())).entries) == 3
    assert "another one" in error_of(archive, Trust(sha256="0" * 64))


@pytest.mark.skipif(os.name != "posix", reason="files have no POSIX modes")
def test_a_key_file_is_long_enough_and_written_by_the_user_alone(caches: Path) -> None:
    path = caches / "k"
    cache_archive.make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ArchiveError, match="cannot be written"):
        cache_archive.make_key(path)
    path.chmod(0o620)
    with pytest.raises(ArchiveError, match="others may have written the key"):
        cache_archive.read_key(path)
    path.chmod(0o400)
    assert len(cache_archive.read_key(path)) >= 32
    short = caches / "short"
    short.write_text("secret\n")
    with pytest.raises(ArchiveError, match="too short"):
        cache_archive.read_key(short)
    with pytest.raises(ArchiveError, match="cannot be read"):
        cache_archive.read_key(caches / "missing")


@pytest.mark.parametrize("length", [0, 1, 10, 60, 100, 150, 200, -1])
def test_a_truncated_archive_is_an_error_at_any_length(archive: Path, length: int) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data[:length])
    text = error_of(archive, ANYONE)
    assert "truncated" in text or (not length and "not an archive" in text), text


def test_any_changed_byte_is_an_error(archive: Path) -> None:
    data = archive.read_bytes()
    seal = range(data.index(b"\n") + 1, data.index(b"\n") + 65)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        archive.write_bytes(changed)
        with pytest.raises(ArchiveError):
            cache_archive.read(archive, Trust())
        if index not in seal:
            with pytest.raises(ArchiveError):
                cache_archive.read(archive, ANYONE)


def test_a_later_format_and_other_files_are_named(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes().replace(b"buddy-tui-cache 1 ", b"buddy-tui-cache 2 ", 1))
    assert "has format 2, and this version of buddy-tui reads format 1" in error_of(archive, ANYONE)
    archive.write_bytes(bytes(range(256)) * 10)
    assert "not an archive" in error_of(archive, ANYONE)
    assert "cannot be read: No such file" in error_of(archive.with_name("missing"), ANYONE)
    assert "cannot be read: Is a directory" in error_of(archive.parent, ANYONE)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("cpu", "riscv64 v", "made on riscv64, and this machine is"),
        ("bindings", "19990101", "made by MLIR's bindings 19990101"),
    ],
)
def test_nothing_of_another_machine_is_stored(
    caches: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: str, reason: str
) -> None:
    contents = cache_archive.collect()
    go_there(monkeypatch, caches)
    foreign = msgspec.structs.replace(contents.made_by, **{field: value})
    result = cache_archive.store(msgspec.structs.replace(contents, made_by=foreign))
    assert not result.stored
    assert set(result.rejected) == {"objects", "programs"}
    assert all(why.startswith(reason) for why in result.rejected.values())
    assert files(caches / "there") == []


def test_the_reason_names_the_features_of_the_other_cpu(caches: Path) -> None:
    here = installation()
    machine, *flags = here.cpu.split()
    other = msgspec.structs.replace(here, cpu=" ".join([machine, *flags[1:], "tables_in_the_sky"]))
    why = cache_archive.mismatch_reason(other, here, "objects")
    assert why == f"made on another CPU: this one lacks tables_in_the_sky, that one lacked {flags[0]}"


def test_objects_are_used_with_another_source_of_the_compiler_and_programs_are_not(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = cache_archive.collect()
    go_there(monkeypatch, caches)
    other = msgspec.structs.replace(contents.made_by, source="other")
    result = cache_archive.store(msgspec.structs.replace(contents, made_by=other))
    assert result.stored == {"objects": (2, 16)}
    assert result.rejected == {"programs": "made by another version of buddy-tui's compiler"}
    assert files(caches / "there") == [f"objects/{FIRST}", f"objects/{SECOND}"]


@pytest.mark.parametrize(("cache", "key"), [("objects", "../../evil"), ("objects", "key"), ("../x", FIRST)])
def test_a_name_cannot_lead_out_of_the_caches(caches: Path, cache: str, key: str) -> None:
    path = caches / "bad"
    cache_archive.write(path, ArchiveContents(installation(), (ArchiveEntry(cache, key, b"x"),)))
    assert "an entry that no cache has" in error_of(path, ANYONE)


def test_a_small_file_cannot_unpack_to_more_than_the_caches_hold(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_archive, "_MAX_BYTES", 1 << 20)
    path = caches / "bomb"
    cache_archive.write(path, ArchiveContents(installation(), (ArchiveEntry("objects", FIRST, bytes(2 << 20)),)))
    assert path.stat().st_size < 10_000
    assert "more than 1 MiB" in error_of(path, ANYONE)


def test_content_of_another_structure_is_an_error(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = caches / "odd"
    monkeypatch.setattr(zlib, "compress", lambda data, level: b"not zlib")
    cache_archive.write(path, cache_archive.collect())
    assert "cannot be decoded" in error_of(path, ANYONE)


def test_entries_that_were_stored_are_removed_when_a_later_one_cannot_be(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = cache_archive.collect()
    go_there(monkeypatch, caches)
    COMPILATIONS.write(FIRST, b"of this machine")
    # A file where the folder of programs has to be: the last entry cannot be written.
    (caches / "there" / "programs").symlink_to(caches / "nowhere")
    with pytest.raises(ArchiveError, match="disabled"):
        cache_archive.store(contents)
    (caches / "there" / "programs").unlink()
    monkeypatch.setattr(disk_cache, "find_problem", lambda: "")
    (caches / "there" / "programs").write_text("")
    with pytest.raises(ArchiveError, match="nothing was imported"):
        cache_archive.store(contents)
    assert files(caches / "there") == [f"compilations/{FIRST}", "programs"]
    assert COMPILATIONS.read(FIRST) == b"of this machine"


def test_an_archive_replaces_a_file_only_when_it_is_complete(caches: Path) -> None:
    path = caches / "closed" / "archive"
    with pytest.raises(ArchiveError, match="cannot be written"):
        cache_archive.write(path, cache_archive.collect())
    path = caches / "folder"
    path.mkdir()
    with pytest.raises(ArchiveError, match="cannot be written"):
        cache_archive.write(path, cache_archive.collect())
    assert files(path) == []
    assert not [name for name in os.listdir(caches) if name.startswith(".")]
