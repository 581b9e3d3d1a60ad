"""The launcher's part of a job that runs on the platform; see :mod:`tfcollective._launch.hosted.messages`."""

from __future__ import annotations

import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tfcollective._base.codec import encode
from tfcollective._base.errors import CoordinatorError, LaunchError, RendezvousError
from tfcollective._base.log import get_logger
from tfcollective._base.processes import PASSED_ON
from tfcollective._base.settings import variable
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import FOREVER, Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Entry
from tfcollective._launch.agent.main import serve
from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings, WorkerPlan
from tfcollective._launch.hosted.messages import DONE, OUTCOME, STOP, SUBMITTER, ContainerRow, HostedJob, HostedOutcome
from tfcollective._launch.hosted.output_relay import OutputRelay
from tfcollective._launch.launcher import JobOutcome, StartFailure
from tfcollective._launch.nodes.gather import all_enrolled
from tfcollective._launch.nodes.live import Node
from tfcollective._launch.nodes.provider import NodeKind, NodeProvider
from tfcollective._launch.plan.planner import Plan
from tfcollective._launch.restarts import restarted
from tfcollective._launch.run import Assign, by_name, client_of, run_on_nodes
from tfcollective._launch.running.job import Job
from tfcollective._launch.system.signals import forward_signals, heed

_LOG = get_logger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *PASSED_ON)


class ContainerProvider(NodeProvider):
    """The containers of the application in one of which this process runs. They have been asked for with it; to
    request them has to tell them, and the submitter, where the coordinator is. With a :attr:`refill`, each further
    request is for another container in place of one that has gone, or for one more."""

    units = "containers"
    kind = NodeKind.LENT
    advice = ""

    def subject(self, node: NodeFacts) -> str:
        """See :class:`NodeProvider`."""
        return f"the container of {node.name}" + (f" on {node.host}" if node.host else "")

    def release(self, name: str) -> None:
        """See :class:`NodeProvider`: it ends with the application."""

    def close(self) -> None:
        """See :class:`NodeProvider`: they end with the application."""

    def orphaned(self) -> bool:
        """True if the platform's part of the application has gone: it then ends the containers, including this one, and
        what they report is not the end of the job."""
        return False

    @abstractmethod
    def places(self) -> Mapping[str, tuple[str, str]]:
        """Host and address of the log of each container that was there, by its instance; the last one of a name also
        by that."""


def serve_container(settings: NodeSettings) -> int:
    """Runs in every other container: an agent, whose output the submitter sees."""
    client = CoordinatorClient.to(settings.coordinator, bytes.fromhex(settings.key))
    with OutputRelay(client, settings.name):
        return serve(settings, rejoins=False)  # a job that is started again has other containers


def started_again(hosted: HostedJob, earlier: Sequence[str]) -> HostedJob:
    """Returns the job for another launcher, after the platform has lost the earlier ones for these reasons. All its
    ranks are new: they know how often they have been started, and find what the program has saved."""
    spec = hosted.spec
    for _ in earlier:
        spec = restarted(spec, 0)
    count = {variable("restarts"): str(spec.restarts)} if earlier else {}

    def renewed(workers: Sequence[WorkerPlan]) -> tuple[WorkerPlan, ...]:
        return tuple(replace(worker, env={**worker.env, **count}) for worker in workers)

    plan = Plan(renewed(hosted.plan.workers), renewed(hosted.plan.auxiliary_tasks))
    return replace(hosted, spec=spec, plan=plan, earlier=tuple(earlier))


def serve_job(
    hosted: HostedJob,
    bind_host: str,
    platform: ContainerProvider,
    *,
    bind_port: int = 0,
    assign: Assign | None = None,
) -> HostedOutcome:
    """Runs the job to its end and tells the submitter how it ended.

    Args:
        hosted: the job.
        bind_host: the address on which containers and submitter reach the coordinator.
        platform: the containers.
        bind_port: the port on which they do; 0: any free one.
        assign: which container runs what, once they are there; None: what the plan says of the one with its name.

    Raises CoordinatorError or ConfigError when the job cannot even begin, LaunchError when the application ends before
    the job.
    """
    heed(_SIGNALS)
    open_job = Job(
        hosted.spec, hosted.plan, bind_host=bind_host, bind_port=bind_port, job_id=hosted.job_id, key=hosted.key
    )
    with (
        open_job as job,
        # From before the submitter can send one to the end of the report: no signal ends this process without it.
        forward_signals(_SIGNALS, lambda number: None) as received,
        client_of(job, len(hosted.plan.hosts) + 1) as client,
    ):
        _listen_to_submitter(client, followed=hosted.followed)
        ended = _run(hosted, job, client, platform, received, assign or by_name(hosted.plan))
        if platform.orphaned():
            raise LaunchError("the application has ended, and with it the containers")
        _tell(Channel(client), ended, followed=hosted.followed)
    return ended


