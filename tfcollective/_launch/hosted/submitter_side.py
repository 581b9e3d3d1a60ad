"""The submitter's part of a job that runs on the platform; see :mod:`tfcollective._launch.hosted.messages`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tfcollective._base.clock import poll
from tfcollective._base.codec import decode
from tfcollective._base.errors import CoordinatorError, LaunchError
from tfcollective._base.exit_codes import ExitCode
from tfcollective._base.log import get_logger
from tfcollective._base.processes import PASSED_ON
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING, Timing
from tfcollective._control.client.channel import Channel, OrderQueue, Retry
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.client.liveness import Heartbeat
from tfcollective._control.messages import Alive, Status
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._launch.hosted.messages import DONE, OUTCOME, STOP, SUBMITTER, HostedOutcome
from tfcollective._launch.hosted.output_relay import show_output
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.plan.planner import Plan
from tfcollective._launch.report.report import exit_code
from tfcollective._launch.running.function import fetch_results
from tfcollective._launch.system.signals import forward_signals

_LOG = get_logger(__name__)
_WAIT_S = 5.0
_CONNECTIONS = 6
_DONE_TRIES = 3


def ask_status(coordinator: str, key: bytes) -> JobSnapshot | None:
    """Asks the coordinator of a job that runs elsewhere for its status; None if it cannot be reached."""
    with CoordinatorClient.to(coordinator, key) as client, suppress(CoordinatorError):
        return client.call(Status())
    return None


class LauncherLostError(Exception):
    """The platform has lost the launcher of a job, with its coordinator, and starts another one.

    Attributes:
        received: the signals that have come while it was followed, and before.
    """

    def __init__(self, received: Sequence[int]) -> None:
        super().__init__("the platform starts the launcher of the job again")
        self.received = tuple(received)


class HostedClient:
    """Follows one job: shows its output, passes on signals, and tells how it ended. A context manager.

    Args:
        coordinator: HOST:PORT.
        key: the job key.
        timing: for how long to try what.
        client: the class of its client of the coordinator.
    """

    def __init__(
        self,
        coordinator: str,
        key: bytes,
        timing: Timing = TIMING,
        client: type[CoordinatorClient] = CoordinatorClient,
    ) -> None:
        self._timing = timing
        self._client = client.to(coordinator, key, reply_timeout=timing.long_reply, connections=_CONNECTIONS)
        self._ended = threading.Event()
        self._channel = Channel(self._client, cancelled=self._ended.is_set)
        self._lost: str | None = None
        self._answers = True
        self._heartbeat = Heartbeat(self._beat, self._note_loss, timing.job_lost, timing.heartbeat)
        self._signals = OrderQueue(self._channel, STOP)
        self._reader = threading.Thread(
            target=show_output, args=(self._channel, self._ended), name="tfc-reader", daemon=True
        )

    def __enter__(self) -> HostedClient:
        self._reader.start()
        self._heartbeat.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._ended.set()
        self._heartbeat.stop()
        self._reader.join(self._timing.last_output)
        self._client.close()

    def stop(self, number: int) -> None:
        """Asks the job to end, or to pass the signal on to its ranks; for signal handlers, too."""
        if number not in PASSED_ON:
            self._heartbeat.limit = self._timing.job_lost_after_signal
        self._signals.put(number)

    def follow(
        self,
        plan: Plan,
        gone: Callable[[], str | None],
        stop_signals: Sequence[int],
        *,
        results: bool,
        earlier: Sequence[int] = (),
        replaced: Callable[[], bool] = lambda: False,
    ) -> HostedOutcome:
        """Blocks until the job has ended, or there is no way left to find out.

        Args:
            plan: its processes.
            gone: why the platform says that the job is no more, or None; asked while the coordinator is silent, too.
            stop_signals: each asks the job to end.
            results: whether to fetch what the function has returned, if all went well.
            earlier: such signals that came before.
            replaced: whether the platform says that it starts the job's launcher again, or has; asked after ``gone``
                when the coordinator does not answer.

        Raises:
            LaunchError: it has ended well, but its results could not be fetched.
            LauncherLostError: there will be another coordinator.
        """
        with forward_signals(stop_signals, self.stop) as received:
            received[:0] = earlier
            for number in earlier:
                self.stop(number)
            ended, why = self._ask(), None
            while ended is None and why is None:
                why = gone()
                ended = self._ask()  # it may have ended gracefully meanwhile
                why = why or self._lost
                if ended is None and why is None and not self._answers and replaced():
                    raise LauncherLostError(received)
            if ended is not None and ended.outcome.stopped_by is not None and not received:
                # Not by us: the platform ends its side of the job, and everything else with it.
                self._acknowledge()
                ended, why = None, _wait_for(gone)
            if ended is not None:
                return self._take(ended, plan, received, results=results)
        stopped_by = received[0] if received else None
        outcome = JobOutcome((), initialised=True, stopped_by=stopped_by, agent_failure=why, host_lost=True)
        return HostedOutcome(outcome, ())

    def _ask(self) -> HostedOutcome | None:
        """Returns how the job has ended; None if it has not, or the coordinator cannot be asked."""
        retry = Retry(seconds=_WAIT_S, tries=1)
        try:
            found = self._channel.call(lambda client: client.get_blob(OUTCOME, timeout=_WAIT_S), retry)
        except CoordinatorError as error:  # the heartbeat finds out when it is lost
            _LOG.log(logging.WARNING if self._answers else logging.DEBUG, "the coordinator does not answer: %s", error)
            self._answers = False
            return None
        self._answers = True
        return None if found is None else decode(found, HostedOutcome, "the outcome of the job")

    def _beat(self) -> None:
        self._client.call(Alive(SUBMITTER))

    def _note_loss(self, cause: str) -> None:
        """The platform does not say that the job has ended: it may have forgotten it, or be away itself."""
        self._lost = f"{cause}; the platform does not say what became of the job"

    def _take(self, ended: HostedOutcome, plan: Plan, received: Sequence[int], *, results: bool) -> HostedOutcome:
        outcome = ended.outcome
        if results and not received and exit_code(outcome) == ExitCode.OK:
            later = [TaskKey.parse(record.task) for record in outcome.exits]  # in place of others, in an elastic job
            tasks = tuple(dict.fromkeys((*plan.tasks, *later)))
            outcome = replace(outcome, results=self._fetch(tasks, lambda: bool(received)))
        if received:
            outcome = replace(outcome, stopped_by=received[0])
        self._ended.set()
        self._reader.join(self._timing.last_output)
        self._acknowledge()
        return replace(ended, outcome=outcome)

    def _fetch(self, tasks: Sequence[TaskKey], cancelled: Callable[[], bool]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        channel = Channel(self._client, Retry(self._timing.retry_for), cancelled)
        try:
            for task in tasks:
                if cancelled():
                    break
                found.update(channel.call(partial(fetch_results, [task])))
        except CoordinatorError as error:
            if cancelled():
                return {}
            raise LaunchError(f"the job has ended well, but its results could not be fetched: {error}") from error
        return found

    def _acknowledge(self) -> None:
        """The coordinator may go. It goes as soon as it hears that, so it may not answer."""
        with suppress(CoordinatorError):
            Channel(self._client).call(lambda client: client.put(DONE, True), Retry(seconds=0.0, tries=_DONE_TRIES))


def _wait_for(gone: Callable[[], str | None]) -> str:
    """Waits for the platform's reason why the job is gone, which the platform knows only after a while."""
    return poll(gone, TIMING.platform_knows, TIMING.retry) or "the platform has asked the coordinator to end"
