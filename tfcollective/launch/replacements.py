"""Has an elastic job's lost processes replaced, and says when no more will be."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from tfcollective.agent.protocol import FinishCommand, StartCommand
from tfcollective.control.state import TaskState
from tfcollective.failures import ExitRecord
from tfcollective.launch.nodes import Node
from tfcollective.launch.plan.rank_variables import replacement_variables
from tfcollective.launch.running.job import Job
from tfcollective.log import get_logger
from tfcollective.tasks import WORKER, TaskKey
from tfcollective.timing import TIMING

_LOG = get_logger(__name__)
_FIRST_BLOCK_S = 30.0
_LONGEST_BLOCK_S = 3600.0


def blocked_for(failures: int) -> float:
    """How long (s) nothing is started on a host after so many failures there: not at all after the first."""
    return 0.0 if failures < 2 else min(_LONGEST_BLOCK_S, _FIRST_BLOCK_S * 2.0 ** (failures - 2))


class Replacements:
    """A context manager: while it is open, a process that was lost is replaced on its own node, until one has ended
    well: then training is over.

    Args:
        job: the open job, elastic.
        nodes: which node runs which tasks.
    """

    def __init__(self, job: Job, nodes: Mapping[TaskKey, Node]) -> None:
        self._job = job
        self._nodes = dict(nodes)
        self._live = {task for task in nodes if task.is_trainer}  # an auxiliary task is not replaced
        self._failures: Counter[int] = Counter()  # by the node's number
        self._due: list[tuple[float, int, TaskKey]] = []  # when to start, in which order, like which task
        self._next = max((task.index for task in nodes if task.type == WORKER), default=-1) + 1
        self._over = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfc-elastic", daemon=True)

    def __enter__(self) -> Replacements:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._job.exits.put(None)  # it may wait for one
        self._thread.join(TIMING.event_loop)
        if kind is None:
            self._forget_unstarted()

    def _run(self) -> None:
        try:
            self._follow()
        except Exception:  # noqa: BLE001  # whatever it is, the agents would wait for ever for what is ordered here
            _LOG.exception("no more lost ranks are replaced")
            self._order_finish()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            wait = TIMING.idle if not self._due else min(TIMING.idle, max(0.0, self._due[0][0] - time.monotonic()))
            with suppress(queue.Empty):
                record = self._job.exits.get(timeout=wait)
                if record is not None:
                    self._ended(record)
            while self._due and self._due[0][0] <= time.monotonic():
                self._start(heapq.heappop(self._due)[2])
            self._forget_unstarted()
            if not self._live and not self._due and not self._over:
                self._finish()

    def _ended(self, record: ExitRecord) -> None:
        task = TaskKey.parse(record.task)
        if task not in self._live:
            return
        self._live.remove(task)
        left = task in self._job.view.leavers
        if left:
            _LOG.warning("%s has left in order, the other ranks go on", task)
        goes_on = left or record.leaving or (record.failed and not record.stopped)
        if self._job.failed or not goes_on:
            self._due.clear()
            self._finish()
            return
        if self._over or left or record.leaving:  # nothing is started on a node that is to be taken away
            return
        node = self._nodes[task]
        self._failures[node.facts.number] += 1
        pause = blocked_for(self._failures[node.facts.number])
        if pause:
            _LOG.warning(
                "%s has lost %d ranks: nothing is started there for %g s",
                node.facts.name or "this host",
                self._failures[node.facts.number],
                pause,
            )
        heapq.heappush(self._due, (time.monotonic() + pause, self._next + len(self._due), task))

    def _start(self, like: TaskKey) -> None:
        node = self._nodes[like]
        if self._over or node.ended is not None:
            return
        task = TaskKey(WORKER, self._next)
        self._next += 1
        self._job.admit(task, node.send)
        self._nodes[task] = node
        self._live.add(task)
        _LOG.warning("%s takes the place of %s", task, like)
        spec, size = self._job.spec, len(self._live)
        env = replacement_variables(size - 1, size, spec.env, compat=spec.horovod_compat)
        node.send(StartCommand(task, task.index, like, env))

    def _forget_unstarted(self) -> None:
        """An order to start may reach an agent that is about to end, because its node is to be taken away."""
        if not any(self._nodes[task].ended is not None for task in self._live):
            return
        for one in self._job.view.tasks:
            if one.task in self._live and self._nodes[one.task].ended is not None and one.state is TaskState.EXPECTED:
                self._live.remove(one.task)
                self._job.not_started(one.task)

    def _finish(self) -> None:
        """Nothing is started any more. What still waits to be taken into the world will not be."""
        if self._over:
            return
        self._over = True
        self._order_finish()
        members = set(self._job.view.members)
        # Also one whose start no agent has reported yet: agents carry out their orders one after another.
        for task in sorted(self._live - members if members else (), key=str):
            self._job.dismiss(task)

    def _order_finish(self) -> None:
        for node in {id(node): node for node in self._nodes.values()}.values():
            node.send(FinishCommand())
