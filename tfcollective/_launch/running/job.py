"""A job while it runs, as its launcher holds it: coordinator, private directory, orders of its agents, how it ended."""

from __future__ import annotations

import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import psutil

from tfcollective._base.clock import every
from tfcollective._base.descriptors import many_descriptors
from tfcollective._base.errors import CoordinatorError
from tfcollective._base.failures import ExitReason, ExitRecord
from tfcollective._base.job_keys import new_key
from tfcollective._base.log import get_logger
from tfcollective._base.machine.network import interface_addresses, with_interface
from tfcollective._base.settings import Settings, variable
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, Placement
from tfcollective._base.verdict import Decision, Rules, Standing, Verdict, verdict
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Exited
from tfcollective._control.records import JobDirectory, JobRecord
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.snapshot import JobSnapshot, TaskState, TaskView
from tfcollective._control.state.events import Admit, CloseAdmission, JobEvent
from tfcollective._control.store_keys import MODULES
from tfcollective._control.wire.protocol import ServerOptions, read_published
from tfcollective._launch.agent.protocol import AgentConfig, Command, DumpCommand, KillCommand, NodeSettings, WorkerPlan
from tfcollective._launch.launcher import AuxiliaryTaskEnd, JobOutcome, StartFailure
from tfcollective._launch.plan.placement import Slot
from tfcollective._launch.plan.planner import Plan, plan_newcomer
from tfcollective._launch.plan.rank_variables import meeting_variables, rendezvous_variables, scopes_of
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.running import function
from tfcollective._launch.running.stacks import StackReports

if TYPE_CHECKING:
    from tfcollective._control.serve.gloo_store import GlooStoreServer

_LOG = get_logger(__name__)
_LOOPBACK = "127.0.0.1"
_LOOK_S = 1.0


def new_job_id(prefix: str = "job") -> str:
    """A name that no other job has."""
    return f"{prefix}-{secrets.token_hex(4)}"


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


