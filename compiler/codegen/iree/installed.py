"""Finds IREE's packages and its compiler, without loading them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from buddy.compiler.protocol.errors import BuddyError

NOT_INSTALLED = "IREE is not installed"
INSTALL_COMMAND = "pip install 'buddy-tui[iree]'"


class IreeMissingError(BuddyError):
    """IREE's compiler or its runtime is not installed."""


def missing_packages() -> str:
    """Returns a message with the packages of IREE that are not installed, "" if all are installed."""
    absent = [name for name in ("iree.compiler", "iree.runtime") if not _is_importable(name)]
    return f"{NOT_INSTALLED} ({' and '.join(absent)})" if absent else ""


def compiler_path() -> Path:
    """Returns the path of `iree-compile`. Raises `IreeMissingError` if a package or the executable is missing."""
    if problem := missing_packages():
        raise IreeMissingError(problem)
    from iree.compiler.tools.binaries import find_tool

    try:
        return Path(find_tool("iree-compile"))
    except ValueError as error:
        raise IreeMissingError(str(error)) from error


def versions() -> dict[str, str]:
    """Returns the versions of IREE's installed packages."""
    installed = {}
    for package in ("iree-base-compiler", "iree-base-runtime"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
