"""Worlds on several hosts, without a launcher: a lost host is noticed in time, a slow process is not given up."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from launching import until
from time_limits import within

pytestmark = [pytest.mark.hosts, pytest.mark.multiprocess]

_PROGRAM = str(Path(__file__).with_name("rank_alone.py"))


class Rank:
    """A process on a host of the test bed, and what it has said that was not read yet."""

    def __init__(self, testbed, rank, mode):
        words = ["ip", "netns", "exec", testbed.namespaces[rank], sys.executable, _PROGRAM]
        arguments = [str(rank), testbed.addresses[rank], mode]
        self.process = subprocess.Popen(
            [*words, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self.process.stdout:
            self._said.put(json.loads(line))
        self._said.put({"ended": self.process.wait()})

    def end(self):
        with self.process:
            self.process.kill()
            self._listener.join()

    def wait_for(self, what, timeout):
        """The next line that says ``what``."""
        deadline = time.monotonic() + timeout
        while True:
            line = self._said.get(timeout=max(0.01, deadline - time.monotonic()))
            assert what in line or "rounds" in line, line
            if what in line:
                return line

    def forget(self):
        """Leaves what it has said so far unread."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._said.get_nowait()


@contextlib.contextmanager
def world(testbed, size, mode):
    ranks = [Rank(testbed, rank, mode) for rank in range(size)]
    try:
        addresses = [rank.wait_for("address", within(30))["address"] for rank in ranks]
        for rank in ranks:
            rank.process.stdin.write(json.dumps(addresses) + "\n")
        for rank in ranks:
            rank.wait_for("rounds", within(30))
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=20)


@contextlib.contextmanager
def unplugged(testbed, rank):
    """Takes the link of the rank's host away."""
    ip("link", "set", testbed.interfaces[rank], "down")
    try:
        yield
    finally:
        ip("link", "set", testbed.interfaces[rank], "up")


@contextlib.contextmanager
def cut_apart(testbed, first, second):
    """What two ranks' hosts send each other gets lost; all others reach both."""
    ways = [(first, second), (second, first)]
    for here, there in ways:
        inside = ("-n", testbed.namespaces[here], "neigh")
        ip(
            *inside,
            "replace",
            testbed.addresses[there],
            "lladdr",
            "02:00:00:00:00:99",
            "nud",
            "permanent",
            *on(testbed, here),
        )
    try:
        yield
    finally:
        for here, there in ways:
            ip("-n", testbed.namespaces[here], "neigh", "del", testbed.addresses[there], *on(testbed, here))


def on(testbed, rank):
    return ("dev", f"lan{testbed.numbers[rank]}")


def errors_within(ranks, seconds):
    """What each rank says, if all have said it in time."""
    deadline = time.monotonic() + within(seconds)
    return [rank.wait_for("error", deadline - time.monotonic()) for rank in ranks]


@pytest.mark.parametrize("mode", ["busy", "idle"])
@pytest.mark.parametrize("lost", [0, 2])
def test_a_host_that_vanishes_is_noticed(testbed, mode, lost):
    with world(testbed, 3, mode) as ranks, unplugged(testbed, lost):
        errors = errors_within(ranks, 15)
    assert {error["error"] for error in errors} == {"PeerLostError"}, errors
    others = [error["text"] for rank, error in enumerate(errors) if rank != lost]
    assert all(f"rank {lost}" in text for text in others), others


def test_two_separated_hosts_are_named_to_all(testbed):
    """Rank 0 reaches both, so no control connection ends: those between the two notice it."""
    with world(testbed, 3, "busy") as ranks, cut_apart(testbed, 1, 2):
        errors = errors_within(ranks, 15)
    for error in errors:
        assert error["error"] == "PeerLostError", errors
        assert "cannot be reached any more" in error["text"], errors


@pytest.mark.parametrize("stopped", [0, 2])
def test_a_rank_stopped_half_a_minute_survives(testbed, stopped):
    with world(testbed, 3, f"stop{stopped}") as ranks:
        process = psutil.Process(ranks[stopped].process.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, 60)
        time.sleep(30)  # longer than any limit for a host that is gone
        for rank in ranks:
            rank.forget()
        process.resume()
        for _ in range(3):
            for rank in ranks:
                rank.wait_for("rounds", within(30))
