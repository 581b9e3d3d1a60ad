"""The nodes of a job as the launcher holds them: their parts of the job, and noticing that one is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from tfcollective._base.codec import encode_line, from_document
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.processes import PASSED_ON
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.store_keys import end_key, node_name
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import (
    PACKAGE,
    Command,
    End,
    NodeFacts,
    Order,
    PrepareCommand,
    SignalCommand,
    StartCommand,
    StopCommand,
    WorkerPlan,
)
from tfcollective._launch.nodes.gather import orders_to
from tfcollective._launch.nodes.provider import NodeKind, NodeProvider, Went
from tfcollective._launch.plan.rank_variables import PYTHONPATH
from tfcollective._launch.running.job import AgentFailure, Job

_LOG = get_logger(__name__)


def stop_limit(command: StopCommand, grace: float) -> float:
    """Returns how long (s) an agent may take to end after this order before it is given up."""
    return TIMING.stop_limit + (grace if command.cause is StopCause.REQUEST else 0.0)


class Node:
    """An enrolled node, wherever its agent runs.

    Args:
        facts: what it has said of itself.
        client: for waiting, and for orders where there is no pipe.
        provider: where it comes from.
        order: see :class:`Timing`.
    """

    def __init__(
        self, facts: NodeFacts, client: CoordinatorClient, provider: NodeProvider, order: float = TIMING.order
    ) -> None:
        self.facts = facts
        self._order = order
        self._end_key = end_key(facts.number)
        self._client = client
        self._provider = provider
        self._write = orders_to(facts, client, provider)
        self._grace = TIMING.grace
        self._host_timeout = TIMING.host_timeout
        self._stop_limit = 0.0
        self._stop_by: float | None = None
        self._finished: Callable[[], bool] = lambda: False
        self._went: Went | None = None
        self._woken = False
        self._launcher_python = ""
        self.began = time.monotonic()
        """When it was given its part."""
        self.ended: float | None = None
        """When its end was noticed."""
        self.lost = False
        """Whether its host or container is gone, or does not answer."""
        self.silent = False
        """Whether it does not answer, for an unknown reason: its machine may be down."""
        self.tasks: list[TaskKey] = []
        """Which processes it has been given, the newest last."""

    def begin(self, job: Job, workers: Sequence[WorkerPlan], launcher_python: str, slots: int = 0) -> None:
        """Gives it its part of the job. Its ranks run under its own interpreter where ours would run here. ``slots``:
        how many ranks it may have, where that changes."""
        self._launcher_python = launcher_python
        self.tasks += (worker.task for worker in workers)
        self._finished = lambda: bool(self.tasks) and job.has_finished(tuple(self.tasks))
        self._grace, self._host_timeout = job.spec.grace, job.spec.host_timeout
        here = job.scratch_dir if self._provider.kind is NodeKind.HERE else ""
        part = job.agent_config([self._localised(worker) for worker in workers])
        self.began = time.monotonic()
        self._write(encode_line(replace(part, scratch_dir=here, slots=slots)))
        job.watch(workers, self.send)

    def start(self, worker: WorkerPlan, slots: int) -> None:
        """Has its agent start one more process; ``slots``: how many ranks it may have now."""
        self.tasks.append(worker.task)
        self.send(StartCommand(self._localised(worker), slots))

    def prepare(self, worker: WorkerPlan, slots: int, modules: tuple[str, ...]) -> None:
        """Has its agent keep a spare ready for a process like this one, which has imported these modules."""
        self.send(PrepareCommand(self._localised(worker), slots, modules))

    def _localised(self, worker: WorkerPlan) -> WorkerPlan:
        argv = worker.argv
        if argv[0] == self._launcher_python:
            argv = (self.facts.executable, *argv[1:])
        path = worker.env.get(PYTHONPATH, "").replace(f"{PACKAGE}{os.sep}", f"{self.facts.package}{os.sep}")
        return replace(worker, argv=argv, env={**worker.env, PYTHONPATH: path} if path else worker.env)

    def send(self, command: Command) -> None:
        """Tells its agent what to do. May be called from a signal handler and from any thread."""
        self._write(encode_line(Order.of(command)))

    def stop(self, command: StopCommand) -> None:
        """Asks its agent to end its processes; from any thread, and from signal handlers. It has a deadline then.

        The first order's limit counts: a later one never gives more time, and Ctrl-C that comes again gives little.
        """
        self.send(command)
        again = self._stop_by is not None
        if again and not (command.cause is StopCause.REQUEST and command.signal == signal.SIGINT):
            return
        limit = self._order + (TIMING.stop_again if again else stop_limit(command, self._grace))
        by = time.monotonic() + limit
        if self._stop_by is None or by < self._stop_by:
            self._stop_limit, self._stop_by = limit, by

    def went(self, event: Went) -> None:
        """The provider says that it has gone; from any thread. What its agent has reported before still counts."""
        self._went = event

    def look(self) -> None:
        """Ends :meth:`wait` where there is nothing to wait for: the node has gone, or its time to end is over. To be
        called again and again, on any one thread."""
        late = self._stop_by is not None and time.monotonic() > self._stop_by
        if self._woken or self.ended is not None or not (late or self._went is not None):
            return
        with suppress(CoordinatorError):  # the next time, then
            reported = self._client.get(self._end_key)  # an agent reports its end before its process ends
            if reported is None:
                self._client.put(self._end_key, None)
            self._woken = True

    def wait(self) -> AgentFailure | None:
        """Waits until its agent has ended; returns the failure if it did not complete its work, else None."""
        try:
            # A launcher that was stopped for a while finds its own request timed out: it asks again.
            entry = Channel(self._client).wait_while(self._end_key, node_name(self.facts.number), self._host_timeout)
            if entry is None:
                return self._silent()
            if entry.value is not None:
                return self._ended(from_document(entry.value, End, f"the end of {self.facts.name}"))
            return self._late() if self._went is None else self._gone(self._went)
        except (CoordinatorError, ConfigError) as error:
            where = f"{self.facts.name}: " if self.facts.name else ""
            return AgentFailure(f"{where}{error}", time.monotonic())
        finally:
            self.ended = time.monotonic()

    def _ended(self, end: End) -> AgentFailure | None:
        """Notes an end that the agent has reported itself."""
        if end.signal is not None and self._provider.kind is NodeKind.LENT and not self._has_finished():
            return self._explained(self._provider.explain(self.facts, 0.0) or f"was ended by {end.signal}")
        return None if end.failure is None else AgentFailure(f"{self.facts.name}: {end.failure}", _before())

    def _gone(self, went: Went) -> AgentFailure | None:
        return None if self._has_finished() else self._explained(went.how)

    def _silent(self) -> AgentFailure | None:
        finished = self._has_finished()  # then its work was done before it fell silent
        how = None if finished else self._provider.explain(self.facts, self._host_timeout)
        self._provider.release(self.facts.name)
        if finished:
            return None
        if how is not None:
            return self._explained(how, self._host_timeout)
        self.lost = self.silent = True
        with suppress(CoordinatorError):
            self._client.put(self._end_key, None)  # it may never say so itself
        self.send(StopCommand(signal.SIGTERM, StopCause.ABANDONED))  # should it come back: the job does without it
        is_host = self._provider.machine(self.facts.name) == self.facts.name
        subject = f"the host {self.facts.name}" if is_host else self._provider.subject(self.facts)
        where = f"{subject} ({self.facts.address})"
        return AgentFailure(
            f"{where} has not answered for {self._host_timeout:g} s: it is down, its agent was stopped, or the network "
            "between it and the launcher is down; its ranks end by themselves",
            _before(self._host_timeout),
        )

    def _explained(self, how: str, silent: float = TIMING.node_heartbeat) -> AgentFailure:
        self.lost = self._provider.kind is NodeKind.LENT
        return AgentFailure(f"{self._provider.subject(self.facts)} {how}", _before(silent))

    def _late(self) -> AgentFailure:
        self._provider.release(self.facts.name)
        self.lost = self._provider.kind is not NodeKind.HERE
        where = f"the host {self.facts.name} ({self.facts.address})" if self.facts.name else "the agent"
        return AgentFailure(
            f"{where} has not ended its ranks within {self._stop_limit:g} s of being asked to", time.monotonic()
        )

    def _has_finished(self) -> bool:
        """False also when the coordinator cannot be asked: then the loss is reported."""
        try:
            return self._finished()
        except CoordinatorError:
            return False


def _before(seconds: float = TIMING.node_heartbeat) -> float:
    """The last moment at which a node certainly lived that has sent no heartbeat for so long."""
    return time.monotonic() - seconds


class Agents:
    """Several agents that end together.

    Args:
        agents: those that have ranks.
        side: those that have auxiliary tasks only: their failures do not concern the others.
        outlasts: whether the job continues after this failure of this one of ``agents``.
        gone: called with each one that has ended, and its failure if it did not end gracefully.

    Attributes:
        side_failures: the failures of agents of ``side``.
    """

    def __init__(
        self,
        agents: Sequence[Node],
        side: Sequence[Node] = (),
        outlasts: Callable[[Node, AgentFailure], bool] = lambda node, failure: False,
        gone: Callable[[Node, AgentFailure | None], None] = lambda node, failure: None,
    ) -> None:
        self._outlasts = outlasts
        self._gone = gone
        self._agents: tuple[Node, ...] = (*agents, *side)
        self._side = tuple(side)
        self._failures: list[AgentFailure] = []
        self._lock = threading.Lock()  # not for :meth:`stop`, which may run in a signal handler
        self._changed = threading.Condition(self._lock)
        self._watched: set[Node] = set()  # by a thread of its own
        self._ended: set[Node] = set()
        self._done: set[Node] = set()  # all that follows from its end has been done
        self._requested: int | None = None
        self._aborted = False
        self._over = False
        self._failed: Callable[[], bool] = lambda: False
        self.side_failures: dict[Node, str] = {}

    def stop(self, number: int) -> None:
        """Asks each agent to end with this signal, which a person or a platform has sent: once, and again only for
        Ctrl-C, which ends all at once. Also for signal handlers."""
        if self._requested is not None and number != signal.SIGINT:
            return
        self._requested = number
        for agent in self._agents:
            agent.stop(StopCommand(number))

    def heed(self, number: int) -> None:
        """Does what a signal to the launcher asks for: stops all, or passes it on to their processes. For signal
        handlers, too."""
        if number not in PASSED_ON:
            self.stop(number)
            return
        for agent in self._agents:
            agent.send(SignalCommand(number))

    def wait(self, failed: Callable[[], bool]) -> AgentFailure | None:
        """Waits until all have ended; returns the failure of the first that did not end gracefully, or None.

        An agent looks after its own node. When the first has ended and ``failed()``, the others are asked, once, to
        stop: their ranks may never have met the one that failed.
        """
        with self._changed:
            self._failed = failed
            for agent in self._agents:
                self._begin_to_watch(agent)
            while self._watched != self._done:
                self._changed.wait()
            self._over = True
        return min(self._failures, key=lambda failure: failure.at, default=None)

    def add(self, agent: Node) -> bool:
        """Adds an agent with ranks to wait for; False if all have ended and the wait is over."""
        with self._lock:
            if self._over:
                return False
            self._agents = (*self._agents, agent)
            self._begin_to_watch(agent)
            requested, aborted = self._requested, self._aborted
        if requested is not None:
            agent.stop(StopCommand(requested))
        elif aborted:
            agent.stop(StopCommand(signal.SIGTERM, StopCause.ELSEWHERE))
        return True

    @property
    def all(self) -> tuple[Node, ...]:
        """All agents, including those that have ended."""
        return self._agents

    @property
    def stopping(self) -> bool:
        """True once they have been asked to end."""
        return self._requested is not None or self._aborted

    @property
    def host_lost(self) -> bool:
        """True if the host of an agent with ranks is gone, or does not answer."""
        return any(agent.lost for agent in self._agents if agent not in self._side)

    def _begin_to_watch(self, agent: Node) -> None:
        if agent not in self._watched:
            self._watched.add(agent)
            threading.Thread(target=self._watch, args=(agent,), daemon=True).start()

    def _watch(self, agent: Node) -> None:
        try:
            self._follow(agent)
        finally:
            with self._changed:
                self._done.add(agent)
                self._changed.notify_all()

    def _follow(self, agent: Node) -> None:
        failure = agent.wait()
        with self._lock:
            self._ended.add(agent)
        self._decide(agent, failure)
        self._gone(agent, failure)

    def _decide(self, agent: Node, failure: AgentFailure | None) -> None:
        if agent in self._side:
            if failure is not None:
                self.side_failures[agent] = failure.message
                _LOG.warning("%s: training continues without it", failure.message)
            return
        if failure is not None and self._requested is None and self._outlasts(agent, failure):
            return
        if failure is not None:
            self._failures.append(failure)
        if failure is not None or self._failed():
            self._abort()

    def _abort(self) -> None:
        """Asks those that still run to stop, unless all have been asked already."""
        with self._lock:
            if self._aborted or self._requested is not None:
                return
            self._aborted = True
            left = [agent for agent in self._agents if agent not in self._ended]
        for agent in left:
            agent.stop(StopCommand(signal.SIGTERM, StopCause.ELSEWHERE))
