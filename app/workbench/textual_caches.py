"""Caches of Textual's and Rich's that outlive what they are of. They are emptied when that is gone: each is soon filled
again, with what is on the screen now."""

from __future__ import annotations

from collections.abc import Iterator
from functools import _lru_cache_wrapper
from typing import Any

import rich.color
import rich.segment
import rich.style
from textual import _segment_tools, color, filter, strip, style
from textual._styles_cache import StylesCache
from textual.css.scalar import Scalar
from textual.geometry import Region


def forget_screens() -> None:
    """Let go of widgets: by a cache of styles, Textual keeps the last 1,024 with all that they have drawn."""
    StylesCache.get_inner_outer.cache_clear()


def forget_places() -> None:
    """Let go of regions: Textual remembers what it made of some 20,000, all of one size of the terminal or another."""
    _forget(Region, Scalar)


def forget_styles() -> None:
    """Let go of the colours of another theme: Textual and Rich remember what they made of tens of thousands, and the
    pieces of lines that have them."""
    _forget(rich.color.Color, rich.style.Style, rich.segment.Segment)
    _forget(color.Color, style.Style, filter, filter.ANSIToTruecolor, strip.Strip, _segment_tools)


def _forget(*owners: Any) -> None:
    for owner in owners:
        for cache in caches(owner):
            cache.cache_clear()


def caches(owner: Any) -> Iterator[_lru_cache_wrapper[Any]]:
    """Those of the functions of a module, or of the methods of a class."""
    for thing in vars(owner).values():
        found = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        if isinstance(found, _lru_cache_wrapper):
            yield found
