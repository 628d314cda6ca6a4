"""Clears caches of Textual and Rich that keep objects alive which are no longer needed. The caches refill quickly."""

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


def clear_widget_cache() -> None:
    """Release widgets. Textual's style cache keeps the last 1,024 widgets with everything that they have drawn."""
    StylesCache.get_inner_outer.cache_clear()


def clear_region_caches() -> None:
    """Release regions. Textual caches about 20,000 results, for all sizes that the terminal has had."""
    _clear(Region, Scalar)


def clear_style_caches() -> None:
    """Release the colours of another theme. Textual and Rich cache tens of thousands of styles and line segments."""
    _clear(rich.color.Color, rich.style.Style, rich.segment.Segment)
    _clear(color.Color, style.Style, filter, filter.ANSIToTruecolor, strip.Strip, _segment_tools)


def _clear(*owners: Any) -> None:
    for owner in owners:
        for cache in caches(owner):
            cache.cache_clear()


def caches(owner: Any) -> Iterator[_lru_cache_wrapper[Any]]:
    """The caches of the functions of a module, or of the methods of a class."""
    for thing in vars(owner).values():
        found = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        if isinstance(found, _lru_cache_wrapper):
            yield found