class Job:
    """A context manager: while it is open, the coordinator serves the job and ``tfcollective status`` finds it.

    A launcher opens one, starts agents with :meth:`agent_config`, registers each with :meth:`watch`, waits for them,
    and asks for the :meth:`outcome`.

    Args:
        spec: what to run.
        plan: its processes.
        bind_host: the address of the interface that the agents and the ranks reach.
        bind_port: the port; 0: any free one.
        job_id: its name; None: a new one.
        key: the job key; None: the spec's, or a new one.
        observers: called with a snapshot of the job every second, one after the other on a thread of their own.
    """

    def __init__(
        self,
        spec: JobSpec,
        plan: Plan,
        *,
        bind_host: str = _LOOPBACK,
        bind_port: int = 0,
        job_id: str | None = None,
        key: bytes | None = None,
        observers: Sequence[Callable[[JobSnapshot], None]] = (),
    ) -> None:
        self.spec = spec
        self._observers = observers
        self._plan = plan
        self._options = ServerOptions(
            new_job_id() if job_id is None else job_id,
            key or spec.key or new_key(),
            plan.tasks,
            spec.start_timeout,
            bind_host=bind_host,
            bind_port=bind_port,
            silence_limit=_silence_limit(spec),
            stall_warning=spec.stall_warning,
            auxiliary_tasks=spec.auxiliary_tasks,
            first_generation=spec.first_generation,
            bounds=spec.bounds,
            ports=spec.port_range,
        )
        self._orders = _TaskOrders()
        self.exits: queue.SimpleQueue[ExitRecord | None] = queue.SimpleQueue()  # None: look whether to go on
        self._auxiliary_tasks = _AuxiliaryTaskWatch(
            {task: spec.limit_of(task) for task in spec.auxiliary_tasks}, self._orders
        )
        self.stacks = StackReports(lambda: CoordinatorClient.to(self.coordinator, self.key, self.job_id))
        self._store: GlooStoreServer | None = None
        self._meeting_place: Endpoint | None = None
        self._places: dict[str, str] = {}  # of processes that joined later
        self._open = ExitStack()

    def __enter__(self) -> Job:
        parent = Settings.load().jobs_directory()
        with ExitStack() as opened:
            opened.enter_context(many_descriptors())  # the coordinator has a connection to each rank and agent
            self._directory = opened.enter_context(JobDirectory.create(parent, self.job_id))
            opened.callback(self._auxiliary_tasks.close)
            self._coordinator = opened.enter_context(CoordinatorServer(self._options, on_event=self._take_event))
            self._publish_record()
            self.stacks.start()
            opened.callback(self.stacks.close)
            if self.spec.call is not None:
                function.publish(self.spec.call, self._coordinator)
            if self._observers:
                show = partial(_show, self._coordinator, self._observers)
                opened.enter_context(every(_LOOK_S, show, "tfc-observers"))
            self._open = opened.pop_all()
        _LOG.info("%s: coordinator at %s, records in %s", self.job_id, self.coordinator, self._directory.path)
        return self

    def __exit__(self, *unused: object) -> None:
        self._open.close()

    def _take_event(self, event: JobEvent) -> None:
        if event.exited is not None:
            self.exits.put(event.exited)
        if event.dropped is not None:
            self._orders.kill(*event.dropped)
        if event.silent is not None:
            self._silent(*event.silent)
        if event.stalled is not None:
            self.stacks.show_stall(event.stalled)
        if event.dump is not None:
            self._orders.dump(*event.dump)
        if event.trained:
            self._auxiliary_tasks.training_ended()

    def _publish_record(self) -> None:
        """Lets ``tfcollective status`` find the job."""
        created, endpoint = psutil.Process().create_time(), self._coordinator.endpoint
        about = self.job_id, endpoint, self.key, os.getpid(), created, self.spec.command
        self._directory.publish(JobRecord(*about, log_dir=self.spec.log_dir or ""))

    @property
    def job_id(self) -> str:
        """The name of the job."""
        return self._options.job_id

    @property
    def key(self) -> bytes:
        """The job key."""
        return self._options.key

    @property
    def coordinator(self) -> str:
        """HOST:PORT."""
        return str(self._coordinator.endpoint)

    @property
    def scratch_dir(self) -> str:
        """The job's private directory on this machine."""
        return str(self._directory.path)

    def settle(self, plan: Plan, meeting_place: Endpoint | None) -> None:
        """Takes the same processes on hosts that are known only now, before any agent has begun, and where rank 0 of
        JAX or torch may listen."""
        self._plan = plan
        self._meeting_place = meeting_place

    @property
    def failed(self) -> bool:
        """True if the rest of the job has to be ended: a rank has failed that it cannot do without."""
        return judge(self.view, self._plan.tasks, self.spec.rules).decision is Decision.FAIL

    def outlasts(self, tasks: Collection[TaskKey], failure: str) -> bool:
        """Notes that the node of these tasks has gone, as ``failure`` says; True if the job continues without it."""
        if self.spec.bounds is None:
            return False
        self.note_lost(tasks, failure)
        _LOG.warning("%s; the other ranks continue", failure)
        return not self.failed

    def note_lost(self, tasks: Collection[TaskKey], how: str = "") -> None:
        """Notes that the node of these tasks has gone, as ``how`` says: tasks whose end no agent has reported have
        ended with it."""
        for one in self.view.tasks:
            if one.task in tasks and one.exit is None:
                # An order to start may reach an agent that is about to end.
                reason = ExitReason.NOT_STARTED if one.state is TaskState.EXPECTED else ExitReason.LOST
                about = (str(one.task), one.rank, one.node, one.pid, None, None, math.inf)
                self._coordinator.apply(Exited(ExitRecord(*about, reason, how)))

    def note_unstarted(self, tasks: Collection[TaskKey]) -> None:
        """Notes that those of these tasks that no agent has started will not be started."""
        views = self.view.tasks if tasks else ()
        self.note_lost([one.task for one in views if one.task in tasks and one.state is TaskState.EXPECTED])

    def has_finished(self, tasks: Collection[TaskKey]) -> bool:
        """True if all of these tasks have ended without failure."""
        view = self.view
        exits = [one.exit for one in view.all_tasks if one.task in tasks]
        return all(record is not None and not record.failed for record in exits)

    @property
    def view(self) -> JobSnapshot:
        """The job as it stands. Raises CoordinatorError when the coordinator's thread does not answer."""
        return self._coordinator.snapshot()

    @property
    def slow_modules(self) -> tuple[str, ...]:
        """The modules of the ranks that take seconds to import, once they have said so."""
        named = self._coordinator.get_blob(MODULES) or b""
        return tuple(filter(None, named.decode().split(",")))

    def admit(self, worker: WorkerPlan, send: Callable[[Command], None], change: int = 0) -> None:
        """Admits one more process, whose agent gets orders by ``send``; ``change``: see :meth:`Rounds.admit`."""
        self._coordinator.apply(Admit(worker.task, change))
        self._places[str(worker.task)] = worker.place
        self._orders.add([worker.task], send)

    def close_admission(self) -> None:
        """Admits no further process: ranks that are too few need not wait for one."""
        self._coordinator.apply(CloseAdmission())

    def newcomer(self, task: TaskKey, rank: int, slot: Slot, place: Placement) -> WorkerPlan:
        """A process that joins the job while it runs; see :func:`plan_newcomer`."""
        return plan_newcomer(self.spec, self._plan, task, rank, slot, place)

    def dismiss(self, task: TaskKey) -> None:
        """Ends a process that waits to be taken into the world when training is over."""
        self._orders.kill(task, "was no longer needed", reason=ExitReason.DISMISSED)

    def node_settings(self, name: str, timeout: float) -> NodeSettings:
        """Returns the settings of this node's agent; ``timeout``: how long (s) it may take to enrol."""
        ports = len(self._plan.on(name)) if self.spec.emit_tf_config else 1
        interfaces = self.spec.network_interfaces
        return NodeSettings(self.coordinator, self.key.hex(), name, interfaces, timeout=timeout, ports=ports)

    def agent_config(self, workers: Sequence[WorkerPlan]) -> AgentConfig:
        """Returns the configuration of the agent of these processes."""
        return AgentConfig(
            self.job_id,
            tuple(replace(worker, env=self._env_of(worker)) for worker in workers),
            size=self.spec.num_proc,
            rules=self.spec.rules,
            **self.spec.process_options,
        )

    def _env_of(self, worker: WorkerPlan) -> Mapping[str, str]:
        """Returns the worker's variables with what only the open job knows: where ranks of JAX, torch and Horovod
        meet."""
        if worker.is_auxiliary_task:
            return worker.env
        env = self._engine_env(worker)
        if self.spec.bounds is not None or self._meeting_place is None:
            return env
        found = meeting_variables(worker.rank, self.spec.num_proc, self._meeting_place)
        return {**env, **{name: value for name, value in found.items() if name not in self.spec.rank_env}}

    def _engine_env(self, worker: WorkerPlan) -> Mapping[str, str]:
        """Returns the worker's variables, with the place where Horovod's ranks meet."""
        if self.spec.engine != "horovod":
            return worker.env
        if self._store is None:  # not before the hosts are known, of which the plan speaks
            from tfcollective._control.serve.gloo_store import GlooStoreServer  # not sooner: aiohttp takes a moment

            scopes = scopes_of(one.env for one in self._plan.workers)
            self._store = self._open.enter_context(GlooStoreServer(scopes, self._options.bind_host))
        env = {**rendezvous_variables(self._store.endpoint), **worker.env}
        return with_interface(env, env.get(variable("bind_host")), interface_addresses())

    def watch(self, workers: Sequence[WorkerPlan], send: Callable[[Command], None]) -> None:
        """Gives their agents with ``send`` the orders that concern these tasks."""
        self._orders.add([worker.task for worker in workers], send)

    def _silent(self, task: TaskKey, seconds: float) -> None:
        """Called on the coordinator's thread; a rank can be silent only after an agent has started it. Its agent looks
        whether the process is stopped: heartbeats also fail to come while a long call into C holds Python's lock."""
        limit = f" (--op-timeout {self.spec.op_timeout:g}"
        limit += f" and {TIMING.rank_silent:g} s more)" if self.spec.bounds is None else ")"
        if seconds < _silence_limit(self.spec):
            limit = ", and the others waited for it to connect"  # a newcomer
        self._orders.kill(task, f"sent no heartbeat for {seconds:.0f} s{limit}", if_stopped=True)

    def outcome(
        self,
        received: Sequence[int],
        agent_failure: AgentFailure | None,
        *,
        host_lost: bool = False,
        side_failures: Mapping[str, str] | None = None,
    ) -> JobOutcome:
        """Returns the outcome of the job, after all agents have ended.

        Args:
            received: the signals that asked the launcher to stop.
            agent_failure: what happened to an agent that did not do its work to the end, or None.
            host_lost: whether that was a host that does not answer any more.
            side_failures: the same of agents that had auxiliary tasks only, by task.
        """
        view = self.view
        tasks = [one.task for one in view.tasks]  # those that replaced others, too
        results = function.collect(tasks, self._coordinator) if self.spec.call is not None else {}
        failure = view.failure
        agent_failure = agent_failure or unreported(view)
        judged = judge(view, self._plan.tasks, self.spec.rules, ended=True)
        return JobOutcome(
            exits=judged.ends,
            survived=judged.survived,
            changes=view.changes if self.spec.bounds is not None else (),
            initialised=view.initialised,
            start_failure=None
            if failure is None
            else StartFailure(failure.message, failure.timed_out, met=view.generation > 0),
            stopped_by=received[0] if received else None,
            agent_failure=None if agent_failure is None else agent_failure.message,
            agent_failed_at=0.0 if agent_failure is None else agent_failure.at,
            results=results,
            host_lost=host_lost,
            places={**{str(one.task): one.place for one in self._plan.processes}, **self._places},
            auxiliary_tasks=tuple(_auxiliary_task_end(task, side_failures or {}) for task in view.auxiliary_tasks),
            published={str(task.task): read_published(task.info) for task in view.tasks if task.info},
            durations=view.durations,
            generation=view.generation,
            stalled=self.stacks.of_stall if view.stalled else (),
        )


