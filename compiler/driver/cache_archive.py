"""Copies compiled code between the disk caches of machines: an archive is one file, hashed and sealed.

The file starts with two lines: `buddy-tui-cache FORMAT SIZE SHA256` of the bytes that follow the second line, and the
keyed hash (HMAC-SHA-256) of the first line. Then comes a zlib stream of the msgpack of `ArchiveContents`. Cached code
is executed later, so nothing is decompressed, decoded or stored before its hash and its author are verified. The file
is read once, so that it cannot change after the verification.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from buddy.compiler.driver.program_cache import Installation, installation
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support import disk_cache
from buddy.compiler.support.disk_cache import COMPILATIONS, OBJECTS, PROGRAMS, TUNED, DiskCache

_MAGIC, FORMAT = "buddy-tui-cache", 1
_FIRST_LINE = re.compile(rf"{_MAGIC} (\d{{1,6}}) (\d{{1,12}}) ([0-9a-f]{{64}})")
_MAX_LINE_BYTES = 128
# The purpose for which the key of this user's cache is derived; see `disk_cache.derive_key`.
_PURPOSE = "archives of the cache"
# The keys of entries are digests (`recipe.digest`). As file names, they cannot leave the folder of the cache.
_ENTRY_KEY = re.compile(r"[0-9a-f]{24}")
# A shorter key could be guessed (RFC 2104).
_MIN_KEY_BYTES = 32
# For each cache that another machine can use, the fields of `Installation` that its entries depend on. The caches of
# pass catalogues and of opened programs depend on the paths and times of files.
_DEPENDENCIES: dict[str, tuple[str, ...]] = {
    OBJECTS.name: ("cpu", "package", "bindings"),
    PROGRAMS.name: Installation.__struct_fields__,
    TUNED.name: Installation.__struct_fields__,
    COMPILATIONS.name: Installation.__struct_fields__,
}
PORTABLE = {cache.name: cache for cache in (OBJECTS, PROGRAMS, TUNED, COMPILATIONS)}
# The largest archive, compressed or not: all that the caches may hold, and the index.
_MAX_BYTES = sum(cache.limit for cache in PORTABLE.values()) + (1 << 20)


class ArchiveError(BuddyError):
    """An archive cannot be written, verified or used; the diagnostic says why."""


class ArchiveEntry(msgspec.Struct, frozen=True):
    """A file of a cache: the name of the cache, the key, and the data without the seal of its machine."""

    cache: str
    key: str
    data: bytes


class ArchiveContents(msgspec.Struct, frozen=True):
    """The content of an archive: entries, and the installation that made them."""

    made_by: Installation
    entries: tuple[ArchiveEntry, ...]


@dataclass(frozen=True)
class Trust:
    """Evidence that the author of an archive may supply code; without any, only this user's own archives are read.

    `key` is a secret that the exporting machine has too. `sha256` is the hash of the whole file, from a trusted
    channel. With `anyone`, every intact archive is read.
    """

    key: bytes | None = None
    sha256: str = ""
    anyone: bool = False


@dataclass(frozen=True)
class ImportResult:
    """By the name of the cache, the numbers of entries and of bytes `stored`, or why its entries were `rejected`."""

    stored: dict[str, tuple[int, int]]
    rejected: dict[str, str]


def read_key(path: Path) -> bytes:
    """Returns the secret in a key file. Raises `ArchiveError`, also if others than the user and root may change it."""
    todo = "give a file of at least 32 random bytes, such as `buddy-tui cache export FILE --key KEYFILE` makes"
    try:
        with open(path, "rb") as file:
            status, key = os.fstat(file.fileno()), file.read(1 << 16).strip()
    except OSError as error:
        raise ArchiveError(f"the key file cannot be read: {error.strerror}", str(path), todo) from error
    if os.name == "posix" and (status.st_mode & 0o022 or status.st_uid not in (0, os.getuid())):
        todo = f"make it yours alone: chmod 600 {path}"
        raise ArchiveError("others may have written the key file", str(path), todo)
    if not stat.S_ISREG(status.st_mode) or len(key) < _MIN_KEY_BYTES:
        raise ArchiveError(f"the key has {len(key)} bytes, which is too short", str(path), todo)
    return key


def make_key(path: Path) -> None:
    """Writes a new key file, readable by the user alone. Raises `ArchiveError`."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_MIN_KEY_BYTES) + "\n")
    except OSError as error:
        raise ArchiveError(f"the key file cannot be written: {error.strerror}", str(path)) from error


# ---- export -------------------------------------------------------------------------------------------------------


