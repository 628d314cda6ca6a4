"""The entry points of the console command and of `torch.compile`: make sure that `buddy` is ours, then import it.

This module is outside the `buddy` namespace, because a package of that name earlier on the path (such as a Buddy-MLIR
build) hides everything inside it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from buddy.compiler.frontend import buddy_backend as buddy_backend

DISTRIBUTION = "buddy-tui"
PARTS = ("api", "app", "compiler", "themes")


def shadowing_message() -> str:
    """The message if `buddy.api`, `buddy.app`, `buddy.compiler` or `buddy.themes` is not ours; "" if all are."""
    places = {name: _place(f"buddy.{name}") for name in PARTS}
    strangers = {name: place for name, place in places.items() if place is None or place.parent != _home(places)}
    if not strangers:
        return ""
    where = ", ".join(f"buddy.{name} is {place or 'not found'}" for name, place in strangers.items())
    return f"another package named `buddy` hides a part of buddy-tui: {where}{_remedy(places)}"


def installed_copies() -> dict[Path, str]:
    """The version of each installed copy by its folder, in the order of the path; an editable one's is its checkout."""
    copies: dict[Path, str] = {}
    for found in metadata.distributions(name=DISTRIBUTION):
        copies.setdefault(_checkout(found) or Path(str(found.locate_file(""))).resolve(), found.version)
    return copies


def copies_message() -> str:
    """The message if more than one copy is installed, with the one that runs; "" for one or none."""
    copies = installed_copies()
    if len(copies) < 2:
        return ""
    here = Path(__file__).resolve().parent
    listed = ", ".join(f"{version} in {place}" for place, version in copies.items())
    return (
        f"{len(copies)} copies of buddy-tui are installed, {listed}; the one in {here} runs. "
        "Keep one: uninstall the others (pip uninstall buddy-tui), or take their folders off PYTHONPATH"
    )


def main() -> int:
    """Runs the command line. Returns the exit code."""
    message = shadowing_message()
    if message:
        print(f"buddy-tui: {message}", file=sys.stderr)
        return 2
    several = copies_message()
    if several:
        print(f"buddy-tui: {several}", file=sys.stderr)
    try:
        from buddy.app.cli import main as command_line

        return command_line() or 0
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        return 130


def __getattr__(name: str) -> Any:
    """Imports `buddy_backend`, which `torch.compile(backend="buddy")` looks up here.

    Raises `ImportError` with the package that hides ours: without it, the import says only what it did not find.
    """
    if name != "buddy_backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = shadowing_message()
    if message:
        raise ImportError(message)
    from buddy.compiler.frontend import buddy_backend

    return buddy_backend


def _checkout(found: metadata.Distribution) -> Path | None:
    """The folder of the sources of an editable installation; `None` for others."""
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return Path(unquote(urlsplit(origin["url"]).path)).resolve() if is_editable else None


def _place(package: str) -> Path | None:
    """The folder that `package` would be imported from; the package itself is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def _home(places: dict[str, Path | None]) -> Path | None:
    """The folder of our parts: next to this module in a checkout, in `buddy/` next to it once installed."""
    here = Path(__file__).resolve().parent
    return next((home for home in (here / "buddy", here) if places["app"] == home / "app"), None)


def _remedy(places: dict[str, Path | None]) -> str:
    """Names the folder to remove from the path, if it is known."""
    namespace = importlib.util.find_spec("buddy")
    first = Path(next(iter(namespace.submodule_search_locations or [""]))) if namespace else Path()
    if first.name != "buddy" or first.resolve() == _home(places):
        return ""
    return f". Take {first.parent} off PYTHONPATH and start again"


if __name__ == "__main__":
    sys.exit(main())
