"""An engine on another machine, over a link that is slow, drops and hangs; real processes, `far.py` in ssh's place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from buddy.app.session.client import EngineClient, EngineError
from buddy.app.session.engine_options import RemoteHost, check_host
from buddy.compiler.engine import relay
from buddy.compiler.engine.relay import engines_folder, log_path
from buddy.compiler.protocol import PROTOCOL_VERSION, Captured, Compile, Hello, Printout, Ran, Run
from tests.support.engine_bench import PATIENCE, Bench
from tests.support.engine_processes import everything_below, gone, lives, stopped

FAR = Path(__file__).resolve().parents[2] / "benchmarks" / "support" / "far.py"


class Far:
    """The machine: how to reach it, and what becomes of the link to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A path as no shell would take it unquoted.
        self.program = folder / "it's a $(venv)" / "buddy-tui"
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} -m buddy.app.cli "$@"\n')
        self.program.chmod(0o700)

    def remote(self, reconnect_seconds: float = 120.0, program: str = "", delay: float = 0.0) -> RemoteHost:
        ssh = (sys.executable, str(FAR), str(self.folder), str(delay))
        return RemoteHost("far", ssh, program=program or str(self.program), reconnect_seconds=reconnect_seconds)

    @contextlib.contextmanager
    def state(self, name: str) -> Iterator[None]:
        """The link is `down`, or will `hang`."""
        (self.folder / name).touch()
        try:
            yield
        finally:
            (self.folder / name).unlink()

    def bytes_moved(self) -> int:
        """What has gone over links that have ended, both ways."""
        return sum(sum(json.loads(path.read_text()).values()) for path in self.folder.glob("*.json"))


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    # Not `tmp_path`: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="far") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr("tempfile.tempdir", None)
        yield Far(Path(folder))