def _show(coordinator: CoordinatorServer, observers: Sequence[Callable[[JobSnapshot], None]]) -> None:
    try:
        snapshot = coordinator.snapshot()
    except CoordinatorError as error:
        _LOG.debug("the observers cannot be shown the state of the job: %s", error)
        return
    for observer in observers:
        observer(snapshot)


class _TaskOrders:
    """Orders that concern tasks, for the agents that have them. From any thread."""

    def __init__(self) -> None:
        self._send: dict[TaskKey, Callable[[Command], None]] = {}

    def add(self, tasks: Sequence[TaskKey], send: Callable[[Command], None]) -> None:
        """Notes how to send orders to the agent of these tasks."""
        self._send.update(dict.fromkeys(tasks, send))

    def dump(self, number: int, tasks: Sequence[TaskKey]) -> None:
        """Has the stacks of these tasks sent to the coordinator, by one order to each agent."""
        agents: dict[Callable[[Command], None], list[TaskKey]] = {}
        for task in tasks:
            if task in self._send:
                agents.setdefault(self._send[task], []).append(task)
        for send, its_tasks in agents.items():
            send(DumpCommand(number, tuple(its_tasks)))

    def kill(self, task: TaskKey, why: str, *, if_stopped: bool = False, reason: ExitReason = ExitReason.ENDED) -> None:
        """Kills a task that would keep the job running forever; does nothing if no agent has it."""
        send = self._send.get(task)
        if send is not None:
            send(KillCommand(str(task), why, if_stopped, reason))