def collect() -> ArchiveContents:
    """Returns all valid entries of the caches that another machine can use.

    Reading checks the seal of each file, so a file that another user put into the folder is left out.
    """
    candidates = [(cache, key, cache.read(key)) for cache in PORTABLE.values() for key in cache.list_keys()]
    entries = tuple(
        ArchiveEntry(cache.name, key, data) for cache, key, data in candidates if data and _ENTRY_KEY.fullmatch(key)
    )
    return ArchiveContents(installation(), entries)


def write(path: Path, contents: ArchiveContents, key: bytes | None = None) -> str:
    """Writes an archive, sealed by `key` or else by the key of this user's cache. Returns the SHA-256 of the file.

    An existing file is replaced when the new one is complete. Raises `ArchiveError`.
    """
    payload = zlib.compress(msgspec.msgpack.encode(contents), 6)
    first = f"{_MAGIC} {FORMAT} {len(payload)} {hashlib.sha256(payload).hexdigest()}"
    try:
        archive = f"{first}\n{_seal(first, key or disk_cache.derive_key(_PURPOSE))}\n".encode() + payload
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "wb") as file:
                file.write(archive)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ArchiveError(f"the archive cannot be written: {error.strerror}", str(path)) from error
    return hashlib.sha256(archive).hexdigest()


def _seal(first_line: str, key: bytes) -> str:
    """Returns the keyed hash of the first line, which has the hash of the payload."""
    return hmac.new(key, first_line.encode(), "sha256").hexdigest()


# ---- import -------------------------------------------------------------------------------------------------------


def read(path: Path, trust: Trust) -> ArchiveContents:
    """Returns the content of an archive. Raises `ArchiveError` if it is damaged, or if `trust` excludes its author."""
    payload = _verified_payload(path, trust)
    todo = "export it again"
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(payload, _MAX_BYTES)
        if not decompressor.eof:
            raise ArchiveError(f"the archive has more than {_MAX_BYTES >> 20} MiB", str(path), todo)
        contents = msgspec.msgpack.decode(data, type=ArchiveContents)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ArchiveError(f"the archive cannot be decoded: {error}", str(path), todo) from error
    for entry in contents.entries:
        if entry.cache not in PORTABLE or not _ENTRY_KEY.fullmatch(entry.key):
            what = f"the archive has an entry that no cache has: {entry.cache!r}/{entry.key!r}"
            raise ArchiveError(what, str(path), "do not use this archive: buddy-tui does not write such entries")
    return contents


def _verified_payload(path: Path, trust: Trust) -> bytes:
    """Returns the compressed content of an archive whose hash and author are verified. Raises `ArchiveError`."""
    try:
        with open(path, "rb") as file:
            archive = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ArchiveError(f"the archive cannot be read: {error.strerror}", str(path)) from error
    head, _, rest = archive.partition(b"\n")
    match = _FIRST_LINE.fullmatch(head.decode("latin-1")) if len(head) < _MAX_LINE_BYTES else None
    if match is None:
        magic = _MAGIC.encode()
        is_truncated_magic = bool(head) and magic.startswith(head)
        if head.startswith(magic) or is_truncated_magic:
            raise ArchiveError("the archive is truncated or damaged in its first line", str(path), "copy it again")
        raise ArchiveError(
            "the file is not an archive of the cache", str(path), "name a file that `buddy-tui cache export` wrote"
        )
    version, size, payload_hash = int(match[1]), int(match[2]), match[3]
    if version != FORMAT:
        what = f"the archive has format {version}, and this version of buddy-tui reads format {FORMAT}"
        raise ArchiveError(what, str(path), "import it with the version of buddy-tui that wrote it")
    seal, _, payload = rest.partition(b"\n")
    if len(payload) != size:
        what = f"the archive has {len(payload)} of {size} bytes: it is truncated or damaged"
        raise ArchiveError(what, str(path), "copy it again")
    if hashlib.sha256(payload).hexdigest() != payload_hash:
        what = "the content of the archive does not match its hash: it was damaged or changed"
        raise ArchiveError(what, str(path), "copy it again")
    _check_author(path, archive, match[0], seal, trust)
    return payload


def _check_author(path: Path, archive: bytes, first_line: str, seal: bytes, trust: Trust) -> None:
    """Raises `ArchiveError` unless `trust`, or else the key of this user's cache, vouches for the archive."""
    if trust.sha256 and not hmac.compare_digest(hashlib.sha256(archive).hexdigest(), trust.sha256.lower()):
        what = "the archive is another one than the one with the given SHA-256"
        raise ArchiveError(what, str(path), "compare the hash with the one that `buddy-tui cache export` printed")
    if trust.key is not None and not hmac.compare_digest(_seal(first_line, trust.key).encode(), seal):
        what = "the archive is not sealed by this key"
        raise ArchiveError(what, str(path), "use the key file that it was exported with (--key)")
    if trust.sha256 or trust.key is not None or trust.anyone:
        return
    try:
        own_seal = _seal(first_line, disk_cache.derive_key(_PURPOSE)).encode()
    except OSError as error:
        raise ArchiveError(f"the key of the cache cannot be read: {error}", str(disk_cache.folder())) from error
    if not hmac.compare_digest(own_seal, seal):
        raise ArchiveError(
            "the archive holds machine code from another cache, and nothing shows who wrote it",
            str(path),
            "give the key that it was exported with (--key KEYFILE), the hash that the export printed (--sha256 HASH), "
            "or --trust if you trust its author",
        )