class Linked(Bench):
    """An engine there, and what is told of the link."""

    def __init__(self, client: EngineClient) -> None:
        super().__init__(client)
        self.told: list[str] = []
        self._heard = 0

    async def hears(self, wanted: Callable[[str], bool]) -> str:
        """Wait until something that is `wanted` has been told, behind what was heard before; that is the value."""
        end = time.monotonic() + PATIENCE
        while not any(map(wanted, self.told[self._heard :])):
            assert time.monotonic() < end, self.told
            await asyncio.sleep(0.02)
        self._heard += next(k for k, what in enumerate(self.told[self._heard :], 1) if wanted(what))
        return self.told[self._heard - 1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def linked(far: Far) -> AsyncIterator[Linked]:
    client = EngineClient(far.remote(), on_connection_change=lambda what: bench.told.append(what))
    bench = Linked(client)
    await client.start()
    pids = [bench.pid, *everything_below(bench.pid)]
    (name,) = [path.name for path in engines_folder().iterdir() if path.is_socket()]
    yield bench
    await client.close()
    assert await gone(*pids)
    assert not [path for path in engines_folder().iterdir() if path.stem == name], "nothing of it is left"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_dropped_link_comes_back_with_stages_intact(linked: Linked, far: Far, add: Path) -> None:
    await linked.open(add)
    recipe = await linked.recipe(add)
    compiled = await linked.ask(Compile(linked.client.new_request_id(), recipe))
    pids = everything_below(linked.pid)
    with far.state("down"):
        await linked.hears(lambda what: "Broken pipe" in what)
        assert "reconnecting in" in await linked.hears(lambda what: "Network is unreachable" in what)
        waiting = asyncio.create_task(linked.client.fetch_lines(compiled.stages[-1].text, 0, 10))
    linked.client.reconnect_now()
    lines = await asyncio.wait_for(waiting, PATIENCE)
    assert len(lines.lines) == min(10, compiled.stages[-1].lines)
    await linked.hears(lambda what: what == "")
    assert set(pids) <= set(everything_below(linked.pid)), "the same workers, with all they hold"
    # What is under way goes on without a link and is told of afterwards.
    running = asyncio.create_task(linked.ask(Run(linked.client.new_request_id(), recipe, repeats=2)))
    with far.state("down"):
        await linked.hears(lambda what: "unreachable" in what)
    linked.client.reconnect_now()
    ran = await asyncio.wait_for(running, PATIENCE)
    assert isinstance(ran, Ran)
    assert ran.report.ok


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.full("waits for a quarter of a minute; through the workbench it is always tried")
async def test_a_link_that_hangs_is_given_up(linked: Linked, far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both sides' own limit is the same one; only the near side is made impatient, so that the test is.
    monkeypatch.setattr("buddy.app.session.transport.SILENCE_SECONDS", 4.0)
    with far.state("hang"):
        await linked.hears(lambda what: "no data for 4 s" in what)
    await linked.hears(lambda what: what == "")
    assert await linked.presets()


@pytest.mark.asyncio(loop_scope="module")
async def test_links_that_break_all_the_time_lose_nothing(linked: Linked, far: Far, add: Path) -> None:
    captured = await linked.open(add)
    texts = [captured.graphs[0].code] * 300

    async def break_it(times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0.02)
            with far.state("down"):
                await linked.hears(lambda what: what != "")
            linked.client.reconnect_now()
            await linked.hears(lambda what: what == "")

    breaking = asyncio.create_task(break_it(4))
    pages = await asyncio.wait_for(
        asyncio.gather(*(linked.client.fetch_lines(text, 0, 256) for text in texts)), PATIENCE
    )
    await breaking
    assert [page.text for page in pages] == texts


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_without_a_link_ends_by_itself_and_the_client_is_told(far: Far, add: Path) -> None:
    told: list[str] = []
    client = EngineClient(far.remote(reconnect_seconds=1.0), on_connection_change=told.append)
    bench = Bench(client)
    await client.start()
    pids = [bench.pid, *everything_below(bench.pid)]
    with far.state("down"):
        assert await gone(*pids)
    client.reconnect_now()
    with pytest.raises(EngineError, match="no connection for too long"):
        await asyncio.wait_for(bench.until(lambda frame: False), PATIENCE)
    await client.restart()
    assert isinstance(await Bench(client).open(add), Captured)
    await client.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_that_is_killed_says_so_over_the_link(far: Far) -> None:
    client = EngineClient(far.remote())
    welcome = await client.start()
    os.kill(welcome.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="on far has exited: it ended: another process killed it"):
        await asyncio.wait_for(Bench(client).until(lambda frame: False), PATIENCE)
    await client.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("linked", [True, False])
async def test_an_engine_that_was_stopped_ends_with_its_client(far: Far, linked: bool) -> None:
    client = EngineClient(far.remote())
    welcome = await client.start()
    with stopped(welcome.pid) as pids:
        if not linked:
            assert client._transport is not None
            client._transport.kill()
        await client.close()
        assert await gone(*pids)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_that_writes_when_its_client_leaves_hears_the_goodbye(far: Far) -> None:
    """Its workers report while it is stopped, so the first that it does then is to write to a link that has ended."""
    client = EngineClient(far.remote())
    welcome = await client.start()
    os.kill(welcome.pid, signal.SIGSTOP)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.5)
    os.kill(welcome.pid, signal.SIGCONT)
    await closing
    assert await gone(welcome.pid, *everything_below(welcome.pid))


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_is_ended_from_afar_whatever_it_is_at(far: Far) -> None:
    """By its name, and nothing else is: neither an engine of another name, nor who listens at such a socket."""
    client, other = EngineClient(far.remote()), EngineClient(far.remote())
    welcome, kept = await client.start(), await other.start()
    pids = [welcome.pid, *everything_below(welcome.pid)]
    name = next(word for word in _words(welcome.pid) if word.startswith(str(engines_folder()))).rpartition("/")[2]
    os.kill(welcome.pid, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(engines_folder() / ("e" * 16)))
        listener.listen()
        for each in ("e" * 16, "0" * 16, name, name):
            command = far.remote().stop_command(each)
            assert await asyncio.to_thread(subprocess.call, command, timeout=PATIENCE) == 0
    (engines_folder() / ("e" * 16)).unlink()
    assert await gone(*pids)
    with pytest.raises(EngineError, match="on far has exited"):
        await asyncio.wait_for(Bench(client).until(lambda frame: False), PATIENCE)
    assert lives(kept.pid)
    await client.close()
    await other.close()


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.asyncio(loop_scope="module")
async def test_no_engine_outlives_a_killed_client_for_longer_than_it_waits(far: Far) -> None:
    words = f"RemoteHost('far', {far.remote().ssh!r}, program={str(far.program)!r}, reconnect_seconds=1.0)"
    code = (
        "import asyncio\nfrom buddy.app.session.client import EngineClient\n"
        "from buddy.app.session.engine_options import RemoteHost\n"
        f"async def main():\n    print((await EngineClient({words}).start()).pid, flush=True)\n"
        "    await asyncio.sleep(600)\nasyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    engine = int(await process.stdout.readline())
    assert lives(engine)
    process.kill()
    await process.wait()
    assert await gone(engine)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_script_prints_does_not_fill_the_disk_there(linked: Linked, add: Path) -> None:
    await linked.open(add)
    assert any(isinstance(frame, Printout) and "the script ran" in frame.text for frame in linked.seen)
    (log,) = [path for path in engines_folder().iterdir() if path.suffix == ".log"]
    assert "the script ran" not in log.read_text()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_sockets_are_the_users_alone(linked: Linked) -> None:
    folder = engines_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    listening = next(path for path in folder.iterdir() if path.is_socket())
    assert stat.S_IMODE(log_path(listening).stat().st_mode) == 0o600


def test_what_killed_engines_have_left_is_removed_after_a_day(far: Far) -> None:
    folder = engines_folder()
    alive, dead, fresh = (folder / name for name in ("a" * 16, "d" * 16, "f" * 16))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(alive))
        listener.listen()
        for path in (dead, fresh):
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))
        for path in (alive, dead, fresh):
            log_path(path).write_text("log")
        for path in (alive, dead, log_path(alive), log_path(dead)):
            os.utime(path, (1, 1))
        relay._remove_leftovers(folder)
        assert {path for path in folder.iterdir() if path.stem[0] in "adf" and len(set(path.stem)) == 1} == {
            alive, log_path(alive), fresh, log_path(fresh),
        }  # fmt: skip
    for path in (alive, log_path(alive), fresh, log_path(fresh)):
        path.unlink()


