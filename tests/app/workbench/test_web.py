"""The workbench in a browser: requests to the server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.terminal import TerminalScreen
from buddy.app.cli.workbench import without_web
from tests.support.engine_processes import children, gone

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 180


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "buddy.app.cli", "samples/arith_add.py", "--web", *words]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and the address with the token that it prints."""
    for _ in range(3):
        words = command("--web-port", str(free_port()))
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                continue  # another one has taken the port that was free a moment ago
            found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", line)
            assert found, "the first line has the address"
            yield process, found[0]
            process.terminate()
            return
    raise AssertionError("no server starts")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as (_, found):
        yield found


async def draws(socket: Any, text: str, screen: TerminalScreen) -> None:
    """Wait until `screen`, to which the socket's output goes, shows what the regular expression `text` matches."""
    end = time.monotonic() + PATIENCE
    while not re.search(text, screen.text):
        assert time.monotonic() < end, screen.text
        message = await asyncio.wait_for(socket.receive(), PATIENCE)
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message
        screen.feed(message.data if isinstance(message.data, bytes) else message.data.encode())


async def test_requests_without_the_token_are_rejected(address: str) -> None:
    root, token = re.fullmatch(r"(http://[^/]+/)([^/]+)/", address).groups()  # type: ignore[union-attr]
    wrong = ("", "ws", "static/js/textual.js", "x" * 32 + "/", f"{token[:-1]}/", f"?token={token}", f"x/{token}/", "é/")
    async with aiohttp.ClientSession() as session:
        for path in wrong:
            async with session.get(root + path) as answer:
                assert answer.status == 403, path
                assert token not in await answer.text()
        for path in ("ws", f"{'x' * 32}/ws"):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await session.ws_connect(root + path)


async def test_the_token_gives_access_to_the_page_and_its_files(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(address) as answer:
            assert answer.status == 200
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            page = await answer.text()
        assert f'data-session-websocket-url="ws{address.removeprefix("http")}ws"' in page
        for url in re.findall(r'(?:href|src)="(http://[^"]+)"', page):
            assert url.startswith(address)
            async with session.get(url) as answer:
                assert answer.status == 200, url


async def test_the_screen_is_sent_over_the_web_socket(address: str) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{address}ws?width=100&height=30") as socket:
        await draws(socket, "arith_add.py", TerminalScreen(100, 30))


@pytest.mark.slow
async def test_a_flood_of_sizes_delays_no_key_and_no_exit() -> None:
    with serving() as (server, address):
        async with aiohttp.ClientSession() as session:
            async with session.ws_connect(f"{address}ws?width=100&height=30") as socket:
                screen = TerminalScreen(100, 30)
                await draws(socket, "compiled (in|before)", screen)
                (workbench,) = children(server.pid)
                for number in range(20_000):
                    size = {"width": 80 + number % 97, "height": 24 + number % 31}
                    await socket.send_json(["resize", size])
                await socket.send_json(["stdin", "?"])
                await draws(socket, "Help: Graph", screen)
            assert await gone(workbench, within=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_workbench_ends_with_its_server(how: signal.Signals) -> None:
    with serving() as (server, address):
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{address}ws") as socket:
            await draws(socket, "arith_add.py", TerminalScreen(80, 24))
            (workbench,) = children(server.pid)
            server.send_signal(how)
            assert await gone(workbench, server.pid, within=PATIENCE)


async def test_the_page_gives_the_terminal_the_focus(address: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        page = await answer.text()
    assert re.search(r'<script>[^<]*querySelector\("\.xterm-helper-textarea"\)[^<]*focus\(\)', page)


async def test_requests_from_other_sites_are_rejected_even_with_the_token(address: str) -> None:
    root = address.removeprefix("http://").partition("/")[0]
    port = root.rpartition(":")[2]
    strange = [{"Host": "evil.example"}, {"Host": f"evil.example:{port}"}, {"Host": f"127.0.0.1.evil.example:{port}"}]
    strange += [{"Host": ""}, {"Host": "[::1"}, {"Host": f"localhost@evil.example:{port}"}]
    strange += [{"Origin": origin} for origin in ("null", "", "http://evil.example", f"http://{root}.evil.example")]
    strange += [{"Origin": f"http://localhost:{port}"}, {"Origin": f"file://{root}"}, {"Origin": "http://127.0.0.1:1"}]
    async with aiohttp.ClientSession() as session:
        for headers in strange:
            for path in ("", "static/js/textual.js"):
                async with session.get(address + path, headers=headers) as answer:
                    assert answer.status in (400, 403), headers
            with pytest.raises(aiohttp.WSServerHandshakeError, match=r"40[03]"):
                await session.ws_connect(f"{address}ws", headers=headers)
        # By a tunnel that begins at another port, and as browsers ask.
        for headers in ({"Host": "localhost:9"}, {"Host": root, "Origin": f"http://{root}"}, {"Host": f"[::1]:{port}"}):
            async with session.get(address, headers=headers) as answer:
                assert answer.status == 200, headers


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="who listens is told by Linux alone")
async def test_the_server_listens_only_locally(address: str) -> None:
    port = int(address.removeprefix("http://").partition("/")[0].rpartition(":")[2])
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_used_port_is_reported() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        done = subprocess.run(
            command("--web-port", str(port)), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--web-port" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_package_one_line_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "textual_serve.py").write_text("raise ModuleNotFoundError('no', name='textual_serve')\n")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from buddy.app.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, str(tmp_path), "samples/arith_add.py", "--web"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "buddy-tui[web]" in done.stderr


def test_the_browser_session_gets_the_rest_of_the_command_line() -> None:
    ours = ["--web", "a.py", "--web-port", "80", "--tiny", "--web-host=::1", "--webhook", "x", "--", "--web"]
    assert without_web(ours) == ["a.py", "--tiny", "--webhook", "x", "--", "--web"]
