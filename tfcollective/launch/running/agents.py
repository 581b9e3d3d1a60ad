"""The agents of one job, as the launcher holds them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tfcollective.agent.config import Command, StopCommand
from tfcollective.agent.policy import StopCause
from tfcollective.log import get_logger

__all__ = ["AgentFailure", "AgentHandle", "Agents"]

_LOG = get_logger(__name__)


@dataclass(frozen=True)
class AgentFailure:
    """An agent that has not done its work to the end.

    Attributes:
        message: what happened to it.
        at: until when it was known to work, in seconds on this process's monotonic clock: what a rank reported before
            that is no consequence of it.
    """

    message: str
    at: float


class AgentHandle(Protocol):
    """One agent, wherever it runs."""

    def send(self, command: Command) -> None:
        """Tells it what to do. May be called from a signal handler and from any thread."""

    def stop(self, command: StopCommand) -> None:
        """Asks it to end its processes; from any thread, and from signal handlers. From now on it has a deadline."""

    def wait(self) -> AgentFailure | None:
        """Blocks until it has ended; what happened when it did not end its work in order, else None."""


class Agents:
    """Several agents that end together.

    Args:
        agents: those that have ranks.
        side: those that have auxiliary tasks only: what happens to them is none of the others' business.

    Attributes:
        side_failures: what happened to those of ``side`` that did not end in order, by their place in it.
    """

    def __init__(self, agents: Sequence[AgentHandle], side: Sequence[AgentHandle] = ()) -> None:
        self._agents = (*agents, *side)
        self._side = tuple(side)
        self._failures: list[AgentFailure] = []
        self._lock = threading.Lock()  # not for :meth:`stop`, which may run in a signal handler
        self._ended: set[AgentHandle] = set()
        self._requested = False
        self._aborted = False
        self.side_failures: dict[int, str] = {}

    def stop(self, number: int) -> None:
        """A person or a platform asks for the end, with this signal: each agent is asked once, and again only when
        Ctrl-C says that it is to be at once. For signal handlers, too."""
        if self._requested and number != signal.SIGINT:
            return
        self._requested = True
        for agent in self._agents:
            agent.stop(StopCommand(number))

    def wait(self, failed: Callable[[], bool]) -> AgentFailure | None:
        """Blocks until all have ended; what happened to the first of those that did not end in order, or None.

        An agent looks after its own node. When the first has ended and ``failed()``, the others are asked, once, to
        stop: their ranks may never have met the one that failed.
        """
        threads = [threading.Thread(target=self._watch, args=(agent, failed), daemon=True) for agent in self._agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return min(self._failures, key=lambda failure: failure.at, default=None)

    def _watch(self, agent: AgentHandle, failed: Callable[[], bool]) -> None:
        failure = agent.wait()
        with self._lock:
            self._ended.add(agent)
        place = next((place for place, one in enumerate(self._side) if agent is one), None)
        if place is not None:
            if failure is not None:
                self.side_failures[place] = failure.message
                _LOG.warning("%s: training goes on without it", failure.message)
            return
        if failure is not None:
            self._failures.append(failure)
        if failure is not None or failed():
            self._abort()

    def _abort(self) -> None:
        """Asks those that still run to stop, unless all have been asked already."""
        with self._lock:
            if self._aborted or self._requested:
                return
            self._aborted = True
            left = [agent for agent in self._agents if agent not in self._ended]
        for agent in left:
            agent.stop(StopCommand(signal.SIGTERM, StopCause.ELSEWHERE))