def _run(
    hosted: HostedJob,
    job: Job,
    client: CoordinatorClient,
    platform: ContainerProvider,
    received: Sequence[int],
    assign: Assign,
) -> HostedOutcome:
    requests = [job.node_settings(name, hosted.allocation_timeout) for name in hosted.plan.hosts]
    nodes: tuple[Node, ...] = ()
    try:
        ran = run_on_nodes(
            job,
            client,
            platform,
            requests,
            assign,
            python=hosted.python,
            stop_signals=_SIGNALS,
            earlier=tuple(received),
        )
        outcome, nodes = ran.outcome, ran.nodes
    except RendezvousError as error:
        outcome = JobOutcome((), initialised=True, start_failure=StartFailure(str(error), timed_out=True))
    except (LaunchError, CoordinatorError) as error:
        outcome = JobOutcome((), initialised=True, agent_failure=str(error))
    outcome = replace(outcome, earlier=hosted.earlier)
    began = min((node.began for node in nodes), default=0.0)
    training = max((node.ended or node.began for node in nodes), default=0.0) - began
    return HostedOutcome(outcome, _rows(hosted, nodes, client, platform), training if nodes else None)


def _rows(
    hosted: HostedJob, nodes: Sequence[Node], client: CoordinatorClient, platform: ContainerProvider
) -> tuple[ContainerRow, ...]:
    came: dict[str, str] = {}
    with suppress(CoordinatorError):  # the platform knows most of it, too
        came = {one.name: one.host for one in all_enrolled(client)}
    places = platform.places()
    rows = []
    for name in hosted.plan.hosts:
        if not any(node.facts.name == name for node in nodes):
            tasks = tuple(str(worker.task) for worker in hosted.plan.on(name))
            host, log = places.get(name, ("", ""))
            rows.append(ContainerRow(name, tasks, host or came.get(name, ""), log))
    for node in nodes:
        facts = node.facts
        host, log = places.get(facts.instance or facts.name, ("", ""))
        lasted = None if node.ended is None else round(node.ended - node.began, 3)
        rows.append(ContainerRow(facts.name, tuple(map(str, node.tasks)), host or facts.host, log, lasted))
    order = {name: place for place, name in enumerate(hosted.plan.hosts)}
    return tuple(sorted(rows, key=lambda row: order.get(row.name, len(order))))


# ---- the submitter ---------------------------------------------------------------------------------------------------


def _listen_to_submitter(client: CoordinatorClient, *, followed: bool) -> None:
    """Signals that it gets become ours, and its end ends the job if it is to. Until ``client`` is closed."""
    threading.Thread(target=_relay_signals, args=(client,), name="tfc-stop", daemon=True).start()
    if followed:
        threading.Thread(target=_watch_submitter, args=(client,), name="tfc-submitter", daemon=True).start()


def _relay_signals(client: CoordinatorClient) -> None:
    for number in Channel(client).receive(STOP):
        if number in _SIGNALS:
            os.kill(os.getpid(), number)


def _watch_submitter(client: CoordinatorClient) -> None:
    try:
        done = _wait_for_submitter(Channel(client, FOREVER), first=TIMING.submitter_comes)
    except CoordinatorError:
        return  # the job has ended
    if done is None:
        _LOG.error("the submitter has sent no heartbeat for %.0f s: ending the job", TIMING.submitter_lost)
        os.kill(os.getpid(), signal.SIGHUP)


def _wait_for_submitter(channel: Channel, first: float | None = None) -> Entry | None:
    """Waits until the submitter has seen the outcome of the job; None if it is gone."""
    return channel.wait_while(DONE, SUBMITTER, TIMING.submitter_lost, first=first)


def _tell(channel: Channel, ended: HostedOutcome, *, followed: bool) -> None:
    """Leaves the outcome, and waits until the submitter has seen it and fetched the results, for as long as it lives:
    the coordinator ends with us."""
    report = encode(ended)  # of a large job it is larger than a message may be
    try:
        channel.call(lambda client: client.put_blob(OUTCOME, report))
        if followed and ended.outcome.stopped_by != signal.SIGHUP:
            _wait_for_submitter(channel)
    except CoordinatorError as error:  # what has happened is still to be said here, and to the platform
        _LOG.error("the submitter cannot learn how the job has ended: %s", error)
