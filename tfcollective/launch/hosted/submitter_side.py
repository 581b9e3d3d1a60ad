"""The submitter's part of a job that runs on the platform; see :mod:`tfcollective.launch.hosted.messages`."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TextIO

from tfcollective.codec import decode
from tfcollective.control.client import CoordinatorClient
from tfcollective.errors import CoordinatorError, LaunchError
from tfcollective.exit_codes import ExitCode
from tfcollective.launch.hosted.messages import DONE, LEASE, LEASE_S, OUTCOME, STOP, HostedOutcome
from tfcollective.launch.hosted.patience import patiently
from tfcollective.launch.launcher import JobOutcome
from tfcollective.launch.outcome.report import exit_code
from tfcollective.launch.plan.planner import Plan
from tfcollective.launch.running.function import fetch_results
from tfcollective.launch.system.signals import forward_signals
from tfcollective.log import get_logger
from tfcollective.settings import Settings
from tfcollective.topology import Endpoint

__all__ = ["HostedClient", "ask_status"]

_LOG = get_logger(__name__)
_BEAT_S = 2.0
_RETRY_S = 0.5
_WAIT_S = 5.0
_LAST_OUTPUT_S = 3.0
_REPLY_S = 15.0
_GONE_S = 30.0
_SILENT_S = 2 * LEASE_S  # by then the job's lease has run out: what is left of it has ended by itself
_SILENT_AFTER_SIGNAL_S = 20.0
_CONNECTIONS = 6
_DONE_TRIES = 3
_IDLE_S = 5.0


def ask_status(coordinator: str, key: bytes) -> Mapping[str, object] | None:
    """What the coordinator of a job that runs elsewhere says of it; None when it cannot be reached."""
    client = CoordinatorClient(Endpoint.parse(coordinator), key, encryption=Settings.load().encryption)
    with client, suppress(CoordinatorError):
        return client.status()
    return None


class HostedClient:
    """Follows one job: shows its output, passes on signals, and tells how it ended. A context manager.

    Args:
        coordinator: HOST:PORT.
        key: the job key.
    """

    def __init__(self, coordinator: str, key: bytes) -> None:
        self._client = CoordinatorClient(
            Endpoint.parse(coordinator),
            key,
            encryption=Settings.load().encryption,
            reply_timeout=_REPLY_S,
            connections=_CONNECTIONS,
        )
        self._ended = threading.Event()
        self._heard = time.monotonic()
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="tfc-reader", daemon=True)

    def __enter__(self) -> HostedClient:
        self._reader.start()
        for work in (self._beat, self._pass_on):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._ended.set()
        self._reader.join(_LAST_OUTPUT_S)
        self._client.close()

    def stop(self, number: int) -> None:
        """Asks the job to end; for signal handlers, too."""
        self._signals.put(number)

    def follow(
        self,
        plan: Plan,
        gone: Callable[[], str | None],
        stop_signals: Sequence[int],
        *,
        results: bool,
        earlier: Sequence[int] = (),
    ) -> HostedOutcome:
        """Blocks until the job has ended, or nobody can tell any more whether it has.

        Args:
            plan: its processes.
            gone: why the platform says that the job is no more, or None; asked while the coordinator is silent, too.
            stop_signals: each asks the job to end.
            results: whether to fetch what the function has returned, if all went well.
            earlier: such signals that came before.

        Raises:
            LaunchError: it has ended well, but its results could not be fetched.
        """
        with forward_signals(stop_signals, self.stop) as received:
            received[:0] = earlier
            for number in earlier:
                self.stop(number)
            ended, why = self._ask(), None
            while ended is None and why is None:
                why = gone()
                ended = self._ask()  # it may have ended in order meanwhile
                why = why or self._silence(received)
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
        began = time.monotonic()
        try:
            found = self._client.get_blob(OUTCOME, timeout=_WAIT_S)
        except CoordinatorError as error:
            _LOG.info("launcher: %s", error)
            # Not to ask again at once where nobody listens.
            self._ended.wait(max(0.0, 1.0 - (time.monotonic() - began)))
            return None
        self._heard = time.monotonic()
        return None if found is None else decode(found, HostedOutcome, "the outcome of the job")

    def _silence(self, received: Sequence[int]) -> str | None:
        """Why not to wait any longer for a coordinator that does not answer, while the platform does not say that the
        job has ended: it may have forgotten it, or be away itself."""
        silent = time.monotonic() - self._heard
        if silent < (_SILENT_AFTER_SIGNAL_S if received else _SILENT_S):
            return None
        return (
            f"the coordinator has not answered for {silent:.0f} s, and the platform does not say what became of the job"
        )

    def _take(self, ended: HostedOutcome, plan: Plan, received: Sequence[int], *, results: bool) -> HostedOutcome:
        outcome = ended.outcome
        if results and not received and exit_code(outcome) == ExitCode.OK:
            outcome = replace(outcome, results=self._fetch(plan, lambda: bool(received)))
        if received:
            outcome = replace(outcome, stopped_by=received[0])
        self._ended.set()
        self._reader.join(_LAST_OUTPUT_S)
        self._acknowledge()
        return replace(ended, outcome=outcome)

    def _fetch(self, plan: Plan, enough: Callable[[], bool]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        try:
            for task in plan.tasks:
                if enough():
                    break
                found.update(patiently(partial(fetch_results, [task], self._client), enough))
        except CoordinatorError as error:
            if enough():
                return {}
            raise LaunchError(f"the job has ended well, but its results could not be fetched: {error}") from error
        return found

    def _acknowledge(self) -> None:
        """The coordinator may go. It goes as soon as it hears that, so it may not answer."""
        for _ in range(_DONE_TRIES):
            with suppress(CoordinatorError):
                self._client.put(DONE, True)
                return

    def _beat(self) -> None:
        """The job lives as long as this goes on."""
        while True:
            with suppress(CoordinatorError):
                self._client.put(LEASE, True)
                self._heard = time.monotonic()
            if self._ended.wait(_BEAT_S):
                return

    def _pass_on(self) -> None:
        numbers: list[int] = []
        while not self._ended.is_set():
            try:
                numbers.append(self._signals.get(timeout=_IDLE_S))
            except queue.Empty:
                continue
            while not self._ended.is_set():
                try:
                    self._client.put(STOP, numbers)
                    break
                except CoordinatorError as error:
                    _LOG.info("launcher: %s", error)
                self._ended.wait(_RETRY_S)

    def _read(self) -> None:
        position = 0
        while True:
            ended = self._ended.is_set()
            try:
                page = self._client.read_output(position, timeout=0.0 if ended else _WAIT_S)
                self._heard = time.monotonic()
            except CoordinatorError:
                if ended or self._ended.wait(1.0):
                    return
                continue
            if page.lost:
                _show(sys.stderr, f"tfcollective: {page.lost} pieces of output came too fast to be shown\n")
            for piece in page.pieces:
                _show(sys.stderr if piece.stream == "stderr" else sys.stdout, piece.text)
            position = page.position
            if ended and not page.pieces:
                return


def _show(stream: TextIO, text: str) -> None:
    """Writes output of the job as well as it can be: a terminal that lacks a letter, or a pipe that nobody reads any
    more, is no reason to follow the job no longer."""
    with suppress(OSError, ValueError):
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


def _wait_for(gone: Callable[[], str | None]) -> str:
    """Why the platform says that the job is no more; it takes it a while to know."""
    deadline = time.monotonic() + _GONE_S
    while (why := gone()) is None and time.monotonic() < deadline:
        time.sleep(0.5)  # it has no call that waits
    return why or "the platform has asked the coordinator to end"
