"""A job that is submitted: follows it until it has ended, shows what it prints, and says how it ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tfcollective.launcher import SYSTEM_CLOCK, TIMING, Clock, JobOutcome, LaunchError, StartFailure, get_logger, say
from tfcollective_launchers.slurm import control
from tfcollective_launchers.slurm.control import JobState, SlurmError, UnknownJobError

_LOG = get_logger(__name__)
_SOON_S, _SOON_FOR_S = 1.0, 60.0  # a short job is followed closely
_LATE_OUTPUT_S = 3.0  # a shared file system may show the end of a file later
_BLOCK = 1 << 16


class Tail:
    """Copies what is appended to a file, which may not exist yet, and may be truncated."""

    def __init__(self, path: str, out: IO[bytes]) -> None:
        self.path = path
        self._out = out
        self._at = 0

    def copy(self) -> bool:
        """Copies what is new; whether there was any."""
        new = False
        with suppress(OSError), Path(self.path).open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                self._at = 0
            file.seek(self._at)
            while block := file.read(_BLOCK):
                self._out.write(block)
                self._at += len(block)
                new = True
        if new:
            self._out.flush()
        return new

    @property
    def there(self) -> bool:
        """True if the file can be seen from here."""
        return Path(self.path).exists()


@dataclass
class Followed:
    """A job of SLURM's while this process follows it.

    Attributes:
        job_id: its number.
        allocation_timeout: how long (s) it may wait in the queue; None: forever.
    """

    job_id: str
    allocation_timeout: float | None = None
    clock: Clock = SYSTEM_CLOCK
    look: Callable[[str], JobState] = control.job_state
    _tails: dict[str, Tail] = field(default_factory=dict)
    _said: str = ""
    _away: bool = False
    _cancelled: bool = False
    _refused: bool = False  # once, and that has been said

    def to_its_end(self, received: Sequence[int]) -> JobOutcome:
        """Shows what it prints until it has ended. The first signal in ``received``, which grows as they come, cancels
        it, and the second one ends the wait for its end.

        Raises LaunchError when SLURM no longer knows the job. Whatever goes wrong here, the job does not stay.
        """
        try:
            state, waited = self._follow(received)
        except BaseException:
            self._cancel()
            raise
        self._show_rest()
        if received:
            return JobOutcome((), initialised=True, stopped_by=received[0])
        return outcome_of(state, self.job_id) if waited is None else self._not_begun(waited)

    def _follow(self, received: Sequence[int]) -> tuple[JobState, JobState | None]:
        """Returns its last state, and the one in which it had waited too long in the queue, or None."""
        began = self.clock.monotonic()
        cancelled_at: float | None = None
        waited: JobState | None = None
        while True:
            state = self._state()
            now = self.clock.monotonic()
            if state is not None:
                self._report(state)
                self._show()
                if state.ended:
                    return state, waited
            late = self.allocation_timeout is not None and now - began > self.allocation_timeout
            waits = state is not None and state.waits and state["Restarts"] in ("", "0")
            if cancelled_at is None and (received or (late and waits)):
                cancelled_at = now
                waited = None if received else state
            elif cancelled_at is not None and (len(received) > 1 or now - cancelled_at > TIMING.application_end):
                if self._cancelled:
                    say(f"job {self.job_id} has been cancelled, but has not ended yet: squeue --job {self.job_id}")
                return state or JobState({}), waited
            if cancelled_at is not None and not self._cancelled:
                self._cancel()
            self._pause(TIMING.slurm_looks if now - began > _SOON_FOR_S and not cancelled_at else _SOON_S, received)

    def _pause(self, seconds: float, received: Sequence[int]) -> None:
        """Waits until the next look at the job; shows its new output meanwhile."""
        count = len(received)
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0 and len(received) == count:
            self.clock.sleep(min(left, _SOON_S))
            self._show()

    def _state(self) -> JobState | None:
        """None while SLURM's controller does not answer: it may come back."""
        try:
            state = self.look(self.job_id)
        except UnknownJobError as error:
            raise LaunchError(
                f"SLURM no longer knows job {self.job_id}, so how it ended is not known: sacct -j {self.job_id} may; "
                f"its output is in {', '.join(self._tails) or 'the file that it was to be written to'}"
            ) from error
        except SlurmError as error:
            if not self._away:
                _LOG.warning("%s; job %s is not affected, and is asked for again", error, self.job_id)
            self._away = True
            return None
        self._away = False
        return state

    def _report(self, state: JobState) -> None:
        text = state.state.lower() + (f" ({state.reason})" if state.waits and state.reason else "")
        if state["NodeList"] and not state.ended:
            text += f" on {state['NodeList']}, output in {state['StdOut']}"
        if text != self._said:
            self._said = text
            say(f"job {self.job_id}: {text}")
        for name, out in (("StdOut", sys.stdout), ("StdErr", sys.stderr)):  # sbatch writes both to one file by default
            path = state[name]
            if path and path != os.devnull and state["NodeList"]:
                self._tails[path] = self._tails.get(path) or Tail(path, out.buffer)

    def _show(self) -> None:
        for tail in self._tails.values():
            tail.copy()

    def _show_rest(self) -> None:
        """Shows the last of its output."""
        end = self.clock.monotonic() + _LATE_OUTPUT_S
        quiet = 0
        while quiet < 2 and self.clock.monotonic() < end:
            new = [tail.copy() for tail in self._tails.values()]
            quiet = 0 if any(new) or not all(tail.there for tail in self._tails.values()) else quiet + 1
            self.clock.sleep(0.1)
        for tail in self._tails.values():
            if not tail.there:
                say(f"the output of job {self.job_id} is in {tail.path} on its first node, which is not visible here")

    def _cancel(self) -> None:
        """Asks SLURM to end it; again at the next look if its controller is away."""
        try:
            control.cancel(self.job_id)
            self._cancelled = True
        except SlurmError as error:
            if not self._refused:
                say(f"job {self.job_id} could not be cancelled ({error}): scancel {self.job_id}")
            self._refused = True

    def _not_begun(self, waited: JobState) -> JobOutcome:
        why = f" ({waited.reason})" if waited.reason else ""
        message = f"job {self.job_id} was still {waited.state.lower()}{why} after {self.allocation_timeout:g} s"
        return JobOutcome((), initialised=True, start_failure=StartFailure(message, timed_out=True))


