"""Keeps an elastic job's processes as they are wanted: what is lost is replaced, and the job follows its hosts."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType

from tfcollective._base.failures import ExitReason, ExitRecord
from tfcollective._base.log import get_logger
from tfcollective._base.tasks import WORKER, TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Placement
from tfcollective._launch.agent.protocol import FinishCommand, LeaveCommand
from tfcollective._launch.nodes.live import Node
from tfcollective._launch.nodes.node_scaler import NodeScaler
from tfcollective._launch.nodes.provider import Arrival, Refill
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.placement import Blocks, Changes, Slot, next_changes
from tfcollective._launch.running.job import Job

_LOG = get_logger(__name__)
# What ends a process without speaking against its host: what became of the node is judged by itself.
_NOT_ITS_HOSTS = (ExitReason.LOST, ExitReason.NOT_STARTED, ExitReason.STOPPED)


class _Phase(IntEnum):
    """The phase of a host's agent; it only ever advances."""

    STARTING = 0  # it has been asked for
    UP = 1
    ENDING = 2  # though not asked from here
    TAKEN_AWAY = 3  # by its platform; it ends when its ranks have left
    CLOSING = 4  # it has been asked to end, and runs nothing


@dataclass
class _HostAgent:
    """The agent of a host, from the moment when it is asked for to its end; ``node`` once it has come."""

    node: Node | None = None
    phase: _Phase = _Phase.STARTING
    prepared: bool = False  # has a warm spare

    def enter(self, phase: _Phase) -> None:
        """Enters this phase, unless it is in a later one."""
        self.phase = max(self.phase, phase)