def mismatch_reason(made_by: Installation, here: Installation, cache: str) -> str:
    """Returns why the entries of `cache` that the installation `made_by` made cannot be used `here`; "" if they can."""
    for field in _DEPENDENCIES[cache]:
        theirs, ours = getattr(made_by, field), getattr(here, field)
        if theirs != ours:
            return _DIFFERENCES[field](theirs, ours)
    return ""


def _cpu_difference(theirs: str, ours: str) -> str:
    """Returns how two CPUs differ; both are an architecture, followed by the features of the CPU."""
    their_machine, *their_flags = theirs.split() or [""]
    our_machine, *our_flags = ours.split() or [""]
    if their_machine != our_machine:
        return f"made on {their_machine}, and this machine is {our_machine}"
    missing_here, missing_there = sorted(set(their_flags) - set(our_flags)), sorted(set(our_flags) - set(their_flags))
    differences = [f"this one lacks {_first_names(missing_here)}"] if missing_here else []
    differences += [f"that one lacked {_first_names(missing_there)}"] if missing_there else []
    return f"made on another CPU: {', '.join(differences)}"


def _first_names(names: list[str], limit: int = 4) -> str:
    """Returns the first `limit` of `names`, and the number of the others."""
    return " ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


# For each field of `Installation`, a function that describes how another installation (`theirs`) differs from `ours`.
_DIFFERENCES: dict[str, Callable[[str, str], str]] = {
    "cpu": _cpu_difference,
    "package": lambda theirs, ours: f"made by MLIR's bindings in {theirs}, and this installation has those in {ours}",
    "bindings": lambda theirs, ours: f"made by MLIR's bindings {theirs}, and this installation has {ours}",
    "code_generator": lambda theirs, ours: f"made by {theirs}, and this installation has {ours}",
    "source": lambda theirs, ours: "made by another version of buddy-tui's compiler",
    "tool": lambda theirs, ours: f"made with {theirs or 'no mlir-opt'}, and here is {ours or 'no mlir-opt'}",
    "packages": lambda theirs, ours: f"made with {theirs}, and here is {ours}",
}


def store(contents: ArchiveContents) -> ImportResult:
    """Stores the entries that fit this installation, sealed by this user's key: all of them, or none.

    Raises `ArchiveError` if a file cannot be written; the new entries are then removed.
    """
    here = installation()
    names = dict.fromkeys(entry.cache for entry in contents.entries)
    rejected = {}
    for name in names:
        if reason := mismatch_reason(contents.made_by, here, name) or _size_problem(contents, name):
            rejected[name] = reason
    fitting = [entry for entry in contents.entries if entry.cache not in rejected]
    problem = disk_cache.find_problem()
    if fitting and problem:
        what = f"the cache is disabled: {problem}"
        raise ArchiveError(what, str(disk_cache.folder()), "its folder must belong to you and be writable only by you")
    new_entries: list[tuple[DiskCache, str]] = []
    try:
        for entry in fitting:
            cache = PORTABLE[entry.cache]
            if cache.read(entry.key) == entry.data:
                continue
            new_entries.append((cache, entry.key))
            cache.store(entry.key, entry.data)
    except BaseException as error:
        _remove(new_entries)
        if not isinstance(error, OSError):
            raise
        what = f"nothing was imported: the cache cannot be written: {error.strerror or error}"
        raise ArchiveError(what, str(disk_cache.folder()), "free some space, and import the archive again") from error
    stored = {}
    for name in names:
        if name not in rejected:
            sizes = [len(entry.data) for entry in fitting if entry.cache == name]
            stored[name] = len(sizes), sum(sizes)
    return ImportResult(stored, rejected)


def _size_problem(contents: ArchiveContents, name: str) -> str:
    """Returns why the entries of a cache are too large to be stored, "" if they fit."""
    size, limit = sum(len(entry.data) for entry in contents.entries if entry.cache == name), PORTABLE[name].limit
    return f"{size >> 20} MiB are more than the limit of {limit >> 20} MiB" if size > limit else ""


def _remove(entries: Iterable[tuple[DiskCache, str]]) -> None:
    """Removes entries, by cache and key, as far as possible."""
    for cache, key in entries:
        try:
            cache.remove(key)
        except OSError:  # A remaining entry is harmless: it is sealed, and its author is trusted.
            continue
