"""Waiting until the nodes of a job have come, wherever they come from: the one place where that is decided."""

from __future__ import annotations

import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tfcollective._version import __version__
from tfcollective.agent.protocol import NodeFacts, end_key, node_name, orders_key, refusal_line
from tfcollective.codec import from_document
from tfcollective.control.channel import FOREVER, Channel, OrderQueue, item_key
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.protocol import NODES
from tfcollective.control.store import Entry
from tfcollective.errors import CoordinatorError, LaunchError, RendezvousError
from tfcollective.launch.provider import NodeProvider, Went
from tfcollective.timing import TIMING

_POLL_S = 0.5
_LOOK_S = 3.0


def enrolled(
    client: CoordinatorClient, timeout: float, have: int, cancelled: Callable[[], bool] = lambda: False
) -> tuple[NodeFacts, ...]:
    """All nodes that have enrolled, once there are more than ``have``, or after ``timeout`` seconds. Outlasts a
    coordinator that does not answer for a while, unless it is ``cancelled()`` then."""

    def ask(client: CoordinatorClient) -> Entry | None:
        entry = client.wait(NODES, timeout=timeout, newer_than=have)  # every enrolment makes one version
        return client.get(NODES) if entry is None else entry

    entry = Channel(client, cancelled=cancelled).call(ask)
    return () if entry is None else _nodes_in(entry)


def _nodes_in(entry: Entry) -> tuple[NodeFacts, ...]:
    found = from_document(entry.value, tuple[NodeFacts, ...], "the list of nodes")
    return tuple(replace(facts, number=number) for number, facts in enumerate(found))


def has_gone(client: CoordinatorClient, number: int, host_timeout: float) -> bool:
    """Whether the agent of the node with this number has ended, or given no sign of life for so long (s). Outlasts a
    coordinator that does not answer for a while."""
    return Channel(client).call(lambda client: client.has_gone(end_key(number), node_name(number), host_timeout))


def version_problem(facts: NodeFacts) -> str | None:
    """Why this node cannot take part, or None."""
    python, ours = facts.python.rpartition(".")[0], platform.python_version().rpartition(".")[0]
    if python != ours:
        return f"{facts.name} has Python {facts.python}, the launcher {ours}: use Python {ours} on all hosts"
    if facts.version == __version__:
        return None
    return (
        f"{facts.name} has tfcollective {facts.version}, the launcher {__version__}: "
        f"install the same one there (pip install tfcollective=={__version__})"
    )


def orders_to(node: NodeFacts, client: CoordinatorClient, provider: NodeProvider) -> Callable[[bytes], None]:
    """What hands a line of orders to this node, also from signal handlers: the provider's pipe to it, or the
    coordinator, until ``client`` is closed."""
    pipe = provider.orders(node.name) if provider.named else None
    if pipe is not None:
        return pipe
    queued = OrderQueue(Channel(client, FOREVER), orders_key(node.number))
    return lambda line: queued.put(line.decode().rstrip("\n"))


def refuse(node: NodeFacts, client: CoordinatorClient, provider: NodeProvider, why: str) -> None:
    """Orders the agent of this node to end before it has begun: its first order, and its only one."""
    line = refusal_line(why)
    pipe = provider.orders(node.name) if provider.named else None
    if pipe is not None:
        pipe(line)
        return
    # On a thread that ends when it is delivered: one that is refused may come again and again.
    key, text = item_key(orders_key(node.number), 0), line.decode().rstrip("\n")
    threading.Thread(target=Channel(client).deliver, args=(key, text), name="tfc-refusal", daemon=True).start()


def gather(
    client: CoordinatorClient,
    provider: NodeProvider,
    names: Sequence[str],
    *,
    timeout: float,
    host_timeout: float,
    stopped: Callable[[], bool] = lambda: False,
    after: int | None = None,
    events: Callable[[], Sequence[Went]] | None = None,
    enough: Callable[[Sequence[NodeFacts]], bool] = lambda here: False,
) -> tuple[NodeFacts, ...]:
    """The nodes of a job, in the order in which they came, once all are there, can take part and still live.

    Those that cannot take part are refused. Returns fewer as soon as it is ``stopped()``, or after ``timeout`` when
    those that are here are ``enough``. What comes later where others may come is left to :func:`turn_away` or
    :meth:`LateNodes.follow`.

    Args:
        client: for waiting; what it leaves for nodes it leaves until it is closed.
        provider: of the nodes, which it has been asked for.
        names: theirs; where they are not named, only how many there are counts.
        timeout: how long (s) they may take to come.
        host_timeout: how long (s) one may be silent meanwhile.
        stopped: whether to give up.
        after: while a job runs: how many nodes had enrolled before these were asked for. Nodes with other names are
            none of this call's business: another one waits for them.
        events: what the provider says of these nodes, where another thread asks it; None: the provider is asked.
        enough: whether these nodes can do without the others.

    Raises:
        RendezvousError: they have not come in time.
        LaunchError: one will never come, or cannot take part.
    """
    gathering = _Gathering(client, provider, tuple(names), host_timeout, events or provider.events, after)
    try:
        here = gathering.wait(timeout, stopped, enough)
    except (LaunchError, RendezvousError) as error:
        for arrival in gathering.arrivals:
            refuse(arrival, client, provider, str(error))
        raise
    return here


