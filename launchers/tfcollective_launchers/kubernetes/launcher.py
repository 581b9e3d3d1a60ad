"""Runs a job on Kubernetes, and follows it from here."""

from __future__ import annotations

import base64
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from tfcollective.launcher import (
    SYSTEM_CLOCK,
    TIMING,
    Capabilities,
    CheckedLauncher,
    Clock,
    ConfigError,
    Finding,
    HostedClient,
    HostedJob,
    HostedOutcome,
    JobDescription,
    JobManager,
    JobOutcome,
    JobSpec,
    Launcher,
    LaunchError,
    ManifestLauncher,
    Plan,
    RendezvousError,
    ask_status,
    environ_snapshot,
    forward_signals,
    get_logger,
    new_job_id,
    new_key,
    poll,
    say,
)
from tfcollective_launchers.kubernetes.check import findings
from tfcollective_launchers.kubernetes.cluster import Cluster, ClusterError
from tfcollective_launchers.kubernetes.kinds import Wanted
from tfcollective_launchers.kubernetes.kinds.common import AGENTS, LAUNCHER, PORT
from tfcollective_launchers.kubernetes.manifest import manifest_of
from tfcollective_launchers.kubernetes.names import KEY_FILE
from tfcollective_launchers.kubernetes.objects import (
    begun,
    check_files,
    described,
    files_of,
    launcher_job,
    owned_objects,
    plan_pods,
)
from tfcollective_launchers.kubernetes.options import KubernetesOptions
from tfcollective_launchers.kubernetes.relay import Relay
from tfcollective_launchers.kubernetes.watcher import PodState, PodWatcher, state_of

_LOG = get_logger(__name__)
_JOB = re.compile(r"(?P<namespace>[a-z0-9]([-a-z0-9]*[a-z0-9])?)/(?P<name>[a-z]([-a-z0-9]*[a-z0-9])?)")
_LOOK_S = 0.5
_TAIL_LINES = 20


