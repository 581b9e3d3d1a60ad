"""Runs a job as an application on YARN, and follows it from here."""

from __future__ import annotations

import logging
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
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
    LauncherLostError,
    LaunchError,
    Plan,
    RendezvousError,
    Timing,
    ask_status,
    environ_snapshot,
    forward_signals,
    get_logger,
    new_job_id,
    new_key,
    say,
    write_private,
)
from tfcollective_launchers.yarn import records
from tfcollective_launchers.yarn.application import (
    CALL_FILE,
    JOB_FILE,
    KEY_FILE,
    application,
    containers_for_ranks,
    further_requests,
    plan_containers,
    requests,
)
from tfcollective_launchers.yarn.check import findings
from tfcollective_launchers.yarn.cluster import impossible, shortage
from tfcollective_launchers.yarn.environment import archives_of, pack_directories
from tfcollective_launchers.yarn.logs import end_of_log, show_logs
from tfcollective_launchers.yarn.options import YarnOptions
from tfcollective_launchers.yarn.skein_client import (
    AppState,
    SkeinError,
    YarnClient,
    check_programs,
    credential_bytes,
)
from tfcollective_launchers.yarn.table import render_table

_LOG = get_logger(__name__)
_POLL_S = 0.5
_TOKENS = "HADOOP_TOKEN_FILE_LOCATION"
_APPLICATION = re.compile(r"application_\d+_\d+")
_MASTER_LOG = "application.driver.log"


@dataclass(frozen=True)
class Submission:
    """A submitted application: its id, its end, and the outcome of the job in it; no ``state`` if it was detached or
    had to be ended, or YARN gives none."""

    app_id: str
    ended: HostedOutcome
    state: AppState | None


