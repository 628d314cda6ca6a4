"""The base class of frames, and the protocol version."""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 5
MAX_FRAME = 1 << 30


class Frame(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all frames."""
