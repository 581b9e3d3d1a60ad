"""The retry loop: it repeats a call whose answer was lost, and ends when the connection is closed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from launching import until

from tfcollective._base.errors import CoordinatorError, RendezvousError
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import Channel, OrderQueue, Retry
from tfcollective._control.client.client import CoordinatorRefusedError, CoordinatorUnreachableError
from tfcollective._control.messages import Entry, Found

SOON = Retry(seconds=60.0, pause=0.01, first_pause=0.01)


class Client:
    """Gives one answer after the other; a CoordinatorError is raised, the last one closes it."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.closed = False
        self.asked: list[tuple[object, ...]] = []

    def wait(self, key: str, *, timeout: float, newer_than: int) -> object:
        self.asked.append((key, newer_than))
        return self._next()

    def put(self, key: str, value: object) -> object:
        self.asked.append((key, value))
        return self._next()

    def ask(self) -> object:
        self.asked.append(())
        return self._next()

    def _next(self) -> object:
        answer = self.answers.pop(0)
        self.closed = not self.answers
        if isinstance(answer, Exception):
            raise answer
        return answer


LOST = CoordinatorError("one slow answer")


def test_a_call_is_repeated_until_it_is_answered() -> None:
    client, noted = Client(LOST, LOST, 3, None), []
    assert Channel(client).call(Client.ask, replace(SOON, note=noted.append)) == 3
    assert noted == [LOST, LOST]


def test_a_call_makes_its_tries_after_timeout() -> None:
    client = Client(*[LOST] * 9)
    with pytest.raises(CoordinatorError, match="one slow answer"):
        Channel(client).call(Client.ask, replace(SOON, seconds=0.0, tries=4))
    assert len(client.asked) == 4


def test_a_call_that_is_cancelled_is_not_repeated() -> None:
    client = Client(*[LOST] * 9)
    with pytest.raises(CoordinatorError):
        Channel(client, SOON, cancelled=lambda: len(client.asked) == 2).call(Client.ask)
    assert len(client.asked) == 2


@pytest.mark.parametrize("error", [CoordinatorRefusedError("no task worker:9"), RendezvousError("never")])
def test_other_errors_are_not_worth_another_try(error: Exception) -> None:
    client = Client(error, 1)
    with pytest.raises(type(error)):
        Channel(client, SOON).call(Client.ask)


def test_pauses_grow_to_the_longest() -> None:
    client = Client(LOST, LOST, LOST, LOST, 1, None)
    begin = time.monotonic()
    Channel(client).call(Client.ask, replace(SOON, first_pause=0.01, pause=0.04))
    assert time.monotonic() - begin >= 0.01 + 0.02 + 0.04 + 0.04


def test_values_are_followed_across_lost_answers() -> None:
    client = Client(Entry("a", 1), LOST, None, Entry("c", 3), LOST)
    assert [entry.value for entry in Channel(client).follow("k", SOON)] == ["a", "c"]
    assert client.asked == [("k", 0), ("k", 1), ("k", 1), ("k", 1), ("k", 3)]


def test_following_ends_with_the_retry() -> None:
    with pytest.raises(CoordinatorError):
        list(Channel(Client(*[LOST] * 9)).follow("k", replace(SOON, seconds=0.0, tries=2)))


def test_each_item_is_received_once() -> None:
    client = Client(Entry("a", 1), LOST, Entry("b", 2), None, Entry(["c"], 1), LOST)
    assert list(Channel(client).receive("k", SOON)) == ["a", "b", ["c"]]
    assert client.asked == [(f"k/{number}", 0) for number in (0, 1, 1, 2, 2, 3)]


class Hours:
    """A clock and a client: each request takes as long as it may wait, and some get no answer."""

    closed = False

    def __init__(self, unanswered: set[int], until: int) -> None:
        self.now, self.asked = 0.0, 0
        self._unanswered, self._until = unanswered, until

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def call(self, _request: object) -> Found:
        self.now += TIMING.poll
        self.asked += 1
        if self.asked in self._unanswered:
            raise CoordinatorUnreachableError("one lost packet")
        return Found(Entry(True, 1) if self.asked >= self._until else None)


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    made = Hours({300, 600, 900, 1200, 1500, 1800}, 2000)
    monkeypatch.setattr("tfcollective._control.client.channel.time", made)
    return made


def test_errors_hours_apart_do_not_add_up(hours: Hours) -> None:
    channel = Channel(hours, Retry(wait=hours.wait))
    assert channel.wait_while("node/0/end", "node/0", 15.0) == Entry(True, 1)
    assert hours.asked == 2000


def test_a_long_wait_takes_no_time_from_retries(hours: Hours) -> None:
    """The request that waited for 25 s when the link broke is retried for as long as any other."""
    hours._unanswered = set(range(2, 2000))
    begun: list[float] = []
    retry = Retry(seconds=10 * TIMING.poll, tries=1, wait=hours.wait, note=lambda error: begun.append(hours.now))
    with pytest.raises(CoordinatorUnreachableError):
        Channel(hours, retry).wait_while("node/0/end", "node/0", 15.0)
    assert hours.now - begun[0] >= 10 * TIMING.poll


def test_orders_are_delivered_in_order_by_a_thread() -> None:
    client = Client(1, LOST, 2, LOST)
    orders = OrderQueue(Channel(client), "k")
    orders.put("a")
    until(lambda: len(client.asked) == 1)
    orders.put("b")
    until(lambda: len(client.asked) == 3)
    assert client.asked == [("k/0", "a"), ("k/1", "b"), ("k/1", "b")]  # none is sent again with the next one
