"""Opens a dump and indexes it step by step, so that its first stages can be read while the rest is scanned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from buddy.compiler.importers.dumps.folders import FolderScan
from buddy.compiler.importers.dumps.logs import LogScan
from buddy.compiler.importers.dumps.records import Dump
from buddy.compiler.importers.dumps.torch_logs import TorchLogScan
from buddy.compiler.protocol.dump_files import DumpFormat, files_in

# The modification time and the size of each file.
_Statuses = tuple[tuple[str, int, int], ...]


class DumpScan:
    """The scan of a dump. Of a log that has grown, `scan` reads only what is new."""

    def __init__(self, path: Path, dump_format: DumpFormat) -> None:
        self.dump = Dump(path, dump_format)
        self._log = LogScan(self.dump, path) if dump_format == "log" else None
        self._statuses: _Statuses = ()

    def scan(self) -> Iterator[None]:
        """Indexes the dump, and yields after each chunk. Raises `OSError` if a file cannot be read."""
        dump = self.dump
        dump.is_complete = False
        self._statuses = _statuses(dump.path)
        dump.size = sum(size for _, _, size in self._statuses)
        if self._log is not None:
            yield from self._log.scan()
        elif dump.format in ("torch-log", "torch-trace"):
            paths = (
                [dump.path] if dump.path.is_file() else [path for path in files_in(dump.path) if path.suffix == ".log"]
            )
            for path in paths:
                yield from TorchLogScan(dump, path, is_trace=dump.format == "torch-trace").scan()
        else:
            yield from FolderScan(dump).scan()
        dump.is_complete = True

    def is_current(self) -> bool:
        """Whether no file has changed since the scan."""
        return self.dump.is_complete and self._statuses == _statuses(self.dump.path)

    def can_continue(self) -> bool:
        """Whether the dump is a log that has grown, so that `scan` reads only what is new."""
        return self._log is not None and self.dump.is_complete and self._log.has_grown()


def _statuses(path: Path) -> _Statuses:
    paths = files_in(path) if path.is_dir() else [path]
    statuses = [(str(file), file.stat()) for file in paths]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in statuses)
