"""Calls that outlast a coordinator which does not answer for a while: the only loop that asks again.

One answer that was lost or late is no reason to do without it. Whether a coordinator is lost for good is a question of
its silence, which :mod:`tfcollective._control.client.liveness` judges.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import CoordinatorError, RendezvousError
from tfcollective._base.log import get_logger
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import World
from tfcollective._control import messages
from tfcollective._control.client.client import (
    AskedToLeaveError,
    CoordinatorClient,
    CoordinatorRefusedError,
    TrainingOverError,
    WorldBegunError,
)
from tfcollective._control.messages import Entry, JoinRequest, R, Request
from tfcollective._control.store_keys import item_key

_LOG = get_logger(__name__)
_MOST_NAMES = 8
_T = TypeVar("_T")


@dataclass(frozen=True)
class Retry:
    """The rules by which a request is retried.

    Attributes:
        seconds: for how long, from the first failure on: an answer may be waited for as long.
        tries: how often at least, however long an answer takes.
        pause: between two tries (s).
        first_pause: before the second try (s); each pause is twice as long as the one before.
        errors: what to ask again after.
        hopeless: of them, what not to ask again after.
        note: given every error after which it is asked again.
        wait: waits so many seconds between two tries, or raises when to give up. A coordinator that answers again gives
            no notice.
    """

    seconds: float = TIMING.retry_for
    tries: int = 5
    pause: float = TIMING.retry
    first_pause: float = TIMING.retry
    errors: tuple[type[CoordinatorError], ...] = (CoordinatorError,)
    hopeless: tuple[type[CoordinatorError], ...] = (CoordinatorRefusedError,)
    note: Callable[[CoordinatorError], None] = lambda error: _LOG.info("asking again: %s", error)
    wait: Callable[[float], object] = time.sleep


#: For threads that go on until their channel is closed.
FOREVER = Retry(seconds=math.inf, hopeless=())


def persist(ask: Callable[[], _T], retry: Retry, ended: Callable[[], bool] = lambda: False) -> _T:
    """Returns the result of ``ask``; raises its last CoordinatorError once the retry is over or ``ended`` is true."""
    give_up, tries, pause = math.inf, 0, retry.first_pause
    while True:
        try:
            return ask()
        except retry.errors as error:
            tries += 1
            if tries == 1:
                give_up = time.monotonic() + retry.seconds
            over = tries >= retry.tries and time.monotonic() >= give_up
            if over or ended() or isinstance(error, retry.hopeless):
                raise
            retry.note(error)
        retry.wait(pause)
        pause = min(2 * pause, retry.pause)


class Channel:
    """A process's view of a coordinator, which retries after errors. For several threads.

    Args:
        client: for the calls.
        retry: how to ask again unless a call says otherwise.
        cancelled: whether to stop, besides when ``client`` is closed.
    """

    def __init__(
        self, client: CoordinatorClient, retry: Retry | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._client = client
        self._retry = retry or Retry()
        self._cancelled = cancelled

    @property
    def ended(self) -> bool:
        """True once its calls are no longer retried."""
        return self._client.closed or self._cancelled()

    def call(self, ask: Callable[[CoordinatorClient], _T], retry: Retry | None = None) -> _T:
        """Returns the result of ``ask``; raises its last CoordinatorError once the retry is over or this has ended."""
        return persist(lambda: ask(self._client), retry or self._retry, lambda: self.ended)

    def ask(self, request: Request[R], retry: Retry | None = None) -> R:
        """The answer to ``request``, by :meth:`call`."""
        return self.call(lambda client: client.call(request), retry)

    def join(
        self,
        task: TaskKey,
        *,
        size: int,
        node: str,
        pid: int,
        address: str,
        timeout: float,
        lost: int | None = None,
        first: bool = False,
        ancestors: Sequence[int] = (),
    ) -> World:
        """Joins the next world and blocks until all tasks have. Each of the requests that this takes is retried.

        ``timeout`` (seconds) is a guard for the case that the coordinator does not end the wait itself; ``lost`` is the
        rank of the last world whose connection has ended. Raises RendezvousError that names the missing tasks, or the
        task that ended before it had joined; ``first``: WorldBegunError where the first world has been formed without
        this task, which has not joined then. TrainingOverError: there is none because training is complete.
        AskedToLeaveError: its node is preempted. ``ancestors`` as in :class:`JoinRequest`.
        """
        request = JoinRequest(task, size, node, pid, address, tuple(ancestors))
        deadline = Deadline.after(timeout + TIMING.join_margin)
        while True:
            last = deadline.expired()  # does not wait, and so learns who is missing
            wait = 0.0 if last else min(TIMING.remind, deadline.remaining())
            reply = self.ask(messages.Join(request, wait, lost, first))
            if reply.world is not None:
                return messages.unpack_world(reply.world)
            if reply.leave is not None:
                raise AskedToLeaveError(reply.leave)
            if reply.begun:
                raise WorldBegunError(f"{task} has come too late to the first world of the job")
            if reply.over:
                raise TrainingOverError(reply.failure or "training is complete")
            if reply.failure is not None:
                raise RendezvousError(reply.failure, missing=reply.missing)
            if self.ended:
                raise CoordinatorError("this process left the job while it waited for the next world")
            if reply.missing and not last:
                _LOG.warning("init() waits for %s", _some_of(reply.missing))
            if last:
                text = f"no world within {timeout:g} s; missing: {', '.join(reply.missing)}"
                raise RendezvousError(text, missing=reply.missing)

    def wait_while(self, key: str, name: str, limit: float, *, first: float | None = None) -> Entry | None:
        """Returns the value of ``key`` once there is one; None once the process ``name`` has sent no heartbeat for
        ``limit`` seconds, or for ``first`` seconds if it has never sent one. Each of the requests that this takes is
        retried: a wait may last for days."""
        presence = messages.Presence(name, limit, limit if first is None else first)
        request = messages.Get(key, timeout=TIMING.poll, presence=presence)
        while True:
            found = self.ask(request)
            if found.entry is not None or found.silent:
                return found.entry

    def follow(self, key: str, retry: Retry = FOREVER) -> Iterator[Entry]:
        """Yields the new values of ``key`` until the channel has ended; of several that came at once, only the last.

        Raises CoordinatorError when the retry is over.
        """
        version = 0
        while not self.ended:
            entry = self._unless_ended(partial(_newer, key, version), retry)
            if entry is not None:
                version = entry.version
                yield entry

    def receive(self, key: str, retry: Retry = FOREVER) -> Iterator[Any]:
        """Yields each item that an :class:`OrderQueue` delivers under ``key``, once and in order."""
        for number in itertools.count():
            entry = next(self.follow(item_key(key, number), retry), None)
            if entry is None:
                return  # the channel has ended
            yield entry.value

    def deliver(self, key: str, item: object) -> None:
        """Has what is under ``key`` replaced by ``item``, sooner or later; returns when it is, or the channel ended."""
        self._unless_ended(lambda client: client.put(key, item), FOREVER)

    def _unless_ended(self, ask: Callable[[CoordinatorClient], _T], retry: Retry) -> _T | None:
        try:
            return self.call(ask, retry)
        except CoordinatorError:
            if self.ended:
                return None
            raise


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")


def _newer(key: str, version: int, client: CoordinatorClient) -> Entry | None:
    return client.wait(key, timeout=TIMING.poll, newer_than=version)


class OrderQueue:
    """Items for another process, kept with the coordinator, which that process asks for them (:meth:`Channel.receive`).

    They are delivered in order by a thread of its own, which ends with the channel.
    """

    def __init__(self, channel: Channel, key: str) -> None:
        self._channel = channel
        self._key = key
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, name="tfc-orders", daemon=True).start()

    def put(self, item: object) -> None:
        """Sends a JSON value; from any thread, and from signal handlers."""
        self._queue.put(item)

    def _deliver(self) -> None:
        number = 0
        while not self._channel.ended:
            try:
                item = self._queue.get(timeout=TIMING.idle)
            except queue.Empty:
                continue
            self._channel.deliver(item_key(self._key, number), item)
            number += 1