def outcome_of(state: JobState, job_id: str) -> JobOutcome:
    """Returns the job's outcome. Its launcher has reported that, unless SLURM has ended the job."""
    code, number = state.exit_code
    if state.state == "COMPLETED":
        return JobOutcome((), initialised=True)
    if state.state == "FAILED":
        return JobOutcome((), initialised=True, reported=128 + number if number else code)
    why = {
        "TIMEOUT": "it has reached its time limit",
        "NODE_FAIL": "it has lost a node",
        "OUT_OF_MEMORY": "it has taken more memory than it has asked for",
        "PREEMPTED": "another job has taken its place",
        "CANCELLED": "it was cancelled",
    }.get(state.state, f"SLURM says {state.state}")
    reason = f" ({state.reason})" if state.reason else ""
    return JobOutcome((), initialised=True, agent_failure=f"job {job_id} has ended: {why}{reason}", host_lost=True)


def wait_for_end(job_id: str, seconds: float = TIMING.application_end, clock: Clock = SYSTEM_CLOCK) -> None:
    """Waits for the end of a job that has been cancelled. Raises LaunchError if it takes longer."""
    end = clock.monotonic() + seconds
    while not (state := control.job_state(job_id)).ended:
        if clock.monotonic() > end:
            raise LaunchError(f"job {job_id} is still {state.state.lower()} {seconds:g} s after it was cancelled")
        clock.sleep(_SOON_S)


def ended_by(outcome: JobOutcome) -> bool:
    """True if SLURM or a person asked the running job to end with SIGTERM, and it ended gracefully."""
    if outcome.stopped_by is not None:
        return outcome.stopped_by == signal.SIGTERM
    left = outcome.start_failure is not None and outcome.start_failure.met and not outcome.start_failure.timed_out
    return left and outcome.cause is None


def facts_of(state: JobState, job_id: str) -> Mapping[str, str]:
    """Returns the facts of a job for people, by name."""
    code, number = state.exit_code
    ended = f"{code}" if not number else f"signal {number}"
    found = {
        "job": job_id,
        "name": state["JobName"],
        "state": state.state.lower(),
        "reason": state.reason,
        "partition": state["Partition"],
        "nodes": state["NodeList"],
        "started": state["StartTime"],
        "run time": state["RunTime"],
        "time limit": state["TimeLimit"],
        "restarts": "" if state["Restarts"] == "0" else state["Restarts"],
        "exit code": ended if state.ended else "",
        "output": state["StdOut"],
    }
    return {name: text for name, text in found.items() if text}
