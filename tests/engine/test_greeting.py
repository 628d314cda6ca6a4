"""The engine as a process: whom it serves, whom it refuses, and when it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.app.session.client import EngineClient, EngineError
from buddy.compiler.engine.server import ClientRejected, greeting_of
from buddy.compiler.protocol import PROTOCOL_VERSION, EngineFrame, Failed, Hello, Presets, Welcome
from buddy.compiler.protocol.connection import FrameBuffer, FrameDecoder, encode, version_of_peer

LIMIT = 180


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "buddy.compiler.engine"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0) as process:
        yield process
        process.kill()


def frames_of(stream: bytes) -> list[Any]:
    buffer, decoder = FrameBuffer(), FrameDecoder(EngineFrame)
    bodies = buffer.feed(stream)
    buffer.finish()
    return [decoder.decode(body) for body in bodies]


def talk(engine: subprocess.Popen[bytes], said: bytes) -> list[Any]:
    """All the engine answers to `said` and then nothing more."""
    answer, _ = engine.communicate(said, timeout=LIMIT)
    return frames_of(answer)


def test_a_client_of_the_same_version_is_welcome(engine: subprocess.Popen[bytes]) -> None:
    welcome = talk(engine, encode(Hello()))[0]
    assert isinstance(welcome, Welcome)
    assert welcome.version == PROTOCOL_VERSION
    assert welcome.pid == engine.pid
    assert welcome.packages["msgspec" if "msgspec" in welcome.packages else "torch"]
    assert engine.returncode == 0


def test_a_client_of_another_version_is_refused_with_both_named(engine: subprocess.Popen[bytes]) -> None:
    (failed,) = talk(engine, encode(Hello(version=PROTOCOL_VERSION + 7)))
    assert isinstance(failed, Failed)
    assert f"protocol {PROTOCOL_VERSION + 7}" in failed.diagnostic.what
    assert f"engine {PROTOCOL_VERSION}" in failed.diagnostic.what
    assert "same version" in failed.diagnostic.todo
    assert engine.returncode != 0


def test_greetings_with_other_fields_are_refused_for_their_version() -> None:
    """What a greeting has besides its version may be different in another version."""
    hello = {"type": "Hello", "version": PROTOCOL_VERSION + 1, "log": "trace", "reopens": "maybe"}
    with pytest.raises(ClientRejected, match=f"speaks protocol {PROTOCOL_VERSION + 1}, this engine {PROTOCOL_VERSION}"):
        greeting_of(msgspec.msgpack.encode(hello))
    with pytest.raises(ClientRejected, match="not a greeting"):
        greeting_of(msgspec.msgpack.encode({**hello, "version": PROTOCOL_VERSION}))
    assert version_of_peer(encode({"type": "Welcome", "version": 3})[4:], "Welcome") == 3
    for other in (b"", b"\xff\x00", encode({"type": "Hello"})[4:], encode({"type": "Presets", "version": 3})[4:]):
        assert version_of_peer(other, "Welcome") == 0


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
async def test_an_engine_of_another_version_is_named_with_both(version: int, tmp_path: Path) -> None:
    welcome = {"type": "Welcome", "version": version, "engine": 3, "pid": "a string"}
    (tmp_path / "frames").write_bytes(encode(welcome))
    with pytest.raises(EngineError) as lost:
        await EngineClient(["sh", "-c", f"cat {tmp_path}/frames; cat"]).start()
    assert lost.value.reason.startswith(f"the engine speaks protocol {version}, this client {PROTOCOL_VERSION}")
    assert "install the same version of buddy-tui on both sides" in lost.value.reason
    assert lost.value.is_permanent


def test_requests_before_the_greeting_are_refused(engine: subprocess.Popen[bytes]) -> None:
    (failed,) = talk(engine, encode({"type": "ListPresets", "request": 1}))
    assert "greeting" in failed.diagnostic.what


def test_garbage_ends_the_engine_with_a_message_that_quotes_it(engine: subprocess.Popen[bytes]) -> None:
    failed = talk(engine, encode(Hello()) + b"GET / HTTP/1.1\r\n")[-1]
    assert isinstance(failed, Failed)
    assert "GET / HTTP" in failed.diagnostic.what
    assert engine.returncode != 0


def test_a_client_that_goes_inside_a_frame_is_told_of(engine: subprocess.Popen[bytes]) -> None:
    failed = talk(engine, encode(Hello()) + encode({"type": "ListPresets", "request": 1})[:9])[-1]
    assert "ended inside a frame" in failed.diagnostic.what


def test_a_frame_it_does_not_know_fails_that_request_alone(engine: subprocess.Popen[bytes]) -> None:
    strange = encode({"type": "Dance", "request": 41})
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(encode(Hello()) + strange + encode({"type": "ListPresets", "request": 42}))
    answers = until(engine.stdout, Presets)
    (failed,) = (frame for frame in answers if isinstance(frame, Failed))
    assert failed.request == 41
    assert "Dance" in failed.diagnostic.what
    assert answers[-1].request == 42
    assert {preset.name for preset in answers[-1].presets} >= {"default"}


def until(stream: Any, last: type) -> list[Any]:
    buffer, decoder, found = FrameBuffer(), FrameDecoder(EngineFrame), []
    while not any(isinstance(frame, last) for frame in found):
        data = stream.read(1 << 16)
        assert data, "the engine ended"
        found += [decoder.decode(body) for body in buffer.feed(data)]
    return found


def test_the_engine_says_hello_in_a_form_that_any_version_reads() -> None:
    greeting = msgspec.msgpack.decode(encode(Hello())[4:])
    assert greeting["type"] == "Hello"
    assert greeting["version"] == PROTOCOL_VERSION
