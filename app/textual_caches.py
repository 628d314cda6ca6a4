"""Caches of Textual's that outlive what they are of. They are emptied when that is gone: each is soon filled again."""

from __future__ import annotations

from textual._styles_cache import StylesCache
from textual.geometry import Region


def forget_screens() -> None:
    """Let go of widgets: by a cache of styles, Textual keeps the last 1,024 with all that they have drawn."""
    StylesCache.get_inner_outer.cache_clear()


def forget_places() -> None:
    """Let go of regions: Textual remembers what it made of some 20,000, all of one size of the terminal or another."""
    for method in vars(Region).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()