class Reconciler:
    """A context manager: while it is open, it starts processes and asks others to leave until those that run are those
    that :func:`next_changes` wants. It stops once a process has ended well: training is over.

    One thread decides; exits of processes, ends of agents and new hosts come to it from others.

    Args:
        job: the open job, elastic.
        nodes: which node runs which tasks now, and in which slot; auxiliary tasks have none.
        hosts: on which its processes may run.
        scaler: starts agents on those that have none.
        stopping: whether all agents have been asked to end.
    """

    def __init__(
        self,
        job: Job,
        nodes: Mapping[TaskKey, tuple[Node, Slot | None]],
        hosts: Sequence[Host],
        scaler: NodeScaler,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._job = job
        self._scaler, self._provider = scaler, scaler.provider
        self._stopping = stopping
        self._hosts = tuple(hosts)
        self._agents = {node.facts.name: _HostAgent(node, _Phase.UP) for node, _ in nodes.values()}  # by host
        self._kept = {node.facts.name for node, slot in nodes.values() if slot is None}  # by auxiliary tasks
        self._running = {task: slot for task, (_, slot) in nodes.items() if slot is not None}
        self._leaving: set[TaskKey] = set()
        self._given_up: set[Slot] = set()  # a platform has taken them back
        self._settled: Sequence[TaskKey] = ()
        self._earlier = {slot: task for task, slot in self._running.items()}
        self._blocks = Blocks(job.spec.cooldown_range)  # by machine
        self._blocked: Collection[str] = frozenset()
        known = (*nodes, *(one.task for one in job.view.tasks))  # some may not have been started
        self._next = max((task.index for task in known if task.type == WORKER), default=-1) + 1
        self._started = max(len(self._running), job.spec.num_proc)
        self._first = frozenset(self._running)
        self._begun: dict[TaskKey, float] = {}  # when one that is none of the first was started
        self._begin = time.monotonic()
        self._change = 0  # the number of the newest decision; see _number()
        self._due: dict[Slot, int] = {}  # to be filled: since which decision
        self._over = False
        self._too_few = False  # ranks to train at all
        self._stopped = threading.Event()
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tfc-elastic", daemon=True)

    def __enter__(self) -> Reconciler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._job.exits.put(None)  # it may wait for one
        self._thread.join(TIMING.event_loop)
        # An order to start may have come to an agent that was about to end: all of them have ended now.
        self._job.note_unstarted([task for task in list(self._running) if task in self._begun])

    # ---- from other threads ----------------------------------------------------------------------------------------

    def found(self, hosts: Sequence[Host]) -> None:
        """Takes the current list of hosts."""
        self._post(lambda: self._take_hosts(tuple(hosts)))

    def arrived(self, host: Host, node: Node) -> None:
        """An agent has come by itself."""
        self._post(lambda: self._take_in(host, node))

    def gone(self, node: Node) -> None:
        """The agent of this node has ended, in whatever way."""
        self._post(lambda: self._lose(node))

    def tasks_on(self, node: Node) -> list[TaskKey]:
        """The processes that run there, or are about to."""
        return [task for task, slot in list(self._running.items()) if slot.host == node.facts.name]

    def _tasks_by_host(self) -> Mapping[str, Sequence[TaskKey]]:
        tasks: dict[str, list[TaskKey]] = {}
        for task, slot in self._running.items():
            tasks.setdefault(slot.host, []).append(task)
        return tasks

    def _post(self, news: Callable[[], None]) -> None:
        self._news.put(news)
        self._job.exits.put(None)

    # ---- on its own ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._turn()
            except Exception:  # noqa: BLE001  # whatever it is, the agents would wait forever for what is ordered here
                _LOG.exception("lost ranks are no longer replaced")
                self._over = True  # those that have yet to come get the same order
                self._order_finish()

    def _turn(self) -> None:
        pause = self._reconcile()
        with suppress(queue.Empty):
            self._ended(self._job.exits.get(timeout=pause))
            while True:  # the ends of processes count before that of their agent
                self._ended(self._job.exits.get_nowait())
        while not self._news.empty():
            self._news.get()()

    def _take_hosts(self, hosts: tuple[Host, ...]) -> None:
        _LOG.warning("the hosts of the job are now %s", ", ".join(map(str, hosts)) or "none")
        self._hosts = hosts
        slots = self._slots_by_host
        self._given_up = {slot for slot in self._given_up if slot.number < slots.get(slot.host, 0)}

    def _come(self, host: str, answer: Node | str) -> None:
        del self._agents[host]
        if isinstance(answer, str):
            _LOG.warning("no rank can run on %s: %s", host, answer)
            self._note_block(host, "its agent", self._blocks.lost(host, time.monotonic()))
            return
        if self._machine_of(host) != host:
            self._blocks.clear(host)
        self._add(answer)

    def _take_in(self, host: Host, node: Node) -> None:
        _LOG.warning("an agent has joined: %s", host)
        self._hosts = (*self._hosts, host)
        self._add(node)

    def _add(self, node: Node) -> None:
        self._agents[node.facts.name] = _HostAgent(node, _Phase.UP)
        if node.ended is not None:
            self._lose(node)
        elif self._over:
            node.send(FinishCommand())

    def _lose(self, node: Node) -> None:
        host = node.facts.name
        if self._node_of(host) is not node:
            return
        phase = self._agents.pop(host).phase
        if phase is _Phase.TAKEN_AWAY:
            self._given_up.update(self._running[task] for task in self.tasks_on(node))
        if self._provider.arrival is Arrival.OPEN:
            self._hosts = tuple(one for one in self._hosts if one.name != host)
        if self._provider.refill is Refill.RENEWED:
            self._given_up = {slot for slot in self._given_up if slot.host != host}
        if self._over or self._stopping():
            return
        self._job.note_lost(self.tasks_on(node))
        if phase < _Phase.TAKEN_AWAY:
            self._blame_for_node(node)

    def _ended(self, record: ExitRecord | None) -> None:
        if record is None:
            return
        task = TaskKey.parse(record.task)
        slot = self._running.pop(task, None)
        if slot is None:
            return
        asked = task in self._leaving
        self._leaving.discard(task)
        if record.stopped and not asked and self._node_of(slot.host) is not None:
            self._agents[slot.host].enter(_Phase.ENDING)  # it was asked to end, and ends all that it runs
        left = str(task) in self._job.view.leavers
        if left or record.leaving or asked:
            if left and not self._stopping():
                others = any(one not in self._leaving for one in self._running)
                _LOG.warning("%s has left gracefully%s", task, ", the other ranks continue" if others else "")
            elif asked:
                _LOG.warning("%s %s: it was asked to leave", task, record.how)
            if not asked:
                self._given_up.add(slot)
                if record.leaving:
                    self._give_up_host(slot.host)
        elif self._job.failed or not record.failed:
            self._finish()
        elif record.reason not in _NOT_ITS_HOSTS and not self._over:
            if task not in self._first and self._joined_at(task) is None:  # else the others say that it is lost
                _LOG.warning("%s %s: it had not joined the others yet", task, record.how)
            self._blame(slot.host, record)

    def _give_up_host(self, host: str) -> None:
        """Starts nothing on a preempted host until it has been gone from the list."""
        self._given_up.update(Slot(host, number) for number in range(self._slots_of(host)))
        if self._node_of(host) is not None:
            self._agents[host].enter(_Phase.TAKEN_AWAY)

    def _machine_of(self, host: str) -> str:
        return self._provider.machine(host) or host

    def _blame(self, host: str, record: ExitRecord) -> None:
        machine, task = self._machine_of(host), TaskKey.parse(record.task)
        # However long it has trained: another process meets the same error, and may meet it again and again.
        trained = 0.0 if record.raised else self._trained_for(task)
        pause = self._blocks.failed(machine, time.monotonic(), started=self._begun.get(task, 0.0), trained=trained)
        lost = _hardly_trained("rank", self._blocks.failures(machine), raised=record.raised)
        self._note_block(machine, lost, pause)
        node = self._node_of(host)
        if (
            pause
            and self._provider.refill is Refill.RENEWED
            and machine != host
            and node is not None
            and not self.tasks_on(node)
        ):
            self._close(node)  # its slots are filled elsewhere

    def _blame_for_node(self, node: Node) -> None:
        if self._provider.arrival is Arrival.OPEN:
            return  # the host has gone with it: there is nothing to start there
        host, now = node.facts.name, time.monotonic()
        machine = self._machine_of(host)
        if machine == host or node.silent:
            self._note_block(machine, "its agent", self._blocks.lost(machine, now))
            return
        # A platform has ended it, for whatever reason, and gives another one.
        trained = max(map(self._trained_for, node.tasks), default=0.0)
        pause = self._blocks.failed(machine, now, started=node.began, trained=trained)
        self._note_block(machine, _hardly_trained("node", self._blocks.failures(machine)), pause)

    def _note_block(self, host: str, lost: str, pause: float) -> None:
        if pause:
            _LOG.warning("%s has lost %s: nothing is started there for %g s", host or "this host", lost, pause)

    def _trained_for(self, task: TaskKey) -> float:
        """Returns how long (s) a task that has just ended was in the world."""
        joined = self._joined_at(task)
        if joined is not None:
            return time.monotonic() - joined  # the coordinator's clock is this process's
        return self._job.view.durations.get(str(task), 0.0) if task in self._first else 0.0

    def _joined_at(self, task: TaskKey) -> float | None:
        """Returns when a task that is not of the first world was taken in; None: it was not."""
        return next((change.at for change in self._job.view.changes if task in change.joined), None)

    def _reconcile(self) -> float:
        """Runs one step; returns the longest delay (s) until the next."""
        if self._over:
            return TIMING.idle
        now = time.monotonic()
        if self._stopping() or self._job.failed or now >= self._hopeless_at:
            self._finish()
            return TIMING.idle
        self._blocked = self._blocks.blocked(now)
        changes = next_changes(
            self._hosts,
            self._most,
            self._running,
            leaving=self._leaving,
            members=self._members_with_state(),
            blocked=self._hosts_on(self._blocked),
            given_up=self._given_up,
        )
        self._number(changes)
        for task in changes.leave:
            if self._node_of(self._running[task].host) is not None:  # else its end is about to be noted
                self._ask_to_leave(task)
        # Once rank 0 has completed the training, a new one would find nothing to do.
        for slot in () if self._job.view.trained else changes.start:
            self._fill(slot)
        self._say_if_too_few()
        self._close_unused()
        self._prepare()
        ends = self._blocks.next_end()
        if not self._running and (self._job.view.trained or (not changes.start and ends is None)):
            self._finish()
        waits = [max(0.0, one - now) for one in (ends, self._hopeless_at) if one is not None]
        return min(TIMING.world_looks if self._one_stays_for_others else TIMING.idle, *waits)

    def _number(self, changes: Changes) -> None:
        """Numbers the decision, if there is a new one: what is started or leaves because of it, at whatever time, is
        one change of the hosts."""
        if changes.leave or any(slot not in self._due for slot in changes.start):
            self._change += 1
        self._due = {slot: self._due.get(slot, self._change) for slot in changes.start}

    @property
    def _hopeless_at(self) -> float:
        """The time from which no world can be expected: no process has come to one for so long, and none runs.
        Processes that wait at the coordinator have limits there."""
        bounds = self._job.spec.bounds
        if bounds is None or self._running or self._job.view.generation > 0:
            return math.inf
        return self._begin + bounds.shortage

    def _say_if_too_few(self) -> None:
        bounds, before = self._job.spec.bounds, self._too_few
        left = sum(task not in self._leaving for task in self._running)
        self._too_few = bounds is not None and left < bounds.smallest and not self._job.view.trained
        if self._too_few and not before and bounds is not None:
            what = "training stands still, and the job ends if no others have come within"
            _LOG.warning("ranks left: %d of at least %d: %s %g s", left, bounds.smallest, what, bounds.shortage)

    def _hosts_on(self, machines: Collection[str]) -> Collection[str]:
        """The hosts whose machines are these. One that has no agent is on a machine only if it is one."""
        there = (host for host in self._nodes if self._machine_of(host) in machines) if machines else ()
        return {*machines, *there}

    def _members_with_state(self) -> Sequence[TaskKey]:
        """Returns the members of the newest world that rank 0 is known to have come to. In a newer world some may still
        have to take the state from rank 0, which would leave at once if asked, not at its next commit."""
        view = self._job.view
        infos = {one.task: one.info for one in view.tasks}
        come = view.members and infos.get(view.members[0], {}).get("generation") == view.generation
        if come or not self._settled:  # those of the first world have all that there is
            self._settled = view.members
        return self._settled

    @property
    def _most(self) -> int:
        bounds = self._job.spec.bounds
        return len(self._running) if bounds is None else bounds.largest

    def _slots_of(self, host: str) -> int:
        return next((one.slots for one in self._hosts if one.name == host), 0)

    @property
    def _slots_by_host(self) -> Mapping[str, int]:
        return {one.name: one.slots for one in self._hosts}

    @property
    def _one_stays_for_others(self) -> bool:
        """True if a rank that has lost its slot has not been asked to leave yet."""
        slots = self._slots_by_host
        staying = (slot for task, slot in self._running.items() if task not in self._leaving)
        return any(slot.number >= slots.get(slot.host, 0) for slot in staying)

    def _ask_to_leave(self, task: TaskKey) -> None:
        slot = self._running[task]
        self._leaving.add(task)
        why = f"slot {slot.number} of {slot.host or 'this host'} is gone"
        _LOG.warning("%s is asked to leave: %s", task, why)
        self._nodes[slot.host].send(LeaveCommand(task, why, self._change))

    def _fill(self, slot: Slot) -> None:
        """Starts a process there, or the agent that will, if it is not about to come or to end."""
        host = slot.host
        agent = self._agents.get(host)
        if agent is not None:
            if agent.phase is _Phase.UP and agent.node is not None and agent.node.ended is None:
                self._start(slot, agent.node)
        elif self._provider.refill is not Refill.NONE:
            self._agents[host] = _HostAgent()
            _LOG.warning("an agent is started on %s", host)
            self._scaler.open(
                host,
                self._slots_of(host),
                lambda answer: self._post(lambda: self._come(host, answer)),
                lambda: self._blocked,
            )

    def _start(self, slot: Slot, node: Node) -> None:
        task, rank = TaskKey(WORKER, self._next), self._started
        self._next, self._started = self._next + 1, self._started + 1
        self._begun[task] = time.monotonic()
        earlier = self._earlier.get(slot)
        self._running[task], self._earlier[slot] = slot, task
        worker = self._job.newcomer(task, rank, slot, self._place_of(slot))
        self._job.admit(worker, node.send, self._due.pop(slot))
        if earlier is None:
            _LOG.warning("%s is started on %s", task, worker.place or "this host")
        else:
            _LOG.warning("%s takes the place of %s", task, earlier)
        node.start(worker, self._slots_of(slot.host))
        self._agents[slot.host].prepared = False

    def _prepare(self) -> None:
        """Has a warm spare made on each node all of whose processes train: not before, as these would start later."""
        unprepared = [node for host, node in self._nodes.items() if not self._agents[host].prepared]
        modules = self._job.slow_modules if unprepared and self._job.spec.warm_spares else ()
        if not modules:
            return
        members = set(self._job.view.members)
        tasks = self._tasks_by_host()
        for node in unprepared:
            here = tasks.get(node.facts.name, ())
            if here and members.issuperset(here):
                self._agents[node.facts.name].prepared = True
                slot = self._running[here[0]]
                worker = self._job.newcomer(here[0], self._started, slot, self._place_of(slot))
                node.prepare(worker, self._slots_of(slot.host), modules)

    def _place_of(self, slot: Slot) -> Placement:
        """The place of the newest process, if the world has all that run and do not leave."""
        staying = [one for task, one in self._running.items() if task not in self._leaving]
        hosts = list(dict.fromkeys(one.host for one in staying))
        size, local_size = len(staying), sum(one.host == slot.host for one in staying)
        return Placement(size - 1, size, slot.number, local_size, hosts.index(slot.host), len(hosts))

    def _close_unused(self) -> None:
        """Lets the agents go of hosts that the job has no longer."""
        used = {slot.host for slot in self._running.values()} | self._kept | {host.name for host in self._hosts}
        for host, node in self._nodes.items():
            if host not in used and self._agents[host].phase is not _Phase.CLOSING:
                self._close(node)

    def _close(self, node: Node) -> None:
        self._agents[node.facts.name].enter(_Phase.CLOSING)
        node.send(FinishCommand())

    def _finish(self) -> None:
        """Starts nothing from now on. Processes that still wait to be taken into the world will not be."""
        if self._over:
            return
        self._over = True
        self._order_finish()
        members = set(self._job.view.members)
        # Also one whose start no agent has reported yet: agents carry out their orders one after another.
        for task in sorted(self._running.keys() - members if members else (), key=str):
            self._job.dismiss(task)
        self._job.close_admission()

    def _order_finish(self) -> None:
        for node in self._nodes.values():
            node.send(FinishCommand())

    @property
    def _nodes(self) -> Mapping[str, Node]:
        """The nodes whose agents have come and not ended, by host."""
        return {host: agent.node for host, agent in self._agents.items() if agent.node is not None}

    def _node_of(self, host: str) -> Node | None:
        agent = self._agents.get(host)
        return None if agent is None else agent.node


def _hardly_trained(what: str, count: int, *, raised: bool = False) -> str:
    lost = f"a {what}" if count == 1 else f"{count} {what}s"
    return f"{lost} that {'raised an error' if raised else 'had hardly trained'}"
