"""Connections that say nothing neither fill up a listener nor end it."""

import errno
import socket
import threading
from contextlib import closing

import pytest

from tfcollective._base.guarded_listener import LOOK_S, GuardedListener, UnauthenticatedLimit
from tfcollective._testing.clock import ManualClock


class Listener(socket.socket):
    """Listens on the loopback; some calls of ``accept`` raise instead, in this order."""

    def __init__(self):
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.raises = []
        self.accepted = 0

    def accept(self):
        if self.raises and (number := self.raises.pop(0)):
            raise OSError(number, "as the kernel says")
        self.accepted += 1
        return super().accept()


class Guest:
    """Has answered once something has come."""

    def __init__(self, connection):
        self.connection = connection
        connection.setblocking(False)

    def has_answered(self):
        return True


@pytest.fixture
def listener():
    with Listener() as made:
        yield made


@pytest.fixture
def connect(listener):
    """Makes connections, which end with the test."""
    made = []

    def connect(said=b""):
        made.append(socket.create_connection(listener.getsockname(), 60))
        made[-1].sendall(said)
        return made[-1]

    yield connect
    for one in made:
        one.close()


def first_answer(listener, **options):
    """What the first guest says that says something."""
    with closing(GuardedListener(listener, Guest, **options).answering()) as answering:
        guest = next(answering)
        with guest.connection as connection:
            return connection.recv(100)


def test_silent_connections_do_not_delay_others(listener, connect):
    silent = [connect() for _ in range(3)]
    connect(b"hello")
    assert first_answer(listener) == b"hello"
    assert [one.recv(1) for one in silent] == [b""] * 3


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_the_oldest_connection_is_closed(listener, connect, number):
    listener.raises = [0, 0, number]
    first, second = connect(), connect()
    connect(b"hello")
    results = []
    thread = threading.Thread(target=lambda: results.append(first_answer(listener)))
    thread.start()
    assert first.recv(1) == b""
    thread.join(60)
    assert results == [b"hello"]
    assert second.recv(1) == b""  # at the end


def test_without_free_descriptors_it_tries_again_later(listener, connect):
    listener.raises = [errno.EMFILE, errno.EMFILE]
    connect(b"hello")
    clock = ManualClock()
    assert first_answer(listener, clock=clock) == b"hello"
    assert clock.monotonic() == 2 * LOOK_S


def test_a_connection_gone_before_acceptance_ends_nothing(listener, connect):
    listener.raises = [errno.ECONNABORTED, errno.EAGAIN]
    connect(b"hello")
    assert first_answer(listener) == b"hello"


def test_shutting_down_a_listener_ends_the_iteration(listener):
    listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OSError):
        first_answer(listener)


def test_the_time_of_one_that_says_nothing_ends(listener, connect):
    silent = connect()
    thread = threading.Thread(target=lambda: results.append(first_answer(listener, timeout=0.0)))
    results = []
    thread.start()
    assert silent.recv(1) == b""
    connect(b"hello")
    thread.join(60)
    assert results == [b"hello"]


def test_of_many_the_oldest_have_less_time():
    limit = UnauthenticatedLimit(timeout=10.0, most=2, crowded=0.5, look=0.25)
    for number in range(5):
        limit.opened(number, 0.0)
    assert limit.overdue(0.25) == set()
    limit.ended(1)
    assert [limit.overdue(time) for time in (0.5, 0.75, 1.0)] == [set(), {0, 2}, set()]
    assert len(limit) == 2
    assert limit.oldest(1.0) == 3
    late = [limit.overdue(time / 4) for time in range(5, 42)]
    assert late[-1] == {3, 4}
    assert not any(late[:-1])
    assert limit.oldest(11.0) is None
