"""Clears caches of Textual and Rich that would keep widgets, sizes and styles that are no longer shown."""

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
    """Clear Textual's style cache, which keeps the last 1,024 widgets with everything that they have drawn."""
    StylesCache.get_inner_outer.cache_clear()


def clear_region_caches() -> None:
    """Clear Textual's caches of regions: about 20,000 results, for all sizes that the terminal has had."""
    _clear_caches(Region, Scalar)


def clear_style_caches() -> None:
    """Clear the caches of styles after a change of the theme: tens of thousands of styles and line segments."""
    _clear_caches(rich.color.Color, rich.style.Style, rich.segment.Segment)
    _clear_caches(color.Color, style.Style, filter, filter.ANSIToTruecolor, strip.Strip, _segment_tools)


def _clear_caches(*owners: Any) -> None:
    """Clear the caches of the functions of modules, and of the methods of classes."""
    for owner in owners:
        for cache in _caches(owner):
            cache.cache_clear()


def _caches(owner: Any) -> Iterator[_lru_cache_wrapper[Any]]:
    """Yield the caches of the functions of a module, or of the methods of a class."""
    for member in vars(owner).values():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(function, _lru_cache_wrapper):
            yield function
