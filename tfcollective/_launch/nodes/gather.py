"""Waiting until the nodes of a job have come, wherever they come from: the one place where that is decided."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tfcollective._base.codec import from_document
from tfcollective._base.errors import ConfigError, CoordinatorError, LaunchError, RendezvousError
from tfcollective._base.log import say
from tfcollective._base.timing import TIMING
from tfcollective._base.version import __version__
from tfcollective._control.client.channel import FOREVER, Channel, OrderQueue
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import EnrolledNode, FindGone, ListNodes
from tfcollective._control.store_keys import item_key, orders_key
from tfcollective._launch.agent.protocol import NodeFacts, refusal_line
from tfcollective._launch.nodes.provider import Arrival, NodeKind, NodeProvider, Went

_POLL_S = 0.5
_LOOK_S = 3.0
_PAST_ALL = 1 << 60  # no node has this number


def enrolled(
    client: CoordinatorClient, timeout: float, since: int, cancelled: Callable[[], bool] = lambda: False
) -> tuple[tuple[NodeFacts, ...], int]:
    """Returns the nodes that have enrolled, with numbers from ``since`` on, as many as one answer holds, and the number
    from which to ask again. Waits up to ``timeout`` seconds for the first; retries while the coordinator does not
    answer, unless ``cancelled()``."""
    found = Channel(client, cancelled=cancelled).ask(ListNodes(since, timeout))
    return tuple(map(_facts_of, found.nodes)), found.then


def all_enrolled(client: CoordinatorClient) -> tuple[NodeFacts, ...]:
    """The nodes that have enrolled so far, but for those that ended long ago."""
    found: list[NodeFacts] = []
    page, then = enrolled(client, 0.0, 0)
    while page:
        found += page
        page, then = enrolled(client, 0.0, then)
    return tuple(found)


def count_enrolled(client: CoordinatorClient) -> int:
    """Returns how many nodes have enrolled so far."""
    return Channel(client).ask(ListNodes(_PAST_ALL, 0.0)).count


def _facts_of(node: EnrolledNode) -> NodeFacts:
    """Returns the facts that a node has reported; if they cannot be read, its name and host."""
    try:
        return replace(from_document(node.facts, NodeFacts, "what an agent says of its node"), number=node.number)
    except ConfigError as error:
        name, host = (str(node.facts.get(part, "")) for part in ("name", "host"))
        return NodeFacts(name, host, number=node.number, unreadable=str(error))


def find_gone(client: CoordinatorClient, nodes: Sequence[NodeFacts], host_timeout: float) -> frozenset[int]:
    """Returns the numbers of the nodes whose agents have ended, or sent no heartbeat for so long (s). Retries while the
    coordinator does not answer for a while."""
    numbers = tuple(one.number for one in nodes)
    return frozenset(Channel(client).ask(FindGone(numbers, host_timeout)).nodes)


def version_problem(facts: NodeFacts) -> str | None:
    """Returns why this node cannot take part, or None."""
    if facts.unreadable:
        return f"{facts.unreadable}: use the same tfcollective on all hosts, this one is {__version__}"
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
    """Returns a function that sends a line of orders to this node, also from signal handlers: over the provider's pipe,
    or through the coordinator until ``client`` is closed."""
    pipe = provider.orders(node.name)
    if pipe is not None:
        return pipe
    queued = OrderQueue(Channel(client, FOREVER), orders_key(node.number))
    return lambda line: queued.put(line.decode().rstrip("\n"))


def refuse(
    node: NodeFacts, client: CoordinatorClient, provider: NodeProvider, why: str, *, again: bool = False
) -> None:
    """Orders the agent of this node to end before it has begun: its first order, and its only one. ``again``: it may be
    needed later."""
    line = refusal_line(why, again)
    pipe = provider.orders(node.name)
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

    Refuses nodes that cannot take part. Returns fewer as soon as it is ``stopped()``, or after ``timeout`` if the nodes
    so far are ``enough``. If others may come, later ones are left to :func:`turn_away` or :meth:`NodeScaler.follow`.

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
    gone: frozenset[int] = frozenset()
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
                found, self.seen = enrolled(self.client, _POLL_S, self.seen, stopped)
                self._take_in(found)
            except CoordinatorError:
                if not stopped():
                    raise
                return self._here[: len(self.names)]
            now = time.monotonic()
            late = now - began > timeout
            if late or now - looked >= _LOOK_S:  # not whenever one more has come: there may be a thousand
                looked = now
                self.gone = find_gone(self.client, self.arrivals, self.host_timeout)
            here = self._here
            if len(here) >= len(self.names) or stopped():
                return here[: len(self.names)]
            self._check_events()
            if late and enough(here):
                what = self._describe(here, f"came within {timeout:g} s")
                say(f"{what}; the job begins without the others")
                return here
            if late:
                raise RendezvousError(self._describe(here, f"came within {timeout:g} s", self.provider.advice))
            if now > tell_at and self.provider.kind is not NodeKind.HERE:
                say(f"waiting at {self.client.endpoint}: {self._describe(here, 'are here', self.provider.advice)}")
                tell_at = now + TIMING.remind

    @property
    def _here(self) -> tuple[NodeFacts, ...]:
        return tuple(one for one in self.arrivals if one.number not in self.gone)

    def _take_in(self, found: Sequence[NodeFacts]) -> None:
        for arrival in found:
            if self.after is not None and arrival.name not in self.names:
                continue
            problem = self._unwanted(arrival) or version_problem(arrival)
            if problem is None:
                self.arrivals.append(arrival)
            elif self.provider.arrival is Arrival.OPEN or self._unwanted(arrival) is not None:
                refuse(arrival, self.client, self.provider, problem)
                say(f"refused an agent on {arrival.host}: {problem}")
            elif self.after is not None:
                refuse(arrival, self.client, self.provider, problem)
                raise LaunchError(problem)
            else:
                raise LaunchError(f"nothing was started, because not all hosts can take part:\n  {problem}")

    def _unwanted(self, facts: NodeFacts) -> str | None:
        """Returns why an agent that has enrolled was not asked for, or None."""
        if self.provider.arrival is not Arrival.NAMED:
            return None
        if facts.name not in self.names:
            return f"{facts.name} is not a node of this job"
        if any(one.name == facts.name for one in self.arrivals):
            return f"{facts.name} has come already"
        return None

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
        named = self.provider.arrival is Arrival.NAMED
        parts.append(f"missing: {self.provider.describe_missing(missing)}" if named else f"here: {hosts}")
        gone = [one.host for one in self.arrivals if one not in here]
        parts += [f"gone again: {', '.join(gone)}"] if gone else []
        return "; ".join(parts) + advice


def turn_away(
    client: CoordinatorClient, provider: NodeProvider, known: Sequence[NodeFacts], *, again: bool = False
) -> None:
    """Refuses agents that are not among the known ones until ``client`` is closed; ``again``: until the next start of
    the job, which may need one to replace another."""

    def each(facts: NodeFacts) -> None:
        refuse(facts, client, provider, "the job has its agents: this one is not needed", again=again)

    arguments = (client, [one.number for one in known], each)
    threading.Thread(target=follow_arrivals, args=arguments, name="tfc-door", daemon=True).start()


def follow_arrivals(client: CoordinatorClient, known: Collection[int], each: Callable[[NodeFacts], None]) -> None:
    """Calls ``each`` with every agent that has enrolled and whose number is not among the known, until ``client`` is
    closed."""
    known, since, channel = set(known), 0, Channel(client, FOREVER)
    with suppress(CoordinatorError):  # the job has ended
        while not channel.ended:
            found = channel.ask(ListNodes(since, TIMING.poll))
            since = found.then
            for node in found.nodes:
                if node.number not in known:
                    each(_facts_of(node))
