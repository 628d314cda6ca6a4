"""A child ends with its process, whoever else holds its pipe; and its time may be what passes between two messages."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.worker_messages import Activity, Done, FailureReply, LogText, Reply
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import Task, TaskEnd, run_in_child


@pytest.fixture
def master() -> Iterator[Channel]:
    ends = os.pipe()
    yield Channel(*ends, FailureReply)
    for end in ends:
        os.close(end)


def ended(
    master: Channel, work: Callable[[Channel], Reply], timeout: float, renewed: bool = False
) -> tuple[TaskEnd, list[str], float]:
    """How a child ended, what it said on the way, and the seconds it had."""
    said: list[str] = []

    def note(message: object) -> None:
        if isinstance(message, Activity):
            said.append(message.activity)

    start = time.monotonic()
    types = Activity | LogText | Done | FailureReply
    found = run_in_child(
        master, Task(work, lambda error: FailureReply(Diagnostic(str(error))), types, note, timeout, renewed)
    )
    return found, said, time.monotonic() - start


def leave_a_grandchild(channel: Channel) -> None:
    """A process that holds the child's pipe and lives on until it is killed; its number is told."""
    pid = os.fork()
    if pid == 0:
        time.sleep(300)
        os._exit(0)
    channel.send(Activity(str(pid)))


def kill(said: list[str]) -> None:
    """End the process whose number was told."""
    (pid,) = map(int, said)
    os.kill(pid, signal.SIGKILL)


def test_a_child_that_leaves_another_behind_has_ended(master: Channel) -> None:
    def work(channel: Channel) -> Reply:
        leave_a_grandchild(channel)
        return Done()

    found, said, seconds = ended(master, work, 240.0)
    kill(said)
    assert found.how == "replied"
    assert seconds < 200


def test_so_has_one_that_crashes(master: Channel) -> None:
    def work(channel: Channel) -> Reply:
        leave_a_grandchild(channel)
        os.kill(os.getpid(), signal.SIGTERM)
        return Done()

    found, said, seconds = ended(master, work, 240.0)
    kill(said)
    assert found.how == "crashed"
    assert found.status == "SIGTERM"
    assert seconds < 200


def test_one_that_says_no_more_and_lives_on_is_late(master: Channel) -> None:
    def work(channel: Channel) -> Reply:
        channel.close()
        time.sleep(60)
        return Done()

    assert ended(master, work, 0.3)[0].how == "late"


@pytest.mark.full("waits for time limits of seconds to pass, again and again")
def test_time_that_is_renewed_is_that_between_two_messages(master: Channel) -> None:
    def work(channel: Channel) -> Reply:
        for number in range(10):
            channel.send(Activity(str(number)))
            time.sleep(1.0)
        return Done()

    # Seconds longer than the time between two messages, and shorter than that of all: a machine may have much to do.
    assert ended(master, work, 6.0, renewed=True)[0].how == "replied"
    found, said, _ = ended(master, work, 6.0)
    assert found.how == "late"
    assert said == list("0123456789")[: len(said)]
    assert len(said) < 10


@pytest.mark.parametrize("known", [True, False])
def test_without_word_from_the_system_ends_are_looked_for(
    master: Channel, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Whether it is Python that does not know the call, or the kernel."""

    def refused(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.delattr(os, "pidfd_open", raising=False)
    if known:
        monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    test_a_child_that_leaves_another_behind_has_ended(master)
    test_one_that_says_no_more_and_lives_on_is_late(master)