@dataclass
class _Gathering:
    client: CoordinatorClient
    provider: NodeProvider
    names: tuple[str, ...]
    host_timeout: float
    events: Callable[[], Sequence[Went]]
    after: int | None = None
    arrivals: list[NodeFacts] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    seen: int = 0

    def __post_init__(self) -> None:
        self.seen = self.after or 0

    def wait(
        self, timeout: float, stopped: Callable[[], bool], enough: Callable[[Sequence[NodeFacts]], bool]
    ) -> tuple[NodeFacts, ...]:
        began = looked = time.monotonic()
        tell_at = began + TIMING.remind
        while True:
            try:
                self._take_in(enrolled(self.client, _POLL_S, self.seen, stopped))
            except CoordinatorError:
                if not stopped():
                    raise
                return self._here[: len(self.names)]
            now = time.monotonic()
            late = now - began > timeout
            if late or now - looked >= _LOOK_S:  # not whenever one more has come: there may be a thousand
                looked = now
                self.gone = {one.number for one in self.arrivals if self._has_gone(one.number)}
            here = self._here
            if len(here) >= len(self.names) or stopped():
                return here[: len(self.names)]
            self._check_events()
            if late and enough(here):
                what = self._describe(here, f"came within {timeout:g} s")
                sys.stderr.write(f"tfcollective: {what}; the job begins without the others\n")
                return here
            if late:
                raise RendezvousError(self._describe(here, f"came within {timeout:g} s", self.provider.advice))
            if now > tell_at and self.provider.others_may_come:
                sys.stderr.write(f"tfcollective: waiting for agents: {self._describe(here, 'are here')}\n")
                tell_at = now + TIMING.remind

    @property
    def _here(self) -> tuple[NodeFacts, ...]:
        return tuple(one for one in self.arrivals if one.number not in self.gone)

    def _take_in(self, found: Sequence[NodeFacts]) -> None:
        for arrival in found[self.seen :]:
            self.seen += 1
            if self.after is not None and arrival.name not in self.names:
                continue
            problem = self._unwanted(arrival) or version_problem(arrival)
            if problem is None:
                self.arrivals.append(arrival)
            elif self.provider.others_may_come or self._unwanted(arrival) is not None:
                refuse(arrival, self.client, self.provider, problem)
                sys.stderr.write(f"tfcollective: refused an agent on {arrival.host}: {problem}\n")
            elif self.after is not None:
                refuse(arrival, self.client, self.provider, problem)
                raise LaunchError(problem)
            else:
                raise LaunchError(f"nothing was started, because not all hosts can take part:\n  {problem}")

    def _unwanted(self, facts: NodeFacts) -> str | None:
        """Why an agent that has enrolled is none that was asked for, or None."""
        if not self.provider.named:
            return None
        if facts.name not in self.names:
            return f"{facts.name} is not a node of this job"
        if any(one.name == facts.name for one in self.arrivals):
            return f"{facts.name} has come already"
        return None

    def _has_gone(self, number: int) -> bool:
        return has_gone(self.client, number, self.host_timeout)

    def _check_events(self) -> None:
        for event in self.events():
            when = "before the job had begun" if self.after is None else "before it had enrolled"
            head = f"{self.provider.subject(NodeFacts(name=event.name))} {event.how} {when}"
            raise LaunchError("; ".join(part for part in (head, event.detail) if part) + self.provider.advice)

    def _describe(self, here: Sequence[NodeFacts], what: str, advice: str = "") -> str:
        came = {one.name for one in here}
        missing = [name for name in self.names if name not in came]
        hosts = ", ".join(one.host for one in here) or "none"
        parts = [f"{len(here)} of {len(self.names)} {self.provider.units} {what}"]
        parts.append(f"missing: {self.provider.describe_missing(missing)}" if self.provider.named else f"here: {hosts}")
        gone = [one.host for one in self.arrivals if one not in here]
        parts += [f"gone again: {', '.join(gone)}"] if gone else []
        return "; ".join(parts) + advice


def turn_away(client: CoordinatorClient, provider: NodeProvider, known: Sequence[NodeFacts]) -> None:
    """From now on, until ``client`` is closed, agents that are not among the known are refused."""

    def each(facts: NodeFacts) -> None:
        refuse(facts, client, provider, "the job has its agents: this one is not needed")

    arguments = (client, [one.number for one in known], each)
    threading.Thread(target=follow_arrivals, args=arguments, name="tfc-door", daemon=True).start()


def follow_arrivals(client: CoordinatorClient, known: Collection[int], each: Callable[[NodeFacts], None]) -> None:
    """Calls ``each`` with every agent that has enrolled and whose number is not among the known, until ``client`` is
    closed."""
    known = set(known)
    with suppress(CoordinatorError):  # the job has ended
        for entry in Channel(client).follow(NODES):
            for one in _nodes_in(entry):
                if one.number not in known:
                    known.add(one.number)
                    each(one)