class _AuxiliaryTaskWatch:
    """Ends auxiliary tasks that stay too long when training has ended."""

    def __init__(self, limits: Mapping[TaskKey, float], orders: _TaskOrders) -> None:
        self._limits = limits
        self._orders = orders
        self._timers: list[threading.Timer] = []

    def training_ended(self) -> None:
        """Called on the coordinator's thread: from now on their time runs."""
        for task, limit in self._limits.items():
            reason = f"had not ended {limit:g} s after training, and was killed"
            timer = threading.Timer(limit, self._orders.kill, (task, reason))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def close(self) -> None:
        """Cancels all pending kills."""
        for timer in self._timers:
            timer.cancel()


def _auxiliary_task_end(view: TaskView, lost: Mapping[str, str]) -> AuxiliaryTaskEnd:
    started = view.state is not TaskState.EXPECTED
    return AuxiliaryTaskEnd(str(view.task), view.exit, read_published(view.info), started, lost.get(str(view.task), ""))


def unreported(view: JobSnapshot) -> AgentFailure | None:
    """Returns a failure for ranks whose end no agent has reported: they must not pass for a success."""
    silent = ", ".join(f"rank {task.rank} ({task.task})" for task in view.tasks if task.exit is None)
    if not silent:
        return None
    message = f"no agent has reported how {silent} ended: the launcher may have been stopped meanwhile"
    return AgentFailure(message, time.monotonic())


def _silence_limit(spec: JobSpec) -> float:
    """Returns how long (s) a rank may send no heartbeat before its agent checks whether it is stopped: longer than the
    others, who name it, wait for it. In an elastic job shorter, to give it up before their operations fail."""
    return spec.op_timeout + TIMING.rank_silent if spec.bounds is None else 0.75 * spec.op_timeout


def judge(view: JobSnapshot, first: Sequence[TaskKey], rules: Rules, *, ended: bool = False) -> Verdict:
    """Returns the verdict on the tasks in ``view``; ``first``: the tasks of the first world; ``ended``: all agents have
    ended."""
    standing = Standing(
        first=() if view.initialised else [str(task) for task in first],
        members={str(task) for task in view.members if not view.trained or task in view.done},
        leavers=view.leavers,
        met=view.initialised,
        broken=view.failure is not None,
        ended=ended,
    )
    return verdict([one.exit for one in view.tasks if one.exit is not None], standing, rules)