class YarnLauncher(Launcher, JobManager, CheckedLauncher):
    """An application with the coordinator in its master's container and an agent in every other one.

    Attributes:
        last: what it has run last.
    """

    options = YarnOptions
    else_ranks = ""
    observable = False
    capabilities = Capabilities(
        start="containers of an application, with the packed environment",
        logs="live, each line with its rank; `tfcollective logs`, from YARN's logs",
        gpus="those of the container (`gpus=` of a task)",
        elastic="lost containers are requested again; up to `--max-np`",
        preemption="YARN's message to the container: SIGTERM",
        restart="`--max-restarts`, as another application; YARN starts a lost master of an elastic job again",
        secrets="a file of the application that only its user can read",
        evaluator="a container of its own",
    )

    def __init__(self) -> None:
        self.last: Submission | None = None

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        return plan_containers(_checked(spec), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        self.last = run_application(spec, stop_signals=stop_signals)
        return self.last.ended.outcome

    def check(self, platform: Mapping[str, Any]) -> Iterator[Finding]:
        """See :class:`CheckedLauncher`."""
        return findings(YarnOptions.of(platform), self.run)

    def owns(self, job: str) -> bool:
        """See :class:`JobManager`."""
        return _APPLICATION.fullmatch(job) is not None

    def describe(self, job: str) -> JobDescription:
        """See :class:`JobManager`."""
        known = records.recall(job)
        with YarnClient.start() as yarn:
            state = yarn.state(job)
            master, coordinator = look_for_master(yarn, job, state, known)
        if state.ended:
            records.forget(job)
        status = ask_status(coordinator, known.key) if known is not None and coordinator is not None else None
        facts = {
            "application": job,
            "state": state.state.lower(),
            "master": master,
            "final status": "" if not state.ended else state.final_status.lower(),
            "queue": state.queue,
            "diagnostics": state.why,
            "page": state.tracking_url,
        }
        return JobDescription({name: text for name, text in facts.items() if text}, status)

    def show_logs(self, job: str) -> int:
        """See :class:`JobManager`."""
        return show_logs(job)

    def kill(self, job: str) -> None:
        """See :class:`JobManager`."""
        with YarnClient.start() as yarn:
            yarn.kill(job)
            state = yarn.wait_for_end(job, TIMING.application_end)
        if not state.ended:
            raise LaunchError(f"{job} is still {state.state.lower()} {TIMING.application_end:g} s after it was killed")
        records.forget(job)


def look_for_master(
    yarn: YarnClient, job: str, state: AppState, known: records.Record | None
) -> tuple[str, str | None]:
    """Returns a note on an application's master, and the address of its coordinator: a restarted master has a new
    one."""
    if known is None or state.ended:
        return "", None
    if state.state != "RUNNING":
        return "it was lost; YARN starts it again", None
    if not known.certificate:
        return "", known.coordinator
    security = yarn.credentials(known.certificate, known.private_key)
    attempt = yarn.attempt(job, security) or 1
    if attempt == 1:
        return "", known.coordinator
    return f"attempt {attempt}; lost before it: {attempt - 1}", yarn.endpoint(job, security)


def run_application(spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> Submission:
    """Submits a job and follows it to its end. Raises as :meth:`Launcher.run`."""
    options = YarnOptions.of(_checked(spec).platform)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tfcollective-yarn-")))
        spec, options = _with_script(spec, options)
        options = replace(options, files=pack_directories(options.files, folder))
        if _TOKENS in environ_snapshot():
            options = replace(options, file_systems=())  # inside an application of YARN's, its tokens have to do
        if options.python is None and options.archive is None and options.skein_client is None:
            check_programs()  # now: packing the environment takes minutes
        archives = archives_of(options)
        attempts = options.attempts(elastic=spec.bounds is not None)
        spec = replace(spec, max_restarts=spec.max_restarts + attempts - 1)  # YARN restarts it, too
        hosted = HostedJob(
            job_id=new_job_id(),
            key=spec.key or new_key(),
            spec=_elastic(spec) if spec.bounds is not None else spec,
            plan=plan_containers(spec, environ_snapshot()),
            python=sys.executable,
            allocation_timeout=options.allocation_timeout,
            followed=not options.detach,
        )
        document = application(spec, options, _stage(hosted, folder), archives)
        yarn = opened.enter_context(YarnClient.start(options.skein_client))
        _check(yarn, spec, options)
        submitted = Submitted(yarn, hosted, options)
        return submitted.run(document, stop_signals)


def _checked(spec: JobSpec) -> JobSpec:
    spec.refuse_hosts("YARN", "yarn", "keep the job away from some by a node label")
    if spec.max_proc is not None and spec.max_proc > spec.num_proc and not further_requests(spec):
        raise ConfigError("max_proc: the job has no workers of which there could be more: give it some in task_specs")
    if spec.max_restarts and spec.platform.get("detach"):
        raise ConfigError("detach cannot be combined with max_restarts: no process stays to start the job again")
    return spec


def _elastic(spec: JobSpec) -> JobSpec:
    """Returns the job as it runs there. A spare would take its memory from the container's."""
    return replace(spec, hosts=containers_for_ranks(spec), warm_spares=False)


def _check(yarn: YarnClient, spec: JobSpec, options: YarnOptions) -> None:
    """Refuses what YARN would never grant before anything is sent."""
    yarn.check_queue(options.queue)
    problems = impossible((*requests(spec), *further_requests(spec)), yarn.nodes())
    if problems:
        raise ConfigError("YARN can never give what this job asks for:\n  " + "\n  ".join(problems))


def _with_script(spec: JobSpec, options: YarnOptions) -> tuple[JobSpec, YarnOptions]:
    """A script of the command goes with the job: it runs in an empty directory there."""
    script = spec.local_script()
    if script is None:
        return spec, options
    files = {**options.files, script.name: str(script.absolute())}
    return spec.with_script(script.name), replace(options, files=files)


def _stage(hosted: HostedJob, folder: Path) -> dict[str, str]:
    """The files of this job alone; only its user can read them, here and there."""
    wanted = (*requests(hosted.spec), *further_requests(hosted.spec))
    contents = {JOB_FILE: hosted.to_bytes(requests=wanted), KEY_FILE: hosted.key.hex().encode()}
    if hosted.spec.call is not None:
        contents[CALL_FILE] = hosted.spec.call.payload
    for name, data in contents.items():
        write_private(folder / name, data)
    return {name: str(folder / name) for name in contents}


class Submitted:
    """An application while this process looks after it."""

    def __init__(
        self,
        yarn: YarnClient,
        hosted: HostedJob,
        options: YarnOptions,
        clock: Clock = SYSTEM_CLOCK,
        connect: Callable[[str, bytes, Timing], HostedClient] = HostedClient,
    ) -> None:
        self._clock = clock
        self._connect = connect
        self._yarn = yarn
        self._hosted = hosted
        self._options = options
        self._app_id = ""
        self._security: Any = None
        self._elsewhere = options.attempts(elastic=hosted.spec.bounds is not None) > 1  # the next master may be
        self._master = ("", 0)  # where it is
        self._away = False  # YARN does not answer, or does not know the application
        self._remind_at = math.inf
        self._waits_for: frozenset[str] | None = None  # containers, as was seen last

    def run(self, document: Mapping[str, Any], stop_signals: Sequence[int]) -> Submission:
        """Runs it to its end, or until it runs by itself. If anything goes wrong here, the application is ended."""
        with forward_signals(stop_signals, lambda number: None) as received:
            submitted = self._yarn.submit(document, lambda: bool(received))
            if submitted is None:
                return Submission("", HostedOutcome(_stopped_by(received), ()), None)
            self._app_id, self._security = submitted
            say(f"{self._app_id} in the queue {self._options.queue}: submitted")
            with self._ended_on_error():
                coordinator = self._find_coordinator(received)
                if coordinator is None:
                    return self._stopped(received)
                if self._options.detach:
                    return self._stopped(received) if received else self._left()
                followed = self._follow(coordinator, stop_signals, received)
                if followed is None:
                    return self._stopped(received)
        with self._ended_on_error():
            return self._described(followed)

    def _left(self) -> Submission:
        """Leaves the application running without this process."""
        say(f"{self._app_id} runs by itself: tfcollective status|logs|kill {self._app_id}")
        return Submission(self._app_id, HostedOutcome(JobOutcome((), initialised=True), ()), None)

    def _stopped(self, received: Sequence[int]) -> Submission:
        """Ends an application that was asked to stop before it was followed."""
        records.forget(self._app_id)
        self._yarn.kill(self._app_id)
        # YARN knows: a second Ctrl-C ends the wait.
        state = self._yarn.wait_for_end(self._app_id, TIMING.application_end, lambda: len(received) > 1)
        return Submission(self._app_id, HostedOutcome(_stopped_by(received), ()), state)

    def _follow(self, coordinator: str, stop_signals: Sequence[int], received: list[int]) -> HostedOutcome | None:
        """Follows the job to its end, also at the next master's coordinator; None if a signal, now in ``received``,
        came while there was none."""
        self._remind_at = self._clock.monotonic() + TIMING.remind
        while True:
            try:
                return self._follow_one(coordinator, stop_signals, received)
            except LauncherLostError as lost:
                received[:] = lost.received
            say(f"{self._app_id}: its master was lost: YARN starts it again, and all ranks with it")
            try:
                found = self._find_coordinator(received)
            except LaunchError as error:
                outcome = JobOutcome((), initialised=True, agent_failure=str(error), host_lost=True)
                return HostedOutcome(outcome, ())
            if found is None:
                return None
            coordinator = found

    def _follow_one(self, coordinator: str, stop_signals: Sequence[int], received: Sequence[int]) -> HostedOutcome:
        hosted = self._hosted
        lost = TIMING.launcher_lost if self._elsewhere else TIMING.job_lost
        with self._connect(coordinator, hosted.key, replace(TIMING, job_lost=lost)) as client:
            return client.follow(
                hosted.plan,
                self._gone,
                stop_signals,
                results=hosted.spec.call is not None,
                earlier=received,
                replaced=self._replaced,
            )

    def _described(self, ended: HostedOutcome) -> Submission:
        state = self._end()
        records.forget(self._app_id)
        ended = self._explained(ended)
        if state is not None:
            ended = with_cause(ended, state, self._describe_end)
        sys.stderr.write(render_table(self._app_id, ended))
        return Submission(self._app_id, ended, state)

    def _end(self) -> AppState | None:
        """Sees to it that the application ends after its job; how it did by itself. What became of the job is known: a
        ResourceManager that is away does not change it."""
        try:
            state = self._yarn.wait_for_end(self._app_id, TIMING.application_end)
            if state.ended:
                return state
            _LOG.warning("%s is still %s after its job: killing it", self._app_id, state.state)
            self._yarn.kill(self._app_id)
            self._yarn.wait_for_end(self._app_id, TIMING.application_end)
        except SkeinError as error:
            _LOG.warning("its job is over, but YARN does not say that %s has ended: %s", self._app_id, error)
            self._kill()
        return None

    def _kill(self) -> bool:
        """Asks YARN to kill the application; True if YARN has heard. If not, asks the user to do it."""
        try:
            self._yarn.kill(self._app_id)
        except LaunchError as error:
            say(f"{self._app_id} could not be ended ({error}): tfcollective kill {self._app_id}")
            return False
        return True

    def _find_coordinator(self, received: Sequence[int]) -> str | None:
        """Returns its address once the master runs; None if a signal came first. Raises LaunchError if none will."""
        deadline = self._clock.monotonic() + self._options.allocation_timeout
        remind_at = self._clock.monotonic() + TIMING.remind
        running_by = 0.0
        said = ""
        while not received:
            state = self._state_by(deadline)
            if state is None:
                self._clock.sleep(_POLL_S)  # no notice comes when the ResourceManager is back
                continue
            if state.state != said:
                said = state.state
                say(f"{self._app_id}: {said.lower()}")
            if state.ended:
                raise LaunchError(self._describe_end(state))
            if state.state == "RUNNING":
                deadline = running_by = running_by or self._clock.monotonic() + TIMING.master
                found = self._yarn.endpoint(self._app_id, self._security)
                if found is not None:
                    self._master = state.host, state.port
                    records.remember(self._app_id, self._record(found))
                    return None if received else found
            now = self._clock.monotonic()
            if now > deadline:
                raise RendezvousError(self._describe_wait(state, self._options.allocation_timeout))
            if state.state != "RUNNING" and now > remind_at:
                remind_at = math.inf
                say(self._describe_wait(state, TIMING.remind))
            self._clock.sleep(_POLL_S)  # YARN has no call that waits
        return None

    def _state_by(self, deadline: float) -> AppState | None:
        """None while YARN does not answer: its ResourceManager may come back. Raises SkeinError past the deadline."""
        try:
            state = self._yarn.state(self._app_id)
        except SkeinError as error:
            if self._clock.monotonic() > deadline:
                raise
            _LOG.log(logging.DEBUG if self._away else logging.WARNING, "yarn: %s", error)  # once each time
            self._away = True
            return None
        self._away = False
        return state

    def _record(self, coordinator: str) -> records.Record:
        return records.Record(coordinator, self._hosted.key, *credential_bytes(self._security))

    def _replaced(self) -> bool:
        """True if YARN has lost the master that we follow. After YARN's own restart, a master that it has not yet heard
        from is ACCEPTED, too: so its coordinator is asked first."""
        state = self._state_by(math.inf)
        if not self._elsewhere or state is None or state.ended:
            return False
        return state.state != "RUNNING" or (state.host, state.port) != self._master

    def _gone(self) -> str | None:
        state = self._state_by(math.inf)
        if state is not None and state.ended:
            return self._describe_end(state)
        self._remind()
        return None

    def _remind(self) -> None:
        """Says for which containers the start of the job waits: once, and again when it waits for others."""
        if self._clock.monotonic() < self._remind_at:
            return
        names = self._yarn.ungranted(self._app_id, self._security)
        if names is None:
            return
        missing = [request for request in requests(self._hosted.spec) if request.name in names]
        if not missing:
            self._remind_at = math.inf
        elif names != self._waits_for:
            self._waits_for = names
            listed = ", ".join(map(str, missing))
            with suppress(LaunchError):
                say(f"{self._app_id} waits for YARN to grant {listed}; {shortage(missing, self._yarn.nodes())}")

    def _describe_end(self, state: AppState) -> str:
        """The error for an application whose coordinator reported nothing."""
        why = f": {state.why}" if state.why else ""
        text = f"{self._app_id} has ended ({state.final_status.lower()}) without its coordinator's report{why}"
        if state.state == "KILLED":
            return text
        if state.too_large:  # YARN names a queue's limits when containers are asked for, without their names
            return f"{text}; this job asks for {', '.join(map(str, requests(self._hosted.spec)))}"
        lines = end_of_log(self._app_id, _MASTER_LOG)
        return "\n    ".join([f"{text}\n  the end of the coordinator's log:", *lines]) if lines else text

    def _describe_wait(self, state: AppState, seconds: float) -> str:
        if state.state == "RUNNING":
            return f"{self._app_id}: its master runs, but has not started the coordinator within {TIMING.master:g} s"
        what = f"{self._app_id} is {state.state.lower()} after {seconds:g} s"
        need = f"{self._options.master_memory_mib} MiB in the queue {state.queue}"
        said = f"; YARN says: {state.why}" if state.why else ""
        return f"{what}: its master, which needs {need}, has not begun{said}"

    def _explained(self, ended: HostedOutcome) -> HostedOutcome:
        """Adds the resources that were free when containers were missing, which only this process knows."""
        failure = ended.outcome.start_failure
        if failure is None or not failure.timed_out or ended.outcome.initialised is False:
            return ended
        here = {row.name for row in ended.containers if row.host}
        missing = [request for request in requests(self._hosted.spec) if request.name not in here]
        with suppress(LaunchError):
            text = f"{failure.message}; {shortage(missing, self._yarn.nodes())}" if missing else failure.message
            return replace(ended, outcome=replace(ended.outcome, start_failure=replace(failure, message=text)))
        return ended

    @contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            records.forget(self._app_id)
            if self._kill():
                with suppress(LaunchError):
                    self._yarn.wait_for_end(self._app_id, TIMING.application_end)
            raise


def with_cause(ended: HostedOutcome, state: AppState, describe: Callable[[AppState], str]) -> HostedOutcome:
    """YARN ends all containers of an application that is killed or whose master is gone: those are not the cause. One
    that a person has killed stays so."""
    outcome = ended.outcome
    failed = [record for record in outcome.exits if record.failed]
    theirs = outcome.stopped_by is not None or not all(record.consequence for record in failed)
    well = not failed and outcome.agent_failure is None
    if state.state not in ("FAILED", "KILLED") or theirs or well:
        return ended
    killed = state.state == "KILLED"
    if outcome.agent_failure is not None and not (killed and outcome.host_lost):
        return ended
    final = "the application was killed" if killed else ""
    outcome = replace(outcome, agent_failure=describe(state), agent_failed_at=0.0, host_lost=True, not_restarted=final)
    return replace(ended, outcome=outcome)


def _stopped_by(received: Sequence[int]) -> JobOutcome:
    return JobOutcome((), initialised=True, stopped_by=received[0])
