"""The entry point of the console command: makes sure that `buddy` is ours, then calls the command line.

This module is outside the `buddy` namespace, because a package of that name earlier on the path (such as a Buddy-MLIR
build) hides everything inside it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PARTS = ("api", "app", "compiler", "themes")


def shadowing_message() -> str:
    """The message if `buddy.api`, `buddy.app`, `buddy.compiler` or `buddy.themes` is not ours; "" if all are."""
    places = {name: _place(f"buddy.{name}") for name in PARTS}
    strangers = {name: place for name, place in places.items() if place is None or place.parent != _home(places)}
    if not strangers:
        return ""
    where = ", ".join(f"buddy.{name} is {place or 'not found'}" for name, place in strangers.items())
    return f"another package named `buddy` hides a part of buddy-tui: {where}{_remedy(places)}"


def main() -> int:
    """Runs the command line. Returns the exit code."""
    message = shadowing_message()
    if message:
        print(f"buddy-tui: {message}", file=sys.stderr)
        return 2
    from buddy.app.cli import main as command_line

    return command_line() or 0


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