class KubernetesLauncher(Launcher, CheckedLauncher, ManifestLauncher, JobManager):
    """A Job whose pod runs the launcher with the coordinator, and a Job with an agent in each pod."""

    options = KubernetesOptions
    else_ranks = ""
    observable = False
    capabilities = Capabilities(
        start="pods of an image: a Job with the launcher, an Indexed Job of agents; or `tfcollective manifest`",
        logs="live, each line with its rank; `tfcollective logs`",
        gpus="those of the pod (`--gpus`)",
        elastic="pods that are lost come again; up to `--max-np` as the cluster has room",
        preemption="SIGTERM to the pod, within its grace period",
        restart="`--max-restarts`, as other pods",
        secrets="a Secret, as a file in the pods",
        evaluator="in the first pod",
    )

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        return plan_pods(_wanted(spec), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        wanted = _wanted(spec)
        cluster = Cluster.connect(wanted.options)
        named = replace(wanted.options, name=f"{wanted.name}-{secrets.token_hex(3)}", namespace=cluster.namespace)
        wanted = replace(wanted, options=replace(named, key_secret=f"{named.name}-job"))
        wanted = described(wanted.spec, wanted.options)  # the longer name is checked, too
        hosted = HostedJob(
            job_id=new_job_id(),
            key=spec.key or new_key(),
            spec=replace(spec, warm_spares=False) if spec.bounds is not None else spec,  # it needs memory of its own
            plan=plan_pods(wanted, environ_snapshot()),
            python=sys.executable,
            allocation_timeout=wanted.options.allocation_timeout,
            followed=not wanted.options.detach,
        )
        return _Submitted(cluster, wanted, hosted).run(stop_signals)

    def check(self, platform: Mapping[str, Any]) -> Iterator[Finding]:
        """See :class:`CheckedLauncher`."""
        return findings(platform)

    def manifest(self, spec: JobSpec, typed: Sequence[str] = ()) -> str:
        """See :class:`ManifestLauncher`."""
        return manifest_of(Wanted(spec, KubernetesOptions.of(spec.platform)), typed)

    # ---- jobs that are there ---------------------------------------------------------------------------------------

    def owns(self, job: str) -> bool:
        """See :class:`JobManager`: NAMESPACE/NAME."""
        return _JOB.fullmatch(job) is not None

    def describe(self, job: str) -> JobDescription:
        """See :class:`JobManager`."""
        cluster, name = _opened(job)
        status = _existing(cluster, name).get("status") or {}
        ended = [one for one in status.get("conditions") or () if one["status"] == "True"]
        listed, _ = cluster.pods(_selector(name))
        watched = [state_of(one) for one in listed]
        facts = {
            "job": job,
            "state": ended[-1]["type"].lower() if ended else "running" if status.get("active") else "pending",
            "reason": ended[-1].get("message", "") if ended else "",
            **{f"pod {one.name}": _in_words(one) for one in sorted(watched, key=lambda one: one.name)},
        }
        launcher = next((one for one in watched if one.part == LAUNCHER and not one.ended and one.address), None)
        coordinator = None
        secret = cluster.secret(f"{name}-job")
        if launcher is not None and secret is not None:
            key = bytes.fromhex(base64.b64decode(secret["data"][KEY_FILE]).decode())
            with _reached(cluster, launcher, direct=cluster.inside) as address:
                coordinator = ask_status(address, key)
        return JobDescription({name: text for name, text in facts.items() if text}, coordinator)

    def show_logs(self, job: str) -> int:
        """See :class:`JobManager`."""
        cluster, name = _opened(job)
        listed, _ = cluster.pods(_selector(name))
        if not listed:
            raise LaunchError(f"there are no pods of {job}: it has been deleted, or has not begun")
        for pod in sorted(one["metadata"]["name"] for one in listed):
            try:
                text = cluster.log(pod)
            except ClusterError as error:
                text = f"({error})\n"
            sys.stdout.write(f"==> {pod} <==\n{text}" + ("" if text.endswith("\n") or not text else "\n"))
        return 0

    def kill(self, job: str) -> None:
        """See :class:`JobManager`."""
        cluster, name = _opened(job)
        if cluster.job(f"{name}-{LAUNCHER}") is not None:
            _delete(cluster, name, TIMING.pods_gone, lambda: False)


def _wanted(spec: JobSpec) -> Wanted:
    """The job, checked."""
    spec.refuse_hosts("Kubernetes", "kubernetes", "choose nodes with node_selector and tolerations")
    options = KubernetesOptions.of(spec.platform)
    if spec.max_restarts and options.detach:
        raise ConfigError("detach cannot be combined with max_restarts: no process stays to start the job again")
    return described(spec, options)


class _Submitted:
    """A job while this process looks after it."""

    def __init__(self, cluster: Cluster, wanted: Wanted, hosted: HostedJob, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._hosted = hosted
        self._clock = clock
        self._name = wanted.name
        self._launcher_job = f"{wanted.name}-{LAUNCHER}"
        self._watcher = PodWatcher(cluster, _selector(wanted.name))

    def run(self, stop_signals: Sequence[int]) -> JobOutcome:
        """Runs the job to its end, or until it runs by itself. Whatever fails here, nothing of the job stays in the
        cluster.
        """
        call = self._hosted.spec.call
        files = files_of(self._hosted.to_bytes(), self._hosted.key, None if call is None else call.payload)
        check_files(files)
        with forward_signals(stop_signals, lambda number: None) as received, self._deleted_at_end(received) as kept:
            owner = self._cluster.create(launcher_job(self._wanted))
            for one in owned_objects(self._wanted, files, owner):
                self._cluster.create(one)
            say(f"{self._id}: {self._wanted.most_pods} pods of {self._wanted.options.image} are requested")
            with self._watcher, ExitStack() as opened:
                coordinator = self._find_coordinator(received, opened)
                if coordinator is None:
                    return _stopped_by(received)
                self._cluster.patch_job(self._launcher_job, begun(self._wanted))
                if self._wanted.options.detach and not received:
                    kept.append(True)
                    say(f"{self._id} runs by itself: tfcollective status|logs|kill {self._id}")
                    return JobOutcome((), initialised=True)
                ended = self._follow(coordinator, stop_signals, received)
                self._watcher.quiet()
            return ended.outcome

    @property
    def _id(self) -> str:
        return f"{self._cluster.namespace}/{self._name}"

    def _follow(self, coordinator: str, stop_signals: Sequence[int], received: Sequence[int]) -> HostedOutcome:
        with HostedClient(coordinator, self._hosted.key) as client:
            results = self._hosted.spec.call is not None
            return client.follow(self._hosted.plan, self._gone, stop_signals, results=results, earlier=received)

    # ---- where the coordinator is ----------------------------------------------------------------------------------

    def _find_coordinator(self, received: Sequence[int], opened: ExitStack) -> str | None:
        """Returns the coordinator's address for this process, once it answers; None when a signal came first. Raises
        LaunchError when it never will, and RendezvousError when it takes too long.
        """
        deadline = self._clock.monotonic() + self._wanted.options.allocation_timeout
        address = ""
        while not received:
            self._check_agents()
            launcher = self._launcher()
            if launcher is not None and launcher.ended:
                raise LaunchError(self._describe_end(launcher))
            if launcher is not None and launcher.phase == "Running" and launcher.address:
                if not address:
                    deadline = self._clock.monotonic() + TIMING.master
                    address = opened.enter_context(_reached(self._cluster, launcher, direct=self._direct))
                if ask_status(address, self._hosted.key) is not None:
                    return None if received else address
            if self._clock.monotonic() > deadline:
                raise RendezvousError(self._describe_wait(launcher))
            self._watcher.wait(_LOOK_S)
        return None

    @property
    def _direct(self) -> bool:
        said = self._wanted.options.direct
        return self._cluster.inside if said is None else said

    def _launcher(self) -> PodState | None:
        found = self._watcher.part(LAUNCHER)
        return found[-1] if found else None

    def _check_agents(self) -> None:
        """Raises LaunchError for a pod that can never run: all have the same image."""
        for one in (*self._watcher.part(LAUNCHER), *self._watcher.part(AGENTS)):
            if one.hopeless:
                raise LaunchError(f"{self._id}: {one}")

    def _describe_wait(self, launcher: PodState | None) -> str:
        if launcher is not None and launcher.phase == "Running":
            return f"{self._id}: {launcher}, but its coordinator cannot be reached from here"
        what = "has made no pod for the launcher" if launcher is None else f"says: {launcher}"
        return f"{self._id} has not begun within {self._wanted.options.allocation_timeout:g} s: the cluster {what}"

    # ---- its end ---------------------------------------------------------------------------------------------------

    def _gone(self) -> str | None:
        """Returns why the job is gone, as far as the cluster knows."""
        launcher = self._launcher()
        return self._describe_end(launcher) if launcher is not None and launcher.ended else None

    def _describe_end(self, launcher: PodState) -> str:
        text = f"{self._id} has ended without its coordinator's report: {launcher}"
        lines = [] if launcher.phase == "Deleted" else self._end_of_log(launcher.name)
        return "\n    ".join([f"{text}\n  the end of its log:", *lines]) if lines else text

    def _end_of_log(self, pod: str) -> list[str]:
        with suppress(ClusterError):
            return self._cluster.log(pod, _TAIL_LINES).splitlines()
        return []

    @contextmanager
    def _deleted_at_end(self, received: Sequence[int]) -> Iterator[list[bool]]:
        """Deletes the job at the end of the context, unless something was put into the yielded list."""
        kept: list[bool] = []
        before = len(received)
        try:
            yield kept
        finally:
            self._watcher.quiet()
            if not kept:
                try:
                    # A second signal ends the wait: the cluster knows.
                    grace = self._hosted.spec.grace + TIMING.pods_gone
                    _delete(self._cluster, self._name, grace, lambda: len(received) > before + 1)
                except LaunchError as error:
                    say(f"{self._id} could not be deleted ({error}): tfcollective kill {self._id}")


@contextmanager
def _reached(cluster: Cluster, launcher: PodState, *, direct: bool) -> Iterator[str]:
    """Yields the address at which this process reaches the coordinator in the pod, while the context is open."""
    if direct:
        yield f"{launcher.address}:{PORT}"
        return
    with Relay(lambda: cluster.open_port(launcher.name, PORT)) as relay:
        yield relay.address


def _selector(name: str) -> str:
    return f"app.kubernetes.io/instance={name}"


def _delete(cluster: Cluster, name: str, seconds: float, hurried: Callable[[], bool]) -> None:
    """Deletes both Jobs, with which all else goes, and waits until no pod is there, at most so long. The agents' pods
    go first: the launcher's would miss them."""
    try:
        cluster.delete_job(f"{name}-{AGENTS}", hurried)
    except ClusterError as error:
        _LOG.info("kubernetes: %s: it goes with the launcher's", error)
    cluster.delete_job(f"{name}-{LAUNCHER}", hurried)

    def gone() -> bool | None:
        with suppress(ClusterError):
            return True if hurried() or not cluster.pods(_selector(name))[0] else None
        return None

    if poll(gone, seconds, _LOOK_S) is None:
        raise LaunchError(f"its pods are still there {seconds:g} s after they were deleted")


def _opened(job: str) -> tuple[Cluster, str]:
    match = _JOB.fullmatch(job)
    assert match is not None
    return Cluster.connect(KubernetesOptions(image="-", namespace=match["namespace"])), match["name"]


def _existing(cluster: Cluster, name: str) -> Mapping[str, Any]:
    found = cluster.job(f"{name}-{LAUNCHER}")
    if found is None:
        raise LaunchError(f"there is no job {name} in the namespace {cluster.namespace}")
    return found


def _in_words(one: PodState) -> str:
    return ", ".join(part for part in (one.phase.lower(), one.node and f"on {one.node}", one.why) if part)


def _stopped_by(received: Sequence[int]) -> JobOutcome:
    return JobOutcome((), initialised=True, stopped_by=received[0])