# ---- what cannot be reached ----------------------------------------------------------------------------------------


async def lost(remote: RemoteHost) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(EngineClient(remote).start(), PATIENCE)
    return caught.value


@pytest.mark.asyncio(loop_scope="module")
async def test_a_machine_without_buddy_tui_says_where_to_get_it(far: Far) -> None:
    error = await lost(far.remote(program="no-such-buddy"))
    assert "no-such-buddy not found on far" in error.reason
    assert "--remote-program" in error.reason
    assert error.is_permanent


COMPLAINTS = (
    ("Host key verification failed.", "does not know the host key of far yet · connect once with `ssh far`", True),
    ("me@far: Permission denied (publickey,password).", "needs a password", True),
    ("ssh: Could not resolve hostname far: Name or service not known", "cannot resolve the host far", True),
    ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.", "has changed", True),
    ("buddy-tui engine: error: unrecognized arguments: --keep 0", "another version", True),
    ("ssh: connect to host far port 22: Connection refused", "Connection refused", False),
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("said", "told", "is_permanent"), COMPLAINTS)
async def test_what_ssh_complains_of_is_explained(tmp_path: Path, said: str, told: str, is_permanent: bool) -> None:
    ssh = (sys.executable, "-c", f"import sys; print({said!r}, file=sys.stderr); sys.exit(255)")
    error = await lost(RemoteHost("far", ssh))
    assert told in error.reason
    assert error.is_permanent is is_permanent


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_shell_says_at_login_is_passed_over_and_junk_is_quoted(far: Far) -> None:
    talkative = far.folder / "talkative"
    talkative.write_text(f'#!/bin/sh\necho Welcome to Ubuntu\nexec {sys.executable} -m buddy.app.cli "$@"\n')
    talkative.chmod(0o700)
    client = EngineClient(far.remote(program=str(talkative)))
    await client.start()
    await client.close()
    junk = far.folder / "junk"
    junk.write_text("#!/bin/sh\nexec yes no\n")
    junk.chmod(0o700)
    error = await lost(far.remote(program=str(junk)))
    assert "not from an engine" in error.reason
    assert "no" in error.reason


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_of_another_version_is_refused_for_good(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buddy.app.session.client.Hello", lambda **_given: Hello(version=PROTOCOL_VERSION + 7))
    error = await lost(far.remote())
    assert f"the client speaks protocol {PROTOCOL_VERSION + 7}, this engine {PROTOCOL_VERSION}" in error.reason
    assert error.is_permanent


def test_hosts_that_ssh_would_take_for_options_are_refused() -> None:
    hosts = (
        "me@box",
        "ssh://me@box:2222",
        "box.example.org",
        "10.0.0.1",
        "ssh://[::1]:22",
        "fe80::1%eth0",
        "a@b@c",
        "bücher",
    )
    assert [check_host(text) for text in hosts] == list(hosts)
    wrong = [
        "",
        "-oProxyCommand=touch /tmp/x",
        "-oX",
        "me@-oX",
        "ssh://-oX",
        "ssh://me@-oX",
        "a\nb",
        "a b",
        "@box",
        "\0",
    ]
    for text in [*wrong, *(f"box{character}x" for character in "`$;&|<>(){}'\"\\*?!#\t\r\u200b")]:
        with pytest.raises(ValueError, match="is not a host"):
            check_host(text)


def test_no_word_reaches_the_shell_on_the_other_side_unquoted(tmp_path: Path) -> None:
    """What ssh does with its last word: it hands it to the user's shell. Every word comes out as it went in."""
    random = Random(2026)
    pieces = [
        "$(touch x)",
        "`touch x`",
        ";touch x;",
        "&&touch x",
        "|touch x",
        ">x",
        "\n",
        "'",
        '"',
        "\\",
        "-oX",
        "*",
        "~",
        " ",
        "!",
        "é",
        "a",
    ]
    programs = ["".join(random.choices(pieces, k=random.randint(1, 6))) for _ in range(300)]
    printer = 'f() { printf "%s\\0" "$@"; }; f '
    lines = [printer + RemoteHost("box", program=program).start_command("ab")[-1] for program in programs]
    done = subprocess.run(["sh", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = [word for program in programs for word in (program, "engine", "--keep", "ab", "--wait", "600")]
    assert done.stdout.split("\0")[:-1] == expected
    assert not list(tmp_path.iterdir()), "a word of the command was run"


def test_options_stand_before_ours_and_the_command_is_quoted() -> None:
    command = RemoteHost("me@box", ("ssh", "-F", "file"), ("Port=2222",), "my venv/it's").start_command("ab" * 16)
    assert command[:6] == ["ssh", "-F", "file", "-T", "-o", "Port=2222"]
    assert command[-3:-1] == ["--", "me@box"]
    assert command[-1] == f"'my venv/it'\"'\"'s' engine --keep {'ab' * 16} --wait 600"
