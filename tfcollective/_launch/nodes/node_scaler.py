"""Starts agents on hosts while a job runs, and takes in those that come by themselves."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tfcollective._base.errors import TfCollectiveError
from tfcollective._base.log import get_logger
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.store_keys import end_key
from tfcollective._launch.agent.protocol import FinishCommand, NodeFacts, NodeSettings
from tfcollective._launch.nodes.gather import (
    count_enrolled,
    find_gone,
    follow_arrivals,
    gather,
    refuse,
    version_problem,
)
from tfcollective._launch.nodes.live import Agents, Node
from tfcollective._launch.nodes.provider import NodeProvider, Went
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.running.job import Job

_LOG = get_logger(__name__)
_TRIES = 4  # to get a node on another machine


class NodeScaler:
    """Agents that join an elastic job: each is asked for and waited for on a thread of its own, since a host that does
    not answer must not hold up another one.

    Args:
        job: the open job.
        client: for waiting.
        provider: whose nodes they are. Also an attribute.
        agents: to which they are added.
        settings: of one of the first nodes.
        python: the launcher's interpreter, for which each node takes its own.
    """

    def __init__(
        self,
        job: Job,
        client: CoordinatorClient,
        provider: NodeProvider,
        agents: Agents,
        settings: NodeSettings,
        python: str = sys.executable,
    ) -> None:
        self._job = job
        self._client = client
        self.provider = provider
        self._agents = agents
        self._settings = settings
        self._python = python
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._news: dict[str, queue.SimpleQueue[Went]] = {}  # of the nodes that are waited for
        self._threads: set[threading.Thread] = set()

    def open(
        self, host: str, slots: int, then: Callable[[Node | str], None], avoid: Callable[[], Collection[str]] = tuple
    ) -> None:
        """Has an agent started on this host; ``then`` is called, on another thread, with the node that has come, or
        with why none has. It is not called after :meth:`close`. ``avoid`` says on which machines there should be none:
        a node there is given back and asked for again a few times."""
        arguments = (host, slots, then, avoid)
        thread = threading.Thread(target=self._open, args=arguments, name=f"tfc-open-{host}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def follow(self, known: Sequence[NodeFacts], then: Callable[[Host, Node], None]) -> None:
        """Takes in each agent that comes by itself and is not among the known, on a thread of its own: ``then`` is
        called there with the host that the job has more. It is not called after :meth:`close`."""
        arguments = (self._client, [one.number for one in known], lambda facts: self.take_in(facts, then))
        threading.Thread(target=follow_arrivals, args=arguments, name="tfc-door", daemon=True).start()

    def take_in(self, facts: NodeFacts, then: Callable[[Host, Node], None]) -> None:
        """Takes in this agent, or refuses it; see :meth:`follow`. Not one that has gone again: it may have come, and
        ended, before the job had begun."""
        if find_gone(self._client, [facts], self._job.spec.host_timeout):
            _LOG.info("an agent on %s has gone again before it was taken in", facts.host)
            refuse(facts, self._client, self.provider, "it was silent for too long", again=True)  # should it come back
            Channel(self._client).call(lambda client: client.put(end_key(facts.number), None))  # it may never say so
            return
        problem = version_problem(facts)
        if problem is not None:
            _LOG.warning("refused an agent on %s: %s", facts.host, problem)
            refuse(facts, self._client, self.provider, problem)
            return
        facts, slots = self.provider.take_in(facts)
        node = self._begin(facts, slots)
        if node is not None:
            then(Host(facts.name, slots), node)

    def went(self, event: Went) -> None:
        """The provider says that a node has gone; from any thread."""
        if event.instance and any(event.instance == node.facts.instance for node in self._agents.all):
            return  # an earlier one with its name, which had come
        with self._lock:
            waiting = self._news.get(event.name)
        if waiting is not None:
            waiting.put(event)

    def close(self) -> None:
        """Waits for no node any longer."""
        self._closed.set()
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(TIMING.event_loop)

    def _open(
        self, host: str, slots: int, then: Callable[[Node | str], None], avoid: Callable[[], Collection[str]]
    ) -> None:
        news: queue.SimpleQueue[Went] = queue.SimpleQueue()
        with self._lock:
            self._news[host] = news
        answer: Node | str | None
        try:
            answer = self._come(host, slots, news, avoid)
        except TfCollectiveError as error:
            self.provider.release(host)
            answer = str(error)
        finally:
            with self._lock:
                del self._news[host]
                self._threads.discard(threading.current_thread())
        if answer is not None and not self._closed.is_set():
            then(answer)

    def _come(
        self, host: str, slots: int, news: queue.SimpleQueue[Went], avoid: Callable[[], Collection[str]]
    ) -> Node | None:
        """The node, with its part of the job and waited for; None when it is not needed any longer."""
        facts = self._elsewhere(host, news, avoid)
        return None if facts is None else self._begin(facts, slots)

    def _begin(self, facts: NodeFacts, slots: int) -> Node | None:
        """Gives an agent its part of the job, and waits for its end from now on; None if it is no longer needed."""
        node = Node(facts, self._client, self.provider)
        if self._closed.is_set():
            refuse(facts, self._client, self.provider, "the job is over: this agent is not needed")
            return None
        node.begin(self._job, (), self._python, slots)
        if self._agents.add(node):
            return node
        node.send(FinishCommand())  # all others have ended meanwhile
        return None

    def _elsewhere(
        self, host: str, news: queue.SimpleQueue[Went], avoid: Callable[[], Collection[str]]
    ) -> NodeFacts | None:
        """Returns the agent, if possible on a machine that is not to be avoided."""
        for tries_left in reversed(range(_TRIES)):
            facts = self._ask(host, news)
            if facts is None:
                return None
            machine = self.provider.machine(host)
            if machine not in avoid():
                return facts
            if tries_left:
                _LOG.warning("%s has come on %s again, and is given back: ranks were lost there", host, machine)
                refuse(facts, self._client, self.provider, f"another machine than {machine} is wanted")
                self.provider.release(host)
        _LOG.warning("%s is taken on %s though ranks were lost there: there seems to be no other place", host, machine)
        return facts

    def _ask(self, host: str, news: queue.SimpleQueue[Went]) -> NodeFacts | None:
        """The agent of a new node; None when it is not needed any longer."""

        def events() -> Sequence[Went]:
            return [] if news.empty() else [news.get()]

        after = count_enrolled(self._client)
        self.provider.request([replace(self._settings, name=host)])
        while not news.empty():
            news.get()  # of an agent that was there before
        found = gather(
            self._client,
            self.provider,
            [host],
            timeout=self._settings.timeout,
            host_timeout=self._job.spec.host_timeout,
            stopped=self._closed.is_set,
            after=after,
            events=events,
        )
        if not found:
            self.provider.release(host)
            return None
        return found[0]
