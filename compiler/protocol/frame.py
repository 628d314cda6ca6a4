"""The base class of frames, and the protocol version."""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

PROTOCOL_VERSION = 6
MAX_FRAME = 1 << 30


class Frame(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all frames."""


Answer_co = TypeVar("Answer_co", covariant=True)


class Request(Frame, Generic[Answer_co], frozen=True):
    """Base of the frames that one frame ends: an `Answer_co`, or a `Failed`.

    `request` is the number that its answers repeat. It is 0 until a client sends the frame, which numbers it then.
    """

    request: int


@cache
def answer_type(request: type[Request[Any]]) -> type[Any]:
    """The type of the frame that answers requests of a type."""
    from buddy.compiler import protocol

    (answer,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    found: type[Any] = getattr(protocol, answer.__forward_arg__)
    return found
