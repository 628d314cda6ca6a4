"""Mutates valid bytes with knowledge of their structure: text, a tree of values, a zip archive."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import tomli_w

# The forms of seeds, which determine the mutations besides those of bytes.
FORMS = ("bytes", "text", "json", "toml", "msgpack", "frames", "zip")
_PIECES = (
    *(b"\x00", b"\xff" * 4, b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\x1b[31m", b"\\", b"\n", b"\r\n", b" " * 200),
    *(b'"', b"'", b"{", b"}" * 9, b"(" * 300, b"[[", b"%" * 40, b"-" * 50, b"=", b"#", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"nan", b"inf", b"1e999", b"9" * 40, b"9" * 5000, b"\x91" * 3000, b"[" * 3000, b"\xc0", b"\xdf\xff\xff\xff\xff"),
    *(b"../", b"/dev/zero", b"\xe2\x80\xae", b"\xcc\x81" * 60, b"\x7f\x80"),
)
_NUMBERS = ("0", "-1", "9" * 19, "18446744073709551616", "1e308", "-0.0", "NaN", "9" * 400)
_NESTS = ("[" * 1500, "{" * 1500, "(" * 1500, "<" * 1500, "]", "}", ")", ">", '"""')
_WORDS = (*_NUMBERS, *_NESTS, "", "\x00", "\ud83d\ude00", "\u2028", "//", "\r", "\ufeff", "\u0130", "\uff11", "a" * 900)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 2**64 - 1, -(2**63), 1e308, 0.5, "", "\x00", "x" * 900, [], {}, [[[[[]]]]]),
    *({"type": "Run"}, {"": {}}, "../../etc/passwd", "\u202e", [1, "1", None], float("inf"), float("nan"), b"\xff"),
)
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def mutated(seeds: Sequence[bytes], form: str, chance: Random, longest: int) -> bytes:
    """One of `seeds` after a few mutations, truncated to `longest` bytes; rarely random bytes."""
    roll = chance.random()
    if roll < 0.02:
        return chance.randbytes(chance.choice((0, 1, 4, 16, 64, 400)))
    data = seeds[int(chance.random() * len(seeds))]
    if roll < 0.5 and (changed := _BY_FORM.get(form)) is not None:
        found = changed(data, chance)
        # Some get both kinds of mutations.
        return found[:longest] if roll > 0.05 else _bytes_changed(found, chance, seeds)[:longest]
    return _bytes_changed(data, chance, seeds)[:longest]


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _bytes_changed(seed: bytes, chance: Random, seeds: Sequence[bytes]) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3, 8))):
        at = int(chance.random() * (len(data) + 1))
        length = chance.choice((1, 2, 4, 16, 64, len(data)))
        kind = int(chance.random() * 7)
        if kind == 0:
            del data[at : at + length]
        elif kind == 1:
            data[at:at] = (data[at : at + length] * chance.choice((1, 2, 50)))[:20_000]
        elif kind == 2:
            data[at : at + length] = chance.randbytes(min(length, 64))
        elif kind == 3:
            data[at:at] = chance.choice(_PIECES)
        elif kind == 4:
            other = chance.choice(seeds)
            data[at:] = other[int(chance.random() * (len(other) + 1)) :]
        elif kind == 5 and chance.random() < 0.2:
            data = bytearray(data.replace(b"\n", b"\r\n"))
        elif data:
            data[min(at, len(data) - 1)] ^= 1 << int(chance.random() * 8)
        if len(data) > 60_000:
            break
    return bytes(data)


# ---- requests with an answer -----------------------------------------------------------------------------------------


def _text_changed(seed: bytes, chance: Random) -> bytes:
    """Removes, duplicates or exchanges words, or replaces them by numbers and deep nesting."""
    tokens = _TOKEN.findall(seed.decode("utf-8", "replace"))
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        if not tokens:
            break
        at, other = int(chance.random() * len(tokens)), int(chance.random() * len(tokens))
        kind = int(chance.random() * 6)
        if kind == 0:
            del tokens[at]
        elif kind == 1:
            tokens[at:at] = tokens[min(at, other) : max(at, other)][:200]
        elif kind == 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == 3:
            tokens[at] = chance.choice(_WORDS)
        elif kind == 4:
            numbers = [place for place, token in enumerate(tokens) if token.isdigit()]
            if numbers:
                tokens[chance.choice(numbers)] = chance.choice(_NUMBERS)
        else:
            tokens[at] = (tokens[at] * chance.choice((2, 30, 1000)))[:6000]
    return "".join(tokens).encode("utf-8", "surrogatepass")


# ---- trees of values -------------------------------------------------------------------------------------------------


def _tree_changed(tree: Any, chance: Random) -> Any:
    """Replaces, removes, duplicates or copies a few values in nested dicts and lists, in place."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        _collect(tree, places)
        if not places:
            return _copied(chance.choice(_VALUES))
        holder, key = places[int(chance.random() * len(places))]
        kind = int(chance.random() * 6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * chance.choice((1, 3, 300))
        elif kind == 1:
            holder[chance.choice(("type", "x", "", f"{key}_"))] = holder[key]
        elif kind == 2:
            other_holder, other = places[int(chance.random() * len(places))]
            holder[key] = _copied(other_holder[other])
        elif kind == 3:
            holder[key] = [holder[key]]
        else:
            holder[key] = _copied(chance.choice(_VALUES))
    return tree


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        places.append((value, key))
        if isinstance(item, (dict, list)):
            _collect(item, places)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _msgpack_changed(seed: bytes, chance: Random) -> bytes:
    return msgspec.msgpack.encode(_tree_changed(msgspec.msgpack.decode(seed), chance))


def _frames_changed(seed: bytes, chance: Random) -> bytes:
    body = _msgpack_changed(seed[4:], chance)
    return len(body).to_bytes(4, "little") + body


def _json_changed(seed: bytes, chance: Random) -> bytes:
    return msgspec.json.encode(_tree_changed(msgspec.json.decode(seed), chance))


def _toml_changed(seed: bytes, chance: Random) -> bytes:
    if chance.random() < 0.6:
        return _text_changed(seed, chance)
    tree = _tree_changed(msgspec.toml.decode(seed), chance)
    try:
        return tomli_w.dumps(tree).encode("utf-8", "surrogatepass")
    except (TypeError, AttributeError):  # not representable in TOML
        return str(tree).encode("utf-8", "surrogatepass")


# ---- archives --------------------------------------------------------------------------------------------------------


def _zip_changed(seed: bytes, chance: Random) -> bytes:
    """An archive with one mutated member: an archive's own bytes are protected by checksums."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(seed)) as before, zipfile.ZipFile(written, "w") as after:
        names = before.namelist()
        chosen = names[int(chance.random() * len(names))]
        for name in names:
            content = before.read(name)
            if name == chosen:
                content = _member_changed(name, content, chance)
                name = chance.choice((name, name, name, name, name, "../" + name, name.upper(), name + "\0"))
            if name != chosen or chance.random() > 0.1:
                after.writestr(name, content)
    return written.getvalue()


def _member_changed(name: str, content: bytes, chance: Random) -> bytes:
    if name.endswith(".json") and chance.random() < 0.7:
        return _json_changed(content, chance)
    if name.endswith(".py") and chance.random() < 0.7:
        return _text_changed(content, chance)
    return _bytes_changed(content, chance, [content])


_BY_FORM: dict[str, Callable[[bytes, Random], bytes]] = {
    "text": _text_changed,
    "json": _json_changed,
    "toml": _toml_changed,
    "msgpack": _msgpack_changed,
    "frames": _frames_changed,
    "zip": _zip_changed,
}
